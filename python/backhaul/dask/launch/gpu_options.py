"""Options of dask-cuda's ``LocalCUDACluster`` and ``dask cuda worker``, in terms of our own.

Everything is read, and refused where it must be, before any process starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
from backhaul.dask.config.settings import Settings
from backhaul.dask.config.ucx_options import ROOTS, rmm_pool_size
from backhaul.dask.launch.device_memory import DeviceBytes, device_bytes
from backhaul.dask.launch.device_pools import OPTIONS as POOL_OPTIONS
from backhaul.dask.launch.device_pools import RmmSetup, pool_options
from backhaul.dask.launch.worker_specs import WorkerOptions
from backhaul.errors import ConfigError
from backhaul.topology import Plan

__all__ = ["GpuOptions", "sort_gpu_options"]

#: Options that choose transports, by the keys of the configuration that they stand for
_TRANSPORTS: Mapping[str, str] = {
    "enable_tcp_over_ucx": "tcp",
    "enable_infiniband": "infiniband",
    "enable_nvlink": "nvlink",
    "enable_rdmacm": "rdmacm",
}
#: Protocols that these may be said beside
_OURS = (None, "backhaul", "ucx", "ucxx")

#: The limit of device memory that dask-cuda recommends, as a fraction of it
_DEFAULT_LIMIT = 0.8

#: Options that ask for what is not here, with the values that ask for nothing
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "enable_cudf_spill": ((None, False), "set env={'CUDF_SPILL': 'on'}"),
    "cudf_spill_stats": ((None, 0), "set env={'CUDF_SPILL_STATS': '1'}"),
    "jit_unspill": ((None, False), "it is gone from dask-cuda too, since 2026"),
    "shared_filesystem": ((None, False, True), "only jit_unspill used it"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuOptions:
    """Options for workers with GPUs alone."""

    #: Most memory of its GPU that the results of a worker may take; None for no limit
    device_limit: DeviceBytes | None
    #: Whether it is logged what leaves the GPU, and comes back
    log_spilling: bool
    #: Plugins that set up how workers allocate
    plugins: tuple[RmmSetup, ...]

    def of_workers(self, common: WorkerOptions, plan: Plan) -> WorkerOptions:
        """Add it to what the workers of a plan have in common.

        Raises
        ------
        ConfigError
            If anything is asked for, and one of these workers has no GPU.
        """
        said = [str(each.options) for each in self.plugins]
        if self.device_limit is not None:
            said.append(str(self.device_limit))
        without = [worker.name for worker in plan.workers if not worker.gpus]
        if said and without:
            raise ConfigError(f"{', '.join(said)}: worker {without[0]!r} of the plan has no GPU")
        if self.plugins:
            plugins = (*(common.nanny.get("plugins") or ()), *self.plugins)
            common = replace(common, nanny={**common.nanny, "plugins": plugins})
        return replace(common, device_limit=self.device_limit, log_spilling=self.log_spilling)


def sort_gpu_options(
    options: Mapping[str, Any], *, has_gpus: bool = True
) -> tuple[GpuOptions, dict[str, Any]]:
    """Take dask-cuda's options out of those of a cluster, or of a command.

    `has_gpus` says whether workers have GPUs, so that the pool of the configuration is meant for
    them. The other options are for `sort_options`; of dask-cuda's, ``pre_import`` has become
    preloads.

    Raises
    ------
    ConfigError
        If one is not understood, contradicts another, or asks for what Backhaul does not do. Names
        option and value.
    """
    left = dict(options)
    for option, (harmless, reason) in _REFUSED.items():
        value = left.pop(option, None)
        if not any(value is allowed or value == allowed for allowed in harmless):
            raise ConfigError(
                f"{option}={value!r} is an option of dask-cuda, not of this: {reason}"
            )
    config = _transports({option: left.pop(option, None) for option in _TRANSPORTS}, left)
    pools = {option: left.pop(option, None) for option in POOL_OPTIONS}
    if config.get(ROOTS[0], {}).get("nvlink") and pools["rmm_managed_memory"]:
        raise ConfigError("enable_nvlink=True and rmm_managed_memory=True exclude each other")
    if has_gpus and pools["rmm_pool_size"] is None and not pools["rmm_async"]:
        pools["rmm_pool_size"] = rmm_pool_size()
    wanted = pool_options(pools)
    limit = _limit(left.pop("device_memory_limit", None))
    if limit is not None and left.get("data") is not None:
        raise ConfigError(f"{limit} and data={left['data']!r} exclude each other")
    log_spilling = left.pop("log_spilling", None) or False
    if log_spilling and limit is None:
        raise ConfigError(f"log_spilling={log_spilling!r} needs device_memory_limit")
    _pre_import(left)
    found = GpuOptions(
        device_limit=limit,
        log_spilling=bool(log_spilling),
        plugins=() if wanted is None else (RmmSetup(wanted),),
    )
    if config:
        left["config"] = {**(left.get("config") or {}), **config}
    return found, left


def _limit(value: object) -> DeviceBytes | None:
    if value == "auto":
        return None
    return device_bytes("device_memory_limit", _DEFAULT_LIMIT if value == "default" else value)


def _transports(given: Mapping[str, object], others: Mapping[str, Any]) -> dict[str, Any]:
    """Read which transports are asked for, as keys of the configuration of workers."""
    for option, value in given.items():
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{option} must be True, False or None, got {value!r}")
    flags: dict[str, Any] = {_TRANSPORTS[option]: value for option, value in given.items()}
    if all(value is None for value in flags.values()):
        return {}
    protocol = others.get("protocol")
    asking = next((option for option, value in given.items() if value), None)
    if asking and (protocol and str(protocol).removesuffix("://")) not in _OURS:
        raise ConfigError(f"{asking}=True and protocol={protocol!r} exclude each other")
    if flags["rdmacm"] and not flags["infiniband"]:
        raise ConfigError("enable_rdmacm=True needs enable_infiniband=True")
    if flags["infiniband"] is False and not flags["nvlink"]:
        # As in dask-cuda: who rules it out, and asks for none, is served by the others.
        flags["tcp"] = True
    section = dask.config.get(ROOTS[0], default=None) or {}
    config = {ROOTS[0]: {**section, **flags}}
    with dask.config.set(config):
        # Invalid settings are found here, and not by each worker.
        Settings.current()
    return config


def _pre_import(options: dict[str, Any]) -> None:
    """Import modules as workers start."""
    modules = options.pop("pre_import", None)
    if modules:
        preload = options.get("preload") or []
        names = modules.split(",") if isinstance(modules, str) else modules
        options["preload"] = [
            *([preload] if isinstance(preload, str) else preload),
            *(str(name).strip() for name in names),
        ]
