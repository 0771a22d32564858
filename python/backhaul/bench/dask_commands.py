"""The commands of the Dask benchmarks that have each part of a cluster in its own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import RenderableType

from backhaul.bench.options import (
    JsonTargetType,
    ListType,
    NumbersType,
    ProtocolsType,
    missing_extra,
)
from backhaul.bench.output import show_progress, write_json

__all__ = ["merge", "tasks"]

_F = TypeVar("_F", bound=Callable[..., Any])

_CASES = ("map", "chain", "tree", "all-to-all", "submit")
_SHARED_OPTIONS = [
    click.option(
        "--protocol",
        "protocols",
        type=ProtocolsType(),
        default="tcp,backhaul",
        show_default=True,
        help="Comma-separated; any that Dask knows.",
    ),
    click.option("--workers", type=click.IntRange(1), default=2, show_default=True),
    click.option(
        "--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each worker."
    ),
    click.option(
        "--json",
        "json_target",
        type=JsonTargetType(),
        metavar="[FILE]",
        is_flag=False,
        flag_value="-",
        help="Write JSON to a file, or print it instead of tables.",
    ),
    click.option(
        "--profile",
        "profile_folder",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write flame graphs of every process there; needs py-spy.",
    ),
    click.option(
        "--profile-native", is_flag=True, help="Have them show compiled extensions too (slow)."
    ),
]


def _shared_options(command: _F) -> _F:
    for option in reversed(_SHARED_OPTIONS):
        command = option(command)
    return command


def _saturation(default: str) -> Callable[[_F], _F]:
    return click.option(
        "--saturation",
        "saturations",
        type=NumbersType(),
        default=default,
        show_default=True,
        help="Comma-separated: tasks sent to a worker for each thread. 1.1 is Dask's default.",
    )


def _repetitions(default: int) -> Callable[[_F], _F]:
    return click.option(
        "--repetitions",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Timed ones.",
    )


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
@_saturation("1.1,20")
@_repetitions(5)
@_shared_options
def tasks(
    *,
    cases: tuple[str, ...],
    json_target: str | None,
    profile_folder: Path | None,
    profile_native: bool,
    **chosen: Any,
) -> None:
    """Measure what a trivial Dask task costs: wall-clock, CPU and context switches.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    try:
        from backhaul.bench import tasks as job
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    from backhaul.bench.task_tables import tasks_tables

    if not cases:
        raise click.BadParameter("name at least one case", param_hint="--case")
    report = _run(job, job.Options(cases=cases, **chosen), profile_folder, profile_native)
    _show(report, tasks_tables, json_target)


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
    type=click.Choice(["p2p", "tasks"]),
    default="p2p",
    show_default=True,
    help="How Dask brings equal keys together.",
)
@_saturation("1.1")
@_repetitions(3)
@_shared_options
def merge(
    *,
    json_target: str | None,
    profile_folder: Path | None,
    profile_native: bool,
    **chosen: Any,
) -> None:
    """Join two Dask dataframes, the same rows in few or many partitions.

    Time grows with the square of the partitions: a hundred chunks take minutes.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    try:
        from backhaul.bench import merge as job
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    from backhaul.bench.task_tables import merge_tables

    _show(
        _run(job, job.Options(**chosen), profile_folder, profile_native), merge_tables, json_target
    )


def _run(job: Any, options: Any, profile_folder: Path | None, profile_native: bool) -> Any:
    """Run a benchmark; what the user can mend is an error of one line."""
    from backhaul.bench.dask_cluster import BenchmarkFailed
    from backhaul.bench.profiles import Profiler, ProfilerFailed

    try:
        profiler = Profiler(profile_folder, native=profile_native) if profile_folder else None
        with show_progress() as on_step:
            return job.run(options, on_step=on_step, profiler=profiler)
    except (BenchmarkFailed, ProfilerFailed) as error:
        raise click.ClickException(str(error)) from error


def _show(report: Any, tables: Callable[[Any], RenderableType], json_target: str | None) -> None:
    from backhaul.bench.tables import open_console, print_machine

    if json_target is not None:
        write_json(report.to_json(), json_target)
    if json_target != "-":
        console = open_console()
        print_machine(console, report.machine, report.versions)
        console.print(tables(report))
