"""``dask backhaul worker``: the workers that a plan has for this host.

Also ``python -m backhaul.dask.launch.worker``, which takes the arguments of
``python -m distributed.cli.dask_worker``, so that launchers of Dask's workers can start these:
dask-jobqueue by ``worker_command="backhaul.dask.launch.worker"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from dask.utils import parse_timedelta
from distributed import __version__ as _DISTRIBUTED
from distributed.security import Security

import dask
from backhaul import __version__
from backhaul._brief import BriefCommand
from backhaul.dask.comm.addresses import local_host_for, parse_location
from backhaul.dask.compat.cli_names import apportion_ports, worker_command
from backhaul.dask.compat.names import (
    coerce_to_address,
    import_term,
    processes_and_threads,
    read_when_there,
)
from backhaul.dask.launch.cuda import devices
from backhaul.dask.launch.gpu_command import GPU_OPTIONS
from backhaul.dask.launch.gpu_options import sort_gpu_options
from backhaul.dask.launch.option_checks import checked
from backhaul.dask.launch.options import refuse_beside_plan
from backhaul.dask.launch.planning import (
    choose_machine,
    choose_plan,
    interfaces,
    read_plan,
    specs_that_can_start,
)
from backhaul.dask.launch.scheduler_probe import reach_scheduler, root_cause
from backhaul.dask.launch.supervisor import WorkerFailed, run_workers
from backhaul.dask.launch.worker_specs import Spec, WorkerOptions
from backhaul.dask.resource_pools.declarations import parse
from backhaul.errors import BackhaulError, ConfigError, MachineError, PlanError
from backhaul.topology import POLICIES, Machine, Plan, Policy

__all__ = ["PLAN_OPTIONS", "VERSION_OPTION", "OneLineErrors", "plan_from_options", "worker"]

#: Options of ``dask worker`` that cannot mean what they say when there are several pinned workers
_REFUSED = {
    "listen_address": "workers listen on --host or --interface; ports are --worker-port",
    "contact_address": "workers are reached where they listen: say --host or --interface",
    "scheduler_sni": "there is no TLS over backhaul://",
    "dashboard_prefix": "it is gone from Dask",
}


#: How long to wait for a scheduler file to be written
_FILE_S = "60s"


class BadArgument(click.ClickException):
    """An argument that is not possible."""

    exit_code = 2


class OneLineErrors(BriefCommand):
    """A command whose errors are one line; of those in its arguments the exit status is 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BackhaulError, OSError, WorkerFailed) as error:
            told = " ".join(str(error).split())
            if isinstance(error, ConfigError | MachineError | PlanError):
                raise BadArgument(told) from error
            raise click.ClickException(told) from error
        except RuntimeError as error:
            # Dask's servers that fail to start say why in the cause.
            if error.__cause__ is None:
                raise
            raise click.ClickException(f"{error} {root_cause(error)}") from error


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{ctx.command_path}, version {__version__}, with distributed {_DISTRIBUTED}")
        ctx.exit()


#: Of every command
VERSION_OPTION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions and exit.",
)

PLAN_OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--policy"],
        type=click.Choice(POLICIES),
        help="What to start one worker for; by default each GPU, or each NUMA node.",
    ),
    click.Option(
        ["--machine"],
        type=click.Path(exists=True, dir_okay=False),
        help="Plan for a machine that was recorded in this file.",
    ),
    click.Option(
        ["--plan", "plan_file"],
        type=click.Path(exists=True, dir_okay=False),
        help="Follow the plan in this file (JSON).",
    ),
    click.Option(
        ["--gpus"], help="GPUs to use, like 0,1; by default those of CUDA_VISIBLE_DEVICES, or all."
    ),
]

_OWN_OPTIONS: list[click.Parameter] = [
    *PLAN_OPTIONS,
    click.Option(
        ["--memory-policy"],
        type=click.Choice(["prefer", "bind", "none"]),
        default="prefer",
        show_default=True,
        help="How strictly memory comes from a worker's own NUMA nodes.",
    ),
    click.Option(["--pin/--no-pin"], default=True, help="Keep workers on their CPUs and nodes."),
    click.Option(
        ["--env"],
        multiple=True,
        help="Environment variable of all workers, like OMP_NUM_THREADS=4.",
    ),
    *GPU_OPTIONS,
]


def plan_from_options(
    *,
    policy: Policy | None,
    machine: str | None,
    plan_file: str | None,
    gpus: str | None,
    n_workers: str | None = None,
    nthreads: int = 0,
    interface: str | None = None,
) -> tuple[Machine | None, Plan]:
    """Make the plan that a command line asks for; its machine is None if the plan was read.

    The first four are those of `PLAN_OPTIONS`. `n_workers` is a number, a negative one to leave
    CPUs out, or ``auto``, as for ``dask worker``; `nthreads` is 0 for the threads of the plan, and
    `interface` a prefix of the interfaces to choose from.

    Raises
    ------
    ConfigError
        If options contradict each other, or the plan is impossible.
    """
    if plan_file is not None:
        refuse_beside_plan(policy=policy, machine=machine, gpus=gpus, nworkers=n_workers)
        return None, read_plan(plan_file)
    found = choose_machine(machine)
    if policy is None and n_workers is None:
        policy = "per-gpu" if found.gpus else "per-numa"
    if policy is not None and policy != "n" and n_workers is not None:
        raise ConfigError(f"--policy {policy} decides the number of workers; drop --nworkers")
    return found, choose_plan(
        found,
        policy=policy,
        n_workers=_count(n_workers, len(found.allowed_cpus)),
        threads_per_worker=nthreads or None,
        gpus=devices(gpus) if policy == "per-gpu" else None,
        interface=interface,
    )


def _run(
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    name: str | None,
    pid_file: str,
    worker_port: str | None,
    nanny_port: str | None,
    protocol: str | None,
    interface: str | None,
    host: str | None,
    tls_ca_file: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    resources: str | None,
    worker_class: str,
    nanny: bool,
    memory_limit: str,
    memory_policy: Any,
    pin: bool,
    env: Sequence[str],
    death_timeout: str | None,
    **options: Any,
) -> None:
    """Start the workers that fit this host, and join a scheduler.

    Each worker has its own CPUs, NUMA nodes, GPU and network interface, as `dask backhaul plan`
    tells. Only what this process may use is planned with: under Slurm, Kubernetes and the like,
    what the job was given.

    SCHEDULER is any address of it. Over tcp://, workers find out by themselves where a scheduler
    that `dask backhaul scheduler` started speaks backhaul://.
    """
    for option, instead in _REFUSED.items():
        if options.pop(option, None):
            raise ConfigError(f"--{option.replace('_', '-')} does not work here: {instead}")
    if not nanny:
        raise ConfigError("--no-nanny does not work here: nannies pin workers before they start")
    keys = ("policy", "machine", "plan_file", "gpus", "n_workers", "nthreads")
    planning = {key: options.pop(key) for key in keys}
    planned = interface is not None and interface not in interfaces()
    _, plan = plan_from_options(**planning, interface=interface if planned else None)
    gpu_options, options = sort_gpu_options(
        {**options, "protocol": protocol}, has_gpus=all(worker.gpus for worker in plan.workers)
    )
    options.pop("protocol")
    security = Security(
        **{
            key: value
            for key, value in (
                ("tls_ca_file", tls_ca_file),
                ("tls_worker_cert", tls_cert),
                ("tls_worker_key", tls_key),
            )
            if value is not None
        }
    )
    address = _scheduler_address(scheduler, scheduler_file, death_timeout)
    preload, preload_nanny = options.pop("preload"), options.pop("preload_nanny")
    common = WorkerOptions(
        protocol=(protocol or "backhaul").removesuffix("://"),
        host=host or (None if interface else local_host_for(_host(address))),
        interface=None if planned else interface,
        planned_interfaces=planned,
        memory_limit=memory_limit,
        memory_policy=memory_policy,
        pin=pin,
        env=dict(_pair(each, "--env") for each in env),
        resources=parse(resources),
        worker_class=import_term(worker_class),
        nanny={
            "security": security,
            "death_timeout": death_timeout,
            "preload": list(preload) or None,
            "preload_nanny": list(preload_nanny) or None,
            **options,
        },
    )
    specs = specs_that_can_start(plan, gpu_options.of_workers(common, plan))
    try:
        ports = apportion_ports(worker_port, nanny_port, len(specs), True)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for (own, spec), port in zip(specs.items(), ports, strict=True):
        # As Dask does: the name of a single worker is the one that was given.
        called = name if name and len(specs) == 1 else f"{name or socket.gethostname()}-{own}"
        spec["options"] |= port | {"name": called}
    say = functools.partial(click.echo, err=True)
    workers = "1 worker" if len(specs) == 1 else f"{len(specs)} workers"
    say(f"{workers} on {plan.machine} ({plan.policy}), scheduler at {address}")
    patience = death_timeout or dask.config.get("distributed.comm.timeouts.connect")
    timeout_s = float(parse_timedelta(patience, "s"))
    with _pid_file(pid_file):
        asyncio.run(_join(address, specs, common.protocol, security, timeout_s, say))


async def _join(
    address: str,
    specs: Mapping[str, Spec],
    protocol: str,
    security: Security,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    found = await reach_scheduler(
        address,
        protocol=protocol,
        security=security,
        names=[spec["options"]["name"] for spec in specs.values()],
        timeout_s=timeout_s,
        say=say,
    )
    if found is None:
        return
    if found != address:
        say(f"speaking to the scheduler at {found}")
    await run_workers(found, specs, say=say)


def _scheduler_address(
    scheduler: str | None, scheduler_file: str | None, death_timeout: str | None
) -> str:
    if scheduler is not None:
        return str(coerce_to_address(scheduler))
    if scheduler_file:
        timeout_s = parse_timedelta(death_timeout or _FILE_S)
        try:
            return str(read_when_there(scheduler_file, timeout=timeout_s)["address"])
        except TimeoutError as error:
            raise ConfigError(
                f"--scheduler-file {scheduler_file} was not there within {timeout_s} s"
            ) from error
    configured = dask.config.get("scheduler-address", None)
    if configured is None:
        raise ConfigError(
            "no scheduler: give its address, like tcp://host:8786, or --scheduler-file"
        )
    return str(coerce_to_address(configured))


def _host(address: str) -> str:
    return parse_location(address, 0).host


def _count(given: str | None, cpus: int) -> int | None:
    if given is None:
        return None
    if given == "auto":
        return int(processes_and_threads(max(1, cpus))[0])
    try:
        count = int(given)
    except ValueError as error:
        raise ConfigError(f"--nworkers must be a number or auto, got {given!r}") from error
    count = count if count >= 0 else cpus + 1 + count
    if count < 1:
        raise ConfigError(f"--nworkers {given} leaves no worker on {cpus} CPUs")
    return count


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{option} must be like NAME=VALUE, got {text!r}")
    return name, value


@contextlib.contextmanager
def _pid_file(path: str) -> Iterator[None]:
    if not path:
        yield
        return
    Path(path).write_text(str(os.getpid()))
    try:
        yield
    finally:
        Path(path).unlink(missing_ok=True)


def _parameters() -> list[click.Parameter]:
    """List the parameters of ``dask worker``, and Backhaul's before them."""
    theirs = [parameter for parameter in worker_command.params if parameter.name != "version"]
    arguments = [each for each in theirs if isinstance(each, click.Argument)]
    options = [_hidden(each) for each in theirs if each not in arguments]
    return [*checked([*arguments, *_OWN_OPTIONS, *options]), VERSION_OPTION]


def _hidden(parameter: click.Parameter) -> click.Parameter:
    """Leave what is refused out of the help."""
    if not isinstance(parameter, click.Option):
        return parameter
    found = copy.copy(parameter)
    found.hidden = parameter.name in (*_REFUSED, "nanny")
    if parameter.name == "host":
        # Dask's text sends readers to options that are refused here.
        found.help = "Address that workers listen on and are reached at; see --interface."
    return found


worker = OneLineErrors(
    "worker",
    params=_parameters(),
    callback=_run,
    help=_run.__doc__,
    short_help="Start the workers that fit this host.",
    context_settings={"ignore_unknown_options": True},
)


if __name__ == "__main__":
    worker()
