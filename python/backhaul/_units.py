"""Sizes and rates as people write and read them: GB is 1e9 bytes, GiB is 2**30."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "format_rate", "format_us", "parse_bytes", "parse_sizes"]

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a number of bytes such as ``8``, ``64 KiB`` or ``1.5GB``.

    Parameters
    ----------
    text : str
        A decimal number and an optional unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB,
        GiB, TiB (powers of 1024), in any case.

    Returns
    -------
    int
        The size, in bytes.

    Raises
    ------
    ValueError
        If the text is not such a size, or not a whole number of bytes.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size; write for example 8, 64KiB, 1MiB or 1GB")
    nbytes = float(match[1]) * factor
    if not nbytes.is_integer():
        raise ValueError(f"{text!r} is {nbytes} bytes, not a whole number")
    return int(nbytes)


def parse_sizes(text: str) -> list[int]:
    """Read a comma-separated list of message sizes.

    Parameters
    ----------
    text : str
        Sizes as :func:`parse_bytes` reads them. Order is kept, repetition is dropped.

    Returns
    -------
    list of int
        The sizes, in bytes, each at least 1.

    Raises
    ------
    ValueError
        If one is no size or is zero, or none is given.
    """
    sizes = list(dict.fromkeys(parse_bytes(part) for part in text.split(",") if part.strip()))
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{text!r} must name at least one size, each at least 1 byte")
    return sizes


def format_bytes(nbytes: float) -> str:
    """Write a size with the largest binary unit that keeps it above 1.

    Parameters
    ----------
    nbytes : float
        Size, in bytes.

    Returns
    -------
    str
        For example ``8 B``, ``64 KiB``, ``1.50 GiB``.
    """
    value, unit = nbytes, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.2f} {unit}"


def format_rate(bytes_per_s: float) -> str:
    """Write a bandwidth in GB/s, or MB/s below 0.1 GB/s.

    Parameters
    ----------
    bytes_per_s : float
        Bandwidth, in bytes per second.

    Returns
    -------
    str
        For example ``5.20 GB/s`` or ``12.0 MB/s``.
    """
    if bytes_per_s >= 1e8:
        return f"{bytes_per_s / 1e9:.2f} GB/s"
    return f"{bytes_per_s / 1e6:.1f} MB/s"


def format_us(microseconds: float) -> str:
    """Write a latency in µs with three significant digits, unless it has more before the point.

    Parameters
    ----------
    microseconds : float
        Latency, in microseconds.

    Returns
    -------
    str
        For example ``2.31``, ``18.4``, ``1250``.
    """
    digits = 2 if microseconds < 10 else 1 if microseconds < 100 else 0
    return f"{microseconds:.{digits}f}"
