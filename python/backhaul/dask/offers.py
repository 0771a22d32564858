"""What a server understands beside Dask's own messages, as peers hear in the handshake of a comm.

Only the side that listens says so, as it alone knows for which server it does. Whoever connects
says what it has in a message that such a server understands.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "FIELD",
    "GRAPH",
    "MAP",
    "RELEASE_EACH",
    "SMALL_RESULTS",
    "SUBMIT",
    "UPDATE_GRAPH",
    "offered_by",
    "offers",
]

#: Operation by which a client says that it keeps small results, and a worker that it sends them
SMALL_RESULTS: Final = "backhaul-small-results"

#: Operation by which a client submits one task, without an expression
SUBMIT: Final = "backhaul-submit"

#: Operation by which a client submits many calls of one function, likewise
MAP: Final = "backhaul-map"

#: Operation by which a client submits a graph of tasks, likewise
GRAPH: Final = "backhaul-graph"

#: Offered by a scheduler that releases the keys of one ``client-releases-keys`` one after the other
RELEASE_EACH: Final = "backhaul-release-each"

#: Dask's own operation, in the place of which these three are
UPDATE_GRAPH: Final = "update-graph"

#: Name of the list in the part of a handshake that is ours
FIELD: Final = "offers"

#: Operations that a server may have a handler for
_OPERATIONS: Final = (SMALL_RESULTS, SUBMIT, MAP, GRAPH)

#: Dask's operation by which a client releases keys, and this package's module that handles streams
_RELEASES: Final = "client-releases-keys"
_STREAMS: Final = "backhaul.dask.streams"

#: Those of them that are graphs
_GRAPHS: Final = frozenset({SUBMIT, MAP, GRAPH})


def offered_by(server: object) -> list[str]:
    """List the operations of ours that a server has a handler for.

    Where a program handles graphs by itself, clients are to send it graphs as Dask does.
    """
    handlers = getattr(server, "stream_handlers", None) or {}
    offered = [operation for operation in _OPERATIONS if operation in handlers]
    if not _GRAPHS.isdisjoint(offered):
        # Who has replaced nothing does without it.
        from backhaul.dask.patching import is_dasks

        if not is_dasks(handlers.get(UPDATE_GRAPH)):
            offered = [operation for operation in offered if operation not in _GRAPHS]
    handles = getattr(type(server), "handle_stream", None)
    if _RELEASES in handlers and getattr(handles, "__module__", None) == _STREAMS:
        offered.append(RELEASE_EACH)
    return offered


def offers(comm: Any, operation: str) -> bool:
    """Tell whether the server at the other end of a comm has a handler for an operation of ours."""
    ours = (getattr(comm, "remote_info", None) or {}).get("backhaul")
    offered = ours.get(FIELD) if isinstance(ours, dict) else None
    return isinstance(offered, (list, tuple)) and operation in offered
