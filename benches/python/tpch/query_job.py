"""The job of ``tpch``: one query, from reading the files to the answer in the client."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from distributed import Client

from backhaul_bench.jobs import Job
from benches.python.tpch.queries import QUERIES, Tables
from benches.python.tpch.sql import TABLES, TOLERANCE

__all__ = ["Query"]


class Query(Job):
    """One query of TPC-H.

    Parameters
    ----------
    folder : str
        As `benches.python.tpch.data` makes it.
    scale : float
        Scale of the tables.
    number : int
        Number of the query.
    seed : int
        Not used: repetitions are of one query on one data set.
    """

    def __init__(self, *, folder: str, scale: float, number: int, seed: int = 0) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._scale = scale
        self._number = number

    @property
    def input_bytes(self) -> int:
        files = (each for name in TABLES for each in (self._folder / name).iterdir())
        return sum(each.stat().st_size for each in files)

    @property
    def timeout_s(self) -> float:
        return 300 * max(1.0, self._scale)

    def prepare(self, client: Client) -> None:
        """Read the answer that DuckDB has given."""
        self._expected = pd.read_parquet(self._folder / "answers" / f"{self._number}.parquet")

    def run(self, client: Client) -> None:
        answer = QUERIES[self._number](Tables(str(self._folder), self._scale))
        self.result = answer.ordered(client.compute(answer.rows).result())

    def check(self, client: Client) -> None:
        try:
            # DuckDB has other integers, decimals, and dates without a time
            for name, column in self._expected.items():
                if column.dtype == object:
                    self._expected[name] = column.astype(float)
            pd.testing.assert_frame_equal(
                self.result, self._expected, check_dtype=False, rtol=TOLERANCE, atol=0
            )
        except AssertionError as error:
            raise ValueError(f"wrong answer of query {self._number}: {error}") from None
