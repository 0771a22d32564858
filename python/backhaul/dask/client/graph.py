"""Graphs of tasks without an expression: `compute`, `persist` and `get` of materialized tasks.

Dask's client pickles the expression of a collection. Its scheduler unpickles the expression,
materializes and orders the tasks, and pickles each task for a worker. Where the expression has its
tasks already, as that of Delayed objects and of graphs given to `Client.get`, the client here
materializes and orders, and the native codec writes each task in the form for a worker
(``crates/dask/src/codec/graph.rs``). The scheduler cuts the tasks out of the bytes
(`backhaul.dask.scheduler.submissions`). An expression that generates its tasks, such as an array's,
is smaller than the tasks and takes Dask's path. So do calls with options such as workers or
priorities, and all graphs for a scheduler that has not announced support
(`backhaul.dask.comm.capabilities`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import dask.order
from dask.highlevelgraph import MaterializedLayer

import dask
from backhaul.dask.client.map import warn_of_size
from backhaul.dask.client.submit import as_dasks_own, may_submit, said_of, send_compactly
from backhaul.dask.compat.names import (
    Client,
    Future,
    HLGExpr,
    HLGExprGroup,
    HLGExprSequence,
    HLGFinalizeCompute,
    LLGExpr,
    ToPickle,
    cull_graph,
    materialize_graph,
    validate_key,
)
from backhaul.dask.compat.operations import GRAPH
from backhaul.dask.resource_pools.requests import anyone_asks, needs_of
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.submit_message import FIFO_TIMEOUT
from backhaul.dask.serialize.task_fallback import pickle_whole

__all__ = ["compact_graph"]

logger = logging.getLogger(__name__)

#: Classes of expressions that have a graph of layers
_LAYERED: Final = frozenset({HLGExpr, HLGExprGroup, HLGFinalizeCompute})

#: Most bytes of the pickles of all tasks that the codec does not write; an object that several
#: tasks share is pickled with each of them
_PICKLES_BYTES_MAX: Final = 1 << 20


def compact_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `Client._graph_to_futures` that sends one compact message where it can."""
    compactly = _sent

    def _graph_to_futures(
        self: Client,
        expr: Any,
        keys: Any,
        span_metadata: Any,
        workers: Any = None,
        allow_other_workers: Any = None,
        internal_priority: Any = None,
        user_priority: Any = 0,
        resources: Any = None,
        retries: Any = None,
        fifo_timeout: Any = 0,
        actors: Any = None,
    ) -> Any:
        asks = workers or user_priority or resources or retries
        # Dask refuses an empty list, and a collection has no truth value.
        asks = asks or not all(
            each is None or each is False for each in (allow_other_workers, actors)
        )
        futures = None
        # Tasks that `submit` and `map` leave to Dask have an internal priority.
        if not asks and internal_priority is None:
            futures = compactly(self, expr, keys, span_metadata, fifo_timeout)
        if futures is None:
            futures = original(
                self,
                expr,
                keys,
                span_metadata,
                workers=workers,
                allow_other_workers=allow_other_workers,
                internal_priority=internal_priority,
                user_priority=user_priority,
                resources=resources,
                retries=retries,
                fifo_timeout=fifo_timeout,
                actors=actors,
            )
        return futures

    return as_dasks_own(_graph_to_futures, original)


def _sent(
    client: Client, expr: Any, keys: Iterable[Any], span_metadata: Any, fifo_timeout: Any
) -> dict[Any, Future[Any]] | None:
    """Send a graph in a compact message, if it can be; its futures, or None."""
    if dask.get_annotations() or not may_submit(client, GRAPH) or not _is_made(expr):
        return None
    wanted = set(keys)
    try:
        data = _written(expr, wanted)
    except Exception as error:
        # The scheduler gets the same error, and reports it to the futures.
        logger.debug("A graph is left to Dask: %r", error)
        data = None
    if data is None:
        # Dask would pickle this cached graph with the expression.
        vars(expr).pop("_optimized_dsk", None)
        return None
    message: dict[str, Any] = {
        "op": GRAPH,
        "graph": data,
        "span_metadata": ToPickle(span_metadata),
    }
    if fifo_timeout != FIFO_TIMEOUT:
        message["fifo_timeout"] = fifo_timeout
    with client._refcount_lock:
        for key in wanted:
            validate_key(key)
        message |= said_of(client, {})
        futures: dict[Any, Future[Any]] = {key: Future(key, client) for key in wanted}
        warn_of_size(len(data))
        send_compactly(client, message)
    return futures


def _is_made(expr: Any) -> bool:
    """Tell whether all tasks of an expression are materialized."""
    kind = type(expr)
    if kind is LLGExpr:
        return True
    if kind is HLGExprSequence:
        return all(type(each) in _LAYERED and _is_made(each) for each in expr.operands)
    return kind in _LAYERED and all(
        type(layer) is MaterializedLayer and not layer.annotations
        for layer in expr.hlg.layers.values()
    )


def _written(expr: Any, wanted: set[Any]) -> bytes | None:
    """Materialize, cull and order the tasks, then encode them; None if Dask's path is needed."""
    graph, annotations = materialize_graph(expr=expr, validate=False)
    if annotations:
        return None
    if type(expr) is LLGExpr:
        graph = cull_graph(graph, wanted)
    if anyone_asks() and any(needs_of(node) is not None for node in graph.values()):
        # The scheduler reads the resource requests of a function from the function itself.
        return None
    return codec.encode_graph(graph, dask.order.order(graph), wanted, _Pickles())


class _Pickles:
    """Pickles tasks that the codec does not write, up to a limit of bytes."""

    def __init__(self) -> None:
        self._bytes_left = _PICKLES_BYTES_MAX

    def __call__(self, task: Any) -> bytes | None:
        """Pickle a task; None above the limit, or if Dask has to pickle the task."""
        pickled = pickle_whole(task)
        self._bytes_left -= 0 if pickled is None else len(pickled)
        return None if self._bytes_left < 0 else pickled
