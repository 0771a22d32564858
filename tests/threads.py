"""Threads that begin together, and switch often where they cannot run at once."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["DEADLINE_S", "THREADS", "at_once", "switching_often"]

THREADS = 8
DEADLINE_S = 300.0


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    """Make the interpreter's lock, where there is one, change hands at every occasion."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Run it on several threads, which begin together; gives what each returns."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait(DEADLINE_S)
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return [each.result() for each in [pool.submit(begin, n) for n in range(threads)]]
