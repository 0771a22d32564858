"""``backhaul topology``: what a machine is made of, and which workers to run on it."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from backhaul._brief import BriefCommand
from backhaul.errors import BackhaulError

if TYPE_CHECKING:
    from backhaul.topology import Machine, Plan, Policy

__all__ = ["topology"]

_POLICIES = ("per-gpu", "per-numa", "per-l3", "n")


#: A number of workers or threads.
_COUNT = click.IntRange(1, (1 << 32) - 1)
#: Control characters but line feeds: names are whatever a file says they are, and a terminal may
#: take them for commands.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_PRINTABLE = functools.partial(_CONTROL.sub, "\N{REPLACEMENT CHARACTER}")


class _Impossible(click.ClickException):
    """An input cannot be read or planned for; nothing else went wrong."""

    exit_code = 2


class _NamesType(click.ParamType[tuple[str, ...]]):
    """Comma-separated names."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split at commas; blanks around a name do not belong to it."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


@click.command(
    cls=BriefCommand, short_help="Show what this machine is made of, and plan workers for it."
)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    help="A recorded machine: JSON, hwloc's XML, the text of `nvidia-smi topo -m`, or a folder with"
    " sys and proc; - for standard input. Default: this machine.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "hwloc-xml", "nvidia-smi"]),
    help="Format of FILE; by default it is recognised.",
)
@click.option("--matrix", is_flag=True, help="Print the paths between devices alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the machine, or the plan, as JSON.")
@click.option("--svg", metavar="FILE", help="Write a picture instead; - for standard output.")
@click.option(
    "--plan",
    "policy",
    type=click.Choice(_POLICIES),
    help="Print a launch plan: a worker for each GPU, NUMA node or last-level cache, or --workers.",
)
@click.option("--workers", type=_COUNT, help="How many workers, for --plan n.")
@click.option("--gpus", type=_NamesType(), help="GPUs to use: numbers or UUIDs, comma-separated.")
@click.option("--interface", help="Prefix of the interfaces to use, as ib.")
@click.option("--nics", type=_NamesType(), help="Interfaces to use, comma-separated.")
@click.option("--cpus", help="CPUs to keep to, as 0-3,8.")
@click.option("--threads", type=_COUNT, help="Threads of each worker.")
@click.option("--memory", help="Memory of each worker, as 4GiB; 0 for no limit.")
@click.option(
    "--exclusive-cpus",
    is_flag=True,
    help="Workers with GPUs of one NUMA node divide its CPUs instead of sharing them.",
)
@click.pass_context
def topology(
    ctx: click.Context,
    /,
    *,
    source: str | None,
    form: Any,
    matrix: bool,
    as_json: bool,
    svg: str | None,
    policy: Policy | None,
    **asked: Any,
) -> None:
    """Show what this machine is made of, how far apart its parts are, and which workers to run.

    Needs neither root nor a GPU. What --json prints of a machine, --from reads elsewhere.
    """
    given = [name for name, value in asked.items() if value is not None and value is not False]
    if policy is None and given:
        option = "--" + given[0].replace("_", "-")
        raise click.UsageError(f"{option} is for a plan: give --plan too", ctx)
    if form is not None and source is None:
        raise click.UsageError("--format is for a file: give --from too", ctx)
    outputs = {"--matrix": matrix, "--json": as_json, "--svg": svg is not None}
    chosen = [option for option, given in outputs.items() if given]
    if len(chosen) > 1 or (matrix and policy is not None):
        chosen = [*chosen, "--plan"][:2]
        raise click.UsageError(f"{chosen[0]} and {chosen[1]} exclude each other", ctx)
    try:
        machine = _read(source, form)
        plan = None if policy is None else _plan(machine, policy, **asked)
    except (BackhaulError, OSError) as error:
        _refuse(error)
    if svg is not None:
        _write(svg, machine.svg(plan))
    elif as_json:
        _print((plan or machine).to_json(indent=2) + "\n")
    elif plan is not None:
        _print(plan.table())
    elif matrix:
        _print(machine.matrix())
    else:
        _print(f"{machine.tree()}\n{machine.matrix()}")


def _read(source: str | None, form: Any) -> Machine:
    from backhaul.topology import discover, load, parse
    from backhaul.topology._machine import read_some

    if source is None:
        return discover()
    if source == "-":
        return parse(read_some(sys.stdin.buffer), name="standard input", format=form)
    if Path(source).is_dir():
        return discover(root=source)
    return load(source, format=form)


def _plan(
    machine: Machine,
    policy: Policy,
    *,
    workers: int | None,
    threads: int | None,
    memory: str | None,
    **asked: Any,
) -> Plan:
    return machine.plan(policy, n=workers, threads_per_worker=threads, memory_limit=memory, **asked)


def _write(target: str, text: str) -> None:
    if target == "-":
        _print(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        _refuse(error)


def _print(text: str) -> None:
    if sys.stdout is None:
        raise _Impossible("standard output is closed")
    # UTF-8 whatever the locale: trees and pictures have more than ASCII.
    sys.stdout.flush()
    click.echo(_PRINTABLE(text).encode(), nl=False)


def _refuse(error: Exception) -> NoReturn:
    if isinstance(error, OSError) and error.strerror:
        raise _Impossible(f"{error.filename or repr('')}: {error.strerror}") from error
    raise _Impossible(_PRINTABLE(str(error))) from error
