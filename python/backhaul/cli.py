"""The ``backhaul`` command."""

from __future__ import annotations

import signal
import sys

import click

from backhaul._brief import BriefGroup
from backhaul._output import print_json
from backhaul.doctor.command import doctor
from backhaul.explain_command import explain
from backhaul.topology.command import topology

bench: click.Command
try:
    from backhaul_bench.commands import bench
except ModuleNotFoundError as missing:
    if missing.name != "backhaul_bench":
        raise
    from backhaul._no_bench import bench

__all__ = ["main"]


@click.group(cls=BriefGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="backhaul")
def main() -> None:
    """Backhaul moves data between processes at the speed of the hardware."""
    # A benchmark that gets SIGTERM must end the processes that it started.
    earlier = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, earlier))


@main.command(short_help="Print versions, machine, and which lanes work here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(*, as_json: bool) -> None:
    """Print version, machine, and whether each lane and shared memory work here."""
    from backhaul._machine import Machine, installed_versions
    from backhaul._output import open_console, print_machine
    from backhaul.doctor.lanes import check_arena, check_lanes

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
    console = open_console(wide=True)
    print_machine(console, machine, versions)
    for lane, state in lanes.items():
        console.print(f"Lane      {lane:7} {state}", highlight=False)
    console.print(f"Arena     {arena}", highlight=False)


for command in (bench, doctor, explain, topology):
    main.add_command(command)


if __name__ == "__main__":
    main()
