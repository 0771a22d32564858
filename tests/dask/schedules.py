"""Randomized scheduler: runs threads one at a time, and chooses the next at each step of a lock.

A thread of the schedule runs until it takes or releases a `ScheduledLock`, or uses another class of
this module. A seed decides which thread runs next, so that a failure can be repeated. Time passes
only when no thread can run. If no thread can run any more, or only after a long time, the schedule
has a deadlock or a lost wake-up. Each thread then raises `Deadlock`, and also if one has failed.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = [
    "Deadlock",
    "Schedule",
    "ScheduledDeque",
    "ScheduledEvent",
    "ScheduledLock",
    "ScheduledSignal",
]

#: Longest real time of a schedule, in seconds
_REAL_S = 60.0

#: Most steps of a schedule; threads that need more wake one another for ever
_STEPS_MAX = 50_000


class Deadlock(Exception):
    """No thread of the schedule can run, or they run for ever."""


class _Thread:
    """A thread of a schedule."""

    def __init__(self) -> None:
        #: Released when the thread may run
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ready: Callable[[], object] = _always
        self.until_s: Callable[[], float | None] = _never

    def wait(self) -> None:
        assert self.baton.acquire(timeout=_REAL_S), "a thread of the schedule does not go on"


class Schedule:
    """Threads of which one runs at a time.

    Parameters
    ----------
    seed : int
        Decides which thread runs next.
    longest_s : float, optional
        No thread may have to wait for so long for time to pass.

    Attributes
    ----------
    now_s : float
        Time of the schedule, in seconds.
    chance : random.Random
        Source of random numbers for the threads.
    on_idle : callable
        Called before time passes, because no thread can run; it may raise.
    """

    def __init__(self, seed: int, *, longest_s: float = 0.1) -> None:
        self.chance = random.Random(seed)
        self.now_s = 1000.0
        self.on_idle: Callable[[], None] = _never
        self._longest_s = longest_s
        self._threads: dict[int, _Thread] = {}
        self._has_failed = False
        self._steps = 0
        self._errors: list[BaseException] = []
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, *programs: Callable[[], object]) -> list[BaseException]:
        """Run each program in a thread; return the exceptions."""
        errors = self._errors
        started = threading.Barrier(len(programs) + 1)

        def run(program: Callable[[], object]) -> None:
            own = self._threads[threading.get_ident()] = _Thread()
            started.wait(_REAL_S)
            own.wait()
            try:
                program()
            except BaseException as error:
                errors.append(error)
                # The others may wait for this one for ever.
                self._has_failed = True
            finally:
                del self._threads[threading.get_ident()]
                self._pass_on(own)

        threads = [threading.Thread(target=run, args=(program,)) for program in programs]
        for thread in threads:
            thread.start()
        started.wait(_REAL_S)
        self._pass_on(None)
        assert self._ended.acquire(timeout=_REAL_S)
        for thread in threads:
            thread.join(_REAL_S)
            assert not thread.is_alive()
        return errors

    def step(
        self,
        ready: Callable[[], object] | None = None,
        until_s: Callable[[], float | None] | None = None,
    ) -> bool:
        """Let another thread run; this one continues when it is chosen and `ready` is true.

        It also continues at the time that `until_s` returns. Returns what `ready` does.
        """
        own = self._threads.get(threading.get_ident())
        if own is None:
            # The event loop runs beside the schedule, while no thread of it does.
            return True
        self._steps += 1
        self._has_failed |= self._steps > _STEPS_MAX
        own.ready, own.until_s = ready or _always, until_s or _never
        if not self._has_failed and self._pass_on(own) is not own:
            own.wait()
        if self._has_failed:
            raise Deadlock
        return bool(own.ready())

    def _pass_on(self, own: _Thread | None) -> _Thread | None:
        """Choose the thread that runs next, and let it run unless it is this one."""
        threads = [*self._threads.values()]
        chosen = self._choose(threads)
        if chosen is None and threads:
            self._has_failed = True
            chosen = threads[0]
        if chosen is None:
            self._ended.release()
        elif chosen is not own:
            # From here on this thread changes nothing.
            chosen.baton.release()
        return chosen

    def _choose(self, threads: list[_Thread]) -> _Thread | None:
        able = [thread for thread in threads if thread.ready()]
        times = {thread: at_s for thread in threads if (at_s := thread.until_s()) is not None}
        if not able and times:
            try:
                self.on_idle()
            except AssertionError as error:
                self._errors.append(error)
                return None
            first_s = min(times.values())
            if first_s > self.now_s + self._longest_s:
                return None
            self.now_s = max(self.now_s, first_s)
        able += [thread for thread, at_s in times.items() if at_s <= self.now_s]
        if not able:
            return None
        return self.chance.choice(able)


def _always() -> bool:
    return True


def _never() -> None:
    return None


class ScheduledLock:
    """A reentrant lock of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._owner = 0
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert timeout == -1, "a time limit hides a deadlock"
        me = threading.get_ident()
        self._schedule.step()
        if self._owner not in (0, me):
            if not blocking:
                return False
            self._schedule.step(lambda: self._owner == 0)
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        assert self._owner == threading.get_ident()
        self._count -= 1
        if not self._count:
            self._owner = 0
            self._schedule.step()

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ScheduledEvent:
    """A `threading.Event` of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._schedule.step()

    def wait(self) -> bool:
        return self._schedule.step(lambda: self._is_set)


class ScheduledSignal:
    """A lock that one thread acquires to sleep, and another releases to wake it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._is_taken = False

    def acquire(self, timeout: float = 0.0) -> bool:
        until_s = self._schedule.now_s + timeout
        self._schedule.step(lambda: not self._is_taken, lambda: until_s)
        is_free = not self._is_taken
        self._is_taken = True
        return is_free

    def release(self) -> None:
        self._schedule.step()
        if not self._is_taken:
            raise RuntimeError("release unlocked lock")
        self._is_taken = False


class ScheduledDeque(deque[Any]):
    """A deque, with a step before each change and after each check."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def append(self, item: Any) -> None:
        self._schedule.step()
        super().append(item)

    def popleft(self) -> Any:
        self._schedule.step()
        return super().popleft()

    def __len__(self) -> int:
        found = super().__len__()
        self._schedule.step()
        return found
