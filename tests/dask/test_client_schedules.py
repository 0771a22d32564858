"""Threads that wait for futures, in random schedules: none sleeps in vain, and none is forgotten.

The code of the product runs: the wait of a thread, the events of futures, the reader of a client's
stream, and the inbox. A thread looks at its futures each second; a schedule in which a thread needs
that look has failed, so the look is only for an event loop that has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from distributed.client import FutureState

from backhaul.dask.client import reader_thread, thread_wait
from backhaul.dask.client.reader_thread import ThreadReports
from backhaul.dask.client.state_event import StateEvent
from backhaul.dask.client.thread_wait import _Waiting, wait_in_thread
from backhaul.dask.comm import inbox
from backhaul.dask.compat import activation
from tests.dask.schedules import (
    Deadlock,
    Schedule,
    ScheduledDeque,
    ScheduledLock,
    ScheduledSignal,
)
from tests.dask.simulated_edges import Endpoint, Lookout, Loop, new_inbox

SEEDS = 300


class Waiters(list[Any]):
    """Waiters of an event, with a step before each use."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def append(self, item: Any) -> None:
        self._schedule.step()
        super().append(item)

    def remove(self, item: Any) -> None:
        self._schedule.step()
        super().remove(item)

    def __iter__(self) -> Iterator[Any]:
        self._schedule.step()
        return super().__iter__()


class Simulation:
    """A client with waiting threads, its event loop, and a scheduler that sends messages."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._schedule = schedule = Schedule(seed)
        self._chance = schedule.chance
        self._loop = loop = Loop(schedule)
        patch = monkeypatch.setattr
        patch(inbox, "Lookout", lambda _: Lookout(schedule, loop))
        patch(inbox, "RLock", partial(ScheduledLock, schedule))
        for module in (thread_wait, reader_thread):
            patch(module, "monotonic", lambda: schedule.now_s)
        lock = SimpleNamespace(
            Lock=partial(ScheduledSignal, schedule), get_ident=threading.get_ident
        )
        patch(thread_wait, "threading", lock)
        self._endpoint = Endpoint(schedule)
        self._inbox = new_inbox(self._endpoint, loop, monkeypatch)
        self._states = {str(n): FutureState(str(n)) for n in range(self._chance.randint(1, 5))}
        for state in self._states.values():
            event: Any = state._get_event()
            event._waiters = Waiters(schedule)
        self._handlers = {"key-in-memory": self._finish, "task-erred": self._fail}
        self._client: Any = SimpleNamespace(
            id="client",
            loop=loop,
            futures=self._states,
            _stream_handlers=dict(self._handlers),
        )
        comm: Any = SimpleNamespace(closed=lambda: False)
        ours = {"key-in-memory": self._finish}
        reports = ThreadReports(cast(Any, self._client), comm, self._inbox, ours)
        reports.threads = ScheduledDeque(schedule)
        setattr(self._client, reader_thread._ATTRIBUTE, reports)
        self._left = self._chance.randint(1, 3)
        self.handled: list[str] = []

    def _finish(self, key: str) -> None:
        self.handled.append(key)
        self._states[key].finish()

    def _fail(self, key: str) -> None:
        self.handled.append(key)
        state = self._states[key]
        state.status = "error"
        state._get_event().set()

    def _wait(self) -> None:
        """Wait as a thread of a program does, several times."""
        for _ in range(self._chance.randint(1, 3)):
            states = self._chance.sample(
                [*self._states.values()], self._chance.randint(1, len(self._states))
            )
            assert wait_in_thread(self._client, states, None)
            ended = [state.status for state in states if state.status != "pending"]
            assert len(ended) == len(states) or "error" in ended
        self._left -= 1

    def _send(self) -> None:
        """Send the messages of the scheduler."""
        keys = [*self._states]
        self._chance.shuffle(keys)
        for key in keys:
            operation = "task-erred" if self._chance.random() < 0.2 else "key-in-memory"
            if self._chance.random() < 0.5:
                until_s = self._schedule.now_s + 0.001
                self._schedule.step(lambda: False, lambda until_s=until_s: until_s)  # type: ignore[misc]
            self._endpoint.deliver([{"op": operation, "key": key}])
        self._schedule.step(lambda: not self._left and len(self.handled) == len(keys))
        self._endpoint.end()
        assert self.handled == keys

    def _run_loop(self) -> None:
        async def main() -> None:
            while True:
                try:
                    batches, frames = await self._inbox.take()
                except ConnectionError:
                    return
                if frames is not None:
                    batches = [each.batch for each in frames]  # type: ignore[attr-defined]
                for batch in batches:
                    for message in batch:
                        self._handlers[message["op"]](message["key"])
                if self._inbox.readable():
                    self._inbox.rest()
                    await self._loop.turn()

        try:
            self._loop.run(main())
        finally:
            self._inbox.close()

    def run(self) -> None:
        """Run all threads."""
        errors = self._schedule.run(self._run_loop, self._send, *[self._wait] * self._left)
        if errors:
            raise errors[0]


@contextmanager
def simulated(seed: int) -> Iterator[Simulation]:
    activation.install()
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Simulation(seed, monkeypatch)


def run_all() -> None:
    for seed in range(SEEDS):
        with simulated(seed) as simulation:
            simulation.run()


def test_no_thread_needs_the_look_each_second() -> None:
    run_all()


def _no_check_after_adding(self: StateEvent) -> bool:
    # As if the event had been set after the check
    return False


def _sleep_after_the_end(self: _Waiting, _: float) -> None:
    # As if another thread had to wake one that has handled the last message itself
    self._lock.acquire(timeout=1.0)


@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (StateEvent, "is_set", _no_check_after_adding),
        (_Waiting, "_sleep", _sleep_after_the_end),
    ],
)
def test_the_schedules_find_a_fault(
    place: type, name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(Deadlock):
        run_all()
