"""Tasks of an exchange, in the place of the graph of a P2P expression."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.tokenize import tokenize

from backhaul.dask.compat.exchange_patches import HASH_JOIN, P2P_SHUFFLE
from backhaul.dask.compat.names import (
    FromGraph,
    HashJoinP2P,
    List,
    P2PShuffle,
    Task,
    TaskRef,
)
from backhaul.dask.exchange.between_hosts import HostsPlan, receive, split, transfer_to_hosts
from backhaul.dask.exchange.cluster import ClusterView
from backhaul.dask.exchange.columns import Unsupported, schema_of
from backhaul.dask.exchange.joins import join_plan
from backhaul.dask.exchange.placing import OutputRange, Pins, output_ranges, shift_of
from backhaul.dask.exchange.plans import FramePlan, MergePlan
from backhaul.dask.exchange.tasks import bundle, transfer, unpack, unpack_merge
from backhaul.dask.exchange.unassigned import unassigned_of

__all__ = ["exchange_layer", "unread"]

logger = logging.getLogger(__name__)


def exchange_layer(expr: Any, cluster: ClusterView) -> dict[Any, Any] | None:
    """Make the tasks of an expression of P2P.

    Parameters
    ----------
    expr : Expr
        Any expression of Dask.
    cluster : ClusterView
        The workers that will run the tasks.

    Returns
    -------
    dict or None
        The tasks by their keys; None if the expression is left to Dask.
    """
    kind = type(expr)
    if kind is HashJoinP2P:
        make, patch = _merge_layer, HASH_JOIN
    elif kind is P2PShuffle:
        make, patch = _shuffle_layer, P2P_SHUFFLE
    else:
        return None
    make_layer: Callable[[Any, ClusterView], dict[Any, Any]] = make
    try:
        if not patch.fits():
            raise Unsupported("this release of Dask has another P2P than the one that was read")
        if (refusal := cluster.refusal()) is not None:
            raise Unsupported(refusal)
        if not cluster.has_files:
            raise Unsupported("a worker keeps its results in a store that is not Dask's")
        graph = make_layer(expr, cluster)
        logger.info("The exchange makes %s: %d tasks", expr._name, len(graph))
        return graph
    except Unsupported as error:
        reason = str(error)
    except Exception as error:
        # P2P shows whether the expression itself is at fault.
        reason = repr(error)
    logger.info("The exchange leaves %s to Dask's P2P: %s", expr._name, reason)
    return None


def unread(expressions: Sequence[Any], layers: Mapping[str, Any]) -> set[str]:
    """Name the expressions without readers, because transfers assign the rows in their place.

    Parameters
    ----------
    expressions : sequence of Expr
        All expressions of a graph.
    layers : mapping
        By the names of these expressions, what `exchange_layer` has returned.
    """

    def inputs(*, assigns: bool) -> set[str]:
        return {
            dependency._name
            for each in expressions
            if assigns == (layers[each._name] is not None and unassigned_of(each) is not None)
            for dependency in each.dependencies()
        }

    return inputs(assigns=True) - inputs(assigns=False)


@dataclass(frozen=True)
class _Side:
    """One frame of an exchange."""

    name: str
    frame: Any
    plan: FramePlan

    def _inputs(self) -> list[Any]:
        """List the keys of the input partitions.

        Dask names the partitions of a persisted frame by aliases, each of which is a task. Without
        readers, an alias is left out by the scheduler.
        """
        names = [(self.frame._name, number) for number in range(int(self.frame.npartitions))]
        if type(self.frame) is FromGraph:
            persisted = list(self.frame.operand("keys"))
            return persisted if len(persisted) == len(names) else names
        return names

    def add_to(self, graph: dict[Any, Any], *, bundled: bool) -> Any:
        """Add the tasks up to the blocks, and return a reference to these."""
        blocks = []
        for number, source in enumerate(self._inputs()):
            key = (f"exchange-transfer-{self.name}", number)
            graph[key] = Task(key, transfer, TaskRef(source), self.plan)
            blocks.append(graph[key].ref())
        if not bundled:
            return List(*blocks)
        task = Task(f"exchange-bundle-{self.name}", bundle, List(*blocks))
        graph[task.key] = task
        return task.ref()

    def add_to_hosts(
        self, graph: dict[Any, Any], ranges: Sequence[OutputRange], pins: Pins
    ) -> list[Any]:
        """Add the tasks up to the blocks of each host, and return references to these.

        Dask orders all tasks of one bundle before those of the next, so that the blocks of the last
        host would not be sent before the first host has all of its own.
        """
        places = tuple((each.host.name, each.start, each.stop) for each in ranges)
        plan = HostsPlan(self.plan, places)
        # Another graph of this expression may have other hosts.
        name = f"{self.plan.token}-{tokenize(places)}"
        blocks: list[list[Any]] = [[] for _ in ranges]
        for number, source in enumerate(self._inputs()):
            made = (f"exchange-transfer-{name}", number)
            graph[made] = Task(made, transfer_to_hosts, TaskRef(source), plan)
            for place, each in enumerate(ranges):
                # Dask's work stealing knows this prefix as one of very short tasks.
                part = (f"split-shuffle-{name}", number, place)
                graph[part] = Task(part, split, graph[made].ref(), place)
                received = (f"exchange-receive-{name}", number, place)
                graph[received] = Task(received, receive, graph[part].ref(), self.plan)
                pins.early |= {part, received}
                pins.workers[received] = list(each.host.threads)
                blocks[place].append(graph[received].ref())
        found = []
        for place, each in enumerate(ranges):
            key = (f"exchange-bundle-{name}", place)
            graph[key] = Task(key, bundle, List(*blocks[place]))
            pins.workers[key] = list(each.host.threads)
            found.append(graph[key].ref())
        return found


def _outputs_layer(
    name: str,
    outputs: tuple[int, ...],
    sides: Sequence[_Side],
    cluster: ClusterView,
    make: Callable[..., Any],
    plan: Any,
) -> dict[Any, Any]:
    """Make all tasks of an exchange.

    Parameters
    ----------
    name : str
        Name of the expression, and of its outputs.
    outputs : tuple of int
        The output partitions that are needed.
    sides : sequence of _Side
        The frames.
    cluster : ClusterView
        The workers.
    make : callable
        Makes an output of the blocks of each frame, its slot, and the plan.
    plan : FramePlan or MergePlan
        The last argument of `make`.
    """
    graph: dict[Any, Any] = {}
    # Upstream names the tasks by output partition, which consumers of some of them do not.
    slots = list(enumerate(_slots(outputs)))
    if len(cluster.hosts) < 2:
        bundled = _is_bundled(sides, cluster)
        blocks = [side.add_to(graph, bundled=bundled) for side in sides]
        for place, slot in slots:
            graph[name, place] = Task((name, place), make, *blocks, slot, plan)
        return graph
    ranges = output_ranges(cluster.hosts, sides[0].plan.slots, shift_of(name))
    pins = cluster.pins
    bundles = [side.add_to_hosts(graph, ranges, pins) for side in sides]
    for place, slot in slots:
        which, host = next(
            (which, each) for which, each in enumerate(ranges) if each.start <= slot < each.stop
        )
        blocks = [each[which] for each in bundles]
        graph[name, place] = Task((name, place), make, *blocks, slot - host.start, plan)
        pins.workers[name, place] = [host.worker_of(slot)]
    return graph


def _shuffle_layer(expr: Any, cluster: ClusterView) -> dict[Any, Any]:
    column, partitions = expr.partitioning_index, int(expr.npartitions_out)
    meta = expr.frame._meta
    if not isinstance(column, str) or column not in meta.columns:
        raise Unsupported("there is no column of partition numbers")
    outputs = tuple(expr._partitions) if expr._filtered else tuple(range(partitions))
    token = expr._name.split("-")[-1]
    unassigned = unassigned_of(expr)
    plan = FramePlan(
        token=token,
        meta=meta,
        schema=schema_of(meta.drop(columns=column)),
        partitions=partitions,
        wanted=_wanted(outputs, partitions),
        number_column=column,
        keys=() if unassigned is None else unassigned.assignment.keys,
        keeps_index=True,
        memory_bytes=cluster.block_bytes,
        assignment=None if unassigned is None else unassigned.assignment,
    )
    side = _Side(token, expr.frame if unassigned is None else unassigned.frame, plan)
    graph = _outputs_layer(expr._name, outputs, [side], cluster, unpack, plan)
    if unassigned is not None and unassigned.is_fused:
        graph.update(unassigned.frame._layer())
    return graph


def _merge_layer(expr: Any, cluster: ClusterView) -> dict[Any, Any]:
    # `npartitions` counts the outputs that are needed.
    partitions, outputs = int(expr._npartitions), tuple(expr._partitions)
    token = expr._name.split("-")[-1]
    by_index = bool(expr.left_index), bool(expr.right_index)
    sides = [
        _Side(
            f"{side}-{token}",
            frame,
            FramePlan(
                token=f"{token}-{side}",
                meta=frame._meta,
                schema=schema_of(frame._meta),
                partitions=partitions,
                wanted=_wanted(outputs, partitions),
                number_column=None,
                keys=None if is_index else _keys(frame._meta, on),
                keeps_index=any(by_index),
                memory_bytes=cluster.block_bytes / 2,
            ),
        )
        for side, frame, on, is_index in (
            ("left", expr.left, expr.shuffle_left_on, by_index[0]),
            ("right", expr.right, expr.shuffle_right_on, by_index[1]),
        )
    ]
    options = {
        "how": expr.how,
        "result_meta": expr._meta,
        "left_on": expr.left_on,
        "right_on": expr.right_on,
        "suffixes": expr.suffixes,
        "left_index": expr.left_index,
        "right_index": expr.right_index,
        "indicator": expr.indicator,
    }
    left_plan, right_plan = (side.plan for side in sides)
    join = None
    if left_plan.schema is not None and right_plan.schema is not None:
        join = join_plan(left_plan.schema, right_plan.schema, options)
    plan = MergePlan(left=left_plan, right=right_plan, options=options, join=join)
    return _outputs_layer(expr._name, outputs, sides, cluster, unpack_merge, plan)


def _keys(meta: Any, on: Any) -> tuple[str, ...]:
    """Return the columns that a merge hashes."""
    names = on if isinstance(on, list) else [on]
    columns = set(meta.columns)
    for name in names:
        if not isinstance(name, str) or name not in columns:
            raise Unsupported(f"a key is no column: {name!r}")
        if name == meta.index.name:
            raise Unsupported(f"a key names a column and the index: {name!r}")
    return tuple(names)


def _wanted(outputs: tuple[int, ...], partitions: int) -> tuple[int, ...] | None:
    wanted = tuple(sorted(set(outputs)))
    return None if wanted == tuple(range(partitions)) else wanted


def _slots(outputs: tuple[int, ...]) -> list[int]:
    """Return the place of each output among those that are wanted."""
    places = {output: place for place, output in enumerate(sorted(set(outputs)))}
    return [places[output] for output in outputs]


def _is_bundled(sides: Sequence[_Side], cluster: ClusterView) -> bool:
    """Tell whether outputs depend on bundles rather than on all blocks.

    Dask spreads a group of tasks with few dependencies over idle workers if it is larger than
    twice the number of threads. It runs any others where their dependencies are, so that outputs
    of blocks would gather on the first worker that has received all blocks.
    """
    return sides[0].plan.slots > 2 * cluster.threads
