"""`LocalCluster`: a scheduler here, and workers where the plan of this machine puts them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from html import escape
from typing import Any

from dask.utils import parse_bytes
from distributed import Scheduler, SpecCluster

from backhaul.dask.launch.announce import addresses_of
from backhaul.dask.launch.options import ClusterSettings, refuse_beside_plan, sort_options
from backhaul.dask.launch.planning import (
    choose_machine,
    choose_plan,
    read_plan,
    specs_that_can_start,
)
from backhaul.dask.launch.worker_specs import Spec
from backhaul.errors import ConfigError
from backhaul.topology import Machine, Plan, Policy

__all__ = ["LocalCluster", "PlannedCluster"]


class PlannedCluster(SpecCluster):
    """A cluster on this machine whose workers are those of a plan.

    Parameters
    ----------
    plan : Plan
        The workers that there can be, and their CPUs and devices.
    settings : ClusterSettings
        Options of the cluster, its scheduler and its workers.
    n_workers : int, optional
        How many to start with; by default all.
    overcommit : bool
        Whether there may be more workers than the plan has. The further ones share CPUs, GPUs and
        NUMA nodes of the plan's, in turn, and have as much memory each.
    name : str or None
        Name of the cluster.

    Raises
    ------
    ConfigError
        If this process may not start what is planned. Nothing has been started then.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        settings: ClusterSettings,
        n_workers: int | None,
        overcommit: bool,
        name: str | None,
    ) -> None:
        # Not `plan`: Dask's adaptive scaling keeps the names of the workers there.
        self.launch_plan = plan
        self.overcommit = overcommit
        self._planned = specs_that_can_start(plan, settings.workers)
        count = len(self._planned) if n_workers is None else n_workers
        self._require_room(count)
        workers: dict[str, Spec] = {}
        while len(workers) < count:
            workers |= self._next_spec(workers)
        super().__init__(  # type: ignore[no-untyped-call]
            workers=workers,
            # What Dask asks for threads and memory of one worker
            worker=next(iter(self._planned.values())),
            scheduler={"cls": Scheduler, "options": settings.scheduler_options(plan)},
            name=name,
            **settings.cluster,
        )

    def _repr_html_(self, cluster_status: str | None = None) -> str:
        """Show Dask's table in a notebook, and which worker has what of the machine."""
        plan = escape(self.launch_plan.table())
        shown = f"<details><summary>Plan of the workers</summary><pre>{plan}</pre></details>"
        upstream = super()._repr_html_(cluster_status)  # type: ignore[no-untyped-call]
        return f"{upstream}{shown}"

    @property
    def tcp_address(self) -> str | None:
        """Address of the scheduler for clients without Backhaul; None if there is none."""
        addresses = addresses_of(self.scheduler)
        return next((each for each in addresses if each.startswith("tcp://")), None)

    def scale(self, n: int = 0, memory: Any = None, cores: int | None = None) -> Any:
        """Scale to that many workers: the first of the plan, under their own names.

        Parameters
        ----------
        n : int
            Number of workers.
        memory : str or int, optional
            Memory that they shall have together at least.
        cores : int, optional
            Threads that they shall have together at least.

        Raises
        ------
        ConfigError
            If the plan has fewer, unless the cluster was made with ``overcommit=True``.
        """
        if memory is not None:
            n = max(n, math.ceil(parse_bytes(memory) / self._memory_per_worker()))
        if cores is not None:
            n = max(n, math.ceil(cores / self._threads_per_worker()))
        self._require_room(n)
        return super().scale(n)  # type: ignore[no-untyped-call]

    def adapt(self, *args: Any, **kwargs: Any) -> Any:
        """Scale with the load, between bounds; see `distributed.SpecCluster.adapt`.

        Parameters
        ----------
        minimum, maximum : int, optional
            Fewest and most workers; by default none, and those of the plan.
        *args, **kwargs
            As for `distributed.SpecCluster.adapt`.

        Raises
        ------
        ConfigError
            If a bound is past the plan, unless the cluster was made with ``overcommit=True``.
        """
        self._require_room(kwargs.get("minimum") or 0)
        maximum = kwargs.get("maximum")
        if maximum is None or maximum == math.inf:
            kwargs["maximum"] = math.inf if self.overcommit else len(self._planned)
        else:
            self._require_room(maximum)
        return super().adapt(*args, **kwargs)

    def new_worker_spec(self) -> dict[str, Spec]:
        """Name and spec of the next worker: the first of the plan that is not there."""
        return self._next_spec(self.worker_spec)

    def start_worker(self, *args: Any, **kwargs: Any) -> None:
        """Refuse, as Dask's own cluster does."""
        raise NotImplementedError("start_worker is gone from Dask; use cluster.scale(n)")

    def _next_spec(self, taken: Mapping[str, Spec]) -> dict[str, Spec]:
        for name, spec in self._planned.items():
            if name not in taken:
                return {name: spec}
        rounds = 1
        while True:
            for name, spec in self._planned.items():
                further = f"{name}+{rounds}"
                if further not in taken:
                    options = {**spec["options"], "name": further}
                    return {further: {**spec, "options": options}}
            rounds += 1

    def _require_room(self, count: int) -> None:
        if count < 0:
            raise ConfigError(f"the number of workers must not be negative, got {count}")
        if count > len(self._planned) and not self.overcommit:
            raise ConfigError(
                f"{count} workers are more than the {len(self._planned)} that the plan of "
                f"{self.launch_plan.machine!r} ({self.launch_plan.policy}) has places for; choose "
                "another policy, or let workers share places with overcommit=True"
            )

    def _memory_per_worker(self) -> int:
        limit = next(iter(self._planned.values()))["options"]["memory_limit"]
        if isinstance(limit, str | int) and not isinstance(limit, bool) and limit != "auto":
            return int(parse_bytes(limit))
        raise ConfigError(f"scale(memory=…) needs workers of a known size, not {limit!r}")


class LocalCluster(PlannedCluster):
    """A cluster on this machine: as Dask's, but each worker has a place of its own.

    Workers are processes that start on their CPUs, with memory from their NUMA nodes; they exchange
    data over ``backhaul://``, which on one machine is shared memory. The scheduler listens on
    ``tcp://`` too, for clients without Backhaul; with certificates on ``tls://`` instead, with a
    secret and no certificates on ``backhaul://`` alone.

    Parameters
    ----------
    name : str, optional
        Name of the cluster.
    n_workers : int, optional
        Number of workers to start.
    threads_per_worker : int, optional
        Threads of each; by default as the plan says.
    policy : {"per-gpu", "per-numa", "per-l3", "n"}, optional
        How the machine is divided. Without one it is divided into `n_workers` parts, or as many as
        Dask's ``LocalCluster`` has workers. With one, `n_workers` says how many of its workers to
        start.
    machine : Machine or path, optional
        The machine to plan for; by default this machine. A path names a file with a machine.
    plan : Plan or path, optional
        A plan made earlier, or a file with it as JSON, in the place of `policy`, `machine` and
        `threads_per_worker`.
    overcommit : bool
        Whether there may be more workers than the plan has places; see `PlannedCluster`.
    pin : bool
        False: workers run on all CPUs, with any memory, but are divided as planned.
    memory_limit : str, float, int or None
        Memory of each worker, as for Dask; ``"auto"`` is the plan's share.
    memory_policy : {"prefer", "bind", "none"}
        ``prefer`` takes memory of the worker's NUMA nodes first, ``bind`` none but theirs.
    host : str, optional
        Host to listen on; 127.0.0.1 by default.
    interface : str, optional
        Network interface to listen on. A prefix, like ``"ib"``, that is no interface itself,
        gives each worker the one that is nearest to it.
    protocol : str, optional
        ``backhaul`` by default. Workers are pinned whatever they speak.
    env : mapping, optional
        Environment variables of all workers.
    resources : mapping, optional
        Resources of each worker: ``{"GPU": [[0, 1], [2, 3]]}`` are ids in groups that belong
        together, ``{"GPU": 2}`` ids counted from zero, ``{"MEMORY": 64e9}`` an amount.
    worker_options : mapping of str to mapping, optional
        Arguments for single workers by name, so that they may differ:
        ``{"0": {"nthreads": 4, "resources": {"BIG": 1}}}``.
    worker_class : type, optional
        A class of nannies, or of workers, which nannies then make.
    scheduler_port : int or (int, int)
        Port of the scheduler; with two, the second one is for ``tcp://``.
    **options
        As for `distributed.LocalCluster`: `silence_logs`, `dashboard_address`,
        `worker_dashboard_address`, `services`, `worker_services`, `service_kwargs`, `asynchronous`,
        `security`, `blocked_handlers`, `scheduler_kwargs`, `scheduler_sync_interval`, `loop`,
        `shutdown_on_close`; and as for `distributed.Nanny` and `distributed.Worker`:
        `local_directory` (where is spilled to), `preload`, `preload_nanny`, `plugins`, `lifetime`,
        `death_timeout`, ….

    Raises
    ------
    ConfigError
        If arguments contradict each other, there can be no such plan, or this process may not use
        what is planned.

    Examples
    --------
    >>> cluster = LocalCluster(policy="per-numa")  # doctest: +SKIP
    >>> cluster.launch_plan.explanation  # doctest: +SKIP
    >>> client = Client(cluster)  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        policy: Policy | None = None,
        machine: Machine | str | os.PathLike[str] | None = None,
        plan: Plan | str | os.PathLike[str] | None = None,
        overcommit: bool = False,
        processes: bool = True,
        **options: Any,
    ) -> None:
        if not processes:
            raise ConfigError(
                "processes=False makes workers threads of this process, which have no CPUs of "
                "their own; use distributed.LocalCluster(processes=False)"
            )
        settings = sort_options(options)
        if plan is None:
            plan = choose_plan(
                choose_machine(machine),
                policy=policy,
                n_workers=n_workers,
                threads_per_worker=threads_per_worker,
                interface=settings.interface_prefix,
                overcommit=overcommit,
            )
        else:
            refuse_beside_plan(
                policy=policy, machine=machine, threads_per_worker=threads_per_worker
            )
            plan = read_plan(plan)
        super().__init__(
            plan=plan, settings=settings, n_workers=n_workers, overcommit=overcommit, name=name
        )
