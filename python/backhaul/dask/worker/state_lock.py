"""Who looks at a worker in the midst of something, and the locks that others wait for meanwhile.

A finalizer may run in the midst of anything, and a value may look at its worker as it is pickled or
read: while this thread has the lock of a stream, or of a store. A thread that changes the worker's
state may wait for that lock, and the look waits for the state. So neither waits for long: who has
the state leaves such a lock alone after `YIELD_S`, and goes on some other way; a look that gets
nowhere all the same is refused, as the other thread cannot be told.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from backhaul._locks import is_owned
from backhaul.dask.compat.names import SpillBuffer, Worker
from backhaul.dask.worker.lazy_collections import data_of

__all__ = ["YIELD_S", "ShortOfTime", "is_amid"]

#: How long a thread that has the state of a worker waits for a lock that a look may be behind
YIELD_S: Final = 0.02

#: How long a look waits in the midst of something: for some of those threads
_LOOK_S: Final = 0.25

_RLOCK: Final[Any] = type(threading.RLock())


def is_amid(worker: Worker) -> bool:
    """Tell whether this thread has a lock that one may wait for which changes a worker's state."""
    data = data_of(worker)
    holders: list[Any] = [worker.batched_stream]
    # Others may have locks of any kind.
    if isinstance(data, SpillBuffer):
        holders += (data, data.fast, data.slow)
    locks = [getattr(holder, "lock", None) for holder in holders]
    return any(isinstance(lock, _RLOCK) and is_owned(lock) for lock in locks)


class ShortOfTime:
    """The lock of a worker's state for who looks in the midst of something.

    Parameters
    ----------
    lock : threading.RLock
        The lock.

    Raises
    ------
    RuntimeError
        By `with`, if another thread has it, and goes on having it.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOOK_S):
            raise RuntimeError(
                "The state of a worker is being changed by a thread that waits for a lock which "
                "this one has: it cannot be looked at in the midst of that"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
