"""Which results are plain: numbers, text, bytes, small arrays, and few of them in containers.

Pickling them runs no code but the interpreter's and NumPy's, takes microseconds, and gives the same
value again. Nothing is known of anything else, nor of what is derived from these types.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any, Final

__all__ = ["ITEMS_MAX", "pickled_if_plain"]

#: Most values in the containers of one result
ITEMS_MAX: Final = 256

_SCALARS: Final = frozenset({int, float, complex, bool, type(None)})
_TEXTS: Final = frozenset({str, bytes, bytearray})
_CONTAINERS: Final = frozenset({list, tuple, set, frozenset})
#: Kinds of NumPy's types that hold nothing but bytes
_KINDS: Final = frozenset("biufcSUmM")
#: The pickle protocol of every Python that is supported
_PROTOCOL: Final = 5


def pickled_if_plain(value: object, bytes_max: int) -> bytes | None:
    """Pickle a value if it is plain and small.

    Parameters
    ----------
    value : object
        Anything.
    bytes_max : int
        Most bytes of its pickle.

    Returns
    -------
    bytes or None
        The pickle; None if the value is not plain, or too large.

    Examples
    --------
    >>> pickle.loads(pickled_if_plain({"mean": 1.5}, 100))
    {'mean': 1.5}
    >>> pickled_if_plain(object(), 100), pickled_if_plain("much" * 100, 100)
    (None, None)
    """
    if type(value) not in _SCALARS and _Budget(bytes_max).left_after(value) < 0:
        return None
    pickled = pickle.dumps(value, _PROTOCOL)
    return pickled if len(pickled) <= bytes_max else None


class _Budget:
    """Bytes and items that a value may still have, so that no time is spent on a large one."""

    __slots__ = ("_bytes", "_items")

    def __init__(self, bytes_max: int) -> None:
        self._bytes = bytes_max
        self._items = ITEMS_MAX

    def left_after(self, value: Any) -> int:
        """Count a value; bytes that are left, below 0 if it is not plain or too much."""
        kind = type(value)
        self._items -= 1
        if self._items < 0:
            return -1
        if kind in _SCALARS:
            self._bytes -= 1
        elif kind in _TEXTS:
            self._bytes -= len(value)
        elif kind in _CONTAINERS or kind is dict:
            self._count_all(value)
            if kind is dict:
                self._count_all(value.values())
        else:
            nbytes = _array_bytes(kind, value)
            self._bytes = -1 if nbytes is None else self._bytes - nbytes
        return self._bytes

    def _count_all(self, values: Any) -> None:
        # The budget of items also ends what contains itself.
        for each in values:
            if self.left_after(each) < 0:
                self._bytes = -1
                return


def _array_bytes(kind: type, value: Any) -> int | None:
    """Give the size of one of NumPy's arrays or scalars; None of anything else."""
    numpy: Any = sys.modules.get("numpy")
    if kind.__module__ != "numpy" or numpy is None:
        return None
    if kind is not numpy.ndarray and not issubclass(kind, numpy.generic):
        return None
    if value.dtype.kind not in _KINDS:
        return None
    return int(value.nbytes)
