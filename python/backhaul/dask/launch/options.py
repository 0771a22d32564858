"""Options of a cluster on this machine, sorted by the part that takes them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import psutil
from distributed import Nanny, Worker
from distributed.security import Security

from backhaul.dask.launch.announce import Announcement, scheduler_protocols
from backhaul.dask.launch.worker_specs import WorkerOptions
from backhaul.errors import ConfigError
from backhaul.topology import Plan

__all__ = ["ClusterSettings", "refuse_beside_plan", "sort_options"]

#: Arguments that Dask has dropped or never had, and what to say instead
_GONE = {
    "ip": "say host=",
    "start": "a cluster starts when it is made",
    "ncores": "say threads_per_worker=",
    "diagnostics_port": "say dashboard_address=",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSettings:
    """Arguments of a cluster on this machine."""

    #: For `distributed.SpecCluster`
    cluster: dict[str, Any]
    #: For `distributed.Scheduler`
    scheduler: dict[str, Any]
    #: For all workers
    workers: WorkerOptions
    #: Which of the machine's interfaces to plan with
    interface_prefix: str | None

    def scheduler_options(self, plan: Plan) -> dict[str, Any]:
        """Arguments of the scheduler, which listens beside the plan's first worker."""
        first = next((worker.nic for worker in plan.workers if worker.nic), None)
        if not self.workers.planned_interfaces or first is None:
            return self.scheduler
        return {**self.scheduler, "host": None, "interface": first}


def sort_options(options: dict[str, Any]) -> ClusterSettings:
    """Sort the arguments of a cluster on this machine by who gets them.

    Options that are neither those of Dask's ``LocalCluster`` nor those of `WorkerOptions` are for
    nannies and workers.

    Raises
    ------
    ConfigError
        If arguments contradict each other, or one is gone from Dask.
    """
    options = dict(options)
    take = options.pop
    for gone, hint in _GONE.items():
        if gone in options:
            raise ConfigError(f"{gone}={options[gone]!r} is gone from Dask's clusters; {hint}")
    security = _security(take("security", None))
    host: str | None = take("host", None)
    protocol, host = _protocol(take("protocol", None), host)
    interface: str | None = take("interface", None)
    if host and interface:
        raise ConfigError(f"host={host!r} and interface={interface!r} exclude each other")
    # A prefix: the plan chooses among those that begin with it.
    planned = interface is not None and interface not in psutil.net_if_addrs()
    if planned or interface is None:
        host = host or "127.0.0.1"
    listening: dict[str, Any] = {"host": host, "interface": None if planned else interface}
    silence_logs = _level(take("silence_logs", logging.WARNING))
    protocols = scheduler_protocols(security)[::-1] if protocol == "backhaul" else [protocol]
    dashboard_address = take("dashboard_address", ":8787")
    further = dict(take("scheduler_kwargs", None) or {})
    scheduler = {
        **listening,
        "protocol": protocols,
        "port": _ports(take("scheduler_port", 0), len(protocols)),
        "security": security,
        "services": take("services", None) or {},
        "service_kwargs": take("service_kwargs", None),
        "dashboard": dashboard_address is not None,
        "dashboard_address": dashboard_address,
        "blocked_handlers": take("blocked_handlers", None),
        **further,
        "plugins": [*further.get("plugins", ()), Announcement()],
    }
    cluster = {
        "asynchronous": take("asynchronous", False),
        "loop": take("loop", None),
        "security": security,
        "silence_logs": silence_logs,
        "scheduler_sync_interval": take("scheduler_sync_interval", 1),
        "shutdown_on_close": take("shutdown_on_close", True),
    }
    worker_dashboard_address = take("worker_dashboard_address", None)
    common = {
        "services": take("worker_services", None) or {},
        "dashboard_address": worker_dashboard_address,
        "dashboard": worker_dashboard_address is not None,
        "security": security,
        "silence_logs": silence_logs,
    }
    workers = WorkerOptions(
        **listening,
        protocol=protocol,
        planned_interfaces=planned,
        memory_limit=take("memory_limit", "auto"),
        memory_policy=take("memory_policy", "prefer"),
        pin=take("pin", True),
        env=take("env", None) or {},
        resources=take("resources", None) or {},
        worker_class=_worker_class(take("worker_class", None)),
        by_name=take("worker_options", None) or {},
        nanny={**common, **options},
    )
    return ClusterSettings(
        cluster=cluster,
        scheduler=scheduler,
        workers=workers,
        interface_prefix=interface if planned else None,
    )


def refuse_beside_plan(**given: object) -> None:
    """Raise if something is given that a plan has decided already."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ConfigError(f"plan= has decided that already; drop {names[0]}={given[names[0]]!r}")


def _security(security: Any) -> Security:
    if security is True:
        security = Security.temporary()
    if not security:
        security = Security()
    if not isinstance(security, Security):
        raise ConfigError(f"security must be a Security, True or None, got {security!r}")
    return security


def _protocol(protocol: str | None, host: str | None) -> tuple[str, str | None]:
    """Find the protocol, and the host without one in front."""
    if host and "://" in host:
        scheme, host = host.split("://", 1)
        if protocol and protocol.removesuffix("://") != scheme:
            raise ConfigError(
                f"host={scheme}://{host} and protocol={protocol!r} exclude each other"
            )
        protocol = scheme
    protocol = (protocol or "backhaul").removesuffix("://")
    if protocol == "inproc":
        raise ConfigError(
            "protocol='inproc' is for workers within this process, which have no CPUs of their "
            "own; use distributed.LocalCluster(processes=False)"
        )
    return protocol, host or None


def _ports(port: Any, count: int) -> list[int]:
    ports = list(port) if isinstance(port, list | tuple) else [port]
    if len(ports) > count:
        raise ConfigError(
            f"scheduler_port={port!r} names {len(ports)} ports, but the scheduler listens on "
            f"{count} protocols; with a secret and no certificates there is no tcp://"
        )
    return [int(each or 0) for each in ports] + [0] * (count - len(ports))


def _level(silence_logs: Any) -> Any:
    """Dask wants a level; its users also say True."""
    return logging.WARNING if silence_logs is True else silence_logs


def _worker_class(given: Any) -> type[Nanny] | type[Worker] | None:
    if given is None or (isinstance(given, type) and issubclass(given, Nanny | Worker)):
        return given
    raise ConfigError(f"worker_class must be a Nanny or a Worker class, got {given!r}")
