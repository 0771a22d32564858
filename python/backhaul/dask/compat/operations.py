"""Operations of messages that Backhaul adds to those of Dask, and the ones of Dask beside them.

A constant of each: the patches, the comms and both ends of a message name the same one.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "EXCHANGE",
    "FIELD",
    "GRAPH",
    "MAP",
    "RELEASES",
    "RELEASE_EACH",
    "RESOURCES",
    "RESULT",
    "RESULT_REQUESTS",
    "RUNS",
    "SMALL_RESULTS",
    "SUBMIT",
    "TRANSFERS",
    "UPDATE_GRAPH",
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

#: Operation of the message with a result, from a scheduler to a client
RESULT: Final = "backhaul-result"

#: Dask's operation by which a client releases keys
RELEASES: Final = "client-releases-keys"

#: Operation by which a scheduler requests small results from a worker
RESULT_REQUESTS: Final = "backhaul-result-requests"

#: Request to a scheduler for its record of runs
RUNS: Final = "backhaul_runs"

#: Name of the metric in a heartbeat that reports transfers
TRANSFERS: Final = "backhaul-transfers"

#: Name under which a worker that joins reports that it exchanges dataframes, and in which version
EXCHANGE: Final = "backhaul-exchange"

#: Name under which a worker that joins reports the units of its resources
RESOURCES: Final = "backhaul-resources"
