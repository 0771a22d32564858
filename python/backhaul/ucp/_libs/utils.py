"""``ucp._libs.utils``: addresses, and the printing of benchmarks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from backhaul._units import format_bytes, parse_bytes
from backhaul.ucp._address import get_address

__all__ = [
    "format_bytes",
    "format_time",
    "get_address",
    "nvtx_annotate",
    "parse_bytes",
    "print_key_value",
    "print_multi",
    "print_separator",
]


def format_time(seconds: float) -> str:
    """Write a time with a unit that fits.

    Parameters
    ----------
    seconds : float
        Time, in seconds.
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3f} {unit}"
    return f"{seconds * 1e9:.3f} ns"


def print_separator(separator: str = "-", length: int = 80) -> None:
    """Write a line of one character.

    Parameters
    ----------
    separator : str, optional
        The character.
    length : int, optional
        How many of it.
    """
    sys.stdout.write(separator * length + "\n")


def print_key_value(key: object, value: object, key_length: int = 25) -> None:
    """Write a name and a value in two columns.

    Parameters
    ----------
    key, value : object
        Objects to write.
    key_length : int, optional
        Width of the first column, in characters.
    """
    print_multi([str(key), str(value)], key_length)


def print_multi(values: Sequence[str], key_length: int = 25) -> None:
    """Write texts in columns.

    Parameters
    ----------
    values : sequence of str
        Two or more.
    key_length : int, optional
        Width of all columns but the last, in characters.
    """
    if len(values) < 2:
        raise ValueError(f"need two values or more, got {values!r}")
    columns = [f"{value:<{key_length}}" for value in values[:-1]]
    sys.stdout.write(" | ".join([*columns, values[-1]]) + "\n")


@contextlib.contextmanager
def nvtx_annotate(*_: object, **__: object) -> Iterator[None]:
    """Mark nothing, as UCX-Py does without NVTX."""
    yield
