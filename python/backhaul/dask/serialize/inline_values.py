"""Immutable plain values: numbers, text, bytes, and tuples and frozen sets of few of them.

A result that a client keeps must stay true. A task, `Client.run` or an actor may change a list or
an array on its worker after the result has been sent, and a program over ``tcp://`` then fetches
the changed value. So a result travels unasked only if no program can change the value.

The interpreter and NumPy alone pickle these types, in microseconds, and each pickle gives the same
value again. A subclass may do anything, and is not plain.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any, Final

__all__ = ["ITEMS_MAX", "pickled_if_plain"]

#: Most values in the containers of one result
ITEMS_MAX: Final = 256

_SCALARS: Final = frozenset({int, float, complex, bool, type(None)})
_TEXTS: Final = frozenset({str, bytes})
_CONTAINERS: Final = frozenset({tuple, frozenset})
#: Kinds of NumPy's scalars that no program can change
_KINDS: Final = frozenset("biufcSUmM")
#: The pickle protocol of every Python that is supported
_PROTOCOL: Final = 5


def pickled_if_plain(value: object, bytes_max: int) -> bytes | None:
    """Return the pickle of a value; None if it is mutable, not plain or too large.

    Examples
    --------
    >>> pickle.loads(pickled_if_plain(("mean", 1.5), 100))
    ('mean', 1.5)
    >>> pickled_if_plain([1.5], 100), pickled_if_plain("much" * 100, 100)
    (None, None)
    """
    if type(value) not in _SCALARS and _Budget(bytes_max).left_after(value) < 0:
        return None
    pickled = pickle.dumps(value, _PROTOCOL)
    return pickled if len(pickled) <= bytes_max else None


class _Budget:
    """Budget of bytes and items; it stops the look at a large value early."""

    __slots__ = ("_bytes", "_items")

    def __init__(self, bytes_max: int) -> None:
        self._bytes = bytes_max
        self._items = ITEMS_MAX

    def left_after(self, value: Any) -> int:
        """Count a value and return the bytes left, below 0 if the value is refused."""
        kind = type(value)
        self._items -= 1
        if self._items < 0:
            return -1
        if kind in _SCALARS:
            self._bytes -= 1
        elif kind in _TEXTS:
            self._bytes -= len(value)
        elif kind in _CONTAINERS:
            self._count_all(value)
        else:
            nbytes = _scalar_bytes(kind, value)
            self._bytes = -1 if nbytes is None else self._bytes - nbytes
        return self._bytes

    def _count_all(self, values: Any) -> None:
        for each in values:
            if self.left_after(each) < 0:
                self._bytes = -1
                return


def _scalar_bytes(kind: type, value: Any) -> int | None:
    """Return the size of one of NumPy's scalars; None of anything else."""
    numpy: Any = sys.modules.get("numpy")
    if kind.__module__ != "numpy" or numpy is None or not issubclass(kind, numpy.generic):
        return None
    return int(value.nbytes) if value.dtype.kind in _KINDS else None
