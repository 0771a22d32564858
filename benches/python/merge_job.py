"""The job of ``merge``: join two dataframes whose rows are in the wrong places."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, wait

from backhaul_bench.jobs import Job

__all__ = ["MATCHING", "Merge"]

#: Fraction of the rows on the right that have a partner on the left
MATCHING = 0.3

_PAYLOAD_BYTES = 8


class Merge(Job):
    """Join two persisted dataframes on a column, each output partition from all inputs.

    Parameters
    ----------
    partitions : int
        Of each dataframe.
    rows : int
        Rows of each partition.
    shuffle : str
        Dask's ``shuffle_method``.
    parquet : bool
        Whether the job reads the dataframes from files, rather than from the workers' memory.
    pandas : bool
        Whether keys on the right have another type, so that pandas joins the exchange's outputs.
    seed : int
        Differs between repetitions.

    Notes
    -----
    Like dask-cuda's ``local_cudf_merge`` in its arguments and its data: a unique key and a payload
    on the left, a key of which three in ten match on the right, both of 8 bytes, in random order.
    """

    def __init__(
        self,
        *,
        partitions: int,
        rows: int,
        shuffle: str,
        parquet: bool = False,
        pandas: bool = False,
        seed: int,
    ) -> None:
        super().__init__()
        self._partitions = partitions
        self._rows = rows
        self._shuffle = shuffle
        self._key_types = ("int64", "int32" if pandas else "int64")
        self._seed = seed
        self._files = tempfile.TemporaryDirectory() if parquet else None

    @property
    def input_bytes(self) -> int:
        key_bytes = sum(np.dtype(each).itemsize for each in self._key_types)
        return self._partitions * self._rows * (key_bytes + 2 * _PAYLOAD_BYTES)

    @property
    def timeout_s(self) -> float:
        # Every input partition has a piece for every output partition.
        return super().timeout_s + 2 * self._partitions**2 * 0.02

    def prepare(self, client: Client) -> None:
        frames = [
            dd.from_map(
                make,
                range(self._partitions),
                partitions=self._partitions,
                rows=self._rows,
                seed=self._seed,
                key_type=key_type,
                meta=make(0, partitions=1, rows=1, seed=0, key_type=key_type).iloc[:0],
            )
            for make, key_type in zip((make_left, make_right), self._key_types, strict=True)
        ]
        if self._files is None:
            self._left, self._right = (frame.persist() for frame in frames)
            wait([self._left, self._right])
            return
        for frame, path in zip(frames, self._paths(self._files), strict=True):
            frame.to_parquet(path)

    def _paths(self, files: tempfile.TemporaryDirectory[str]) -> list[str]:
        return [str(Path(files.name) / side) for side in ("left", "right")]

    def run(self, client: Client) -> None:
        if self._files is not None:
            self._left, self._right = map(dd.read_parquet, self._paths(self._files))
        merged = self._left.merge(
            self._right, on="key", shuffle_method=self._shuffle, broadcast=False
        )
        self.result = merged.persist()
        wait(self.result)

    def check(self, client: Client) -> None:
        partners = self._partitions * matching_rows(self._rows)
        pairs = self.result["key"] + self.result["left"] + self.result["right"]
        found, wrong = len(self.result), int((pairs != 0).sum().compute())
        if found != partners or wrong:
            raise ValueError(
                f"wrong result: {found} rows instead of {partners}, {wrong} of them no pair"
            )


def matching_rows(rows: int) -> int:
    """Count the rows of a partition on the right that have a partner."""
    return round(rows * MATCHING)


def make_left(
    index: int, *, partitions: int, rows: int, seed: int, key_type: str = "int64"
) -> pd.DataFrame:
    """Make a partition on the left: keys that lie evenly, and what cancels two of each."""
    key = index + partitions * np.random.default_rng([seed, index, 0]).permutation(rows)
    return pd.DataFrame({"key": key.astype(key_type, copy=False), "left": -2 * key})


def make_right(
    index: int, *, partitions: int, rows: int, seed: int, key_type: str = "int64"
) -> pd.DataFrame:
    """Make a partition on the right: some keys of the left, the others beyond all of them."""
    number = np.random.default_rng([seed, index, 1]).permutation(rows)
    key = index + partitions * np.where(number < matching_rows(rows), number, number + rows)
    return pd.DataFrame({"key": key.astype(key_type, copy=False), "right": key})
