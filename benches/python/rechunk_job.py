"""The job of ``rechunk``: from chunks of rows to chunks of columns, or transposed."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from distributed import Client, wait

from backhaul_bench.jobs import Job

__all__ = ["Rechunk"]


class Rechunk(Job):
    """Cut a persisted array the other way; every element says where it belongs.

    Parameters
    ----------
    method : str
        Dask's ``method``.
    size : int
        Rows and columns of the array of float64.
    chunks : int
        Rows of a chunk before, columns of one after.
    transpose : bool
        Whether the array is transposed, so that a chunk has these rows after.
    seed : int
        First element; differs between repetitions.
    """

    def __init__(
        self, *, method: str, size: int, chunks: int, transpose: bool = False, seed: int
    ) -> None:
        super().__init__()
        self._method = method
        self._size = size
        self._chunks = chunks
        self._transpose = transpose
        self._seed = seed

    @property
    def input_bytes(self) -> int:
        return self._size**2 * 8

    @property
    def timeout_s(self) -> float:
        pieces = (self._size / self._chunks) ** 2
        return super().timeout_s + pieces * 0.02 + self.input_bytes / 5e6

    def prepare(self, client: Client) -> None:
        shape = (self._size, self._size)
        self._array = da.map_blocks(
            number,
            chunks=da.core.normalize_chunks((self._chunks, -1), shape=shape),
            dtype=np.float64,
            meta=np.empty((0, 0)),
            first=self._seed,
        ).persist()
        wait(self._array)

    def run(self, client: Client) -> None:
        array, chunks = self._array, (-1, self._chunks)
        if self._transpose:
            array, chunks = array.T, chunks[::-1]
        self.result = array.rechunk(chunks, method=self._method).persist()
        wait(self.result)

    def check(self, client: Client) -> None:
        columns = -(-self._size // self._chunks)
        result = self.result.T if self._transpose else self.result
        if result.numblocks != (1, columns):
            raise ValueError(f"wrong result: {self.result.numblocks} chunks")
        wrong = result.map_blocks(
            count_wrong,
            chunks=((1,), (1,) * columns),
            dtype=np.int64,
            meta=np.empty((0, 0), dtype=np.int64),
            first=self._seed,
        )
        found = int(wrong.sum().compute())
        if found:
            raise ValueError(f"wrong result: {found} elements out of place")


def number(block_info: Any = None, *, first: int) -> npt.NDArray[np.float64]:
    """Make a block of an array whose elements count on from the first, row after row."""
    return _numbers(block_info[None], first)


def count_wrong(
    block: npt.NDArray[np.float64], block_info: Any = None, *, first: int
) -> npt.NDArray[np.int64]:
    """Count the elements of a block that :func:`number` would not have put there."""
    return np.array([[np.count_nonzero(block != _numbers(block_info[0], first))]])


def _numbers(block: Any, first: int) -> npt.NDArray[np.float64]:
    rows, columns = (np.arange(*bounds, dtype=np.float64) for bounds in block["array-location"])
    return np.asarray((rows * block["shape"][1] + first)[:, np.newaxis] + columns)
