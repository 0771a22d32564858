"""From a plan of a machine to the workers that Dask is asked for: a pure function.

Nothing here looks at the machine, so what a DGX would run can be read, and tested, on a laptop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Nanny, Worker

import dask
from backhaul.dask.launch.device_memory import DeviceBytes
from backhaul.dask.launch.device_spill import DeviceSpill
from backhaul.dask.launch.nanny import pinned
from backhaul.dask.launch.pinning import MemoryPolicy, Pinning
from backhaul.dask.resource_pools.declarations import checked, totals
from backhaul.errors import ConfigError
from backhaul.topology import Plan, WorkerPlan

__all__ = ["Spec", "WorkerOptions", "worker_specs"]

#: How `distributed.SpecCluster` takes the description of one worker: ``{"cls": …, "options": {…}}``
Spec = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """Options that all workers of a cluster share, besides those of the plan for each."""

    #: Protocol between workers, without ``://``
    protocol: str = "backhaul"
    #: Host or address to listen on
    host: str | None = None
    #: Network interface to listen on, the same for all
    interface: str | None = None
    #: Whether each worker listens on the interface that the plan gives it, if it gives one; those
    #: without fall back on `host` and `interface`
    planned_interfaces: bool = False
    #: As for `distributed.Worker`; ``"auto"`` is what the plan says
    memory_limit: str | float | None = "auto"
    #: How strictly memory comes from the plan's NUMA nodes
    memory_policy: MemoryPolicy = "prefer"
    #: Whether workers are kept on the plan's CPUs and NUMA nodes
    pin: bool = True
    #: Environment variables for all; they win over the plan's
    env: Mapping[str, str] = field(default_factory=dict)
    #: Resources for all, see `backhaul.dask.resource_pools.declarations`; they win over the plan's
    resources: Mapping[str, Any] = field(default_factory=dict)
    #: A class of nannies, or the class of workers that nannies make
    worker_class: type[Nanny] | type[Worker] | None = None
    #: Most memory of its GPU that a worker's results may take before they move to the host
    device_limit: DeviceBytes | None = None
    #: Whether these moves are logged
    log_spilling: bool = False
    #: Any further arguments of `distributed.Nanny` and of its worker
    nanny: Mapping[str, Any] = field(default_factory=dict)
    #: Arguments for single workers, by name; they win over everything else
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def worker_specs(plan: Plan, options: WorkerOptions) -> dict[str, Spec]:
    """Make a spec of `distributed.SpecCluster` for each worker of a plan, by name, in its order.

    Raises
    ------
    ConfigError
        If `options` name a worker that the plan has not, or resources that make no sense.
    """
    names = [worker.name for worker in plan.workers]
    unknown = sorted(set(options.by_name) - set(names))
    if unknown:
        raise ConfigError(
            f"worker_options has {unknown[0]!r}, which is no worker of the plan; it has "
            f"{_listed(names)}"
        )
    return {worker.name: _spec(worker, options) for worker in plan.workers}


def _spec(worker: WorkerPlan, options: WorkerOptions) -> Spec:
    env: dict[str, str] = {}
    resources: dict[str, Any] = {}
    devices = worker.cuda_visible_devices
    if devices is not None:
        # Numbers are NVML's, which are those of the PCI bus; CUDA's own come by speed.
        env |= {"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        resources["GPU"] = 1
    memory_limit = options.memory_limit
    if memory_limit == "auto" and worker.memory_bytes:
        memory_limit = worker.memory_bytes
    arguments: dict[str, Any] = {
        **options.nanny,
        "name": worker.name,
        "nthreads": worker.threads,
        "memory_limit": memory_limit,
        "protocol": options.protocol,
        "env": {**env, **options.env},
        "resources": {**resources, **options.resources},
        "pinning": _pinning(worker, options),
        **_contact(worker, options),
    }
    nanny_class: type[Nanny] = Nanny
    if options.worker_class is not None and issubclass(options.worker_class, Nanny):
        nanny_class = options.worker_class
    elif options.worker_class is not None:
        arguments["worker_class"] = options.worker_class
    own = dict(options.by_name.get(worker.name, {}))
    for key in ("env", "resources"):
        if own.get(key):
            own[key] = {**(arguments[key] or {}), **own[key]}
    if "interface" in own:
        arguments.pop("host", None)
    if "host" in own:
        arguments.pop("interface", None)
    arguments |= own
    arguments |= _resources(arguments.pop("resources"), arguments.get("config") or {})
    if options.device_limit is not None:
        arguments["data"] = (
            DeviceSpill,
            {
                "device_limit": options.device_limit,
                "memory_limit": arguments["memory_limit"],
                "nthreads": arguments["nthreads"],
                "log": options.log_spilling,
            },
        )
    return {"cls": pinned(nanny_class), "options": arguments}


def _resources(declared: Mapping[str, Any] | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Tell Dask how much a worker has, and the worker by its configuration which ids."""
    given = checked(declared)
    if not given:
        return {"resources": None}
    ours = {**dask.config.get("backhaul", {}), **config.get("backhaul", {})}
    ours["resources"] = {**(ours.get("resources") or {}), **given}
    return {"resources": totals(given), "config": {**config, "backhaul": ours}}


def _pinning(worker: WorkerPlan, options: WorkerOptions) -> Pinning:
    everywhere = Pinning(owner=worker.name, memory_policy=options.memory_policy)
    if not options.pin:
        return everywhere
    return replace(everywhere, cpus=frozenset(worker.cpus), memory_nodes=tuple(worker.memory_nodes))


def _contact(worker: WorkerPlan, options: WorkerOptions) -> dict[str, str]:
    """Where a worker listens, which is where its peers reach it."""
    if options.planned_interfaces and worker.nic:
        return {"interface": worker.nic}
    if options.interface:
        return {"interface": options.interface}
    return {"host": options.host} if options.host else {}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
