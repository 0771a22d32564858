"""``dask backhaul``: schedulers, workers and plans from the command line of Dask."""

from __future__ import annotations

import copy
from typing import Any

import click
from distributed.security import Security

import dask
from backhaul._brief import BriefGroup
from backhaul.dask.compat.cli_names import scheduler_command
from backhaul.dask.config.secret import is_configured
from backhaul.dask.launch.announce import scheduler_protocols
from backhaul.dask.launch.option_checks import checked
from backhaul.dask.launch.worker import (
    PLAN_OPTIONS,
    VERSION_OPTION,
    OneLineErrors,
    plan_from_options,
    worker,
)
from backhaul.errors import ConfigError
from backhaul.topology import Policy

__all__ = ["main"]

#: ``tcp`` first: its address is what clients without Backhaul use, and what scheduler files have.
_PROTOCOLS, _PORTS = "tcp,backhaul", "8786,8785"
_BACKHAUL_PORT = _PORTS.rpartition(",")[2]
_PRELOAD = "backhaul.dask.launch.announce"


@click.group(
    "backhaul",
    cls=BriefGroup,
    params=[VERSION_OPTION],
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """Clusters whose workers have their own CPUs, memory, GPUs and network interfaces."""


def _scheduler(*, protocol: str | None, port: str | None, preload: Any, **options: Any) -> None:
    """Start a scheduler for workers and clients with Backhaul, and for clients without.

    It listens on tcp:// (port 8786) and on backhaul:// (port 8785), with certificates on tls://
    instead of tcp://, with a secret and no certificates on backhaul:// alone. Workers and clients
    may be given any of these addresses. All else is as in `dask scheduler`.
    """
    if protocol is None:
        ca_file = options["tls_ca_file"]
        protocols = scheduler_protocols(Security(tls_ca_file=ca_file) if ca_file else Security())
        protocol = ",".join(protocols)
        port = _ports(port, len(protocols))
    if port is not None and port.count(",") != protocol.count(","):
        raise ConfigError(
            f"--port {port} and --protocol {protocol} are not equally many"
            + ("; with a secret and no certificates there is no tcp://" if is_configured() else "")
        )
    preload = preload or dask.config.get("distributed.scheduler.preload")
    given = [preload] if isinstance(preload, str) else list(preload)
    assert scheduler_command.callback is not None
    scheduler_command.callback(protocol=protocol, port=port, preload=(*given, _PRELOAD), **options)


def _ports(given: str | None, count: int) -> str:
    """Return the ports of `count` protocols, of which the last one is ``backhaul``."""
    if given is None or given == "":
        return _PORTS if count == 2 else _BACKHAUL_PORT
    return f"{given},0" if count == 2 and "," not in given else given


def _scheduler_parameters() -> list[click.Parameter]:
    parameters = [each for each in scheduler_command.params if each.name != "version"]
    for place, parameter in enumerate(parameters):
        if parameter.name in ("protocol", "port"):
            parameters[place] = described = copy.copy(parameter)
            assert isinstance(described, click.Option)
            default = _PROTOCOLS if parameter.name == "protocol" else _PORTS
            described.help = f"{described.help}  [default: {default}]"
    return [*checked(parameters), VERSION_OPTION]


main.add_command(
    OneLineErrors(
        "scheduler",
        params=_scheduler_parameters(),
        callback=_scheduler,
        help=_scheduler.__doc__,
        short_help="Start a scheduler that speaks tcp:// and backhaul://.",
        context_settings={"ignore_unknown_options": True},
    )
)
main.add_command(worker)


def _plan(
    *,
    policy: Policy | None,
    machine: str | None,
    plan_file: str | None,
    gpus: str | None,
    n_workers: str | None,
    nthreads: int,
    interface: str | None,
    as_json: bool,
) -> None:
    """Tell which workers `dask backhaul worker` would start here, and where.

    Nothing is started. With --json, what it prints can be given to --plan.
    """
    _, plan = plan_from_options(
        policy=policy,
        machine=machine,
        plan_file=plan_file,
        gpus=gpus,
        n_workers=n_workers,
        nthreads=nthreads,
        interface=interface,
    )
    click.echo(plan.to_json(indent=2) if as_json else plan.table())


main.add_command(
    OneLineErrors(
        "plan",
        params=[
            *checked(PLAN_OPTIONS),
            *checked(
                [click.Option(["--nworkers", "n_workers"], help="Number of workers, or auto.")]
            ),
            click.Option(
                ["--nthreads"], type=click.IntRange(0), default=0, help="Threads of each."
            ),
            *checked(
                [click.Option(["--interface"], help="Prefix of the interfaces to choose from.")]
            ),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        ],
        callback=_plan,
        help=_plan.__doc__,
        short_help="Tell which workers would be started here, and where.",
    )
)


if __name__ == "__main__":
    main()
