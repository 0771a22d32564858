"""Which plan a launcher follows, given what its user said.

The plan itself is made by `backhaul.topology`; here is what stands in for what was left out.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import warnings
from collections.abc import Sequence
from pathlib import Path

import psutil

from backhaul.dask.compat.names import processes_and_threads
from backhaul.dask.launch.worker_specs import Spec, WorkerOptions, worker_specs
from backhaul.errors import ConfigError
from backhaul.topology import Machine, Plan, Policy, discover, load

__all__ = ["choose_machine", "choose_plan", "interfaces", "read_plan", "specs_that_can_start"]


def choose_machine(machine: Machine | str | os.PathLike[str] | None) -> Machine:
    """Take a machine as given, read the file of one that was recorded, or look at this one."""
    if machine is None:
        return discover()
    return machine if isinstance(machine, Machine) else load(Path(machine))


def read_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """Take a plan as given, or read one that was written as JSON.

    Raises
    ------
    ConfigError
        If the file holds no plan; names it.
    OSError
        If the file cannot be read.
    """
    if isinstance(plan, Plan):
        return plan
    try:
        return Plan.from_json(Path(plan).read_text(encoding="utf-8"))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{plan}: no launch plan ({error}); `dask backhaul plan --json` writes one"
        ) from error


def choose_plan(
    machine: Machine,
    *,
    policy: Policy | None = None,
    n_workers: int | None = None,
    threads_per_worker: int | None = None,
    gpus: Sequence[int | str] | None = None,
    interface: str | None = None,
    overcommit: bool = False,
) -> Plan:
    """Plan a machine as Dask's own launchers would divide it, but with a place for each worker.

    Without a policy there are `n_workers` workers, or as many as `threads_per_worker` leaves room
    for, or as many as Dask's ``LocalCluster`` has. The interface is a name or a prefix. With
    `overcommit` there may be more workers than CPUs; the plan is for as many as there are CPUs.

    Raises
    ------
    ConfigError
        If there can be no such plan.
    """
    if n_workers is not None and n_workers < 0:
        raise ConfigError(f"n_workers must not be negative, got {n_workers}")
    if threads_per_worker is not None and threads_per_worker < 1:
        raise ConfigError(f"threads_per_worker must be positive, got {threads_per_worker}")
    count: int | None = None
    if policy is None:
        policy = "n"
        count = _workers(len(machine.allowed_cpus), n_workers, threads_per_worker)
    elif policy == "n":
        if not n_workers:
            raise ConfigError("policy 'n' needs n_workers, the number of workers")
        count = n_workers
    if count is not None and overcommit:
        count = min(count, max(1, len(machine.allowed_cpus)))
    return machine.plan(
        policy, n=count, threads_per_worker=threads_per_worker, gpus=gpus, interface=interface
    )


def specs_that_can_start(plan: Plan, options: WorkerOptions) -> dict[str, Spec]:
    """Make the `worker_specs` of a plan, once it is clear that this process may start them.

    Where memory policies are not permitted there is one warning, and workers do without.

    Raises
    ------
    ConfigError
        If the plan has no workers, CPUs may not be used, or a network interface is not there or
        has no IPv4 address. Nothing has been started.
    """
    if not plan.workers:
        raise ConfigError(f"the plan of {plan.machine!r} ({plan.policy}) has no workers")
    specs = worker_specs(plan, options)
    here = interfaces()
    for name, spec in specs.items():
        interface = spec["options"].get("interface")
        if interface is not None and interface not in here:
            raise ConfigError(
                f"worker {name!r} shall listen on network interface {interface!r}, which is not "
                f"here or has no IPv4 address; there are {', '.join(sorted(here))}"
            )
    refusals = {name: spec["options"]["pinning"].check() for name, spec in specs.items()}
    refused = [refusal for refusal in refusals.values() if refusal is not None]
    if not refused:
        return specs
    warnings.warn(refused[0], RuntimeWarning, stacklevel=4)
    without = dataclasses.replace(options, memory_policy="none")
    return worker_specs(plan, without)


def interfaces() -> set[str]:
    """Name the network interfaces that Dask can listen on: those with an IPv4 address."""
    return {
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.family == socket.AF_INET for address in addresses)
    }


def _workers(cpus: int, n_workers: int | None, threads_per_worker: int | None) -> int:
    if n_workers:
        return n_workers
    if threads_per_worker is not None:
        return max(1, cpus // threads_per_worker)
    return int(processes_and_threads(max(1, cpus))[0])
