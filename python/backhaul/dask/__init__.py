"""Dask over Backhaul: the comm backend of ``backhaul://``, and clusters that fit the machine.

Dask finds it by itself once Backhaul is installed: ``LocalCluster(protocol="backhaul")``,
``dask scheduler --protocol tcp,backhaul``, ``dask worker backhaul://host:port``. The keys of its
configuration are in ``backhaul-dask.yaml``; its design is in ``docs/design/dask.md``.

`LocalCluster`, `CUDACluster` and `DGX` start workers on CPUs, NUMA nodes, GPUs and network
interfaces of their own; ``docs/launching.md`` has the guide.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("distributed") is None:
    raise ModuleNotFoundError(
        "backhaul.dask needs Dask, which is not installed: pip install 'backhaul[dask]'",
        name="distributed",
    )

from backhaul.dask.compat import oldest_release  # noqa: F401  (refuses an older Dask before the rest)

# isort: split
from backhaul.dask.comm.backend import (
    BackhaulBackend,
    BackhaulConnector,
    BackhaulListener,
    BackhaulTlsBackend,
    before_comms,
)
from backhaul.dask.comm.comm import BackhaulComm
from backhaul.dask.config.settings import Settings

if TYPE_CHECKING:
    from backhaul.dask import processes, sync, threaded
    from backhaul.dask.comm.ucx_scheme import claim_ucx
    from backhaul.dask.config.default_scheme import enable
    from backhaul.dask.launch.cluster import LocalCluster
    from backhaul.dask.launch.cuda import DGX, CUDACluster, LocalCUDACluster
    from backhaul.dask.observe.explain import explain
    from backhaul.dask.observe.lanes import lanes
    from backhaul.dask.observe.link_table import links
    from backhaul.dask.observe.memory_account import memory
    from backhaul.dask.observe.transfers import transfers
    from backhaul.dask.resource_pools.leases import get_resources, resource_id
    from backhaul.dask.resource_pools.requests import resources
    from backhaul.dask.serialize.device_arrays import register_device_array

__all__ = [
    "DGX",
    "BackhaulBackend",
    "BackhaulComm",
    "BackhaulConnector",
    "BackhaulListener",
    "CUDACluster",
    "LocalCUDACluster",
    "LocalCluster",
    "Settings",
    "backend",
    "claim_ucx",
    "enable",
    "explain",
    "get_resources",
    "lanes",
    "links",
    "memory",
    "processes",
    "register_device_array",
    "resource_id",
    "resources",
    "sync",
    "threaded",
    "transfers",
]


def _install(server: object) -> None:
    """Install accelerations in this process and on one server; imports them at the first comm."""
    activation = importlib.import_module("backhaul.dask.compat.activation")
    activation.install()
    if server is None:
        activation.install_for_connecting_clients()
    else:
        activation.install_for(server)


before_comms.append(_install)

#: Target of the entry point: Dask calls it to get the backend.
backend = BackhaulBackend

#: The same for ``backhaul+tls://``, which is encrypted or does not start
encrypted_backend = BackhaulTlsBackend

#: Where the names are that most processes do without
_LAZY = {
    "CUDACluster": "backhaul.dask.launch.cuda",
    "DGX": "backhaul.dask.launch.cuda",
    "LocalCUDACluster": "backhaul.dask.launch.cuda",
    "LocalCluster": "backhaul.dask.launch.cluster",
    "claim_ucx": "backhaul.dask.comm.ucx_scheme",
    "enable": "backhaul.dask.config.default_scheme",
    "explain": "backhaul.dask.observe.explain",
    "get_resources": "backhaul.dask.resource_pools.leases",
    "lanes": "backhaul.dask.observe.lanes",
    "links": "backhaul.dask.observe.link_table",
    "memory": "backhaul.dask.observe.memory_account",
    "register_device_array": "backhaul.dask.serialize.device_arrays",
    "resource_id": "backhaul.dask.resource_pools.leases",
    "resources": "backhaul.dask.resource_pools.requests",
    "transfers": "backhaul.dask.observe.transfers",
}


#: Modules that are reached as attributes: ``backhaul.dask.threaded.get``
_MODULES = frozenset({"processes", "sync", "threaded"})


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"backhaul.dask.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
