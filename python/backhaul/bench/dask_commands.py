"""The commands of the Dask benchmarks that have each part of a cluster in its own process."""

from __future__ import annotations

from pathlib import Path

import click

from backhaul.bench.options import ListType, NumbersType, ProtocolsType, missing_extra
from backhaul.bench.output import show_progress, write_json

__all__ = ["tasks"]

_CASES = ("map", "chain", "tree", "all-to-all", "submit")


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
    "--protocol",
    "protocols",
    type=ProtocolsType(),
    default="tcp,backhaul",
    show_default=True,
    help="Comma-separated; any that Dask knows.",
)
@click.option(
    "--saturation",
    "saturations",
    type=NumbersType(),
    default="1.1,20",
    show_default=True,
    help="Comma-separated: tasks sent to a worker for each of its threads. 1.1 is Dask's default.",
)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Of each worker."
)
@click.option(
    "--repetitions", type=click.IntRange(1), default=5, show_default=True, help="Timed ones."
)
@click.option(
    "--tasks",
    "task_count",
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
@click.option(
    "--json",
    "json_target",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write JSON to a file, or print it instead of tables.",
)
@click.option(
    "--profile",
    "profile_folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write flame graphs of every process there; needs py-spy.",
)
@click.option(
    "--profile-native", is_flag=True, help="Have them show compiled extensions too (slow)."
)
def tasks(
    *,
    cases: tuple[str, ...],
    protocols: tuple[str, ...],
    saturations: tuple[float, ...],
    workers: int,
    threads: int,
    repetitions: int,
    task_count: int | None,
    function: str,
    json_target: str | None,
    profile_folder: Path | None,
    profile_native: bool,
) -> None:
    """Measure what a trivial Dask task costs: wall-clock, CPU and context switches.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    try:
        from backhaul.bench import tasks as job
    except ModuleNotFoundError as error:
        raise missing_extra(error) from None
    from backhaul.bench.dask_cluster import BenchmarkFailed
    from backhaul.bench.profiles import Profiler, ProfilerFailed
    from backhaul.bench.tables import open_console, print_machine
    from backhaul.bench.task_tables import tasks_tables

    if not cases:
        raise click.BadParameter("name at least one case", param_hint="--case")
    options = job.Options(
        cases=cases,
        protocols=protocols,
        saturations=saturations,
        workers=workers,
        threads=threads,
        repetitions=repetitions,
        tasks=task_count,
        function=function,
    )
    try:
        profiler = Profiler(profile_folder, native=profile_native) if profile_folder else None
        with show_progress() as on_step:
            report = job.run(options, on_step=on_step, profiler=profiler)
    except (BenchmarkFailed, ProfilerFailed) as error:
        raise click.ClickException(str(error)) from error
    if json_target is not None:
        write_json(report.to_json(), json_target)
    if json_target != "-":
        console = open_console()
        print_machine(console, report.machine, report.versions)
        console.print(tasks_tables(report))
