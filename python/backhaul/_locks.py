"""Locks that Ctrl-C does not leave locked.

A signal's handler runs after a call, and may raise. From Python 3.14 on `with lock:` takes a lock
by a call that is not yet within the block: a thread that is interrupted right then holds the lock
for good. Until 3.13 no handler ran there.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["RLock", "is_owned"]

if sys.version_info >= (3, 14):
    import _thread

    class RLock(_thread.RLock):
        """A `threading.RLock` that is free after `with` has raised, whatever a handler raises."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                # A waiting thread is interrupted without it; so may be one that has just taken it.
                if self._is_owned():
                    self.release()
                raise

else:
    RLock = threading.RLock


def is_owned(lock: Any) -> bool:
    """Tell whether this thread has a lock, an `RLock` or one of `threading`'s."""
    # As `threading.Condition` asks.
    owned: bool = lock._is_owned()
    return owned
