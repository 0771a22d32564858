"""A cluster for the tests of the exchange, and the two ways to run one job on it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from distributed import Client, LocalCluster

import dask

DEADLINE_S = 120
SWITCH = "distributed.comm.backhaul.exchange"

#: Computes all partitions of a frame, with the exchange on or off
Parts: TypeAlias = Callable[..., list[Any]]


@pytest.fixture(scope="module", autouse=True)
def workers_are_forked(forked_workers: None) -> None:
    """Fork the workers of all clusters."""


@pytest.fixture(scope="module")
def client(workers_are_forked: None) -> Iterator[Client]:
    """Connect to a cluster of two worker processes over Backhaul."""
    with (
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=2,
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def kept(frame: Any) -> Any:
    """Optimize a frame, to be held while the scheduler of this process reads its graph.

    Dask looks an expression up in a dictionary of weak references, and then takes it from there.
    Where the client of the same process drops the expression in between, the scheduler cannot read
    the graph (`KeyError`, `dask._expr.SingletonExpr.__new__`).
    """
    return frame.optimize()


def wait_until_forgotten(client: Client) -> None:
    """Wait until the scheduler has no tasks.

    A collection with the keys of an earlier one gets the results of that one, without a new graph,
    as long as the client has not released them. A failed test is still referenced by the error of
    the interpreter's last test, with all that its functions hold.
    """
    for name in ("last_exc", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    deadline_s = time.monotonic() + DEADLINE_S
    rounds = 0
    while keys := client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)):
        assert time.monotonic() < deadline_s, f"the scheduler still has {keys}"
        if rounds % 20 == 0:
            # Errors are in cycles of references.
            gc.collect()
        rounds += 1
        time.sleep(0.01)


@pytest.fixture
def exchanged(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[bool]:
    """Note for each expression of P2P whether it is exchanged."""
    if "client" in request.fixturenames:
        wait_until_forgotten(request.getfixturevalue("client"))
    pytest.importorskip("pyarrow")
    from backhaul.dask.exchange import graphs

    seen: list[bool] = []
    original = graphs.exchange_layer

    def exchange_layer(expr: Any, cluster: Any) -> Any:
        layer = original(expr, cluster)
        if type(expr).__name__ in {"HashJoinP2P", "P2PShuffle"}:
            seen.append(layer is not None)
        return layer

    monkeypatch.setattr(graphs, "exchange_layer", exchange_layer)
    return seen


@dataclass(frozen=True)
class Graph:
    """The expressions of a graph, and which of them have no tasks."""

    expressions: list[Any]
    layers: dict[str, Any]
    unread: set[str]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        layers = [
            each._layer() if self.layers[each._name] is None else self.layers[each._name]
            for each in self.expressions
            if each._name not in self.unread
        ]
        return sum(map(len, layers))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, exchanged: list[bool]) -> list[Graph]:
    """Note each graph that has an expression of P2P."""
    from backhaul.dask.exchange import graphs

    seen: list[Graph] = []
    original = graphs.unread

    def unread(expressions: list[Any], layers: dict[str, Any]) -> set[str]:
        seen.append(Graph(expressions, layers, original(expressions, layers)))
        return seen[-1].unread

    monkeypatch.setattr(graphs, "unread", unread)
    return seen


@pytest.fixture
def parts(client: Client, exchanged: list[bool]) -> Parts:
    """Compute all partitions by the exchange or by P2P, and check by which of them."""

    def parts(frame: Any, *, by_exchange: bool) -> list[Any]:
        wait_until_forgotten(client)
        exchanged.clear()
        with dask.config.set({SWITCH: "auto" if by_exchange else "off"}):
            optimized = kept(frame)
            persisted = client.persist(optimized)
            found = client.gather(client.compute(persisted.to_delayed(optimize_graph=False)))
        assert exchanged if by_exchange else not exchanged
        assert all(exchanged)
        return list(found)

    return parts
