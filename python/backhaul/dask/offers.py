"""What a server understands beside Dask's own messages, as peers hear in the handshake of a comm.

Only the side that listens says so, as it alone knows for which server it does. Whoever connects
says what it has in a message that such a server understands.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["FIELD", "GRAPH", "MAP", "SMALL_RESULTS", "SUBMIT", "offered_by", "offers"]

#: Operation by which a client says that it keeps small results, and a worker that it sends them
SMALL_RESULTS: Final = "backhaul-small-results"

#: Operation by which a client submits one task, without an expression
SUBMIT: Final = "backhaul-submit"

#: Operation by which a client submits many calls of one function, likewise
MAP: Final = "backhaul-map"

#: Operation by which a client submits a graph of tasks, likewise
GRAPH: Final = "backhaul-graph"

#: Name of the list in the part of a handshake that is ours
FIELD: Final = "offers"

#: Operations that a server may have a handler for
_OPERATIONS: Final = (SMALL_RESULTS, SUBMIT, MAP, GRAPH)


def offered_by(server: object) -> list[str]:
    """List the operations of ours that a server has a handler for."""
    handlers = getattr(server, "stream_handlers", None) or {}
    return [operation for operation in _OPERATIONS if operation in handlers]


def offers(comm: Any, operation: str) -> bool:
    """Tell whether the server at the other end of a comm has a handler for an operation of ours."""
    ours = (getattr(comm, "remote_info", None) or {}).get("backhaul")
    offered = ours.get(FIELD) if isinstance(ours, dict) else None
    return isinstance(offered, (list, tuple)) and operation in offered
