"""Messages that arrive, as the event loop and threads see them: everything, once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed.comm import CommClosedError
from distributed.protocol import to_serialize
from distributed.utils_test import gen_test

from backhaul.dask.comm.inbox import SharedInbox

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair

#: When to give up on what should have happened
DEADLINE_S = 60.0


def look(inbox: SharedInbox, until: threading.Event, seed: int) -> list[Any]:
    """Look at what arrives until told to stop, as a thread that acts on some of it."""
    chance = random.Random(seed)
    seen: list[Any] = []
    while not until.is_set():
        inbox.wait(chance.choice([0.0, 0.0005, 0.01]))
        with inbox.lock:
            inbox.receive()
            known = max(0, len(seen) - inbox.taken)
            # Messages that the event loop took alone
            seen += [None] * (inbox.taken - len(seen))
            seen += inbox.unhandled[known:]
            may_look = inbox.may_look()
        inbox.call(chance.choice([0.0, 0.002, 0.005]))
        if not may_look or chance.random() < 0.1:
            time.sleep(0.001)
    return seen


@gen_test()
async def test_the_event_loop_gets_everything_in_order(lane: str, comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        inbox = b.share()
        stop = threading.Event()
        count = 2000
        with ThreadPoolExecutor(1) as executor:
            looking = executor.submit(look, inbox, stop, 7)

            async def send() -> None:
                chance = random.Random(3)
                for number in range(count):
                    await a.write({"n": number})
                    if chance.random() < 0.05:
                        await asyncio.sleep(chance.choice([0.0, 0.001, 0.01]))

            sending = asyncio.create_task(send())
            received: list[int] = []
            try:
                while len(received) < count:
                    received += [each["n"] for each in await asyncio.wait_for(b.read_arrived(), 60)]
            finally:
                stop.set()
                inbox.rouse()
            await sending
            seen = looking.result()
        assert received == list(range(count))
        # The thread saw what it saw at its place in the order.
        assert all(each is None or each["n"] == at for at, each in enumerate(seen))
        assert sum(each is not None for each in seen) > 10
        await a.close()


@gen_test()
async def test_a_message_that_a_thread_has_seen_waits_for_its_time(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        inbox = b.share()
        reading = asyncio.create_task(b.read_arrived())
        with ThreadPoolExecutor(1) as executor:
            for within_s in (0.05, 0.01):
                while True:
                    while inbox.is_handling:
                        await asyncio.sleep(0.001)
                    waiting = asyncio.wrap_future(executor.submit(inbox.wait, DEADLINE_S))
                    await asyncio.sleep(0.02)
                    await a.write({"op": "x"})
                    either: list[asyncio.Future[Any]] = [waiting, reading]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        break
                    # The thread came too late, so the event loop was called.
                    assert await reading == [{"op": "x"}]
                    inbox.rouse(or_next=True)
                    await waiting
                    reading = asyncio.create_task(b.read_arrived())
                assert await waiting
                with inbox.lock:
                    inbox.receive()
                    assert inbox.unhandled == [{"op": "x"}]
                start_s = time.monotonic()
                inbox.call(within_s)
                assert await asyncio.wait_for(reading, DEADLINE_S) == [{"op": "x"}]
                assert time.monotonic() - start_s >= within_s * 0.9
                reading = asyncio.create_task(b.read_arrived())
                await asyncio.sleep(0)
        await a.close()
        with pytest.raises(CommClosedError):
            await reading


@gen_test()
async def test_messages_that_are_not_for_threads_go_to_the_event_loop(
    lane: str, comm_pair: CommPair
) -> None:
    async with comm_pair() as (a, b):
        inbox = b.share()
        with ThreadPoolExecutor(1) as executor:
            stop = threading.Event()
            looking = executor.submit(look, inbox, stop, 1)
            long = np.arange(1 << 20)
            await a.write({"n": 0})
            await a.write({"n": 1, "long": to_serialize(long)})
            await a.write({"n": 2})
            received: list[Any] = []
            try:
                while len(received) < 3:
                    received += await asyncio.wait_for(b.read_arrived(), DEADLINE_S)
            finally:
                stop.set()
                inbox.rouse()
            looking.result()
        assert [each["n"] for each in received] == [0, 1, 2]
        assert (received[1]["long"] == long).all()
        # One at a time, as Dask's client reads
        await a.write({"n": 3})
        await a.write({"n": 4})
        assert (await b.read())["n"] == 3
        assert (await b.read())["n"] == 4
        await a.close()


@gen_test()
async def test_messages_from_before_the_inbox_was_shared_are_not_lost(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        await a.write({"n": 0})
        assert await b.read_arrived() == [{"n": 0}]
        # A receive is posted; a message too long for now is kept.
        await a.write({"n": 1})
        await a.write({"n": 2, "x": b"a" * (2 << 20)})
        await asyncio.sleep(0.05)
        received = await b.read_arrived()
        b.share()
        while len(received) < 2:
            received += await asyncio.wait_for(b.read_arrived(), DEADLINE_S)
        assert [each["n"] for each in received] == [1, 2]
        await a.close()


@gen_test()
async def test_messages_before_the_end_are_read_and_waiting_threads_return(
    lane: str, comm_pair: CommPair
) -> None:
    async with comm_pair() as (a, b):
        inbox = b.share()
        await a.write({"n": 0})
        await a.close()
        assert await asyncio.wait_for(b.read_arrived(), DEADLINE_S) == [{"n": 0}]
        with pytest.raises(CommClosedError):
            await b.read_arrived()
        with ThreadPoolExecutor(1) as executor:
            assert await asyncio.wrap_future(executor.submit(inbox.wait, DEADLINE_S))
        with inbox.lock:
            inbox.receive()
            assert not inbox.unhandled


@gen_test()
async def test_a_sender_that_never_stops_is_held_up(comm_pair: CommPair) -> None:
    async with comm_pair() as (a, b):
        inbox = b.share()
        for number in range(1000):
            await a.write({"n": number})
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and inbox.may_look():
            with inbox.lock:
                inbox.receive()
            await asyncio.sleep(0.001)
        with inbox.lock:
            inbox.receive()
            assert len(inbox.unhandled) == 128
            assert not inbox.may_look()
        received: list[Any] = []
        while len(received) < 1000:
            received += await asyncio.wait_for(b.read_arrived(), DEADLINE_S)
        assert [each["n"] for each in received] == list(range(1000))
        await a.close()


@gen_test()
async def test_a_message_during_another_wait_of_a_thread_calls_the_event_loop(
    lane: str, comm_pair: CommPair
) -> None:
    """It woke the thread, which leaves without a look, as for what it was roused for else."""
    async with comm_pair() as (a, b):
        inbox = b.share()
        with ThreadPoolExecutor(1) as executor:
            for number in range(20):
                reading = asyncio.create_task(b.read_arrived())
                while inbox.is_handling:
                    await asyncio.sleep(0)
                waiting = asyncio.wrap_future(executor.submit(inbox.wait, DEADLINE_S))
                # Only one may be there; before it is, this one leaves at once.
                with contextlib.suppress(RuntimeError):
                    while True:
                        inbox.wait(0.0)
                        await asyncio.sleep(0.001)
                        if waiting.done():
                            # Where threads run at once, it met this one there.
                            assert isinstance(waiting.exception(), RuntimeError)
                            again = executor.submit(inbox.wait, DEADLINE_S)
                            waiting = asyncio.wrap_future(again)
                await a.write({"n": number})
                assert await waiting
                inbox.leave()
                assert await asyncio.wait_for(reading, DEADLINE_S) == [{"n": number}]
