"""Common parts of the commands of the benchmarks: options, and the way to a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backhaul_bench.option_types import FolderType, JsonTargetType, NumbersType, ProtocolsType
from backhaul_bench.output import show_progress, write_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backhaul_bench.answers import Answer

__all__ = [
    "cluster_options",
    "json_option",
    "named",
    "plot_option",
    "profile_options",
    "run_benchmark",
    "saturation",
    "verbose_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def cluster_options(*, repetitions: int, workers: int = 2) -> Callable[[_F], _F]:
    """Add the options that every command with clusters has.

    Parameters
    ----------
    repetitions : int
        Unless the user wants others, as all defaults.
    workers : int
        Worker processes.

    Returns
    -------
    callable
        Decorates a command.
    """
    options: list[Callable[[_F], _F]] = [
        click.option(
            "--repetitions",
            "--repeats",
            "repetitions",
            type=click.IntRange(1),
            default=repetitions,
            show_default=True,
            help="Timed ones.",
        ),
        click.option(
            "--protocol",
            "--protocols",
            "protocols",
            type=ProtocolsType(),
            default="tcp,backhaul",
            show_default=True,
            help="Comma-separated; any that Dask knows.",
        ),
        click.option("--workers", type=click.IntRange(1), default=workers, show_default=True),
        click.option(
            "--threads",
            type=click.IntRange(1),
            default=1,
            show_default=True,
            help="Of each worker.",
        ),
    ]
    return lambda command: _add(json_option(command), options)


def saturation(default: str) -> Callable[[_F], _F]:
    """Add the option of how many tasks are sent ahead.

    Parameters
    ----------
    default : str
        Numbers, separated by commas.

    Returns
    -------
    callable
        Decorates a command.
    """
    return click.option(
        "--saturation",
        "saturations",
        type=NumbersType(),
        default=default,
        show_default=True,
        help="Comma-separated: tasks sent to a worker for each thread. 1.1 is Dask's default.",
    )


def json_option(command: _F) -> _F:
    """Add the option of where JSON goes."""
    option = click.option(
        "--json",
        "json_target",
        type=JsonTargetType(),
        metavar="[FILE]",
        is_flag=False,
        flag_value="-",
        help="Write JSON to a file, or print it instead of tables.",
    )
    return option(command)


def verbose_option(command: _F) -> _F:
    """Add the option of tables with everything."""
    option = click.option(
        "--verbose", is_flag=True, help="Print all that was measured, in tables of 140 columns."
    )
    return option(command)


def plot_option(command: _F) -> _F:
    """Add the option of a picture."""
    from backhaul_bench.plots import PlotTargetType

    option = click.option(
        "--plot",
        type=PlotTargetType(),
        metavar="FILE",
        help="Draw it too, as .svg or .png; needs the extra `bench`.",
    )
    return option(command)


def profile_options(command: _F) -> _F:
    """Add the options of flame graphs."""
    options: list[Callable[[_F], _F]] = [
        click.option(
            "--profile",
            "profile_folder",
            metavar="DIR",
            type=FolderType(),
            help="Write flame graphs of every process there; needs py-spy.",
        ),
        click.option(
            "--profile-native", is_flag=True, help="Have them show compiled extensions too (slow)."
        ),
    ]
    return _add(command, options)


def run_benchmark(
    job: Any,
    tables: Callable[[Any], RenderableType],
    chosen: dict[str, Any],
    *,
    answer: Callable[[Any], Answer] | None = None,
    draw: Callable[[Any, Path], None] | None = None,
) -> Any:
    """Run a benchmark and write its report; what the user can mend is an error of one line.

    Parameters
    ----------
    job : module
        With ``Options`` and ``run``.
    tables : callable
        Lays out the report with all that was measured.
    chosen : dict of str to Any
        Values that the command was given: options of the job, and those of this module.
    answer : callable, optional
        Says what the report comes to, which is all that is printed unless more is asked for.
    draw : callable, optional
        Draws the report to a file, if one was given.

    Returns
    -------
    Any
        The report.

    Raises
    ------
    click.ClickException
        If a process failed, a result is wrong, or py-spy is missing.
    """
    from backhaul._output import open_console, print_machine
    from backhaul_bench.dask_cluster import BenchmarkFailed
    from backhaul_bench.pair import ContenderFailed
    from backhaul_bench.profiles import Profiler, ProfilerFailed
    from backhaul_bench.tables import print_answer

    json_target = chosen.pop("json_target")
    verbose = chosen.pop("verbose", False) or answer is None
    plot = chosen.pop("plot") if draw is not None else None
    folder, native = chosen.pop("profile_folder", None), chosen.pop("profile_native", False)
    options = job.Options(**chosen)
    try:
        more = {"profiler": Profiler(folder, native=native)} if folder else {}
        with show_progress() as on_step:
            report = job.run(options, on_step=on_step, **more)
    except (BenchmarkFailed, ContenderFailed, ProfilerFailed) as error:
        raise click.ClickException(str(error)) from error
    if json_target is not None:
        write_json(report.to_json(), json_target)
    if plot is not None and draw is not None:
        draw(report, plot)
    if json_target != "-":
        console = open_console(wide=verbose)
        if answer is not None:
            print_answer(console, answer(report), table=not verbose)
        print_machine(console, report.machine, report.versions)
        if verbose:
            console.print(tables(report))
        if plot is not None:
            console.print(f"Picture   {plot}", highlight=False)
    return report


def named(chosen: dict[str, Any], name: str, option: str) -> None:
    """Refuse a list without names.

    Parameters
    ----------
    chosen : dict of str to Any
        Values that the command was given.
    name, option : str
        The parameter, and the option that sets it.

    Raises
    ------
    click.BadParameter
        If the list is empty.
    """
    if not chosen[name]:
        raise click.BadParameter("name at least one", param_hint=option)


def _add(command: _F, options: list[Callable[[_F], _F]]) -> _F:
    for option in reversed(options):
        command = option(command)
    return command
