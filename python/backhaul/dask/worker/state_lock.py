"""Deadlock avoidance for reads of a worker's state by a thread that has another lock.

A finalizer may read the worker's state at any time, and so may a value while it is pickled or read:
also while this thread has the lock of a stream or of a store. Another thread that has the lock of
the state may wait for that lock, while the read waits for the lock of the state. So both waits have
a time limit. The owner of the state gives up after `YIELD_S` and takes another path. A read that
still cannot get the lock raises `RuntimeError`, because it cannot interrupt the other thread.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from backhaul._locks import is_owned
from backhaul.dask.compat.names import SpillBuffer, Worker
from backhaul.dask.worker.lazy_collections import data_of

__all__ = ["YIELD_S", "ShortOfTime", "is_amid"]

#: How long a thread with the lock of a state waits for a lock whose owner may read the state
YIELD_S: Final = 0.02

#: How long a read by a thread with another lock waits for the lock of the state
_LOOK_S: Final = 0.25

_RLOCK: Final[Any] = type(threading.RLock())


def is_amid(worker: Worker) -> bool:
    """Tell whether this thread has a lock for which the owner of a worker's state may wait."""
    data = data_of(worker)
    holders: list[Any] = [worker.batched_stream]
    # Other stores may have locks of any kind.
    if isinstance(data, SpillBuffer):
        holders += (data, data.fast, data.slow)
    locks = [getattr(holder, "lock", None) for holder in holders]
    return any(isinstance(lock, _RLOCK) and is_owned(lock) for lock in locks)


class ShortOfTime:
    """The lock of a worker's state, with a time limit, for a thread that has another lock.

    Parameters
    ----------
    lock : threading.RLock
        The lock.

    Raises
    ------
    RuntimeError
        By `with`, if another thread keeps the lock longer than the limit.
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
