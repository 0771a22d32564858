"""Messages that a server understands beside Dask's own, announced in the handshake of a comm.

Only the side that listens announces them, as it alone knows the server of the comm. The connecting
side announces its own messages later, in a message that such a server understands.
"""

from __future__ import annotations

from typing import Any, Final

from backhaul.dask.compat.function_origin import is_dasks
from backhaul.dask.compat.operations import (
    FIELD,
    GRAPH,
    MAP,
    RELEASE_EACH,
    RELEASES,
    SMALL_RESULTS,
    SUBMIT,
    UPDATE_GRAPH,
)

__all__ = ["offered_by", "offers"]

#: Operations that a server may have a handler for
_OPERATIONS: Final = (SMALL_RESULTS, SUBMIT, MAP, GRAPH)

#: The module that handles streams
_STREAMS: Final = "backhaul.dask.worker.event_stream"

#: Those of them that are graphs
_GRAPHS: Final = frozenset({SUBMIT, MAP, GRAPH})


def offered_by(server: object) -> list[str]:
    """List the operations of Backhaul that a server has a handler for.

    Where a program has its own handler of graphs, clients are to send it graphs as Dask does.
    """
    handlers = getattr(server, "stream_handlers", None) or {}
    offered = [operation for operation in _OPERATIONS if operation in handlers]
    if not _GRAPHS.isdisjoint(offered) and not is_dasks(handlers.get(UPDATE_GRAPH)):
        offered = [operation for operation in offered if operation not in _GRAPHS]
    handles = getattr(server, "handle_stream", None)
    if RELEASES in handlers and getattr(handles, "__module__", None) == _STREAMS:
        offered.append(RELEASE_EACH)
    return offered


def offers(comm: Any, operation: str) -> bool:
    """Return whether the server at the other end of a comm has a handler for an operation."""
    ours = (getattr(comm, "remote_info", None) or {}).get("backhaul")
    offered = ours.get(FIELD) if isinstance(ours, dict) else None
    return isinstance(offered, (list, tuple)) and operation in offered
