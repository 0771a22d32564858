"""The methods that Backhaul replaces on a client, and clients that keep Dask's."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dask
from backhaul.dask.compat import patching

#: The methods of each switch
METHODS = {
    "hot-path.submit": {"submit", "map", "_graph_to_futures", "compute"},
    "small-results.enabled": {"_handle_report", "_release_key", "_gather_remote", "_run"},
    "hot-path.client-threads": {"gather"},
    "hot-path.batching": {"_retry", "_get_dataset"},
    "versions.listed": {"get_versions"},
}
ALL = set().union(*METHODS.values())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="backhaul",
        dashboard_address=":0",
    ) as started:
        yield started


def replaced(client: Client) -> set[str]:
    """Return the methods of the class that a client has of its own."""
    return {name for name in vars(client) if callable(getattr(Client, name, None))}


def add(*numbers: int) -> int:
    return sum(numbers)


def work(client: Client) -> None:
    futures = client.map(add, range(5), pure=False)
    assert client.gather(futures) == list(range(5))
    assert client.submit(add, *futures).result() == 10
    assert client.compute([dask.delayed(add)(1, 2), dask.delayed(add)(3)], sync=True) == [3, 3]


def test_a_client_has_the_methods_from_its_first_connection_on(cluster: LocalCluster) -> None:
    before = {name: vars(Client)[name] for name in ALL}
    with Client(cluster) as client:
        work(client)
        assert replaced(client) == ALL
        for name in ALL:
            ours, dasks = getattr(client, name), getattr(Client, name)
            assert ours.__func__ is not dasks
            assert (ours.__qualname__, ours.__doc__) == (dasks.__qualname__, dasks.__doc__)
    assert {name: vars(Client)[name] for name in ALL} == before


def test_a_client_over_tcp_beside_it_has_none(cluster: LocalCluster) -> None:
    with (
        LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=":0") as other,
        Client(cluster, set_as_default=False),
        Client(other, set_as_default=False) as client,
    ):
        work(client)
        assert replaced(client) == set()


@pytest.mark.parametrize("switch", METHODS)
def test_a_switch_keeps_dasks_methods(cluster: LocalCluster, switch: str) -> None:
    with (
        dask.config.set({f"distributed.comm.backhaul.{switch}": False}),
        Client(cluster) as client,
    ):
        work(client)
        assert replaced(client) == ALL - METHODS[switch]


class Counting(Client):
    """Overrides one method."""

    calls = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call]

    def submit(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return super().submit(*arguments, **options)


def test_a_method_that_a_subclass_overrides_stays_its_own(cluster: LocalCluster) -> None:
    with Counting(cluster) as client:
        work(client)
        assert replaced(client) == ALL - {"submit"}
        assert client.calls == 1


def test_methods_that_another_package_has_wrapped_are_left_alone(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patching, "_named_in_log", set())
    calls = []

    original: Any = Client.compute

    @functools.wraps(original)
    def compute(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(Client, "compute", compute)
    with caplog.at_level(logging.WARNING, "backhaul"), Client(cluster) as client:
        work(client)
        assert replaced(client) == ALL - METHODS["hot-path.submit"]
    assert len(calls) == 1
    (line,) = [each.getMessage() for each in caplog.records if "leaves Client" in each.message]
    assert line.startswith("Backhaul leaves Client.submit and 3 more as it is (each task, map or ")
    assert line.endswith("has replaced Client.compute")
