"""Threads that share a stream and the state of a worker, in random schedules: no deadlock, no loss.

The schedules run the code of the product (`SharedBatchedSend` over a connection); the locks of the
stream and of the state are those of `tests.dask.schedules`. Two tests break the code, and show that
the schedules find that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from distributed.utils_test import gen_test

from backhaul.dask.comm.threaded_stream import SharedBatchedSend
from tests.dask.schedules import Deadlock, Schedule, ScheduledDeque, ScheduledLock
from tests.dask.test_shared_stream import stream_pair

if TYPE_CHECKING:
    from tests.dask.conftest import CommPair

SEEDS = 100

pytestmark = pytest.mark.parametrize("lane", ["inproc"])

#: Messages of each thread, in order
SENT = {
    "reports": ["ended-1", "ended-2"],
    "sends": ["event-1", "event-2"],
    "loop": ["release-1", "release-2"],
}


class Reading:
    """A message that reads the state while it is pickled, as a finalizer may at any time."""

    def __init__(self, state: ScheduledLock, text: str) -> None:
        self._state = state
        self._text = text

    def __reduce__(self) -> Any:
        with self._state:
            return str, (self._text,)


@contextmanager
def scheduled(stream: SharedBatchedSend, seed: int) -> Iterator[Schedule]:
    """Let a schedule decide who gets the lock of the stream, and check that nothing is left."""
    schedule = Schedule(seed)
    own = stream.lock, stream._posted
    cast(Any, stream).lock = ScheduledLock(schedule)
    stream._posted = ScheduledDeque(schedule)
    try:
        yield schedule
        assert not list(stream._posted), f"seed {seed}: posted, and not sent"
    finally:
        stream.lock, stream._posted = own


def run(stream: SharedBatchedSend, schedule: Schedule) -> None:
    state = ScheduledLock(schedule)

    def reports() -> None:
        # As a thread of the pool that ends tasks
        for text in SENT["reports"]:
            with state:
                assert stream.post_in_thread(text, is_last=True)

    def sends() -> None:
        # As a task that logs events
        for text in SENT["sends"]:
            assert stream.send_in_thread(Reading(state, text))
        stream.flush_in_thread()

    def loop() -> None:
        # As the event loop, in the state machine
        for text in SENT["loop"]:
            with state:
                stream.send(text)
                stream.hurry()

    # The event loop of the stream runs nothing meanwhile.
    for error in schedule.run(reports, sends, loop):
        raise error


async def run_all(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, comm):
        for seed in range(SEEDS):
            with scheduled(stream, seed) as schedule:
                run(stream, schedule)
            got: list[Any] = []
            while len(got) < sum(map(len, SENT.values())):
                async with asyncio.timeout(60):
                    got += await comm.read()
            for sent in SENT.values():
                assert [text for text in got if text in sent] == sent, (seed, got)


async def post_all(comm_pair: CommPair) -> None:
    async with stream_pair(comm_pair) as (stream, _):
        for seed in range(5 * SEEDS):
            with scheduled(stream, seed) as schedule:
                assert not schedule.run(*(partial(stream.post_in_thread, n) for n in range(2)))


@gen_test(timeout=300)
async def test_threads_with_the_lock_of_the_state_never_wait_for_the_stream(
    comm_pair: CommPair,
) -> None:
    await run_all(comm_pair)
    await post_all(comm_pair)


@gen_test(timeout=300)
async def test_the_schedules_find_a_wait_for_the_stream(
    comm_pair: CommPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(self: SharedBatchedSend, *messages: Any, is_last: bool = False) -> bool:
        return all(self.send_in_thread(message, is_last=is_last) for message in messages)

    monkeypatch.setattr(SharedBatchedSend, "post_in_thread", waiting)
    with pytest.raises(Deadlock):
        await run_all(comm_pair)


@gen_test(timeout=300)
async def test_the_schedules_find_a_lost_message(
    comm_pair: CommPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once(self: SharedBatchedSend) -> None:
        # Without a check after the release
        if self._posted and self.lock.acquire(blocking=False):
            try:
                self._handle_posted()
            finally:
                self.lock.release()

    monkeypatch.setattr(SharedBatchedSend, "_send_posted", once)
    with pytest.raises(AssertionError, match="posted, and not sent"):
        await post_all(comm_pair)
