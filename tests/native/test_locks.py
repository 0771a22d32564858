"""Locks are free after whatever Ctrl-C may do."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from backhaul._locks import RLock


class Interrupted(BaseException):
    """Exception that a handler raises."""


@pytest.fixture(autouse=True)
def interrupts() -> Any:
    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def until_interrupted(lock: Any) -> None:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while True:
            with lock:
                pass
    except Interrupted:
        pass


def test_who_is_interrupted_leaves_no_lock() -> None:
    # Of plain locks, Python 3.14 leaves more than half.
    for _ in range(1000):
        lock: Any = RLock()
        until_interrupted(lock)
        assert not lock._is_owned()


def test_who_is_interrupted_within_keeps_the_outer_hold() -> None:
    for _ in range(300):
        lock: Any = RLock()
        with lock:
            until_interrupted(lock)
            assert lock._is_owned()
        assert not lock._is_owned()


def test_who_is_interrupted_while_another_has_it_gets_nothing() -> None:
    lock: Any = RLock()
    may_go, has_it = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            may_go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert has_it.wait(60)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted), lock:
            pass
        assert not lock._is_owned()
        may_go.set()
        holding.result(60)
    with lock:
        assert lock._is_owned()
