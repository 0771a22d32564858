"""Peer: UCXX, the Python bindings of UCX, tagged messages in its async and its blocking API.

With error handling, which is the default, UCX leaves shared memory out and moves bytes over TCP;
without it a dead peer goes unnoticed. Both are measured, each in the progress modes there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backhaul_bench.driver import BlockingDriver, TaskDriver
from backhaul_bench.peers import Peer, Variant

__all__ = ["PEER", "AsyncUcxx", "BlockingUcxx", "make_driver"]

PEER = Peer(
    "ucxx",
    [
        Variant("default, thread", "async", {"progress": "thread", "error_handling": True}),
        Variant("default, polling", "async", {"progress": "polling", "error_handling": True}),
        Variant("no error handling", "async", {"progress": "polling", "error_handling": False}),
        Variant("default", "blocking", {"error_handling": True}),
        Variant("no error handling", "blocking", {"error_handling": False}),
    ],
    packages=["ucxx", "numpy"],
)

#: Workers' addresses are a few hundred bytes, and end in no zero that matters
_ADDRESS_BYTES_MAX = 4096
_ADDRESS_TAG = 0xADD


def make_driver(options: Mapping[str, Any], *, role: str) -> AsyncUcxx | BlockingUcxx:
    """Make one end: async if a progress mode is given."""
    kind = AsyncUcxx if "progress" in options else BlockingUcxx
    return kind(options, role=role)


class AsyncUcxx(TaskDriver):
    """One endpoint of ``ucxx``'s asyncio API."""

    _endpoint: Any = None

    @property
    def lane(self) -> str:
        """The path the bytes take."""
        return "tcp" if self.options["error_handling"] else "shm"

    async def listen(self) -> str:
        """Listen on a free port, or, without error handling, give the address of this worker."""
        ucxx = self._ucxx = self._init()
        if not self.options["error_handling"]:
            return bytes(ucxx.get_worker_address()).hex()
        accepted = self._accepted = asyncio.get_running_loop().create_future()

        async def accept(endpoint: Any) -> None:
            accepted.set_result(endpoint)

        self._listener = ucxx.create_listener(accept, port=0)
        return str(self._listener.port)

    async def accept(self) -> None:
        """Wait for the client, or for the address of its worker."""
        if self.options["error_handling"]:
            self._endpoint = await self._accepted
            return
        address = memoryview(bytearray(_ADDRESS_BYTES_MAX))
        await self._ucxx.recv(_array(address), tag=_ADDRESS_TAG)
        await self._connect_worker(bytes(address).rstrip(b"\0"))

    async def connect(self, address: str) -> None:
        """Connect to a port of loopback, or to a worker."""
        ucxx = self._ucxx = self._init()
        if self.options["error_handling"]:
            self._endpoint = await ucxx.create_endpoint("127.0.0.1", int(address))
            return
        await self._connect_worker(bytes.fromhex(address))
        own = bytes(ucxx.get_worker_address()).ljust(_ADDRESS_BYTES_MAX, b"\0")
        await self._endpoint.send(
            _array(memoryview(bytearray(own))), tag=_ADDRESS_TAG, force_tag=True
        )

    async def _connect_worker(self, address: bytes) -> None:
        """Connect without a listener.

        A listener exchanges tags by stream messages, which fail over shared memory (UCX 1.21).
        """
        self._endpoint = await self._ucxx.create_endpoint_from_worker_address(
            self._ucxx.get_ucx_address_from_buffer(address), endpoint_error_handling=False
        )

    def sender(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Send with the endpoint's own tag, if it has one."""
        return partial(self._endpoint.send, _array(buffer), **self._tag())

    def receiver(self, buffer: memoryview) -> Callable[[], Awaitable[object]]:
        """Receive with the endpoint's own tag, if it has one."""
        return partial(self._endpoint.recv, _array(buffer), **self._tag())

    def _tag(self) -> dict[str, Any]:
        if self.options["error_handling"]:
            return {}
        import ucxx._lib.libucxx as api

        return {"tag": api.UCXXTag(1), "force_tag": True}

    async def close(self) -> None:
        """Abort: a graceful close waits for the other side."""
        if self._endpoint is not None:
            self._endpoint.abort()
            self._endpoint = None

    def _init(self) -> Any:
        import ucxx

        ucxx.init(progress_mode=self.options["progress"])
        return ucxx


class BlockingUcxx(BlockingDriver):
    """One endpoint of ``ucxx``'s core API; waits by polling the worker, its fastest mode."""

    _endpoint: Any = None

    @property
    def lane(self) -> str:
        """The path the bytes take."""
        return "tcp" if self.options["error_handling"] else "shm"

    def listen(self) -> str:
        """Listen on a free port."""
        api = self._init()

        def accept(request: int) -> None:
            self._endpoint = self._listener.create_endpoint_from_conn_request(
                request, endpoint_error_handling=self.options["error_handling"]
            )

        self._listener = api.UCXListener.create(worker=self._worker, port=0, cb_func=accept)
        return str(self._listener.port)

    def accept(self) -> None:
        """Wait for the client."""
        while self._endpoint is None:
            self._worker.progress()
        self.receiver(memoryview(bytearray(1)))()
        self.sender(memoryview(bytearray(1)))()

    def connect(self, address: str) -> None:
        """Connect to a port of loopback."""
        self._endpoint = self._init().UCXEndpoint.create(
            self._worker,
            "127.0.0.1",
            int(address),
            endpoint_error_handling=self.options["error_handling"],
        )
        # The connection is made while a thread makes progress, so use it before the first pause.
        self.sender(memoryview(bytearray(1)))()
        self.receiver(memoryview(bytearray(1)))()

    def sender(self, buffer: memoryview) -> Callable[[], object]:
        """Start a tagged send and poll until it is complete."""
        return partial(self._complete, self._start_send(buffer))

    def receiver(self, buffer: memoryview) -> Callable[[], object]:
        """Start a tagged receive and poll until it is complete."""
        return partial(self._complete, self._start_receive(buffer))

    def send_many(self, buffer: memoryview, *, count: int, window: int) -> None:
        """Keep up to `window` sends in flight."""
        self._windowed([self._start_send(buffer)] * window, count)

    def receive_many(self, buffers: Sequence[memoryview], *, count: int) -> None:
        """Keep a receive in flight for each buffer."""
        self._windowed([self._start_receive(buffer) for buffer in buffers], count)

    def close(self) -> None:
        """Leave it to the end of the process: the worker has no peer to wait for."""

    def _init(self) -> Any:
        # The package first: it loads the library that came with it.
        import ucxx  # noqa: F401
        import ucxx._lib.libucxx as api

        self._api: Any = api
        self._worker: Any = api.UCXWorker(api.UCXContext(feature_flags=(api.Feature.TAG,)))
        return api

    def _start_send(self, buffer: memoryview) -> Callable[[], Any]:
        tag = self._api.UCXXTag(0 if self.role == "server" else 1)
        return partial(self._endpoint.tag_send, _array(buffer), tag=tag)

    def _start_receive(self, buffer: memoryview) -> Callable[[], Any]:
        tag = self._api.UCXXTag(1 if self.role == "server" else 0)
        return partial(self._endpoint.tag_recv, _array(buffer), tag=tag)

    def _complete(self, start: Callable[[], Any]) -> None:
        request, progress = start(), self._worker.progress
        while not request.completed:
            progress()
        request.check_error()

    def _windowed(self, starts: Sequence[Callable[[], Any]], count: int) -> None:
        progress = self._worker.progress
        pending: deque[Any] = deque()
        for index in range(count + len(starts)):
            if index >= len(starts) and pending:
                oldest = pending.popleft()
                while not oldest.completed:
                    progress()
                oldest.check_error()
            if index < count:
                pending.append(starts[index % len(starts)]())


def _array(buffer: memoryview) -> Any:
    """Give the buffer in the form that UCXX converts others to at each call."""
    import numpy as np
    from ucxx._lib.arr import Array

    return Array(np.frombuffer(buffer, dtype=np.uint8))
