"""Best figures of a GPU, or two: copies within one process, without any message.

Two threads of one process take turns. A send copies to memory that both have, and waits until the
copy is done; a receive waits for the send, and takes the memory as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backhaul_bench.driver import BlockingDriver
from backhaul_bench.pair import Contender, ProcessPair
from backhaul_bench.peers import Interpreter, Peer, Variant
from backhaul_bench.peers.ours import on_device, to_host

__all__ = ["DeviceCopy", "make_driver", "peer"]


def peer(devices: Sequence[int]) -> Peer:
    """Describe it.

    Parameters
    ----------
    devices : sequence of int
        GPUs of the server and the client.

    Returns
    -------
    Peer
        One variant.
    """
    variant = Variant("in-process copy", "blocking", {"devices": devices})
    return Peer("device copy", [variant], start_variant=_start)


def _start(variant: Variant, interpreter: Interpreter) -> Contender:
    return ProcessPair(__name__, variant.options, python=interpreter.python, roles=["both"])


class _Shared:
    """State that the two threads have in common."""

    def __init__(self) -> None:
        self.sent = {role: threading.Semaphore(0) for role in ("server", "client")}
        self.lock = threading.Lock()
        #: Where each role receives, by size
        self.targets: dict[tuple[str, int], Any] = {}


_shared = _Shared()


def make_driver(options: Mapping[str, Any], *, role: str) -> DeviceCopy:
    """Make one end."""
    return DeviceCopy(options, role=role)


class DeviceCopy(BlockingDriver):
    """One end: a copy, and a semaphore that says that it is done."""

    #: Receives leave what came where the sender has put it
    fills_buffers = False

    @property
    def on_host(self) -> bool:
        """It is a GPU's."""
        return False

    @property
    def lane(self) -> str:
        """No lane: it is one process."""
        return "in-process copy"

    @property
    def _other(self) -> str:
        return "server" if self.role == "client" else "client"

    def _device(self, role: str) -> int:
        return int(self.options["devices"][role == "client"])

    def place(self, buffer: memoryview) -> Any:
        """Copy to the GPU of this end."""
        return on_device(buffer, self._device(self.role))

    def read(self, placed: Any) -> Any:
        """Give what the other end has sent of that size."""
        return to_host(self._target(self.role, placed.nbytes))

    def _target(self, role: str, nbytes: int) -> Any:
        with _shared.lock:
            target = _shared.targets.get((role, nbytes))
            if target is None:
                target = on_device(memoryview(bytearray(nbytes)), self._device(role))
                _shared.targets[role, nbytes] = target
            return target

    def listen(self) -> str:
        """Nothing to listen for."""
        return ""

    def accept(self) -> None:
        """Do nothing, because no peer comes."""

    def connect(self, address: str) -> None:
        """Do nothing, because no peer is there."""

    def sender(self, buffer: Any) -> Callable[[], object]:
        """Copy to where the other end receives."""
        from backhaul._native import copy_memory

        sent = _shared.sent[self._other]
        if isinstance(buffer, memoryview):
            # An acknowledgement
            return sent.release
        target = self._target(self._other, buffer.nbytes)

        def send() -> None:
            copy_memory(buffer, target)
            sent.release()

        return send

    def receiver(self, buffer: Any) -> Callable[[], object]:
        """Wait for the copy."""
        return _shared.sent[self.role].acquire

    def close(self) -> None:
        """Release the memory."""
        with _shared.lock:
            _shared.targets.clear()
