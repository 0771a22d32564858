"""The methods of one client that Backhaul replaces, on the client itself.

Other clients of the process, and those that connect over ``tcp://``, keep Dask's methods. A method
that a subclass overrides stays the subclass's; what the subclass calls by ``super()`` is Dask's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Final

from backhaul.dask.client import blocking_gather, request_order, result_cache
from backhaul.dask.client.compute import compact_compute
from backhaul.dask.client.graph import compact_graph
from backhaul.dask.client.map import compact_map
from backhaul.dask.client.submit import compact_submit
from backhaul.dask.compat.instance_patches import (
    CLIENT_REQUESTS,
    CLIENT_RESULTS,
    CLIENT_SUBMISSIONS,
)
from backhaul.dask.compat.names import Client
from backhaul.dask.compat.patching import InstancePatch, named_as
from backhaul.dask.compat.version_listing import listing_get_versions
from backhaul.dask.config.settings import switched_on

__all__ = ["install"]

#: Functions that make a method from Dask's, by its name, with the switch and the entry of each
_METHODS: Final[tuple[tuple[str, InstancePatch, dict[str, Callable[..., Any]]], ...]] = (
    (
        "hot-path.submit",
        CLIENT_SUBMISSIONS,
        {
            "submit": compact_submit,
            "map": compact_map,
            "_graph_to_futures": compact_graph,
            "compute": compact_compute,
        },
    ),
    (
        "small-results.enabled",
        CLIENT_RESULTS,
        {
            "_handle_report": result_cache.holding_handle_report,
            "_release_key": result_cache.releasing_release_key,
            "_gather_remote": result_cache.sparing_gather_remote,
            "_run": result_cache.forgetting_run,
        },
    ),
    ("hot-path.client-threads", CLIENT_RESULTS, {"gather": blocking_gather.blocking_gather}),
    (
        "hot-path.batching",
        CLIENT_REQUESTS,
        {
            "_retry": request_order.ordered_retry,
            "_get_dataset": request_order.confirmed_get_dataset,
        },
    ),
    ("versions.listed", CLIENT_REQUESTS, {"get_versions": listing_get_versions}),
)


def install(client: Client) -> None:
    """Replace the methods of a client that are switched on and still Dask's; idempotent."""
    for switch, patch, makers in _METHODS:
        if not switched_on(switch):
            continue
        ours = {
            name: MethodType(named_as(getattr(Client, name), make(getattr(Client, name))), client)
            for name, make in makers.items()
            if name not in vars(client) and getattr(type(client), name) is getattr(Client, name)
        }
        if ours:
            patch.install(client, ours)
