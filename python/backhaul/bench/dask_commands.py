"""The commands of the benchmarks that run on Dask clusters, and of memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from backhaul.bench.cluster_commands import (
    cluster_options,
    json_option,
    profile_options,
    run_benchmark,
    saturation,
)
from backhaul.bench.options import ChunkType, ListType, NumbersType, SizeType

__all__ = ["COMMANDS"]

_CASES = ("map", "chain", "tree", "all-to-all", "submit")
_METHODS = ("p2p", "tasks")
_WAYS = ("scatter", "replicate", "fetch")
_AGAINST = ("one-process", "one-process-recycled", "tcp-recycled")
_LAUNCHERS = ("dask-tcp", "dask-backhaul", "backhaul", "backhaul-unpinned")
_ALLOCATORS = ("stock", "recycled", "backhaul")

_F = TypeVar("_F", bound=Callable[..., Any])


def _array_options(*, size: int, chunks: int) -> Callable[[_F], _F]:
    """Add the options of a square array of float64, with their defaults."""
    of_size = click.option(
        "--size", type=click.IntRange(1), default=size, show_default=True, help="Rows of x."
    )
    of_chunks = click.option(
        "--chunks",
        type=ChunkType(),
        default=chunks,
        show_default=True,
        help="Rows of a chunk, or its size, such as 128MiB.",
    )
    return lambda command: of_size(of_chunks(command))


@click.command()
@click.option(
    "--case",
    "cases",
    type=ListType(_CASES, all=_CASES),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_CASES)}.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    help="Tasks of every case [default: 5000, 300, 1023, 100, 200].",
)
@click.option(
    "--function",
    type=click.Choice(["module", "lambda"]),
    default="module",
    show_default=True,
    help="What tasks call: a function that workers import, or one pickled by value.",
)
@saturation("1.1,20")
@cluster_options(repetitions=5)
@profile_options
def tasks(**chosen: Any) -> None:
    """Measure what a trivial Dask task costs: wall-clock, CPU and context switches.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul.bench import tasks as job
    from backhaul.bench.task_tables import tasks_tables

    if not chosen["cases"]:
        raise click.BadParameter("name at least one case", param_hint="--case")
    run_benchmark(job, tasks_tables, chosen)


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
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def merge(**chosen: Any) -> None:
    """Join two Dask dataframes, the same rows in few or many partitions.

    Time grows with the square of the partitions: a hundred chunks take minutes.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul.bench import merge as job
    from backhaul.bench.data_tables import merge_tables

    run_benchmark(job, merge_tables, chosen)


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
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def shuffle(**chosen: Any) -> None:
    """Shuffle a Dask dataframe: rows with equal keys come into one partition.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul.bench import shuffle as job
    from backhaul.bench.data_tables import shuffle_tables

    _need(chosen, "methods", "--method")
    run_benchmark(job, shuffle_tables, chosen)


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
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Rows of a chunk before, columns of one after.",
)
@saturation("1.1")
@cluster_options(repetitions=3)
@profile_options
def rechunk(**chosen: Any) -> None:
    """Rechunk a Dask array, from chunks of rows to chunks of columns.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul.bench import rechunk as job
    from backhaul.bench.data_tables import rechunk_tables

    _need(chosen, "methods", "--method")
    run_benchmark(job, rechunk_tables, chosen)


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
    from backhaul.bench import broadcast as job
    from backhaul.bench.data_tables import broadcast_tables

    _need(chosen, "ways", "--way")
    run_benchmark(job, broadcast_tables, chosen)


@click.command("transpose-sum")
@_array_options(size=8000, chunks=1000)
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Not counted.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the arrays.")
@click.option(
    "--against",
    type=ListType(_AGAINST, all=_AGAINST, none=()),
    default="none",
    show_default=True,
    help="Comma-separated: one-process (as many threads, nothing is moved), one-process-recycled "
    "(and glibc keeps freed memory), tcp-recycled, or all.",
)
@cluster_options(repetitions=5)
@profile_options
def transpose_sum(**chosen: Any) -> None:
    """Sum x + x.T on Dask workers over each protocol, and compare.

    Exits with 1 if the results differ. Needs the extra `dask`.
    """
    from backhaul.bench import transpose_sum as job
    from backhaul.bench.data_tables import transpose_sum_tables

    report = run_benchmark(job, transpose_sum_tables, chosen)
    if not report.equal:
        sys.exit(1)


@click.command()
@_array_options(size=12_000, chunks=2000)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.001),
    default=0.05,
    show_default=True,
    help="Seconds between samples; more where sampling would take a tenth of a CPU.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=0.5,
    show_default=True,
    help="Seconds from the end of a repetition to the sample at rest.",
)
@cluster_options(repetitions=5)
def memory(**chosen: Any) -> None:
    """Sample the memory of all processes of a cluster while it sums x + x.T.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul.bench import memory as job
    from backhaul.bench.memory_tables import memory_tables

    run_benchmark(job, memory_tables, chosen)


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
    from backhaul.bench import alloc as job
    from backhaul.bench.memory_tables import alloc_tables

    _need(chosen, "allocators", "--allocator")
    run_benchmark(job, alloc_tables, chosen)


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
    from backhaul.bench import start as job

    _need(chosen, "launchers", "--launcher")
    run_benchmark(job, job.start_tables, chosen)


#: All of them
COMMANDS = (
    tasks,
    transpose_sum,
    merge,
    shuffle,
    rechunk,
    broadcast,
    memory,
    alloc,
    start,
)


def _need(chosen: dict[str, Any], name: str, option: str) -> None:
    if not chosen[name]:
        raise click.BadParameter("name at least one", param_hint=option)
