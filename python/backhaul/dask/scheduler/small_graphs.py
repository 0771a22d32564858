"""Small graphs without a thread: what `Scheduler.update_graph` sends to one, and need not.

For each graph that a client sends, Dask's scheduler has another thread turn the expression into
tasks: there may be much of it, and code of users in it. What `Client.submit` sends is one task that
is there already, and the trip takes ten times as long as the work. Here a graph of few tasks, all
of Dask's own types, is handled at once. Whatever may be large, or run code of others, goes to the
thread, as ever.

A client may send thousands of graphs in one batch, and each trip to the thread is a chance for
others on the event loop: so few graphs are handled in one of its turns, and the next one goes
to the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

from backhaul.dask.compat.names import (
    Alias,
    DataNode,
    Dict,
    List,
    LLGExpr,
    Set,
    Task,
    Tuple,
    materialize_graph,
)

__all__ = ["GRAPHS_IN_TURN_MAX", "TASKS_MAX", "inline_offload", "turn"]

#: Most tasks of a graph that is handled at once: some 20 µs of work
TASKS_MAX: Final = 16
#: Most graphs that are handled in one turn of the event loop: some 5 ms, with what follows of them
GRAPHS_IN_TURN_MAX: Final = 8

#: What is a task already: turning it into one runs nothing
_NODES: Final = frozenset({Task, Alias, DataNode, List, Tuple, Set, Dict})


class _Done(Awaitable[Any]):
    """A result that is there: awaiting it does not leave the turn of the event loop."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._result
        yield  # which makes it a generator


class _Turn(threading.local):
    """How many graphs were handled in this turn of the event loop of this thread."""

    graphs = 0

    def has_room(self) -> bool:
        """Count one more graph, and tell whether it may be handled."""
        if not self.graphs:
            asyncio.get_running_loop().call_soon(self.over)
        self.graphs += 1
        return self.graphs <= GRAPHS_IN_TURN_MAX

    def over(self) -> None:
        """Begin to count anew."""
        self.graphs = 0


#: Graphs that this thread has handled in this turn, whoever did
turn: Final = _Turn()


def inline_offload(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Make an `offload` for the scheduler that turns small graphs into tasks at once."""

    def offload(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        if func is materialize_graph and _is_small(kwargs.get("expr")) and turn.has_room():
            return _Done(func(*args, **kwargs))
        return original(func, *args, **kwargs)

    return offload


def _is_small(expr: Any) -> bool:
    """Tell whether an expression is few tasks that are there already."""
    # Without a token, one is computed of all that the tasks hold, by code of others, too.
    if type(expr) is not LLGExpr or expr._determ_token is None:
        return False
    graph = expr.operands[0]
    return (
        type(graph) is dict
        and len(graph) <= TASKS_MAX
        and all(type(node) in _NODES for node in graph.values())
    )
