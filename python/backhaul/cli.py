"""The ``backhaul`` command."""

from __future__ import annotations

import signal
import sys

import click

from backhaul.bench.dask_commands import COMMANDS
from backhaul.bench.options import ListType, PeersType, SizesType
from backhaul.bench.output import print_json, show_progress
from backhaul.topology.command import topology

__all__ = ["main"]

_APIS = ("async", "blocking")
_LANES = ("auto", "shm", "tcp", "inproc")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="backhaul")
def main() -> None:
    """Backhaul moves data between processes at the speed of the hardware."""
    # A benchmark that is told to end must end what it started.
    earlier = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, earlier))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(*, as_json: bool) -> None:
    """Print version, machine, and whether each lane and shared memory work here."""
    from backhaul.bench.lanes import check_arena, check_lanes
    from backhaul.bench.machine import Machine, installed_versions
    from backhaul.bench.tables import open_console, print_machine

    machine, versions = Machine.here(), installed_versions("backhaul", "dask", "distributed")
    lanes, arena = check_lanes(), check_arena()
    if as_json:
        print_json(
            {
                "schema": "backhaul.info/1",
                "machine": vars(machine),
                "versions": versions,
                "lanes": lanes,
                "arena": arena,
            }
        )
        return
    console = open_console()
    print_machine(console, machine, versions)
    for lane, state in lanes.items():
        console.print(f"Lane      {lane:7} {state}", highlight=False)
    console.print(f"Arena     {arena}", highlight=False)


@main.group()
def bench() -> None:
    """Measure Backhaul on this machine, with peers in the same run."""


@bench.command()
@click.option(
    "--sizes",
    type=SizesType(),
    default="8,1KiB,64KiB,1MiB,16MiB",
    show_default=True,
    help="Comma-separated message sizes.",
)
@click.option(
    "--api",
    "apis",
    type=ListType(_APIS, both=_APIS),
    default="both",
    show_default=True,
    help="async, blocking or both.",
)
@click.option(
    "--lane",
    "lanes",
    type=ListType(_LANES),
    default="auto",
    show_default=True,
    help="Comma-separated: auto, shm, tcp, inproc (two threads of one process).",
)
@click.option(
    "--against",
    type=PeersType(),
    default="none",
    show_default=True,
    help="Comma-separated peers, or all.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0.01, 60),
    default=0.3,
    show_default=True,
    help="Seconds for one contender at one size in one round.",
)
@click.option(
    "--peer-python",
    "peer_pythons",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Interpreter with peers; default: the one that `make bench` fills.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def p2p(
    *,
    sizes: list[int],
    apis: tuple[str, ...],
    lanes: tuple[str, ...],
    against: tuple[str, ...],
    rounds: int,
    budget_s: float,
    peer_pythons: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure latency and bandwidth between two processes."""
    from backhaul.bench import p2p as job
    from backhaul.bench.pair import ContenderFailed
    from backhaul.bench.peers import default_pythons
    from backhaul.bench.tables import open_console, p2p_tables, print_machine

    pythons = [sys.executable, *peer_pythons] if peer_pythons else default_pythons()
    options = job.Options(
        sizes=sizes,
        apis=apis,
        lanes=lanes,
        against=against,
        rounds=rounds,
        budget_s=budget_s,
        pythons=pythons,
    )
    try:
        with show_progress() as on_step:
            report = job.run(options, on_step=on_step)
    except ContenderFailed as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(report.to_json())
        return
    console = open_console()
    print_machine(console, report.machine, report.versions)
    console.print(p2p_tables(report))


main.add_command(topology)
for command in COMMANDS:
    bench.add_command(command)


if __name__ == "__main__":
    main()
