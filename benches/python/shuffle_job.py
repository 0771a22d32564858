"""The job of ``shuffle``: bring the rows with equal keys into one partition."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, wait

from backhaul.bench.jobs import Job

__all__ = ["KEYS", "Shuffle"]

#: Distinct keys; each partition has rows of all of them, if it has as many
KEYS = 10_000

_VALUE_BYTES = 8


class Shuffle(Job):
    """Shuffle a persisted dataframe on a column.

    Parameters
    ----------
    method : str
        Dask's ``shuffle_method``.
    partitions : int
        Of the dataframe.
    rows : int
        Of each partition.
    columns : int
        Of 8 bytes each, beside the key; the first one numbers the rows.
    seed : int
        Differs between repetitions.
    """

    def __init__(self, *, method: str, partitions: int, rows: int, columns: int, seed: int) -> None:
        super().__init__()
        self._method = method
        self._partitions = partitions
        self._rows = rows
        self._columns = columns
        self._seed = seed

    @property
    def input_bytes(self) -> int:
        return self._partitions * self._rows * (1 + self._columns) * _VALUE_BYTES

    @property
    def timeout_s(self) -> float:
        # Every input partition has a piece for every output partition.
        return super().timeout_s + self._partitions**2 * 0.02 + self.input_bytes / 5e6

    def prepare(self, client: Client) -> None:
        self._frame = dd.from_map(
            make_partition,
            range(self._partitions),
            rows=self._rows,
            values=self._columns,
            seed=self._seed,
            meta=make_partition(0, rows=1, values=self._columns, seed=0).iloc[:0],
        ).persist()
        wait(self._frame)

    def run(self, client: Client) -> None:
        self.result = self._frame.shuffle("key", shuffle_method=self._method).persist()
        wait(self.result)

    def check(self, client: Client) -> None:
        total = self._partitions * self._rows
        expected = [total, total * (total - 1) // 2, 0, min(total, KEYS)]
        meta = summarize(self.result._meta)
        found = self.result.map_partitions(summarize, meta=meta).sum().compute().tolist()
        if found != expected:
            raise ValueError(
                "wrong result: rows, sum of their numbers, rows with another's key, keys in each "
                f"partition: {found} instead of {expected}"
            )


def make_partition(index: int, *, rows: int, values: int, seed: int) -> pd.DataFrame:
    """Make a partition: rows in random order, numbered through all partitions."""
    # Not called columns: from_map has an argument of that name.
    random = np.random.default_rng([seed, index])
    number = index * rows + random.permutation(rows)
    more = {f"value{column}": random.random(rows) for column in range(1, values)}
    return pd.DataFrame({"key": number % KEYS, "number": number, **more})


def summarize(frame: pd.DataFrame) -> pd.DataFrame:
    """Count what tells a right partition from a wrong one."""
    wrong = (frame["number"] % KEYS != frame["key"]).sum()
    found = [len(frame), frame["number"].sum(), wrong, frame["key"].nunique()]
    return pd.DataFrame([found], columns=["rows", "numbers", "wrong", "keys"], dtype="int64")
