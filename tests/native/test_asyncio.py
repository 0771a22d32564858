"""Requests on event loops: asyncio's and uvloop's, one or several, in one thread or many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import backhaul
from backhaul import Cancelled, Context, Endpoint, EndpointClosed, PeerGone, Request
from backhaul._loops import bridge_of
from backhaul._native import Lookout

if TYPE_CHECKING:
    from tests.native.conftest import Connected

#: Runs a coroutine on an event loop of its own.
Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "asyncio, debug mode", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Each kind of event loop."""
    make_loop = None
    if request.param == "uvloop":
        make_loop = pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop

    def run_on_loop(main: Coroutine[Any, Any, None]) -> None:
        debug = request.param == "asyncio, debug mode"
        with asyncio.Runner(debug=debug, loop_factory=make_loop) as runner:
            runner.run(main)

    return run_on_loop


def test_many_requests_are_gathered(lane: str, run: Run, connected: Connected) -> None:
    async def main() -> None:
        tagged = [bytearray(2) for _ in range(500)]
        receives = [b.recv(buffer, tag=i) for i, buffer in enumerate(tagged)]
        frames = asyncio.gather(*(b.recv_frames() for _ in range(500)))
        await asyncio.gather(
            *(a.send_frames([bytes([i % 251])]) for i in range(500)),
            *(a.send(i.to_bytes(2, "big"), tag=i) for i in reversed(range(500))),
        )
        assert [bytes(each[0]) for each in await frames] == [bytes([i % 251]) for i in range(500)]
        await asyncio.gather(*receives)
        assert [int.from_bytes(buffer, "big") for buffer in tagged] == list(range(500))

    with connected(lane) as (a, b):
        run(main())


def test_a_wait_that_times_out_cancels(lane: str, run: Run, connected: Connected) -> None:
    async def main() -> None:
        for _ in range(5):
            buffer = bytearray(10)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(b.recv(buffer), 0.001)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await b.recv_frames()
        sends = [a.send(b"first"), a.send_frames([b"second"])]
        assert (await b.recv(bytearray(10))).nbytes == 5
        assert await b.recv_frames() == [b"second"]
        await asyncio.gather(*sends)

    with connected(lane) as (a, b):
        run(main())


def test_cancelling_a_task_cancels_its_operation(lane: str, run: Run, connected: Connected) -> None:
    async def main() -> None:
        async def receive(request: Request[Any]) -> None:
            await request

        for turns in range(4):
            request = b.recv_frames()
            task = asyncio.ensure_future(receive(request))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if turns == 0:
                # The task never got to the request, so it has not been cancelled.
                assert not request.done()
                request.cancel()
            with pytest.raises(Cancelled):
                await request
        await a.send_frames([b"kept"])
        assert await b.recv_frames() == [b"kept"]

    with connected(lane) as (a, b):
        run(main())


def test_connecting_and_accepting_are_cancelled(lane: str, run: Run) -> None:
    async def main() -> None:
        for turns in range(4):
            for request in (context.connect(listener.address), listener.accept()):
                task = asyncio.ensure_future(request)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        # First the connections that came through; then a pair of this test's own.
        while True:
            connecting = context.connect(listener.address)
            b = await listener.accept()
            a = await connecting
            a.send_frames([b"hello"])
            try:
                assert await b.recv_frames() == [b"hello"]
            except (PeerGone, EndpointClosed):
                continue
            break

    with Context(lanes=[lane]) as context, context.listen("127.0.0.1:0") as listener:
        run(main())


def test_no_message_is_lost_to_a_cancel_if_the_request_is_kept(
    lane: str, run: Run, connected: Connected
) -> None:
    async def main() -> None:
        chance = random.Random(3)
        got: list[int] = []
        pending: set[asyncio.Future[Any]] = set()
        sent = 0
        while len(got) < 300:
            if sent < 300:
                pending.add(asyncio.ensure_future(a.send_frames([sent.to_bytes(2, "big")])))
                sent += 1
            request = b.recv_frames()
            task = asyncio.ensure_future(request)
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            task.cancel()
            try:
                frames = await task
            except asyncio.CancelledError:
                if not request.done():
                    request.cancel()
                try:
                    frames = request.wait(60)
                except Cancelled:
                    continue
            got.append(int.from_bytes(frames[0], "big"))
        assert got == list(range(300))
        await asyncio.wait(pending)

    with connected(lane) as (a, b):
        run(main())


def test_one_request_is_awaited_by_several_tasks(lane: str, run: Run, connected: Connected) -> None:
    async def main() -> None:
        async def result_of(request: Request[Any]) -> Any:
            return await request

        request = b.recv_frames()
        tasks = [asyncio.ensure_future(result_of(request)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await a.send_frames([b"for all"])
        results = await asyncio.gather(*tasks)
        assert all(result is results[0] for result in results)
        assert results[0] == [b"for all"]
        # Awaited again, it has the same result, without a turn of the loop.
        assert await request is results[0]
        with pytest.raises(StopIteration) as stop:
            request.__await__().__next__()
        assert stop.value.value is results[0]

    with connected(lane) as (a, b):
        run(main())


def test_a_cancel_reaches_all_who_await_the_request(run: Run, connected: Connected) -> None:
    async def main() -> None:
        async def result_of(request: Request[Any]) -> Any:
            return await request

        request = b.recv_frames()
        tasks = [asyncio.ensure_future(result_of(request)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [Cancelled, asyncio.CancelledError, Cancelled]

    with connected("shm") as (_, b):
        run(main())


def test_a_shielded_request_outlives_its_task(run: Run, connected: Connected) -> None:
    async def main() -> None:
        request = b.recv_frames()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(request), 0.001)
        assert not request.done()
        await a.send_frames([b"late"])
        assert await request == [b"late"]

    with connected("shm") as (a, b):
        run(main())


def test_a_receive_that_nobody_holds_any_more_leaves_its_message(
    lane: str, run: Run, connected: Connected
) -> None:
    async def main() -> None:
        buffer = bytearray(3)
        request = b.recv(buffer)
        waiting = request.__await__()
        next(waiting)
        del request, waiting
        gc.collect()
        a.send(b"abc")
        await a.send_frames([b"end"])
        await b.recv_frames()
        assert buffer == bytes(3)
        await b.recv(buffer)
        assert buffer == b"abc"

    with connected(lane) as (a, b):
        run(main())


def test_loops_come_and_go(lane: str, run: Run, connected: Connected) -> None:
    async def main(i: int) -> None:
        receive = asyncio.ensure_future(b.recv_frames())
        await asyncio.sleep(0)
        await a.send_frames([bytes([i]), bytes(100_000)])
        assert (await receive)[0] == bytes([i])

    with connected(lane) as (a, b):
        for i in range(10):
            run(main(i))


def test_a_request_crosses_from_one_loop_to_the_next(run: Run, connected: Connected) -> None:
    requests: list[Request[Any]] = []

    async def begin() -> None:
        requests.append(b.recv_frames())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(requests[0]), 0.001)

    async def end() -> None:
        a.send_frames([b"late"])
        # The first loop took its waiting task, and with it the operation, to its end.
        with pytest.raises(Cancelled):
            await requests[0]
        assert await b.recv_frames() == [b"late"]

    with connected("shm") as (a, b):
        run(begin())
        run(end())


def test_loops_in_several_threads_share_an_endpoint(
    lane: str, run: Run, connected: Connected
) -> None:
    async def main(i: int) -> None:
        buffer = bytearray(8)
        for count in range(100):
            receive = b.recv(buffer, tag=i)
            await a.send(count.to_bytes(8, "big"), tag=i)
            await receive
            assert int.from_bytes(buffer, "big") == count

    with connected(lane) as (a, b), ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(run, main(i)) for i in range(4)]:
            done.result(60)


def test_one_request_is_awaited_from_two_loops(lane: str, run: Run, connected: Connected) -> None:
    results: list[Any] = []

    async def main() -> None:
        awaiting = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.to_thread(ready.wait)
        results.append(await awaiting)

    with connected(lane) as (a, b), ThreadPoolExecutor(3) as threads:
        for _ in range(20):
            ready = threading.Barrier(3)
            request = b.recv_frames()
            runs = [threads.submit(run, main()) for _ in range(2)]
            ready.wait(60)
            a.send_frames([b"for both"])
            assert request.wait(60) == [b"for both"]
            for done in runs:
                done.result(60)
    assert results == [[b"for both"]] * 40


def test_threads_wait_beside_a_loop(lane: str, run: Run, connected: Connected) -> None:
    def wait_for_all(tag: int) -> int:
        buffer = bytearray(8)
        for count in range(200):
            b.recv(buffer, tag=tag).wait(60)
            assert int.from_bytes(buffer, "big") == count
        return tag

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waiting = [loop.run_in_executor(threads, wait_for_all, tag) for tag in (1, 2)]
        for count in range(200):
            receive = b.recv_frames()
            await asyncio.gather(
                a.send(count.to_bytes(8, "big"), tag=1),
                a.send(count.to_bytes(8, "big"), tag=2),
                a.send_frames([count.to_bytes(8, "big")]),
                receive,
            )
        assert await asyncio.gather(*waiting) == [1, 2]

    with connected(lane) as (a, b), ThreadPoolExecutor(2) as threads:
        run(main())


def test_many_threads_wait_for_one_request(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b), ThreadPoolExecutor(8) as threads:
        for _ in range(100):
            request = b.recv(bytearray(1))
            waits = [threads.submit(request.wait, 60) for _ in range(8)]
            a.send(b"x").wait(60)
            results = [wait.result(60) for wait in waits]
            assert all(result is results[0] for result in results)


def test_a_loop_closed_with_a_request_pending_is_freed(lane: str, connected: Connected) -> None:
    async def receive() -> None:
        await b.recv_frames()

    with connected(lane) as (a, b):
        loop = asyncio.new_event_loop()
        task = loop.create_task(receive())
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        known: list[weakref.ref[Any]] = [weakref.ref(loop), weakref.ref(task)]
        say_nothing_of(task)
        del loop, task
        gc.collect()
        assert [ref() for ref in known] == [None, None]
        # The operation was cancelled with its task.
        a.send_frames([b"next"])
        assert b.recv_frames().wait(60) == [b"next"]


def test_a_loop_dropped_without_closing_is_freed(connected: Connected) -> None:
    async def receive() -> None:
        await b.recv_frames()

    with connected("shm") as (_, b):
        loop = asyncio.new_event_loop()
        task = loop.create_task(receive())
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        known: list[weakref.ref[Any]] = [weakref.ref(loop), weakref.ref(task)]
        say_nothing_of(task)
        del loop, task
        with pytest.warns(ResourceWarning, match="unclosed event loop"):
            gc.collect()
        assert [ref() for ref in known] == [None, None]


def test_a_loop_that_is_closed_has_no_descriptors(run: Run, connected: Connected) -> None:
    kept: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bridge = bridge_of(loop)
        with connected("shm") as (a, b):
            await a.send_frames([b"x"])
            assert [bytes(frame) for frame in await b.recv_frames()] == [b"x"]
            lookout = Lookout(bridge)
            request = b.recv_frames()
            lookout.watch(request)
            # An alarm has a timer.
            assert lookout.expect(request, lambda: None)
            lookout.call(30.0)
            lookout.close()
        # Dask keeps a worker that is closed, which leads to these.
        kept.extend((loop, bridge, lookout))

    for _ in range(2):
        run(main())
    before = descriptors()
    for _ in range(10):
        run(main())
    # The engine closes connections a moment later.
    until = time.monotonic() + 60
    while len(left := descriptors()) > len(before) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(left) <= len(before), (left, before)
    with pytest.raises(ValueError, match="the event loop is closed"):
        kept[1].fileno()
    # Later calls have no effect.
    kept[2].call()
    kept[2].call(0.01)


def descriptors() -> list[str]:
    """List the kinds of open descriptors."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}").split("[")[0])
    return sorted(found)


def test_completions_after_the_loop_has_closed_harm_nobody(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        loop = asyncio.new_event_loop()
        request = b.recv_frames()
        task = loop.create_task(_result_of(request))
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        a.send_frames([b"too late"])
        assert request.wait(60) == [b"too late"]
        say_nothing_of(task)


def say_nothing_of(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from saying that a task was destroyed pending, which is what the test does."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]


async def _result_of(request: Awaitable[Any]) -> Any:
    return await request


@pytest.mark.asyncio
async def test_an_end_is_called_back_on_the_loop(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        ended = [asyncio.Event() for _ in range(3)]
        loops = []

        def note() -> None:
            loops.append(asyncio.get_running_loop())
            ended[0].set()

        a.on_close(note)
        a.on_close(ended[1].set)
        b.abort()
        await ended[0].wait()
        await ended[1].wait()
        assert loops == [asyncio.get_running_loop()]
        a.on_close(ended[2].set)
        assert not ended[2].is_set()
        await ended[2].wait()


@pytest.mark.asyncio
async def test_a_failing_callback_is_reported_and_holds_up_no_other(
    connected: Connected,
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    ended = asyncio.Event()

    def fail() -> None:
        raise ZeroDivisionError

    with connected("shm") as (a, b):
        a.on_close(fail)
        a.on_close(ended.set)
        b.abort()
        await ended.wait()
        await asyncio.sleep(0)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


def test_requests_need_a_loop_only_to_sleep(connected: Connected) -> None:
    with connected("shm") as (a, b):
        request = b.recv_frames()
        with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
            request.__await__().__next__()
        with pytest.raises(RuntimeError, match="no event loop of asyncio runs"):
            a.on_close(print)
        a.send_frames([b"x"]).wait(60)
        assert request.wait(60) == [b"x"]
        with pytest.raises(StopIteration):
            request.__await__().__next__()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_work(lane: str, connected: Connected) -> None:
    async def main() -> None:
        factory = asyncio.eager_task_factory  # type: ignore[attr-defined,unused-ignore]
        asyncio.get_running_loop().set_task_factory(factory)
        receives = [asyncio.ensure_future(_result_of(b.recv_frames())) for _ in range(10)]
        sends = [asyncio.ensure_future(_result_of(a.send_frames([bytes([i])]))) for i in range(10)]
        await asyncio.gather(*sends)
        assert await asyncio.gather(*receives) == [[bytes([i])] for i in range(10)]

    with connected(lane) as (a, b):
        asyncio.run(main())


@pytest.mark.asyncio
async def test_the_module_works_with_the_context_of_the_process() -> None:
    with backhaul.listen() as listener:
        a = await backhaul.connect(f"backhaul://{listener.address}")
        b = await listener.accept()
        async with a, b:
            assert isinstance(a, Endpoint)
            await a.send_frames([b"hello"])
            assert await b.recv_frames() == [b"hello"]
    assert backhaul.default_context() is backhaul.default_context()
