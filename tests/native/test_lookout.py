"""A thread on the lookout: what it is woken for, and when the event loop is called instead."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from backhaul import EndpointClosed
from backhaul._loops import bridge_of
from backhaul._native import Lookout

if TYPE_CHECKING:
    from tests.native.conftest import Connected

#: When to give up on what should have happened
DEADLINE_S = 60.0


async def called(lookout: Lookout, request: Any) -> asyncio.Event:
    """Make the event loop set an event when it is called for a request."""
    event = asyncio.Event()
    assert lookout.expect(request, event.set)
    return event


async def at_its_post(lookout: Lookout, executor: ThreadPoolExecutor, request: Any) -> Any:
    """Let a thread wait there."""
    waiting = asyncio.wrap_future(executor.submit(lookout.wait, request, DEADLINE_S))
    while True:
        # Only one may be there; before it is, this one leaves at once.
        try:
            lookout.wait(request, 0.0)
        except RuntimeError:
            return waiting
        if waiting.done():
            # Without a GIL, it may have come while this one was there.
            assert isinstance(waiting.exception(), RuntimeError)
            waiting = asyncio.wrap_future(executor.submit(lookout.wait, request, DEADLINE_S))
        await asyncio.sleep(0.001)


def test_a_message_wakes_the_thread_and_not_the_event_loop(lane: str, connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected(lane) as (a, b), ThreadPoolExecutor(1) as executor:
            for number in range(20):
                request = b.recv_frames()
                assert lookout.watch(request)
                event = await called(lookout, request)
                waiting = await at_its_post(lookout, executor, request)
                a.send_frames([bytes([number])]).wait(DEADLINE_S)
                assert await waiting
                assert bytes(request.result()[0]) == bytes([number])
                assert not event.is_set()
                lookout.call()
                await asyncio.wait_for(event.wait(), DEADLINE_S)

    asyncio.run(main())


def test_a_long_message_wakes_the_thread(lane: str, connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected(lane) as (a, b), ThreadPoolExecutor(2) as executor:
            message = bytes(range(256)) * (1 << 16)
            for _ in range(3):
                request = b.recv_frames()
                lookout.watch(request)
                event = await called(lookout, request)
                waiting = await at_its_post(lookout, executor, request)
                sent = executor.submit(a.send_frames([message]).wait, DEADLINE_S)
                assert await waiting
                assert bytes(request.result()[0]) == message
                await asyncio.wrap_future(sent)
                assert not event.is_set()
                lookout.disregard()

    asyncio.run(main())


def test_without_a_thread_the_event_loop_is_called_once(lane: str, connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected(lane) as (a, b):
            for number in range(20):
                calls: list[int] = []
                note = functools.partial(calls.append, 1)
                request = b.recv_frames()
                lookout.watch(request)
                assert lookout.expect(request, note)
                a.send_frames([bytes([number])]).wait(DEADLINE_S)
                deadline = time.monotonic() + DEADLINE_S
                while not calls and time.monotonic() < deadline:
                    await asyncio.sleep(0.001)
                assert bytes(request.result()[0]) == bytes([number])
                lookout.call()
                await asyncio.sleep(0.002)
                assert calls == [1]
                # It is there: the loop is not called.
                assert not lookout.expect(request, note)
                assert not lookout.watch(request)

    asyncio.run(main())


def test_what_comes_after_a_thread_was_awake_finds_the_loop_or_a_thread_that_sleeps(
    lane: str, connected: Connected
) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected(lane) as (a, b), ThreadPoolExecutor(1) as executor:
            for number in range(60):
                request = b.recv_frames()
                lookout.watch(request)
                event = await called(lookout, request)
                waiting = None
                if number % 3 < 2:
                    wait = functools.partial(lookout.wait, awake=number % 3 == 0)
                    waiting = asyncio.wrap_future(executor.submit(wait, request, DEADLINE_S))
                a.send_frames([bytes([number])]).wait(DEADLINE_S)
                if waiting is None:
                    await asyncio.wait_for(event.wait(), DEADLINE_S)
                else:
                    assert await waiting
                assert bytes(request.result()[0]) == bytes([number])
                lookout.disregard()

    asyncio.run(main())


def test_whoever_is_awake_is_roused_and_times_out_as_well(connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected("shm") as (_a, b), ThreadPoolExecutor(1) as executor:
            request = b.recv_frames()
            lookout.watch(request)
            for _ in range(20):
                assert not lookout.wait(request, 0.001, awake=True)
                wait = functools.partial(lookout.wait, request, DEADLINE_S, awake=True)
                waiting = asyncio.wrap_future(executor.submit(wait))
                assert lookout.rouse(or_next=True)
                assert await waiting

    asyncio.run(main())


def test_a_call_within_a_time_wakes_nobody_before(connected: Connected) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        lookout = Lookout(bridge_of(loop))
        with connected("shm") as (_a, b):
            for within_s in (0.05, 0.01, 0.05):
                event = await called(lookout, b.recv_frames())
                start_s = loop.time()
                thread = threading.Thread(target=lookout.call, args=(within_s,))
                thread.start()
                await asyncio.wait_for(event.wait(), DEADLINE_S)
                assert loop.time() - start_s >= within_s
                thread.join()

    asyncio.run(main())


def test_whoever_is_roused_returns_and_whoever_is_not_times_out(connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected("shm") as (_a, b), ThreadPoolExecutor(1) as executor:
            request = b.recv_frames()
            lookout.watch(request)
            # Before it comes
            assert not lookout.rouse()
            assert not lookout.wait(request, 0.01)
            for _ in range(100):
                waiting = await at_its_post(lookout, executor, request)
                assert lookout.rouse()
                assert await waiting
            # The call that roused the last one does not rouse the next.
            assert not lookout.wait(request, 0.01)
            # Unless it is meant, too: then it is roused once.
            assert lookout.rouse(or_next=True)
            assert lookout.wait(request, DEADLINE_S)
            assert not lookout.wait(request, 0.01)

    asyncio.run(main())


def test_a_lookout_that_is_closed_holds_nobody_and_no_descriptor(connected: Connected) -> None:
    async def main() -> None:
        lookouts = [Lookout(bridge_of(asyncio.get_running_loop())) for _ in range(20)]
        with connected("shm") as (_a, b), ThreadPoolExecutor(1) as executor:
            request = b.recv_frames()
            lookouts[0].watch(request)
            open_before = len(os.listdir("/proc/self/fd"))
            waiting = await at_its_post(lookouts[0], executor, request)
            for lookout in lookouts:
                lookout.close()
                lookout.close()
            assert await waiting
            assert len(os.listdir("/proc/self/fd")) <= open_before - len(lookouts)
            # A thread that comes later does not stay.
            lookouts[0].wait(request, DEADLINE_S)
            lookouts[0].rouse()

    asyncio.run(main())


def test_the_end_of_a_connection_wakes_the_thread(lane: str, connected: Connected) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        for end in ("ours", "theirs"):
            with connected(lane) as (a, b), ThreadPoolExecutor(1) as executor:
                request = b.recv_frames()
                lookout.watch(request)
                waiting = await at_its_post(lookout, executor, request)
                (b if end == "ours" else a).abort()
                assert await waiting
                with pytest.raises((EndpointClosed, ConnectionError)):
                    request.result()

    asyncio.run(main())


def test_what_no_thread_can_miss(lane: str, connected: Connected) -> None:
    """Messages at random moments, to a thread that comes and goes: none is left unread."""
    count = 3000

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lookout = Lookout(bridge_of(loop))
        seen: list[int] = []
        lock = threading.Lock()
        with connected(lane) as (a, b), ThreadPoolExecutor(2) as executor:
            state: dict[str, Any] = {"request": b.recv_frames(), "event": None}
            lookout.watch(state["request"])

            def take() -> None:
                while state["request"].done():
                    seen.append(int.from_bytes(bytes(state["request"].result()[0]), "big"))
                    state["request"] = b.recv_frames()
                    lookout.watch(state["request"])

            def look_out() -> None:
                turn = 0
                while len(seen) < count:
                    turn += 1
                    lookout.wait(state["request"], (turn % 3) * 0.0003)
                    with lock:
                        take()
                    time.sleep((turn % 5) * 0.0001)

            def send() -> None:
                for number in range(count):
                    a.send_frames([number.to_bytes(4, "big")]).wait(DEADLINE_S)
                    if number % 7 == 0:
                        time.sleep(0.0002)

            looks = executor.submit(look_out)
            sends = executor.submit(send)
            deadline = loop.time() + DEADLINE_S
            while len(seen) < count and loop.time() < deadline:
                with lock:
                    take()
                    event = asyncio.Event()
                    is_due = not lookout.expect(state["request"], event.set)
                if not is_due and not looks.done():
                    # The thread takes what it was roused for; the event loop all else.
                    await asyncio.wait([asyncio.ensure_future(event.wait())], timeout=0.01)
            await asyncio.wrap_future(sends)
            await asyncio.wrap_future(looks)
        assert seen == list(range(count))

    asyncio.run(main())


def test_ctrl_c_ends_the_wait_and_the_event_loop_is_called(connected: Connected) -> None:
    heard = threading.Event()
    ready: dict[str, Any] = {}
    with connected("shm") as (_a, b):
        stop = threading.Event()

        def run_loop() -> None:
            async def main() -> None:
                lookout = Lookout(bridge_of(asyncio.get_running_loop()))
                request = b.recv_frames()
                lookout.watch(request)
                assert lookout.expect(request, heard.set)
                ready.update(lookout=lookout, request=request)
                while not stop.is_set():
                    await asyncio.sleep(0.005)

            asyncio.run(main())

        loop_thread = threading.Thread(target=run_loop)
        loop_thread.start()
        try:
            while "request" not in ready:
                time.sleep(0.001)
            timer = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                ready["lookout"].wait(ready["request"], DEADLINE_S)
            timer.join()
            assert heard.wait(DEADLINE_S)
            # Its place is free.
            assert not ready["lookout"].wait(ready["request"], 0.0)
        finally:
            stop.set()
            loop_thread.join()


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(connected: Connected, timeout: float) -> None:
    async def main() -> None:
        lookout = Lookout(bridge_of(asyncio.get_running_loop()))
        with connected("shm") as (_a, b), pytest.raises(ValueError, match=r"timeout must be"):
            lookout.wait(b.recv_frames(), timeout)

    asyncio.run(main())


def test_a_lookout_goes_with_its_loop(connected: Connected) -> None:
    kept: list[Callable[[], object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lookout = Lookout(bridge_of(loop))
        with connected("shm") as (_a, b):
            request = b.recv_frames()
            # A cycle by way of the bridge
            assert lookout.expect(request, lambda: lookout.disregard())
            kept.append(weakref.ref(lookout))

    asyncio.run(main())
    gc.collect()
    assert kept[0]() is None
