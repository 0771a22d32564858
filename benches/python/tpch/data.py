"""The tables of TPC-H as Parquet files, and DuckDB's answers to the queries.

``python -m benches.python.tpch.data FOLDER SCALE PARTS QUERY...`` makes the tables with the package
tpchgen-cli, in ``FOLDER/TABLE/*.parquet``, and the answers with DuckDB, in
``FOLDER/answers/QUERY.parquet``. Decimal numbers become float64 and dates timestamps: pandas has no
types for them.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benches.python.tpch.sql import TABLES, query

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Make the tables and the answers, and print null as JSON."""
    folder, scale, parts = Path(argv[0]), float(argv[1]), int(argv[2])
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    command = [str(program), "parquet", "--quiet", f"--scale-factor={scale:g}"]
    subprocess.run([*command, f"--output-dir={folder}", f"--parts={parts}"], check=True)
    for table, in_parts in TABLES.items():
        _convert(folder / table, in_parts=in_parts)
    _answer(folder, scale, [int(number) for number in argv[3:]])
    sys.stdout.write("null")
    return 0


def _convert(folder: Path, *, in_parts: bool) -> None:
    """Write the files of a table with the types of pandas, each as one row group."""
    made = sorted(folder.iterdir(), key=lambda path: int(path.stem.rpartition(".")[2]))
    groups = [[path] for path in made] if in_parts else [made]
    for number, paths in enumerate(groups):
        found = pa.concat_tables([pq.read_table(path) for path in paths])
        for path in paths:
            path.unlink()
        found = found.cast(pa.schema([(each.name, _plain(each.type)) for each in found.schema]))
        target = folder / f"{number:04}.parquet"
        pq.write_table(found, target, row_group_size=max(1, len(found)))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_date(kind):
        return pa.timestamp("us")
    return pa.string() if pa.types.is_string_view(kind) else kind


def _answer(folder: Path, scale: float, numbers: Sequence[int]) -> None:
    (folder / "answers").mkdir()
    connection = duckdb.connect()
    for table in TABLES:
        files = f"{folder}/{table}/*.parquet"
        connection.execute(f"create view {table} as select * from read_parquet('{files}')")
    for number in numbers:
        found = connection.sql(query(number, scale)).to_arrow_table()
        pq.write_table(found, folder / "answers" / f"{number}.parquet")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
