"""The UCX-Py API over Backhaul's lanes: ``import backhaul.ucp as ucp``.

A program written for UCX-Py runs after this change of its import, without UCX on the machine. See
``docs/guides/from-ucx-py.md`` for what differs; `backhaul.ucp.blocking` has the same without
asyncio.
"""

from __future__ import annotations

from backhaul import __version__
from backhaul.ucp import core, exceptions
from backhaul.ucp.core import (
    Array,
    Endpoint,
    Listener,
    UCXAddress,
    continuous_ucx_progress,
    create_endpoint,
    create_endpoint_from_worker_address,
    create_listener,
    fence,
    flush,
    get_active_transports,
    get_address,
    get_config,
    get_ucp_context_info,
    get_ucp_worker,
    get_ucp_worker_info,
    get_ucx_address_from_buffer,
    get_ucx_version,
    get_worker_address,
    init,
    progress,
    recv,
    register_am_allocator,
    reset,
)

__all__ = [
    "Array",
    "Endpoint",
    "Listener",
    "UCXAddress",
    "__git_commit__",
    "__ucx_min_version__",
    "__ucx_version__",
    "__version__",
    "continuous_ucx_progress",
    "core",
    "create_endpoint",
    "create_endpoint_from_worker_address",
    "create_listener",
    "exceptions",
    "fence",
    "flush",
    "get_active_transports",
    "get_address",
    "get_config",
    "get_ucp_context_info",
    "get_ucp_worker",
    "get_ucp_worker_info",
    "get_ucx_address_from_buffer",
    "get_ucx_version",
    "get_worker_address",
    "init",
    "progress",
    "recv",
    "register_am_allocator",
    "reset",
]

__git_commit__ = ""
__ucx_min_version__ = "1.15.0"
__ucx_version__ = "{}.{}.{}".format(*get_ucx_version())


def __getattr__(name: str) -> object:
    # Loads multiprocessing, which most programs do not need.
    if name in {"utils", "get_ucxpy_logger"}:
        from importlib import import_module

        utils = import_module("backhaul.ucp.utils")
        return utils if name == "utils" else utils.get_ucxpy_logger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
