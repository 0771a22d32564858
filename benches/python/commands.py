"""The commands of the development benchmarks: ``python -m benches.python`` in a checkout."""

from __future__ import annotations

from typing import Any

import click

from backhaul_bench.command_options import (
    cluster_options,
    json_option,
    named,
    profile_options,
    run_benchmark,
    saturation,
)
from backhaul_bench.option_types import ListType, NumbersType, SizeType
from benches.python import tables

__all__ = ["COMMANDS"]

_METHODS = ("p2p", "tasks")
_WAYS = ("scatter", "replicate", "fetch")
_LAUNCHERS = ("dask-tcp", "dask-backhaul", "backhaul", "backhaul-unpinned")
_ALLOCATORS = ("stock", "recycled", "backhaul")
_EXCHANGES = ("auto", "off")
_OPERATIONS = ("shuffle", "set_index", "sort_values", "drop_duplicates", "groupby")
_JOBS = ("transpose", "anomaly", "vorticity", "quadratic-means")

_exchange = click.option(
    "--exchange",
    "exchanges",
    type=ListType(_EXCHANGES, all=_EXCHANGES),
    default="auto",
    show_default=True,
    help="Comma-separated: dataframes over backhaul by the exchange (auto) or by P2P (off).",
)


@click.command()
@click.option(
    "--chunks",
    type=NumbersType(whole=True),
    default="1,5,20",
    show_default=True,
    help="Comma-separated: partitions of each dataframe for each worker.",
)
@click.option(
    "--rows-per-worker",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Rows of each dataframe for each worker, whatever the chunks.",
)
@click.option(
    "--shuffle",
    type=click.Choice(_METHODS),
    default="p2p",
    show_default=True,
    help="How Dask brings equal keys together.",
)
@click.option("--parquet", is_flag=True, help="Read the dataframes from files, in each run.")
@click.option("--pandas", is_flag=True, help="Have pandas join, by keys of different types.")
@click.option("--memory-limit", default="0", show_default=True, help="Of each worker; 0 for none.")
@_exchange
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def merge(**chosen: Any) -> None:
    """Join two Dask dataframes, the same rows in few or many partitions.

    Time grows with the square of the partitions: a hundred chunks take minutes.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import merge as job

    run_benchmark(job, tables.merge_tables, chosen)


@click.command()
@click.option(
    "--method",
    "methods",
    type=ListType(_METHODS, all=_METHODS),
    default="p2p",
    show_default=True,
    help="Comma-separated: p2p, tasks.",
)
@click.option(
    "--chunks",
    type=NumbersType(whole=True),
    default="5",
    show_default=True,
    help="Comma-separated: partitions for each worker.",
)
@click.option(
    "--rows-per-worker",
    type=click.IntRange(1),
    default=2_000_000,
    show_default=True,
    help="Rows for each worker, whatever the chunks.",
)
@click.option(
    "--columns",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Of 8 bytes, beside the key.",
)
@click.option(
    "--operation",
    "operations",
    type=ListType(_OPERATIONS, all=_OPERATIONS),
    default="shuffle",
    show_default=True,
    help=f"Comma-separated: {', '.join(_OPERATIONS)}.",
)
@click.option("--text", is_flag=True, help="Add a column of text.")
@_exchange
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def shuffle(**chosen: Any) -> None:
    """Shuffle a Dask dataframe: rows with equal keys come into one partition.

    Operations other than `shuffle` have two rows of each key.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import shuffle as job

    named(chosen, "methods", "--method")
    named(chosen, "operations", "--operation")
    run_benchmark(job, tables.shuffle_tables, chosen)


@click.command()
@click.option(
    "--method",
    "methods",
    type=ListType(_METHODS, all=_METHODS),
    default="all",
    show_default=True,
    help="Comma-separated: p2p, tasks.",
)
@click.option(
    "--size",
    type=click.IntRange(1),
    default=8000,
    show_default=True,
    help="Rows and columns of the array.",
)
@click.option(
    "--chunks",
    type=NumbersType(whole=True),
    default="1000",
    show_default=True,
    help="Comma-separated: rows of a chunk before, columns of one after.",
)
@click.option(
    "--transpose", is_flag=True, help="Transpose the array: chunks of rows before and after."
)
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def rechunk(**chosen: Any) -> None:
    """Rechunk a Dask array, from chunks of rows to chunks of columns.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import rechunk as job

    named(chosen, "methods", "--method")
    run_benchmark(job, tables.rechunk_tables, chosen)


@click.command("out-of-core")
@click.option(
    "--job",
    "jobs",
    type=ListType(_JOBS, all=_JOBS),
    default="transpose",
    show_default=True,
    help=f"Comma-separated, or all: {', '.join(_JOBS)}.",
)
@click.option(
    "--size",
    type=click.IntRange(1),
    default=16_000,
    show_default=True,
    help="Rows and columns of the array of transpose.",
)
@click.option(
    "--chunks",
    type=click.IntRange(1),
    default=2_000,
    show_default=True,
    help="Rows and columns of its chunks.",
)
@click.option("--memory-limit", default="1GB", show_default=True, help="Of each worker.")
@click.option(
    "--times",
    type=click.FloatRange(0, min_open=True),
    default=4.0,
    show_default=True,
    help="Input of the other jobs, as a multiple of the memory of all workers.",
)
@cluster_options(repetitions=5)
@profile_options
def out_of_core(**chosen: Any) -> None:
    """Run jobs on arrays that are larger than the workers may keep in memory.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import out_of_core as job

    named(chosen, "jobs", "--job")
    run_benchmark(job, tables.out_of_core_tables, chosen)


@click.command()
@click.option(
    "--query",
    "queries",
    type=NumbersType(whole=True),
    default=",".join(map(str, range(1, 23))),
    help="Comma-separated: numbers of queries.  [default: all 22]",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Of the tables: 1 is a gigabyte of text.",
)
@click.option(
    "--parts",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Files of each of the large tables.",
)
@click.option("--memory-limit", default="0", show_default=True, help="Of each worker; 0 for none.")
@_exchange
@cluster_options(repetitions=3)
@profile_options
def tpch(**chosen: Any) -> None:
    """Run the queries of TPC-H on dask.dataframe, from files to the answer.

    Needs `pip install tpchgen-cli duckdb`, which make the tables and the answers to compare with.
    Where Polars is installed, it runs the SQL of the queries.

    Exits with 1 if an answer is wrong. Needs the extra `dask`.
    """
    from benches.python.tpch import bench as job

    named(chosen, "queries", "--query")
    run_benchmark(job, tables.tpch_tables, chosen)


@click.command("whole-jobs")
@cluster_options(repetitions=5)
@profile_options
def whole_jobs(**chosen: Any) -> None:
    """Run the jobs of the chart in README: join, shuffle, rechunk, transpose-sum, small tasks.

    `python -m benches.python.jobs_chart REPORT.json CHART.svg` draws the JSON of it.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import whole_jobs as job

    run_benchmark(job, tables.whole_jobs_tables, chosen)


@click.command()
@click.option(
    "--way",
    "ways",
    type=ListType(_WAYS, all=_WAYS),
    default="all",
    show_default=True,
    help="Comma-separated: scatter (client.scatter with broadcast), replicate (the result of a "
    "task, with client.replicate), fetch (the same, because tasks on every worker need it).",
)
@click.option(
    "--size",
    "nbytes",
    type=SizeType(),
    default="256MiB",
    show_default=True,
    help="Of the array.",
)
@cluster_options(repetitions=3, workers=4)
@profile_options
def broadcast(**chosen: Any) -> None:
    """Bring one array to every worker; measure time, and memory in copies of the array.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from benches.python import broadcast as job

    named(chosen, "ways", "--way")
    run_benchmark(job, tables.broadcast_tables, chosen)


@click.command()
@click.option(
    "--size",
    "nbytes",
    type=SizeType(),
    default="128MiB",
    show_default=True,
    help="Of the array.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Processes for each allocator.",
)
@click.option(
    "--allocator",
    "allocators",
    type=ListType(_ALLOCATORS, all=_ALLOCATORS),
    default="all",
    show_default=True,
    help="Comma-separated: stock (NumPy on glibc), recycled (glibc keeps freed memory), "
    "backhaul (an arena).",
)
@json_option
def alloc(**chosen: Any) -> None:
    """Make and fill a large NumPy array, drop it, and make it again. Needs numpy."""
    from benches.python import alloc as job

    named(chosen, "allocators", "--allocator")
    run_benchmark(job, tables.alloc_tables, chosen)


@click.command()
@click.option(
    "--launcher",
    "launchers",
    type=ListType(_LAUNCHERS, all=_LAUNCHERS),
    default="dask-tcp,dask-backhaul,backhaul",
    show_default=True,
    help=f"Comma-separated: {', '.join(_LAUNCHERS)}.",
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each.")
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Starts of each.",
)
@json_option
def start(**chosen: Any) -> None:
    """Start a cluster on this machine, with Dask's launcher and with ours.

    Needs the extra `dask`.
    """
    from benches.python import start as job

    named(chosen, "launchers", "--launcher")
    run_benchmark(job, tables.start_tables, chosen)


#: All of them
COMMANDS = (merge, shuffle, rechunk, out_of_core, tpch, whole_jobs, broadcast, alloc, start)
