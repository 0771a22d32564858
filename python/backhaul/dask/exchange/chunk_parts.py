"""Parts of an array's chunks on their way between hosts.

*Cut* copies the parts of an input chunk that the output chunks of one host need. *Receive* runs on
that host, so that each part crosses a link once at most. The outputs are assembled from there.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
from dask.sizeof import sizeof

from backhaul.dask.exchange.placing import host_name
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["Bounds", "SentParts", "cut", "part_of", "receive_parts"]

#: Start and stop of a part within its chunk, for each axis
Bounds: TypeAlias = tuple[tuple[int, int], ...]

#: Bytes of the objects around the parts
_OBJECT_BYTES = 400


class SentParts:
    """Parts of one input chunk for another host.

    Parameters
    ----------
    data : ndarray or list of array
        The elements of all parts, one part after the other, or the whole chunk, or each part.
    shapes : list of tuple of int or None
        Shapes of the parts, if they follow one another.
    """

    __slots__ = ("_data", "_shapes")

    def __init__(self, data: Any, shapes: list[tuple[int, ...]] | None) -> None:
        self._data = data
        self._shapes = shapes

    @classmethod
    def of(cls, chunk: Any, bounds: Sequence[Bounds]) -> SentParts:
        """Take parts of a chunk, so that the result has no more of it than these."""
        parts = [part_of(chunk, each) for each in bounds]
        if type(chunk) is not np.ndarray or chunk.dtype.hasobject:
            return cls([copy.deepcopy(part) for part in parts], None)
        ends = list(accumulate((part.size for part in parts), initial=0))
        if ends[-1] == chunk.size and chunk.flags.c_contiguous:
            return cls(chunk, None)
        data = np.empty(ends[-1], chunk.dtype)
        for part, (start, stop) in zip(parts, pairwise(ends), strict=True):
            data[start:stop].reshape(part.shape)[...] = part
        return cls(data, [part.shape for part in parts])

    def part(self, place: int, bounds: Bounds) -> Any:
        """Return a part.

        Parameters
        ----------
        place : int
            Which part, in the order of `SentParts.of`.
        bounds : tuple of (int, int)
            Where the part is within the chunk.
        """
        if isinstance(self._data, list):
            return self._data[place]
        if self._shapes is None:
            return part_of(self._data, bounds)
        shape = self._shapes[place]
        start = sum(map(prod, self._shapes[:place]))
        return self._data[start : start + prod(shape)].reshape(shape)

    @property
    def data_bytes(self) -> int:
        """Size of the elements."""
        data = self._data
        return sum(map(sizeof, data)) if isinstance(data, list) else int(data.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return SentParts, (self._data, self._shapes)

    def __sizeof__(self) -> int:
        return _OBJECT_BYTES + self.data_bytes


def cut(chunk: Any, host: str, bounds: Sequence[Bounds]) -> Any:
    """Take the parts of an input chunk that one host needs.

    Parameters
    ----------
    chunk : array
        The chunk.
    host : str
        Name of the host that needs them, as `host_name` gives it there.
    bounds : sequence of tuple of (int, int)
        Start and stop of each part within the chunk, for each axis.

    Returns
    -------
    array or SentParts
        The chunk itself for its own host, whose workers share its memory.
    """
    return chunk if host == host_name() else SentParts.of(chunk, bounds)


def receive_parts(found: Any) -> Any:
    """Keep the result of `cut` on the host that needs it."""
    if isinstance(found, SentParts):
        exchange_counters.note_parts(found.data_bytes)
    return found


def part_of(found: Any, bounds: Bounds) -> Any:
    """Return the part of a chunk between bounds."""
    return found[tuple(slice(start, stop) for start, stop in bounds)]
