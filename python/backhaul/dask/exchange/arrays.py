"""Chunks of a rechunked array, each assembled from the chunks that it overlaps.

Dask's P2P writes the parts of each chunk to files and reads them again. Where workers share memory,
a task can read the chunks of its peers, so that each byte is copied once: one task for each output
chunk, which depends on the input chunks that it overlaps. Between hosts, each host makes some of
the outputs, and the parts of input chunks that it needs are sent there first.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
from dask.tokenize import tokenize

from backhaul.dask.compat.exchange_patches import RECHUNK
from backhaul.dask.compat.names import List, Task, TaskRef, concatenate3, old_to_new
from backhaul.dask.exchange.chunk_parts import Bounds, SentParts, cut, part_of, receive_parts
from backhaul.dask.exchange.cluster import CHOSEN_WORKERS, ClusterView
from backhaul.dask.exchange.placing import OutputRange, output_ranges, restricts_workers, shift_of
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["assemble", "assemble_parts", "direct_graph"]

logger = logging.getLogger(__name__)

#: Most pairs of an input chunk and an output chunk: the graph has an edge for each
_EDGES_MAX: Final = 1 << 16
#: Assumed size of an element, in bytes: the layer of Dask does not know it
_ELEMENT_BYTES: Final = 8

#: For each axis, the start and stop of each piece within its input chunk
Pieces = tuple[tuple[tuple[int, int], ...], ...]


class _UnfusedTask(Task):
    """A task that Dask's optimization does not fuse, so that it keeps its key, and its workers."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # Optimization is over where a task is sent.
        return Task, (self.key, self.func, *self.args)


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
            graph = _graph(layer) if len(cluster.hosts) < 2 else _HostsGraph(layer, cluster).tasks
            logger.info("The exchange makes %s: %d tasks", layer.name, len(graph))
            return graph
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


#: Place of an input chunk, and the part of it that an output chunk has
_Overlap = tuple[tuple[int, ...], Bounds]


@dataclass(frozen=True)
class _Output:
    """An output chunk.

    Parameters
    ----------
    index : tuple of int
        Its place.
    shape : tuple of int
        For each axis, how many input chunks overlap.
    overlaps : list of _Overlap
        All of them, in C order.
    """

    index: tuple[int, ...]
    shape: tuple[int, ...]
    overlaps: list[_Overlap]


class _HostsGraph:
    """Tasks for workers on several hosts.

    Parameters
    ----------
    layer : P2PRechunkLayer
        As for `direct_graph`.
    cluster : ClusterView
        Its pins get the workers of each host.
    """

    def __init__(self, layer: Any, cluster: ClusterView) -> None:
        self.tasks: dict[Any, Any] = {}
        self._layer = layer
        self._pins = cluster.pins
        axes = old_to_new(layer.chunks_input, layer.chunks)
        # Tasks of one key must be the same in each graph of the layer, whichever outputs it needs.
        outputs = []
        for index in np.ndindex(layer.keepmap.shape):
            recipes = [axis[place] for axis, place in zip(axes, index, strict=True)]
            overlaps = [
                (tuple(number for number, _ in each), tuple((s.start, s.stop) for _, s in each))
                for each in product(*recipes)
            ]
            outputs.append(_Output(index, tuple(map(len, recipes)), overlaps))
        readers = Counter(source for output in outputs for source, _ in output.overlaps)
        shared = []
        for output in outputs:
            if any(readers[source] > 1 for source, _ in output.overlaps):
                shared.append(output)
            elif layer.keepmap[output.index]:
                self._join(output)
        ranges = output_ranges(cluster.hosts, len(shared), shift_of(layer.token))
        token = tokenize(layer.token, [(each.host.name, each.start) for each in ranges])
        for each in ranges:
            self._exchange(shared[each.start : each.stop], each, token)

    def _join(self, output: _Output) -> None:
        """Make an output whose inputs have no other reader, on the worker with most of them."""
        layer = self._layer
        inputs = [TaskRef((layer.name_input, *source)) for source, _ in output.overlaps]
        pieces = tuple((0, bounds) for _, bounds in output.overlaps)
        key = (layer.name, *output.index)
        self.tasks[key] = Task(key, assemble_parts, output.shape, pieces, List(*inputs))

    def _exchange(self, outputs: Sequence[_Output], each: OutputRange, token: str) -> None:
        """Make the outputs of one host."""
        layer, host = self._layer, each.host
        # A group for each host: Dask takes large groups of few dependencies for roots, which any
        # worker may run, wherever their chunks are.
        name = f"{token}-{each.start}"
        parts: dict[tuple[int, ...], list[Bounds]] = {}
        needed: set[tuple[int, ...]] = set()
        for output in outputs:
            pieces = []
            inputs = []
            for source, bounds in output.overlaps:
                known = parts.setdefault(source, [])
                pieces.append((len(known), bounds))
                known.append(bounds)
                inputs.append(TaskRef((f"exchange-receive-{name}", *source)))
            if not layer.keepmap[output.index]:
                continue
            needed.update(source for source, _ in output.overlaps)
            key = (layer.name, *output.index)
            arguments = output.shape, tuple(pieces), List(*inputs)
            self._restrict(_UnfusedTask(key, assemble_parts, *arguments), each)
        for source, known in parts.items():
            if source not in needed:
                continue
            # Dask's work stealing knows this prefix as one of very short tasks.
            part = (f"split-shuffle-{name}", *source)
            chunk = TaskRef((layer.name_input, *source))
            self.tasks[part] = _UnfusedTask(part, cut, chunk, host.name, tuple(known))
            received = (f"exchange-receive-{name}", *source)
            self._restrict(_UnfusedTask(received, receive_parts, self.tasks[part].ref()), each)
            self._pins.early |= {part, received}

    def _restrict(self, task: Any, each: OutputRange) -> None:
        self.tasks[task.key] = task
        self._pins.workers[task.key] = list(each.host.threads)


def _refusal(layer: Any, cluster: ClusterView) -> str | None:
    """Say why tasks do not read the chunks of others; None if they may."""
    several = len(cluster.hosts) > 1
    if several and restricts_workers(layer.annotations):
        return CHOSEN_WORKERS
    if RECHUNK.refusal() is not None:
        return "this release of Dask has another P2P than the one that was read"
    if any(math.isnan(size) for axis in (*layer.chunks_input, *layer.chunks) for size in axis):
        return "the size of a chunk is unknown"
    axes = old_to_new(layer.chunks_input, layer.chunks)
    edges = math.prod(sum(len(recipe) for recipe in axis) for axis in axes)
    if edges > _EDGES_MAX:
        return f"{edges} pairs of chunks overlap, more than {_EDGES_MAX}"
    # The input chunks are there until the last output chunk is; so are the parts for other hosts.
    copies = 3 if several else 2
    needed = copies * _ELEMENT_BYTES * math.prod(sum(axis) for axis in layer.chunks)
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
    parts = [part_of(chunk, bounds) for bounds, chunk in zip(product(*pieces), chunks, strict=True)]
    return _joined(parts, [[stop - start for start, stop in axis] for axis in pieces])


def assemble_parts(
    shape: tuple[int, ...], pieces: Sequence[tuple[int, Bounds]], inputs: Sequence[Any]
) -> Any:
    """Assemble an output chunk from results of `cut` and whole chunks.

    Parameters
    ----------
    shape : tuple of int
        For each axis, how many input chunks overlap.
    pieces : sequence of (int, tuple of (int, int))
        Place and bounds of each part in its input, in C order.
    inputs : sequence of array or SentParts
        The inputs, in the same order.

    Returns
    -------
    array
        As for `assemble`.
    """
    parts = [
        each.part(place, bounds) if isinstance(each, SentParts) else part_of(each, bounds)
        for each, (place, bounds) in zip(inputs, pieces, strict=True)
    ]
    sizes = []
    for axis, count in enumerate(shape):
        step = math.prod(shape[axis + 1 :])
        bounds_of = [pieces[step * at][1][axis] for at in range(count)]
        sizes.append([stop - start for start, stop in bounds_of])
    return _joined(parts, sizes)


def _joined(parts: Sequence[Any], sizes: list[list[int]]) -> Any:
    """Copy parts, in C order, into a new array."""
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
