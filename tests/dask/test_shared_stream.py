"""The stream of a client when threads send by it: order, batches, interruptions, errors."""

from __future__ import annotations

import asyncio
import contextlib
import dis
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from distributed.batched import BatchedSend
from distributed.comm import CommClosedError
from distributed.protocol.serialize import Serialized, serialize, to_serialize
from distributed.utils_test import gen_test

import dask
from backhaul.dask import BackhaulComm
from backhaul.dask.comm import batched_stream, threaded_stream
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from tests.dask.test_batching import TIGHT, Unpicklable, fill, read_messages

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair, Eventually


@contextlib.asynccontextmanager
async def stream_pair(
    comm_pair: CommPair, **arguments: Any
) -> AsyncIterator[tuple[SharedBatchedSend, BackhaulComm]]:
    """Open a stream as a client does, and the comm that reads it."""
    async with comm_pair(**arguments) as (a, b):
        a.name = "Client->Scheduler"
        stream = BatchedSend(interval="10 s")
        stream.start(a)
        assert isinstance(stream, SharedBatchedSend)
        try:
            yield stream, b
        finally:
            stream.abort()


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all messages come densely, and wait for longer than any test until they are taken."""
    for name in ("_DENSE_S", "_PAUSE_MIN_S", "_PAUSE_MAX_S"):
        monkeypatch.setattr(batched_stream, name, 3600.0)
    monkeypatch.setattr(threaded_stream, "_DENSE_S", 3600.0)


@gen_test()
async def test_a_thread_sends_by_itself(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):

        def send() -> int:
            assert stream.send_in_thread("mine")
            return stream.batch_count

        # The event loop has had no turn in which it could have sent.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(send).result() == 1
        assert await comm.read() == ("mine",)


@gen_test()
async def test_messages_that_the_loop_has_queued_go_first(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        with ThreadPoolExecutor(1) as pool:
            stream.send("first", "second")
            pool.submit(stream.send_in_thread, "third").result()
            stream.send("fourth")
        assert await comm.read() == ("first", "second", "third")
        assert await comm.read() == ("fourth",)


@gen_test()
async def test_dense_messages_leave_when_one_is_due_or_a_thread_waits(
    comm_pair: CommPair, dense: None
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):

        def send() -> None:
            # As nothing has left before.
            stream.flush_in_thread()
            for number in range(10):
                assert stream.send_in_thread(number)
            assert stream.batch_count == 1
            stream.flush_in_thread()
            assert stream.batch_count == 2
            # It may be the answer to what has come for who has waited.
            assert stream.send_in_thread("next")
            assert stream.batch_count == 3

        await asyncio.to_thread(send)
        assert await comm.read() == (0,)
        assert await comm.read() == tuple(range(1, 10))
        assert await comm.read() == ("next",)


@gen_test()
async def test_dense_messages_leave_though_no_thread_waits(
    comm_pair: CommPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_stream, "_DENSE_S", 3600.0)
    async with stream_pair(comm_pair) as (stream, comm):

        def send() -> None:
            stream.flush_in_thread()
            for number in range(2):
                assert stream.send_in_thread(number)

        await asyncio.to_thread(send)
        assert [*await comm.read(), *(await comm.read())] == [0, 1]


@gen_test()
async def test_each_thread_and_the_loop_keep_their_order(comm_pair: CommPair) -> None:
    count, threads = 3000, 3
    async with stream_pair(comm_pair) as (stream, comm):

        def send(thread: int) -> None:
            for number in range(count):
                assert stream.send_in_thread((thread, number))
                if number % 17 == 0:
                    stream.flush_in_thread()

        reading = asyncio.create_task(read_messages(comm, count * (threads + 1)))
        sending = [asyncio.to_thread(send, thread) for thread in range(threads)]
        gathered = asyncio.gather(*sending)
        for number in range(count):
            stream.send((threads, number))
            if number % 5 == 0:
                await asyncio.sleep(0)
        await gathered
        messages = list(itertools.chain.from_iterable(await reading))
        assert stream.message_count == len(messages) == count * (threads + 1)
    for thread in range(threads + 1):
        assert [n for t, n in messages if t == thread] == list(range(count))


@gen_test()
async def test_threads_gather_while_the_peer_does_not_read(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair, config=TIGHT) as (stream, comm):
        await fill(stream)
        before = stream.batch_count

        def send() -> None:
            for number in range(100):
                assert stream.send_in_thread(number)
                stream.flush_in_thread()

        await asyncio.to_thread(send)
        assert stream.batch_count == before
        batches = await read_messages(comm, stream.message_count)
        assert batches[-1][-100:] == list(range(100))


@gen_test()
async def test_a_thread_that_fills_the_link_has_the_loop_wait_for_the_peer(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with stream_pair(comm_pair, config=TIGHT) as (stream, comm):
        # Serialized beforehand, or it would be left to the loop.
        much = Serialized(*serialize(bytes(80 << 20)))
        assert await asyncio.to_thread(stream.send_in_thread, much)
        await eventually(lambda: stream._draining is not None)
        await asyncio.to_thread(stream.send_in_thread, "last")
        assert stream.buffer[-1] == "last"
        batches = await read_messages(comm, 2)
        assert batches[-1][-1] == "last"
        await eventually(lambda: stream._draining is None)


@gen_test()
async def test_a_thread_leaves_large_messages_to_the_loop(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        large = to_serialize(bytes(20 << 20))
        assert await asyncio.to_thread(stream.send_in_thread, large)
        assert await asyncio.to_thread(stream.send_in_thread, "behind")
        batches = await read_messages(comm, 2)
        assert [len(m) for batch in batches for m in batch] == [20 << 20, len("behind")]


@gen_test()
async def test_a_message_that_cannot_be_sent_ends_the_stream(
    comm_pair: CommPair, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        assert await asyncio.to_thread(stream.send_in_thread, Unpicklable())
        with pytest.raises(CommClosedError):
            await comm.read()
        assert stream.comm.closed()
        assert "Error in batched write" in caplog.text
        assert not await asyncio.to_thread(stream.send_in_thread, "more")


@gen_test()
async def test_a_stream_that_ends_takes_nothing_of_threads(
    comm_pair: CommPair, eventually: Eventually
) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        comm.abort()
        await eventually(stream.comm.closed)
        assert not await asyncio.to_thread(stream.send_in_thread, 1)
    async with stream_pair(comm_pair) as (stream, comm):
        closing = stream.close()
        assert not await asyncio.to_thread(stream.send_in_thread, 1)
        await closing


@gen_test()
async def test_a_forked_child_leaves_the_stream_alone(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        pid = os.fork()
        if not pid:
            sent = stream.send_in_thread("of the child")
            stream.flush_in_thread()
            os._exit(int(sent))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stream.send("of the parent")
        assert await comm.read() == ("of the parent",)


class Submitting:
    """Sends while it is pickled, as a finalizer may at any time."""

    def __init__(self, send: Callable[[Any], bool]) -> None:
        self.send = send
        self.sent: list[bool] = []

    def __reduce__(self) -> Any:
        self.sent.append(self.send("from within"))
        return str, ("outer",)


@gen_test()
async def test_a_send_in_the_middle_of_a_send_is_left_to_the_loop(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        message = Submitting(stream.send_in_thread)
        assert await asyncio.to_thread(stream.send_in_thread, message)
        assert message.sent
        assert not any(message.sent)
        assert await comm.read() == ("outer",)


#: Behind these, Python looks whether a signal has come
LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}


def interrupted(call: Callable[[], object], step: int) -> bool:
    """Make a call, with Ctrl-C at one step where Python would raise it; tell if there was one."""
    left = step
    former: dict[FrameType, str] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        if not code.co_filename.endswith(("threaded_stream.py", "/dask/comm/comm.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= former.get(frame) in LOOKS
            former[frame] = dis.opname[code.co_code[frame.f_lasti]]
            if left == 0:
                left = -1
                raise KeyboardInterrupt
        return trace

    # Python 3.12 looks when tracing begins whether any frame has asked for opcodes yet.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@gen_test()
async def test_ctrl_c_loses_nothing_and_sends_nothing_twice(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        for step in itertools.count(1):
            with ThreadPoolExecutor(1) as pool:
                send = partial(stream.send_in_thread, step)
                was = pool.submit(interrupted, send, step).result()
                if not pool.submit(stream.send_in_thread, "after").result():
                    stream.send("after")
            got: list[Any] = []
            while not got or got[-1] != "after":
                got += await comm.read()
            # Before it was queued, nothing was sent.
            assert got in ([step, "after"], ["after"]), step
            assert not stream.comm.closed()
            if not was:
                assert got == [step, "after"]
                break
        assert step > 10


@gen_test()
async def test_only_the_stream_of_a_client_is_shared(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, _):
        stream = BatchedSend(interval="10 s")
        stream.start(a)
        assert type(stream) is AdaptiveBatchedSend
    with dask.config.set({"distributed.comm.backhaul.hot-path.client-threads": False}):
        async with comm_pair() as (a, _):
            a.name = "Client->Scheduler"
            stream = BatchedSend(interval="10 s")
            stream.start(a)
            assert type(stream) is AdaptiveBatchedSend
