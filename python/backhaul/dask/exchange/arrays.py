"""Chunks of a rechunked array, each assembled from the chunks that it overlaps.

Dask's P2P writes the parts of each chunk to files and reads them again. Where workers share memory,
a task can read the chunks of its peers, so that each byte is copied once: one task for each output
chunk, which depends on the input chunks that it overlaps.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import numpy as np

from backhaul.dask.compat.exchange_patches import RECHUNK
from backhaul.dask.compat.names import List, Task, TaskRef, concatenate3, old_to_new
from backhaul.dask.exchange.cluster import ClusterView
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["assemble", "direct_graph"]

logger = logging.getLogger(__name__)

#: Most pairs of an input chunk and an output chunk: the graph has an edge for each
_EDGES_MAX: Final = 1 << 16
#: Assumed size of an element, in bytes: the layer of Dask does not know it
_ELEMENT_BYTES: Final = 8

#: For each axis, the start and stop of each piece within its input chunk
Pieces = tuple[tuple[tuple[int, int], ...], ...]


def direct_graph(layer: Any, cluster: ClusterView) -> dict[Any, Any] | None:
    """Make the tasks of a layer that rechunks.

    Parameters
    ----------
    layer : P2PRechunkLayer
        Has the chunks of input and output, and which output chunks are wanted.
    cluster : ClusterView
        The workers that will run the tasks.

    Returns
    -------
    dict or None
        The tasks by their keys; None if the layer is left to Dask.
    """
    try:
        reason = cluster.refusal() or _refusal(layer, cluster)
        if reason is None:
            return _graph(layer)
    except Exception as error:
        # P2P shows whether the layer itself is at fault.
        reason = repr(error)
    logger.info("The exchange leaves %s to Dask's P2P: %s", layer.name, reason)
    return None


def _graph(layer: Any) -> dict[Any, Any]:
    axes = old_to_new(layer.chunks_input, layer.chunks)
    pieces = [[tuple((s.start, s.stop) for _, s in recipe) for recipe in axis] for axis in axes]
    graph: dict[Any, Any] = {}
    for index in np.argwhere(layer.keepmap).tolist():
        recipes = [axis[place] for axis, place in zip(axes, index, strict=True)]
        inputs = (
            TaskRef((layer.name_input, *(number for number, _ in each)))
            for each in product(*recipes)
        )
        key = (layer.name, *index)
        parts: Pieces = tuple(axis[place] for axis, place in zip(pieces, index, strict=True))
        graph[key] = Task(key, assemble, parts, List(*inputs))
    return graph


def _refusal(layer: Any, cluster: ClusterView) -> str | None:
    """Say why tasks do not read the chunks of others; None if they may."""
    if len(cluster.hosts) > 1:
        return "the workers are on several hosts"
    if RECHUNK.refusal() is not None:
        return "this release of Dask has another P2P than the one that was read"
    if any(math.isnan(size) for axis in (*layer.chunks_input, *layer.chunks) for size in axis):
        return "the size of a chunk is unknown"
    axes = old_to_new(layer.chunks_input, layer.chunks)
    edges = math.prod(sum(len(recipe) for recipe in axis) for axis in axes)
    if edges > _EDGES_MAX:
        return f"{edges} pairs of chunks overlap, more than {_EDGES_MAX}"
    # The input chunks are there until the last output chunk is.
    needed = 2 * _ELEMENT_BYTES * math.prod(sum(axis) for axis in layer.chunks)
    if needed > cluster.free_bytes:
        return (
            f"it may take {needed / 1e9:.1f} GB of the {cluster.free_bytes / 1e9:.1f} GB that are "
            "free below the spill thresholds of the workers"
        )
    return None


def assemble(pieces: Pieces, chunks: Sequence[Any]) -> Any:
    """Assemble an output chunk from pieces of input chunks.

    Parameters
    ----------
    pieces : tuple of tuple of (int, int)
        For each axis, the start and stop of each piece within its input chunk, in order.
    chunks : sequence of array
        The input chunks, in C order of the axes' pieces.

    Returns
    -------
    array
        A new one, which shares no memory with the input chunks. Of the type and dtype that Dask's
        ``concatenate3`` gives.
    """
    parts = [
        chunk[tuple(slice(start, stop) for start, stop in bounds)]
        for bounds, chunk in zip(product(*pieces), chunks, strict=True)
    ]
    sizes = [[stop - start for start, stop in axis] for axis in pieces]
    if not all(
        type(part) is np.ndarray and not part.dtype.hasobject and part.shape == shape
        for part, shape in zip(parts, product(*sizes), strict=True)
    ):
        nested = concatenate3(_nested([copy.deepcopy(part) for part in parts], sizes))
        exchange_counters.note_chunk(int(getattr(nested, "nbytes", 0)))
        return nested
    result = np.empty(tuple(map(sum, sizes)), dtype=parts[0].dtype)
    places = product(*(_places(axis) for axis in sizes))
    for place, part in zip(places, parts, strict=True):
        result[place] = part
    exchange_counters.note_chunk(result.nbytes)
    return result


def _places(sizes: list[int]) -> list[slice]:
    """Place pieces one after the other."""
    places, start = [], 0
    for size in sizes:
        places.append(slice(start, start + size))
        start += size
    return places


def _nested(parts: list[Any], sizes: list[list[int]]) -> Any:
    """Nest a list in C order by axes."""
    for axis in reversed(sizes[1:]):
        parts = [parts[at : at + len(axis)] for at in range(0, len(parts), len(axis))]
    return parts
