"""The native order against Dask's own: on graphs of every shape, and on those it leaves to Dask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import dask.array as da
import dask.order
import pytest
from dask._task_spec import Alias, Task, TaskRef, convert_legacy_graph
from dask.base import collections_to_expr
from hypothesis import given, settings
from hypothesis import strategies as st

from backhaul import _native
from backhaul.dask.compat.names import DataNode, GraphNode
from backhaul.dask.scheduler.order import order, sets_are_as_modelled

Graph: TypeAlias = dict[Any, Any]


def run(*arguments: object) -> None:
    """Stand for what tasks run."""


def node(key: Any, *dependencies: Any) -> Task:
    return Task(key, run, *map(TaskRef, dependencies))


def graph_of(nodes: Iterable[GraphNode]) -> Graph:
    return {task.key: task for task in nodes}


def materialized(collection: Any) -> Graph:
    """Make the graph of a collection as the scheduler sees it."""
    expression = collections_to_expr([collection], optimize_graph=True).optimize()
    graph: Graph = convert_legacy_graph(dict(expression.__dask_graph__()))
    return graph


def assert_same_order(graph: Mapping[Any, Any], *, natively: bool = True) -> None:
    expected = dask.order.order(graph)
    assert list(order(graph).items()) == list(expected.items())
    if natively:
        assert _native.order(dict(graph), GraphNode, DataNode) == expected


# --- Graphs drawn at random ---------------------------------------------------------------------

#: How the keys of a graph look.
KEYS: dict[str, Callable[[int], Any]] = {
    "text": lambda index: f"task-{index}",
    "tuple": lambda index: ("block", index // 7, index % 7),
    "odd tuple": lambda index: ("it's", index, ("é", None, True)),
    "int": lambda index: index * 1_000_003,
    "bytes": lambda index: b"task-%d" % index,
    "unicode": lambda index: f"täsk-\U0001f600{index}",
}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs without cycles: some of layers, some dense, some of parts that do not touch."""
    size = draw(st.integers(1, 60))
    key_of = [KEYS[draw(st.sampled_from(sorted(KEYS)))] for _ in range(draw(st.integers(1, 2)))]
    keys = [key_of[index % len(key_of)](index) for index in range(size)]
    external = [("external", index) for index in range(draw(st.integers(0, 3)))]
    reach = draw(st.integers(1, size))
    random = draw(st.randoms(use_true_random=False))
    fan_in = random.randrange(6)
    data_share = random.choice([0, 0.2, 0.8])
    nodes: list[GraphNode] = []
    for index, key in enumerate(keys):
        near = keys[max(0, index - reach) : index] + external
        dependencies = random.sample(near, min(len(near), random.randint(0, fan_in)))
        if not dependencies and random.random() < data_share:
            nodes.append(DataNode(key, 1))
        elif len(dependencies) == 1 and random.random() < 0.2:
            nodes.append(Alias(key, dependencies[0]))
        else:
            nodes.append(node(key, *dependencies))
    random.shuffle(nodes)
    return graph_of(nodes)


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_random_graphs_are_ordered_as_dask_orders_them(graph: Graph) -> None:
    try:
        natively = _native.order(graph, GraphNode, DataNode)
    except ValueError as error:
        if "history of a set" not in str(error):
            raise
    else:
        assert list(natively.items()) == list(dask.order.order(graph).items())
    assert_same_order(graph, natively=False)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.booleans(), st.booleans())
@settings(deadline=None)
def test_layers_that_are_fully_connected_are_ordered_as_dask_orders_them(
    widths: list[int], joined: bool, external: bool
) -> None:
    above: list[Any] = [("external", 0), ("external", 1)] if external else []
    nodes = []
    for depth, width in enumerate(widths):
        keys = [("layer", depth, index) for index in range(width)]
        nodes += [node(key, *above) for key in keys]
        above = keys
    if joined:
        nodes.append(node("sum", *above))
    assert_same_order(graph_of(nodes))


# --- Graphs as Dask makes them ------------------------------------------------------------------


def transpose_sum() -> Any:
    x = da.random.random((40, 40), chunks=(5, 5))
    return (x + x.T).sum()


def rechunk() -> Any:
    return da.ones((24, 24), chunks=(2, 24)).rechunk((24, 2)).mean(axis=0)


def tensordot() -> Any:
    x = da.random.random((12, 12, 12), chunks=4)
    return da.tensordot(x, x.T, axes=((0, 1), (2, 1)))


def climatology() -> Any:
    days = da.random.random((60, 8, 8), chunks=(1, 4, 4))
    means = da.stack([days[month::12].mean(axis=0) for month in range(12)])
    return (days - da.concatenate([means] * 5)).std(axis=0)


def stencil() -> Any:
    x = da.random.random((40,), chunks=4)
    for _ in range(60):
        x = x.map_overlap(run, depth=1, boundary="periodic", dtype=float, meta=x._meta)
    return x


def frame_merge() -> Any:
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    left, right = (
        frames.from_pandas(
            pandas.DataFrame({"key": range(60), name: range(60)}), npartitions=6, sort=False
        )
        for name in ("left", "right")
    )
    return left.merge(right, on="key", shuffle_method="tasks").groupby("left").right.sum()


@pytest.mark.parametrize(
    "collection", [transpose_sum, rechunk, tensordot, climatology, stencil, frame_merge]
)
def test_collections_are_ordered_as_dask_orders_them(collection: Callable[[], Any]) -> None:
    assert_same_order(materialized(collection()))


def test_trees_are_ordered_as_dask_orders_them() -> None:
    for fan_in in (2, 3, 8):
        level: list[Any] = [("load", index) for index in range(fan_in**3 * 2)]
        nodes = [node(key) for key in level]
        depth = 0
        while len(level) > 1:
            depth += 1
            parts = [level[at : at + fan_in] for at in range(0, len(level), fan_in)]
            level = [("sum", depth, index) for index in range(len(parts))]
            nodes += [node(key, *part) for key, part in zip(level, parts, strict=True)]
        assert_same_order(graph_of(nodes))


def test_graphs_with_path_counts_beyond_64_bits_are_ordered_as_in_dask() -> None:
    nodes = [node(("step", 0, 0)), node(("step", 0, 1))]
    for depth in range(1, 200):
        nodes += [node(("step", depth, side), *level(depth - 1)) for side in range(2)]
    assert_same_order(graph_of(nodes))


def level(depth: int) -> list[Any]:
    return [("step", depth, side) for side in range(2)]


def test_shared_data_is_numbered_before_its_first_use() -> None:
    graph = graph_of([DataNode("data", 1), *(node(f"use-{index}", "data") for index in range(5))])
    assert order(graph)["data"] == 0
    assert_same_order(graph)


def test_external_keys_get_no_priority() -> None:
    graph = graph_of(
        [node("c", "a", "b"), node("a", "elsewhere", "nowhere"), node("b", "elsewhere")]
    )
    assert sorted(order(graph).items()) == [("a", 0), ("b", 1), ("c", 2)]
    assert_same_order(graph)


# --- What is left to Dask -----------------------------------------------------------------------


def test_an_empty_graph_has_no_order() -> None:
    assert order({}) == {}


def test_a_cycle_raises_dasks_exception() -> None:
    graph = graph_of([node("a", "b"), node("b", "c"), node("c", "a"), node("d")])
    with pytest.raises(RuntimeError) as expected:
        dask.order.order(graph)
    with pytest.raises(RuntimeError) as raised:
        order(graph)
    assert str(raised.value) == str(expected.value)


def test_a_cycle_is_refused_natively() -> None:
    with pytest.raises(ValueError, match="cycle"):
        _native.order(graph_of([node("a", "a")]), GraphNode, DataNode)


def test_keys_of_one_text_are_left_to_dask() -> None:
    graph = graph_of([node(1), node("1"), node("sum", 1, "1")])
    with pytest.raises(ValueError, match="told apart"):
        _native.order(graph, GraphNode, DataNode)
    assert_same_order(graph, natively=False)


def test_keys_that_utf8_cannot_hold_are_left_to_dask() -> None:
    assert_same_order(graph_of([node("\ud800"), node("b", "\ud800")]), natively=False)


def test_graphs_of_tuples_are_left_to_dask(caplog: pytest.LogCaptureFixture) -> None:
    graph: Graph = {"a": 1, "b": (run, "a"), "c": ["a", "b"]}
    with caplog.at_level(logging.DEBUG, logger="backhaul.dask.scheduler.order"):
        assert order(graph) == dask.order.order(graph)
    assert "3 tasks are ordered by Dask itself" in caplog.text


def test_statistics_are_left_to_dask() -> None:
    graph = graph_of([node("a"), node("b", "a")])
    assert order(graph, return_stats=True) == dask.order.order(graph, return_stats=True)


def test_the_graph_is_left_as_it_was() -> None:
    graph = graph_of([node("a", "elsewhere"), DataNode("b", 1), node("c", "b"), node("d", "b")])
    before = dict(graph)
    order(graph)
    assert graph == before


def test_an_error_of_a_key_is_an_error_of_dask() -> None:
    class Nameless:
        def __str__(self) -> str:
            raise ZeroDivisionError

    keys = [Nameless(), Nameless()]
    with pytest.raises(ZeroDivisionError):
        order(graph_of([node(keys[0]), node(keys[1])]))


def test_an_unknown_history_of_a_set_is_left_to_dask() -> None:
    # Without the data they share, some roots are leaves themselves.
    graph = graph_of([DataNode("data", 1), node("a", "data"), node("b", "data", "c"), node("c")])
    with pytest.raises(ValueError, match="history of a set"):
        _native.order(graph, GraphNode, DataNode)
    assert_same_order(graph, natively=False)


# --- The model of sets --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_sets_of_this_interpreter_are_as_modelled(seed: int) -> None:
    assert sets_are_as_modelled(seed=seed)


@given(st.lists(st.integers(0, 2**61 - 2), unique=True), st.data())
@settings(deadline=None)
def test_differences_list_their_members_as_modelled(values: list[int], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.sampled_from(values))) if values else []
    whole = frozenset(values)
    listing = _native.difference_listing(whole, list(dict.fromkeys(other)))
    assert listing == list(whole.difference(dict.fromkeys(other)))


def test_large_sets_grow_as_modelled() -> None:
    values = [index * 2_654_435_761 for index in range(120_000)]
    members: set[int] = set()
    for value in values:
        members.add(value)
    assert _native.set_listing(values) == list(members)
