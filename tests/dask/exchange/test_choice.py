"""Graphs that are exchanged, graphs that are left to P2P, and the reason in the log."""

from __future__ import annotations

import logging
import re
import warnings
from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask
from backhaul.dask.compat.names import Alias
from backhaul.dask.config.settings import switched_on
from tests.dask.exchange.conftest import SWITCH, Graph, kept, wait_until_forgotten

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def frame(**columns: Any) -> Any:
    return pd.DataFrame({"key": np.arange(40) % 7, "value": np.arange(40.0), **columns})


def shuffled(pandas: Any) -> Any:
    return dd.from_pandas(pandas, npartitions=3, sort=False).shuffle("key", shuffle_method="p2p")


def indexed() -> Any:
    pandas = frame().set_index(["key", "value"], drop=False).rename_axis(["a", "b"])
    return dd.from_map(lambda number: pandas, range(2), meta=pandas.iloc[:0]).shuffle("key")


def attributed() -> Any:
    pandas = frame()
    pandas.attrs["unit"] = "m"
    return dd.from_map(lambda number: pandas, range(2), meta=pandas.iloc[:0]).shuffle("key")


def renamed() -> Any:
    return shuffled(frame().rename_axis(columns="names"))


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "the frame has a MultiIndex": indexed,
    "the frame has attributes": attributed,
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_other_frames_are_left_to_p2p(
    client: Client, exchanged: list[bool], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"):
        found = kept(UNSUPPORTED[reason]()).compute()
    assert len(found) == 80
    assert exchanged == [False]
    assert reason in caplog.text


def test_a_name_of_the_columns_is_kept(client: Client, exchanged: list[bool]) -> None:
    assert kept(renamed()).compute().columns.name == "names"
    assert exchanged == [True]


@pytest.mark.parametrize("source", ["one expression", "several", "persisted"])
def test_transfers_hash_the_keys(
    client: Client, exchanged: list[bool], made: list[Graph], source: str
) -> None:
    pandas = frame()
    inputs = dd.from_map(lambda number: pandas, range(3), meta=pandas.iloc[:0])
    if source == "persisted":
        inputs = client.persist(inputs)
    elif source == "several":
        inputs = inputs + 1
    shuffle = kept(inputs.shuffle("key", npartitions=4, shuffle_method="p2p"))
    (assigned,) = shuffle.expr.dependencies()
    assert len(shuffle.compute()) == 120
    assert exchanged == [True]
    assert [graph.unread for graph in made] == [{assigned._name}]


def delayed() -> Any:
    pieces = [dask.delayed(frame)() for _ in range(3)]
    return dd.from_delayed(pieces, meta=frame().iloc[:0])


def persisted(client: Client) -> Any:
    return client.persist(dd.from_pandas(frame(), npartitions=3))


def test_frames_of_any_source_are_exchanged(client: Client, exchanged: list[bool]) -> None:
    for source, rows in ((delayed(), 120), (persisted(client), 40), (delayed() + 1, 120)):
        found = source.merge(source[["key"]].drop_duplicates(), on="key", broadcast=False)
        assert len(kept(found).compute()) == rows
    assert exchanged
    assert all(exchanged)


def test_persisted_partitions_are_read_without_a_task_for_each_alias(
    client: Client, exchanged: list[bool]
) -> None:
    source = persisted(client)
    wait(source)
    merge = source.merge(source[["key"]].drop_duplicates(), on="key", broadcast=False)
    for made in (
        source.shuffle("key", shuffle_method="p2p"),
        merge,
        source.merge(source, on="key"),
    ):
        found = client.persist(kept(made))
        wait(found)
        aliases = client.run_on_scheduler(
            lambda dask_scheduler: [
                key for key, ts in dask_scheduler.tasks.items() if type(ts.run_spec) is Alias
            ]
        )
        # Those that `drop_duplicates` reads, too
        assert len(aliases) == (3 if made is merge else 0)
    # An alias that the program asks for is there.
    both = dask.persist(source, kept(source.shuffle("key", shuffle_method="p2p")))
    assert [len(each.compute()) for each in both] == [40, 40]
    assert exchanged
    assert all(exchanged)


def test_outputs_of_bundles_are_spread_over_the_workers(
    client: Client, exchanged: list[bool]
) -> None:
    inputs = dd.from_map(large, range(12), meta=large(0).iloc[:0])
    shuffle = kept(inputs.shuffle("key", npartitions=40, shuffle_method="p2p"))
    found = client.persist(shuffle)
    wait(found)
    assert exchanged == [True]
    # How many each has depends on how fast a busy machine lets them run.
    assert len({who[0] for who in client.who_has(found).values()}) == 2


def large(number: int) -> Any:
    keys = np.random.default_rng(number).integers(0, 1_000_000, 100_000)
    return pd.DataFrame({"key": keys, "value": 1.0})


def test_an_error_of_the_exchange_leaves_all_to_p2p(
    client: Client,
    exchanged: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from backhaul.dask.exchange import graphs

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(graphs, "_slots", fail)
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"):
        assert len(kept(shuffled(frame())).compute()) == 40
    assert exchanged == [False]
    assert "a defect" in caplog.text


def test_the_switch_leaves_all_to_p2p(client: Client, exchanged: list[bool]) -> None:
    for off in ("off", False):
        wait_until_forgotten(client)
        with dask.config.set({SWITCH: off}):
            assert len(kept(shuffled(frame())).compute()) == 40
    assert not exchanged
    wait_until_forgotten(client)
    assert len(kept(shuffled(frame())).compute()) == 40
    assert exchanged == [True]


def test_an_exchange_is_logged_with_its_tasks(
    client: Client, exchanged: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"):
        assert len(kept(shuffled(frame())).compute()) == 40
    assert exchanged == [True]
    assert re.search(r"The exchange makes p2pshuffle-\w+: \d+ tasks", caplog.text)


def test_a_value_that_is_not_understood_is_an_error() -> None:
    with (
        dask.config.set({SWITCH: "sometimes"}),
        pytest.raises(ValueError, match="exchange must be auto or off, got 'sometimes'"),
    ):
        switched_on("exchange")


def test_workers_that_do_not_share_memory_use_p2p(
    exchanged: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        dask.config.set({"distributed.comm.backhaul.arena.share-results": False}),
        LocalCluster(
            protocol="backhaul",
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
        ) as cluster,
        Client(cluster),
        caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"),
    ):
        assert len(kept(shuffled(frame())).compute()) == 40
    assert exchanged == [False]
    assert "does not share memory" in caplog.text


def test_results_in_a_store_that_is_not_dasks_are_left_to_p2p(
    exchanged: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        LocalCluster(
            protocol="backhaul",
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            data=OtherStore,
        ) as cluster,
        Client(cluster),
        caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"),
    ):
        assert len(kept(shuffled(frame())).compute()) == 40
    assert exchanged == [False]
    assert "a store that is not Dask's" in caplog.text


class OtherStore(UserDict[Any, Any]):
    """A store that a user has chosen."""


def test_plain_tcp_is_left_alone(exchanged: list[bool]) -> None:
    with (
        LocalCluster(
            protocol="tcp",
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
        ) as cluster,
        Client(cluster),
    ):
        assert len(kept(shuffled(frame())).compute()) == 40
    assert not exchanged


def test_the_round_trip_through_arrow_is_made_once_for_equal_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from backhaul.dask.exchange import columns

    made: list[Any] = []
    original = columns._after_arrow

    def noted(meta: Any) -> Any:
        made.append(meta)
        return original(meta)

    monkeypatch.setattr(columns, "_after_arrow", noted)
    monkeypatch.setattr(columns, "_kept_by_arrow", {})
    pandas = frame(text=pd.array(["a"] * 40, dtype="str"))
    others = [
        pandas.rename(columns={"value": "other"}),
        pandas.rename_axis(columns="names"),
        pandas.set_axis(np.arange(40.0)),
        pandas.set_axis(np.arange(40)),
        pandas.rename_axis("place"),
        pandas.astype({"value": "f4"}),
    ]
    for each in [pandas, pandas, *others, *others]:
        schema = columns.schema_of(each.iloc[:0])
        assert schema is not None
        assert schema.fits(original(each.iloc[:0]))
    assert len(made) == 1 + len(others)


def test_types_are_read_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    from backhaul.dask.exchange import columns

    monkeypatch.setattr(columns, "_kept_by_arrow", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert columns.schema_of(frame().iloc[:0]) is not None


# Dask's method of tasks has a second stage from 33 partitions on.
@pytest.mark.parametrize("partitions", [2, 40])
@pytest.mark.parametrize("operation", ["shuffle", "merge", "drop_duplicates"])
def test_few_rows_take_fewer_tasks_than_by_the_method_of_tasks(
    client: Client, made: list[Graph], operation: str, partitions: int
) -> None:
    pandas = frame()

    def by(method: str) -> Any:
        source = dd.from_map(lambda number: pandas, range(partitions), meta=pandas.iloc[:0])
        options: dict[str, Any] = {"shuffle_method": method}
        if operation == "shuffle":
            return source.shuffle("key", **options)
        if operation == "merge":
            other = source.rename(columns={"value": "other"})
            return source.merge(other, on="key", broadcast=False, **options)
        return source.drop_duplicates(split_out=partitions, **options)

    wait(client.persist(kept(by("p2p"))))
    assert [graph.tasks for graph in made] < [len(by("tasks").optimize().__dask_graph__())]
