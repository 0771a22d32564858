"""`Client.compute` of many Delayed objects, without an expression for each.

Dask's client makes an expression of each object, and of all of them together, and simplifies and
tunes that: what comes of it is one group, of the graphs of all of them. Here that group is made at
once. Whether it is sent as a compact message is for `backhaul.dask.client.graph`; if it is not,
Dask sends the same expression as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

import dask
from backhaul.dask.client.submit import as_dasks_own
from backhaul.dask.compat.names import (
    HLGExprGroup,
    HLGExprSequence,
    SpanMetadata,
    get_collections_metadata,
)

__all__ = ["compact_compute", "optimized_expression"]

logger = logging.getLogger(__name__)


def compact_compute(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client.compute` that makes one expression of many Delayed objects."""
    prepared = _prepared

    def compute(
        self: Any,
        collections: Any,
        sync: Any = False,
        optimize_graph: Any = True,
        workers: Any = None,
        allow_other_workers: Any = False,
        resources: Any = None,
        retries: Any = 0,
        priority: Any = 0,
        fifo_timeout: Any = "60s",
        actors: Any = None,
        traverse: Any = True,
        **kwargs: Any,
    ) -> Any:
        expr, names, metadata = prepared(collections, optimize_graph, kwargs)
        if expr is None:
            return original(
                self,
                collections,
                sync=sync,
                optimize_graph=optimize_graph,
                workers=workers,
                allow_other_workers=allow_other_workers,
                resources=resources,
                retries=retries,
                priority=priority,
                fifo_timeout=fifo_timeout,
                actors=actors,
                traverse=traverse,
                **kwargs,
            )
        futures_of = self._graph_to_futures(
            expr,
            names,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            retries=retries,
            user_priority=priority,
            fifo_timeout=fifo_timeout,
            actors=actors,
            span_metadata=metadata,
        )
        futures = [futures_of[name] for name in names]
        return self.gather(futures) if sync else futures

    return as_dasks_own(compute, original)


def optimized_expression(collections: Any, optimize_graph: Any) -> HLGExprSequence | None:
    """Make what Dask makes of Delayed objects, by simplifying and tuning: one group.

    Returns None if these are not several Delayed objects and nothing else.
    """
    if type(collections) is not list and type(collections) is not tuple:
        return None
    # One alone is no group.
    if len(collections) < 2 or not all(
        type(each) is Delayed and type(each.dask) is HighLevelGraph for each in collections
    ):
        return None
    if not dask.config.get("optimization.tune.active", True):
        return None
    graph = HighLevelGraph.merge(*(each.dask for each in collections))
    group = HLGExprGroup(
        dsk=graph,
        low_level_optimizer=collections[0].__dask_optimize__ if optimize_graph else None,
        output_keys=[each.__dask_keys__() for each in collections],
        postcompute=[each.__dask_postcompute__() for each in collections],
    )
    return HLGExprSequence(group)


def _prepared(collections: Any, optimize_graph: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """Make the expression, its keys and what spans are told of it; nothing of it if Dask has to."""
    if options:
        return None, None, None
    try:
        expr = optimized_expression(collections, optimize_graph)
    except Exception as error:
        # Dask meets it, too, and raises.
        logger.debug("Collections are left to Dask: %r", error)
        expr = None
    if expr is None:
        return None, None, None
    metadata = SpanMetadata(collections=[get_collections_metadata(each) for each in collections])
    return expr, [each.key for each in collections], metadata
