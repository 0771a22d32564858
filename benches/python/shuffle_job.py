"""The job of ``shuffle``: bring the rows with equal keys into one partition, or sort the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client, wait

from backhaul_bench.jobs import Job

__all__ = ["KEYS", "OPERATIONS", "Shuffle"]

#: Distinct keys of a plain shuffle; each partition has rows of all of them, if it has as many
KEYS = 10_000

_VALUE_BYTES = 8
#: Characters of a text
_TEXT_BYTES = 11
#: A prime: how far apart the keys of consecutive numbers are
_STRIDE = 7919

#: Operations of Dask, which take a dataframe and a shuffle method
OPERATIONS: dict[str, Callable[[Any, str], Any]] = {
    "shuffle": lambda frame, method: frame.shuffle("key", shuffle_method=method),
    "set_index": lambda frame, method: frame.set_index("key", shuffle_method=method),
    "sort_values": lambda frame, method: frame.sort_values("key", shuffle_method=method),
    "drop_duplicates": lambda frame, method: frame.drop_duplicates(
        subset=["key"], split_out=frame.npartitions, shuffle_method=method
    ),
    "groupby": lambda frame, method: frame.groupby("key").sum(
        numeric_only=True, split_out=frame.npartitions, shuffle_method=method
    ),
}


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
    operation : str
        One of :data:`OPERATIONS`. All but ``shuffle`` have two rows of each key, far apart.
    text : bool
        Whether there is a column of text as well.
    seed : int
        Differs between repetitions.
    """

    def __init__(
        self,
        *,
        method: str,
        partitions: int,
        rows: int,
        columns: int,
        operation: str = "shuffle",
        text: bool = False,
        seed: int,
    ) -> None:
        super().__init__()
        self._method = method
        self._partitions = partitions
        self._rows = rows
        self._columns = columns
        self._operation = operation
        self._text = text
        self._seed = seed
        self._keys = KEYS if operation == "shuffle" else max(1, partitions * rows // 2)

    @property
    def input_bytes(self) -> int:
        row_bytes = (1 + self._columns) * _VALUE_BYTES + self._text * _TEXT_BYTES
        return self._partitions * self._rows * row_bytes

    @property
    def timeout_s(self) -> float:
        # Every input partition has a piece for every output partition.
        return super().timeout_s + self._partitions**2 * 0.02 + self.input_bytes / 5e6

    def prepare(self, client: Client) -> None:
        data: dict[str, Any] = {"values": self._columns, "keys": self._keys, "text": self._text}
        self._frame = dd.from_map(
            make_partition,
            range(self._partitions),
            rows=self._rows,
            seed=self._seed,
            meta=make_partition(0, rows=1, seed=0, **data).iloc[:0],
            **data,
        ).persist()
        wait(self._frame)

    def run(self, client: Client) -> None:
        self.result = OPERATIONS[self._operation](self._frame, self._method).persist()
        wait(self.result)

    def check(self, client: Client) -> None:
        total = self._partitions * self._rows
        keys = min(total, self._keys)
        reduces = self._operation in ("drop_duplicates", "groupby")
        expected = [keys if reduces else total, total * (total - 1) // 2, 0, keys]
        meta = summarize(self.result._meta, keys=self._keys)
        parts = self.result.map_partitions(summarize, keys=self._keys, meta=meta).compute()
        found = parts.sum().tolist()[:4]
        if self._operation == "drop_duplicates":
            # Dask may keep either row of a key.
            found[1] = expected[1]
        if self._operation == "groupby":
            # Sums of numbers have another key.
            found[2] = 0
        if found != expected:
            raise ValueError(
                "wrong result: rows, sum of their numbers, rows with another's key, keys in each "
                f"partition: {found} instead of {expected}"
            )
        if self._operation in ("set_index", "sort_values"):
            bounds = parts[parts["rows"] > 0][["first", "last"]].to_numpy().ravel()
            if parts["unsorted"].any() or (np.diff(bounds) < 0).any():
                raise ValueError("wrong result: keys in another order")


def make_partition(
    index: int, *, rows: int, values: int, seed: int, keys: int = KEYS, text: bool = False
) -> pd.DataFrame:
    """Make a partition: rows in random order, numbered through all partitions."""
    # Not called columns: from_map has an argument of that name.
    random = np.random.default_rng([seed, index])
    number = index * rows + random.permutation(rows)
    more: dict[str, Any] = {f"value{column}": random.random(rows) for column in range(1, values)}
    if text:
        padded = pc.utf8_lpad(pa.array(number).cast(pa.large_string()), _TEXT_BYTES, "0")
        more["text"] = pd.array(padded, dtype="str")
    return pd.DataFrame({"key": number * _STRIDE % keys, "number": number, **more})


def summarize(frame: pd.DataFrame, *, keys: int) -> pd.DataFrame:
    """Count the facts that tell a right partition from a wrong one."""
    key = frame.index.to_series() if frame.index.name == "key" else frame["key"]
    wrong = (frame["number"].to_numpy() * _STRIDE % keys != key.to_numpy()).sum()
    if "text" in frame:
        wrong += (frame["text"].astype("int64") != frame["number"]).sum()
    found = {
        "rows": len(frame),
        "numbers": frame["number"].sum(),
        "wrong": wrong,
        "keys": key.nunique(),
        "unsorted": not key.is_monotonic_increasing,
        "first": key.min() if len(key) else 0,
        "last": key.max() if len(key) else 0,
    }
    return pd.DataFrame([found], dtype="int64")
