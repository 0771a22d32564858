"""Dataclasses that cache the native object with the same values.

Questions about a machine or a plan go to its native object, so that nothing is converted
twice. The cache is no field: it takes no part in ``repr``, equality, `dataclasses.replace` or
pickling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["CachesNative", "native_of", "with_native"]

_Record = TypeVar("_Record", bound="CachesNative")
_Native = TypeVar("_Native")


class CachesNative:
    """Base of a frozen dataclass that has a native object."""

    __slots__ = ("_native",)
    _native: Any


def with_native(record: _Record, native: object) -> _Record:
    """Put the native object that a dataclass was made of into its cache.

    Parameters
    ----------
    record : CachesNative
        An instance of the dataclass. It is frozen, so both stay the same.
    native : object
        The native object.

    Returns
    -------
    CachesNative
        The same instance.
    """
    object.__setattr__(record, "_native", native)
    return record


def native_of(record: CachesNative, make: Callable[[Any], _Native]) -> _Native:
    """Get the native object of a dataclass.

    Parameters
    ----------
    record : CachesNative
        An instance of the dataclass. One that was made by hand, copied or unpickled has no native
        object yet.
    make : callable
        Makes one of the instance.

    Returns
    -------
    object
        The native object, the same one each time.
    """
    try:
        native: _Native = record._native
    except AttributeError:
        native = make(record)
        with_native(record, native)
    return native
