"""Backhaul itself, through its public Python API: tagged messages, awaited or blocking."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backhaul_bench.driver import AsyncDriver, BlockingDriver
from backhaul_bench.pair import Contender, ProcessPair
from backhaul_bench.peers import Interpreter, Peer, Variant

__all__ = ["AsyncBackhaul", "BlockingBackhaul", "make_driver", "on_device", "peer", "to_host"]


def peer(
    apis: Sequence[str], lanes: Sequence[str], *, devices: Sequence[int] | None = None
) -> Peer:
    """Describe the variants that were asked for; the other peers are constants.

    Parameters
    ----------
    apis : sequence of str
        Of ``async`` and ``blocking``.
    lanes : sequence of str
        Of ``auto``, ``shm``, ``tcp`` and ``inproc``.
    devices : sequence of int, optional
        GPUs of the server and the client, whose memory is sent; else memory of the host is.

    Returns
    -------
    Peer
        One variant for each pair of the first two.
    """
    variants = [
        Variant(lane, api, {"lane": lane, "api": api, "devices": devices})
        for lane in lanes
        for api in apis
    ]
    return Peer("backhaul", variants, start_variant=_start)


def _start(variant: Variant, interpreter: Interpreter) -> Contender:
    inproc = variant.options["lane"] == "inproc"
    return ProcessPair(
        __name__,
        variant.options,
        python=interpreter.python,
        roles=["both"] if inproc else ["server", "client"],
    )


def make_driver(options: Mapping[str, Any], *, role: str) -> AsyncBackhaul | BlockingBackhaul:
    """Make one end with the API that the options name."""
    kind = AsyncBackhaul if options["api"] == "async" else BlockingBackhaul
    return kind(options, role=role)


class _End:
    """Common part of both APIs: a context, a listener on the server, one endpoint."""

    options: Mapping[str, Any]
    role: str
    _endpoint: Any = None

    @property
    def on_host(self) -> bool:
        """Tell whether memory of the host is sent."""
        return self.options.get("devices") is None

    def place(self, buffer: memoryview) -> Any:
        """Copy to the GPU of this end, if it has one."""
        devices = self.options.get("devices")
        return buffer if devices is None else on_device(buffer, devices[self.role == "client"])

    def read(self, placed: Any) -> Any:
        """Copy from there."""
        return placed if self.on_host else to_host(placed)

    def _context(self) -> Any:
        import backhaul

        lane = self.options["lane"]
        self._owner = backhaul.Context(
            lanes=None if lane == "auto" else [lane],
            carriers=None if self.on_host else ["lease", "single-copy", "cuda"],
        )
        return self._owner

    def _listen(self) -> str:
        import backhaul

        self._listener = backhaul.listen("127.0.0.1:0", context=self._context())
        return str(self._listener.address)

    def _connect(self, address: str) -> Any:
        import backhaul

        return backhaul.connect(address, context=self._context())

    @property
    def lane(self) -> str:
        """The lane that the handshake chose."""
        return str(self._endpoint.lane)


def on_device(buffer: memoryview, device: int) -> Any:
    """Copy a buffer to a GPU."""
    import backhaul

    memory = backhaul.DeviceBuffer(buffer.nbytes, device=device)
    memory.copy_from_host(buffer)
    return memory


def to_host(memory: Any) -> memoryview:
    """Copy memory of a GPU to the host."""
    copy = memoryview(bytearray(memory.nbytes))
    memory.copy_to_host(copy)
    return copy


class BlockingBackhaul(_End, BlockingDriver):
    """One endpoint; each operation is a request that is waited for."""

    def listen(self) -> str:
        """Listen on a free port of loopback."""
        return self._listen()

    def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._endpoint = self._listener.accept().wait()
        self._listener.close()

    def connect(self, address: str) -> None:
        """Connect to the address."""
        self._endpoint = self._connect(address).wait()

    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """Send and wait."""
        start = partial(self._endpoint.send, buffer, tag=1)
        return lambda: start().wait()

    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """Receive and wait."""
        start = partial(self._endpoint.recv, buffer, tag=1)
        return lambda: start().wait()

    def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Keep up to `window` sends in flight."""
        start = partial(self._endpoint.send, buffer, tag=1)
        pending: deque[Any] = deque()
        for _ in range(count):
            if len(pending) == window:
                pending.popleft().wait()
            pending.append(start())
        for request in pending:
            request.wait()

    def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Keep a receive in flight for each buffer."""
        starts = [partial(self._endpoint.recv, each, tag=1) for each in buffers]
        pending: deque[Any] = deque()
        for index in range(count):
            if len(pending) == len(starts):
                pending.popleft().wait()
            pending.append(starts[index % len(starts)]())
        for request in pending:
            request.wait()

    def close(self) -> None:
        """Abort the endpoint: nothing is in flight, and the other end leaves too."""
        if self._endpoint is not None:
            self._endpoint.abort()
            self._endpoint = None
            self._owner.close()


class AsyncBackhaul(_End, AsyncDriver):
    """One endpoint; each operation is a request that is awaited."""

    async def listen(self) -> str:
        """Listen on a free port of loopback."""
        return self._listen()

    async def accept(self) -> None:
        """Wait for the client; no other peer is let in."""
        self._endpoint = await self._listener.accept()
        self._listener.close()

    async def connect(self, address: str) -> None:
        """Connect to the address."""
        self._endpoint = await self._connect(address)

    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Start a send."""
        return partial(self._endpoint.send, buffer, tag=1)

    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Start a receive."""
        return partial(self._endpoint.recv, buffer, tag=1)

    async def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Keep up to `window` sends in flight."""
        start = self.sender(buffer)
        pending: deque[Any] = deque()
        for _ in range(count):
            if len(pending) == window:
                await pending.popleft()
            pending.append(start())
        for request in pending:
            await request

    async def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Keep a receive in flight for each buffer."""
        starts = [self.receiver(buffer) for buffer in buffers]
        pending: deque[Any] = deque()
        for index in range(count):
            if len(pending) == len(starts):
                await pending.popleft()
            pending.append(starts[index % len(starts)]())
        for request in pending:
            await request

    async def close(self) -> None:
        """Abort the endpoint: nothing is in flight, and the other end leaves too."""
        if self._endpoint is not None:
            self._endpoint.abort()
            self._endpoint = None
            self._owner.close()
