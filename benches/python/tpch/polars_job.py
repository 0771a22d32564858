"""The measured process of Polars for ``tpch``: ``… FOLDER SCALE QUERY REPETITIONS``.

Runs the SQL of a query on the files. Prints seconds, CPU seconds and page faults of each
repetition, after one that does not count, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import polars
from polars.testing import assert_frame_equal

from benches.python.merge_polars import measured
from benches.python.tpch.sql import TABLES, TOLERANCE, query

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Measure the query; the exit status is 1 if an answer is wrong."""
    folder, scale, number, repetitions = argv
    text = query(int(number), float(scale))

    def answer() -> polars.DataFrame:
        tables = {name: polars.scan_parquet(f"{folder}/{name}/*.parquet") for name in TABLES}
        return polars.SQLContext(tables).execute(text, eager=True)

    found = []
    expected = polars.read_parquet(f"{folder}/answers/{number}.parquet")
    for _ in range(1 + int(repetitions)):
        result, used = measured(answer)
        assert_frame_equal(result, expected, check_dtypes=False, rel_tol=TOLERANCE)
        found.append(used)
    sys.stdout.write(json.dumps(found[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
