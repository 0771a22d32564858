"""The message of Dask's client that says the same as a compact one.

A client sends it where the scheduler does not understand the compact one, and a scheduler makes it
where Dask's own method is to handle the tasks.
"""

from __future__ import annotations

import pickle
import uuid
from typing import Any, Final

from backhaul._native import TaskCalls, TaskGraph
from backhaul.dask.compat.names import (
    LLGExpr,
    Serialized,
    ToPickle,
    serialize,
    span_metadata,
    to_serialize,
)
from backhaul.dask.compat.operations import GRAPH, MAP
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import tasks_of

__all__ = ["FIFO_TIMEOUT", "update_graph_of"]

#: How close calls of `Client.submit` are to have the same priority, unless something else is said
FIFO_TIMEOUT: Final = "100 ms"


def update_graph_of(message: dict[str, Any]) -> dict[str, Any]:
    """Make the ``update-graph`` that Dask's client would have sent of a compact message."""
    wanted: Any = None
    order: Any = None
    if message["op"] == GRAPH:
        graph = TaskGraph(message["graph"])
        tasks, order, wanted = tasks_of(graph, codec.unpack(graph.keys()))
    elif message["op"] == MAP:
        tasks = {
            key: pickle.loads(pickled) for key, pickled, _ in TaskCalls(message["calls"]).tasks()
        }
    else:
        tasks = {message["key"]: pickle.loads(message["spec"])}
    expr = LLGExpr(tasks, _determ_token=uuid.uuid4().hex)
    return {
        "op": "update-graph",
        "expr_ser": Serialized(*serialize(to_serialize(expr), on_error="raise")),
        "keys": set(tasks) if wanted is None else wanted,
        "internal_priority": order or dict(zip(tasks, range(len(tasks)), strict=True)),
        "submitting_task": message.get("submitting_task"),
        "fifo_timeout": message.get("fifo_timeout", FIFO_TIMEOUT),
        "actors": message.get("actor", False),
        "code": message.get("code", ToPickle(())),
        "annotations": message.get("annotations", ToPickle({})),
        "span_metadata": message.get("span_metadata") or ToPickle(span_metadata()),
    }
