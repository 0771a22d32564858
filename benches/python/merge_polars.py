"""The measured process of Polars for ``merge``: ``… PARTITIONS ROWS REPETITIONS``.

Joins the rows of all partitions, which are in memory, as one frame for each side. Prints seconds,
CPU seconds and page faults of each repetition, after one that does not count, as JSON.
"""

from __future__ import annotations

import functools
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pandas as pd
import polars

from benches.python.merge_job import make_left, make_right, matching_rows

__all__ = ["main", "measured"]

T = TypeVar("T")


def main(argv: list[str]) -> int:
    """Measure the join.

    Parameters
    ----------
    argv : list of str
        Partitions of each dataframe, rows of each partition, repetitions.

    Returns
    -------
    int
        Exit status: 1 if a result is wrong.
    """
    partitions, rows, repetitions = map(int, argv)
    found, numbers = [], range(partitions)
    for seed in range(1 + repetitions):
        left, right = (
            _frame([make(index, partitions=partitions, rows=rows, seed=seed) for index in numbers])
            for make in (make_left, make_right)
        )
        merged, used = measured(functools.partial(left.join, right, on="key"))
        pairs = merged["key"] + merged["left"] + merged["right"]
        if len(merged) != partitions * matching_rows(rows) or (pairs != 0).any():
            sys.stderr.write("wrong result\n")
            return 1
        found.append(used)
    sys.stdout.write(json.dumps(found[1:]))
    return 0


def measured(work: Callable[[], T]) -> tuple[T, tuple[float, float, int]]:
    """Return a result, and the seconds, CPU seconds and page faults that it took."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result, (seconds, cpu_seconds, after.ru_minflt - before.ru_minflt)


def _frame(partitions: Sequence[pd.DataFrame]) -> polars.DataFrame:
    columns = {
        name: np.concatenate([partition[name].to_numpy() for partition in partitions])
        for name in partitions[0]
    }
    return polars.DataFrame(columns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
