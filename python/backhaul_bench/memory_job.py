"""Jobs of ``backhaul bench memory``: dataframes, arrays, and data that does not fit in memory.

Each job makes its data on the workers, as a program that reads files does, and checks the result
against a value that follows from the definition of the data.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, Worker, wait

from backhaul_bench.jobs import Job

__all__ = [
    "Climatology",
    "FourierTransform",
    "GroupBy",
    "MatrixProduct",
    "Merge",
    "Rechunk",
    "SetIndex",
    "Shuffle",
    "SpillTranspose",
]

_TOLERANCE: Final = 1e-9
#: Rows of one partition of a dataframe, before `scale`
_ROWS: Final = 250_000
_PARTITIONS: Final = 16
#: Different keys of a dataframe, fewer than the rows of a partition
_KEYS: Final = 50_021


def _partition(number: int, rows: int, seed: int) -> pd.DataFrame:
    """Make one partition: integer keys, a string and three columns of floats."""
    index = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
    keys = (index * 7919 + seed) % _KEYS
    return pd.DataFrame(
        {
            "key": keys,
            "name": pd.array(np.char.add("name-", (keys % 1000).astype("U4")), dtype="string"),
            "x": np.ones(rows),
            "y": index.astype(np.float64),
            "z": keys.astype(np.float64),
        }
    )


def _keys(number: int, size: int) -> pd.DataFrame:
    """Make one partition of the table that has each key once."""
    keys = np.arange(number * size, min((number + 1) * size, _KEYS), dtype=np.int64)
    return pd.DataFrame({"key": keys, "weight": np.full(len(keys), 2.0)})


class _Memory(Job):
    """A job whose data grows with a scale.

    Parameters
    ----------
    scale : float
        Share of the size that the benchmark has by default.
    seed : int
        Differs between repetitions, so that no result of an earlier one is used again.
    """

    def __init__(self, *, scale: float, seed: int) -> None:
        super().__init__()
        self._scale = scale
        self._seed = seed
        self.expected: float = 0.0

    @property
    def timeout_s(self) -> float:
        return 600.0

    def prepare(self, client: Client) -> None:
        """Nothing is made ahead: making the data is part of the job."""

    def check(self, client: Client) -> None:
        if not abs(self.result - self.expected) <= _TOLERANCE * abs(self.expected):
            raise ValueError(f"wrong result: {self.result!r} instead of {self.expected!r}")


class _Frames(_Memory):
    """A job on a dataframe of 16 partitions, 170 MB at scale 1."""

    @property
    def rows(self) -> int:
        """Rows of one partition."""
        return max(100, int(_ROWS * self._scale))

    @property
    def input_bytes(self) -> int:
        return _PARTITIONS * self.rows * (4 * 8 + 12)

    def frame(self) -> Any:
        """Return the dataframe."""
        meta = _partition(0, 1, 0)
        return dd.from_map(
            _partition, range(_PARTITIONS), rows=self.rows, seed=self._seed, meta=meta
        )


class Merge(_Frames):
    """Join with a table of all keys, which is shuffled too, and sum by name."""

    def run(self, client: Client) -> None:
        size = -(-_KEYS // _PARTITIONS)
        right = dd.from_map(_keys, range(_PARTITIONS), size=size, meta=_keys(0, 1))
        joined = self.frame().merge(right, on="key", broadcast=False)
        joined["product"] = joined["x"] * joined["weight"]
        totals = joined.groupby("name")["product"].sum()
        self.result = float(client.compute(totals).result().sum())
        self.expected = 2.0 * _PARTITIONS * self.rows


class Shuffle(_Frames):
    """Shuffle by a string."""

    def run(self, client: Client) -> None:
        self.result = float(client.compute(self.frame().shuffle("name")["x"].sum()).result())
        self.expected = float(_PARTITIONS * self.rows)


class SetIndex(_Frames):
    """Sort by a column, persist, and select a range of it."""

    def run(self, client: Client) -> None:
        ordered = client.persist(self.frame().set_index("y"))
        wait(ordered)
        total = ordered.loc[0 : self.rows - 1]["x"].sum()
        self.result = float(client.compute(total).result())
        self.expected = float(self.rows)


class GroupBy(_Frames):
    """Means and sums by name and by key."""

    def run(self, client: Client) -> None:
        frame = self.frame()
        by_name = frame.groupby("name").agg({"x": "sum", "y": "mean", "z": "std"})
        by_key = frame.groupby("key").agg({"x": "sum", "y": "max"}, split_out=4)["x"].sum()
        found, total = client.gather(client.compute([by_name, by_key]))
        self.result = float(found["x"].sum() + total)
        self.expected = 2.0 * _PARTITIONS * self.rows


class _Arrays(_Memory):
    """A job on a square array of float64.

    Parameters
    ----------
    scale : float
        Share of the bytes that the array has by default.
    seed : int
        As for every job.
    size : int
        Rows and columns at scale 1.
    chunks : int
        Rows and columns of a chunk; of the bands of a job that has them, their width.
    """

    def __init__(self, *, scale: float, seed: int, size: int, chunks: int) -> None:
        super().__init__(scale=scale, seed=seed)
        self._size = max(2, int(size * scale**0.5))
        self._chunks = min(chunks, self._size)

    @property
    def input_bytes(self) -> int:
        return 8 * self._size**2

    def array(self, chunks: tuple[int, int]) -> Any:
        """Return the array: random numbers, the same for the same chunks."""
        shape = (self._size, self._size)
        return da.random.default_rng(self._seed).random(shape, chunks=chunks)

    def expect_sum(self, client: Client, chunks: tuple[int, int]) -> None:
        """Expect the sum of the array."""
        self.expected = float(client.compute(self.array(chunks).sum()).result())


class Rechunk(_Arrays):
    """Turn bands of rows into bands of columns, and sum."""

    def run(self, client: Client) -> None:
        size = self._size
        turned = self.array((self._chunks, size)).rechunk((size, self._chunks))
        # Not fused with the sum over all: each output chunk is made whole.
        self.result = float(
            client.compute(turned.max(axis=0) * 0 + turned.sum(axis=0)).result().sum()
        )

    def check(self, client: Client) -> None:
        self.expect_sum(client, (self._chunks, self._size))
        super().check(client)


class FourierTransform(_Arrays):
    """Transform along both axes, with a rechunk in between; the energy is as Parseval says."""

    def run(self, client: Client) -> None:
        size = self._size
        rows = da.fft.fft(self.array((self._chunks, size)), axis=1)
        both = da.fft.fft(rows.rechunk((size, self._chunks)), axis=0)
        self.result = float(client.compute((abs(both) ** 2).sum()).result()) / size**2

    def check(self, client: Client) -> None:
        squares = (self.array((self._chunks, self._size)) ** 2).sum()
        self.expected = float(client.compute(squares).result())
        super().check(client)


class MatrixProduct(_Arrays):
    """Product of the array with itself."""

    def run(self, client: Client) -> None:
        x = self.array((self._chunks, self._chunks))
        self.result = float(client.compute((x @ x).sum()).result())

    def check(self, client: Client) -> None:
        x = self.array((self._chunks, self._chunks))
        columns, rows = client.gather(client.compute([x.sum(axis=0), x.sum(axis=1)]))
        self.expected = float(columns @ rows)
        super().check(client)


class SpillTranspose(_Arrays):
    """Persist an array that is larger than the workers may keep in memory; ``(x + x.T).sum()``."""

    def prepare(self, client: Client) -> None:
        client.run(_count_pauses)

    def run(self, client: Client) -> None:
        x = client.persist(self.array((self._chunks, self._chunks)))
        wait(x)
        self.result = float(client.compute((x + x.T).sum()).result())

    def facts(self, client: Client) -> dict[str, Any]:
        """Count how often workers paused, and the results on disk."""
        found = client.run(_pauses_and_spilled)
        return {
            "pauses": sum(pauses for pauses, _ in found.values()),
            "spilled": sum(spilled for _, spilled in found.values()),
        }

    def check(self, client: Client) -> None:
        self.expect_sum(client, (self._chunks, self._chunks))
        self.expected *= 2
        super().check(client)


class Climatology(_Memory):
    """Anomalies of days from the means of their months, over years, at each point of a grid."""

    _YEARS: Final = 8

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """Years, months, days, latitudes and longitudes."""
        side = max(4, int(150 * self._scale**0.5))
        return (self._YEARS, 12, 30, side, side)

    @property
    def input_bytes(self) -> int:
        return 8 * math.prod(self.shape)

    def run(self, client: Client) -> None:
        years, months, days, latitudes, longitudes = self.shape
        year = da.arange(years, chunks=1)[:, None, None, None, None]
        month = da.arange(months, chunks=3)[:, None, None, None]
        # The mean of a month is its number, and half of the years are one above, half one below.
        values = month + (1.0 - 2.0 * ((year + self._seed) % 2))
        chunks = ((1,) * years, (3,) * (months // 3), days, latitudes, longitudes)
        x = da.broadcast_to(values, self.shape, chunks=chunks).map_blocks(np.array)
        anomalies = x - x.mean(axis=(0, 2), keepdims=True)
        self.result = float(client.compute((anomalies**2).mean(axis=(0, 1, 2)).sum()).result())
        self.expected = float(latitudes * longitudes)


class _Pauses(logging.Handler):
    """Counts the log lines of Dask that say that a worker pauses."""

    #: Of this process, once it counts
    count: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        _Pauses.count = (_Pauses.count or 0) + ("Pausing worker" in record.msg)


def _count_pauses() -> None:
    """Count from now on how often the worker of this process pauses."""
    if _Pauses.count is None:
        logging.getLogger("distributed.worker.memory").addHandler(_Pauses())
    _Pauses.count = 0


def _pauses_and_spilled(dask_worker: Worker) -> tuple[int, int]:
    disk = getattr(dask_worker.data, "disk", None)
    return _Pauses.count or 0, len(disk) if disk is not None else 0
