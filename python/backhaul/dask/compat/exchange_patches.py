"""Replacements on single objects of Dask for the exchange of dataframes.

`backhaul.dask.compat.instance_patches` lists them with the others.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.operations import EXCHANGE, UPDATE_GRAPH
from backhaul.dask.compat.patching import InstancePatch, Requirement

__all__ = [
    "EXCHANGE_INFORMATION",
    "EXCHANGE_PATCHES",
    "EXCHANGE_REQUIREMENTS",
    "GRAPHS_WITH_CLUSTER",
    "HASH_JOIN",
    "P2P_SHUFFLE",
    "RECHUNK",
]

#: Graphs whose scheduler is noted: `backhaul.dask.exchange.cluster` looks at its workers
GRAPHS_WITH_CLUSTER: Final = InstancePatch(
    shown="Scheduler",
    without="dataframes are shuffled by P2P",
    slots=(f"stream_handlers[{UPDATE_GRAPH}]",),
    read=(
        "update_graph",
        "materialize_graph",
        "offload",
    ),
)

#: The version of the exchange, which a worker reports when it joins
EXCHANGE_INFORMATION: Final = InstancePatch(
    shown="Worker",
    without="dataframes are shuffled by P2P",
    slots=(f"startup_information[{EXCHANGE}]",),
    read=("Worker.get_startup_information",),
)

#: Functions whose results the exchange reproduces, for both of its expressions
_P2P_READ: Final = (
    "DataFrameShuffleRun",
    "convert_shards",
    "is_numeric_cast_type",
    "partitioning_index",
    "split_by_partition",
    "split_by_worker",
)

#: The graph of a merge by P2P; `backhaul.dask.exchange.graphs` makes another one
HASH_JOIN: Final = Requirement(
    shown="HashJoinP2P._layer",
    without="dataframes are merged by P2P",
    read=(
        "HashJoinP2P",
        "create_assign_index_merge_transfer",
        "merge_unpack",
        *_P2P_READ,
    ),
)

#: The graph of a shuffle by P2P, likewise
P2P_SHUFFLE: Final = Requirement(
    shown="P2PShuffle._layer",
    without="dataframes are shuffled by P2P",
    read=(
        "AssignPartitioningIndex",
        "Fused",
        "P2PShuffle",
        "set_partitions_pre",
        *_P2P_READ,
    ),
)

#: The graph of a rechunk by P2P: `backhaul.dask.exchange.arrays` uses these functions of Dask
RECHUNK: Final = Requirement(
    shown="P2PRechunkLayer._construct_graph",
    without="arrays are rechunked by P2P",
    read=("P2PRechunkLayer", "concatenate3", "old_to_new"),
)

#: All that is replaced
EXCHANGE_PATCHES: Final = (GRAPHS_WITH_CLUSTER, EXCHANGE_INFORMATION)

#: Sources that the exchange relies upon besides
EXCHANGE_REQUIREMENTS: Final = (HASH_JOIN, P2P_SHUFFLE, RECHUNK)
