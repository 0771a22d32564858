"""Randomized scheduler: runs threads one at a time, and chooses the next at each step of a lock.

A thread of the schedule runs until it takes or releases a `ScheduledLock`, or uses a
`ScheduledDeque`. A seed decides which thread runs next, so that a failure can be repeated. If no
thread can run, the schedule has a deadlock, and each thread raises `Deadlock`.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Deadlock", "Schedule", "ScheduledDeque", "ScheduledLock"]


class Deadlock(Exception):
    """No thread of the schedule can run."""


class Schedule:
    """Threads of which one runs at a time.

    Parameters
    ----------
    seed : int
        Decides which thread runs next.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        #: Condition on which each thread can run
        self._ready: dict[int, Callable[[], bool]] = {}
        self._running = 0
        self._has_deadlock = False

    def run(self, *programs: Callable[[], object]) -> list[BaseException]:
        """Run each program in a thread; return the exceptions."""
        errors: list[BaseException] = []
        started = threading.Barrier(len(programs) + 1)

        def run(program: Callable[[], object]) -> None:
            with self._changed:
                self._ready[threading.get_ident()] = _always
            started.wait(60)
            try:
                self.step()
                program()
            except BaseException as error:
                errors.append(error)
            finally:
                with self._changed:
                    del self._ready[threading.get_ident()]
                    self._choose()

        threads = [threading.Thread(target=run, args=(program,)) for program in programs]
        for thread in threads:
            thread.start()
        started.wait(60)
        with self._changed:
            self._choose()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return errors

    def step(self, ready: Callable[[], bool] | None = None) -> None:
        """Let another thread run; this one continues when it is chosen and `ready` is true."""
        me = threading.get_ident()
        with self._changed:
            if me not in self._ready:
                # The event loop runs beside the schedule, while no thread of it does.
                return
            self._ready[me] = ready or _always
            if self._running == me:
                self._choose()
            while self._running != me and not self._has_deadlock:
                self._changed.wait(60)
            if self._has_deadlock:
                raise Deadlock

    def _choose(self) -> None:
        able = [thread for thread, ready in self._ready.items() if ready()]
        self._running = self._random.choice(able) if able else 0
        self._has_deadlock |= bool(self._ready) and not able
        self._changed.notify_all()


def _always() -> bool:
    return True


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
