"""Transfers by sender and receiver, as real clusters report them."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, get_worker

import dask
from backhaul import NotObserved
from backhaul.dask import transfers
from backhaul.dask.observe.counters import process_flows

pytestmark = pytest.mark.usefixtures("forked_workers")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dask.conftest import Start

MIB = 1 << 20
WORKER = ["-m", "dask", "worker", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start two workers in processes of their own; the scheduler is in this one."""
    with LocalCluster(
        protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Connect a client to it."""
    with Client(cluster) as client:
        client.wait_for_workers(2)
        yield client


@pytest.fixture(autouse=True)
def by_value() -> Iterator[None]:
    """Send the functions of this file to processes that cannot import it."""
    cloudpickle = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Slow:
    """Bytes that take a while to be put together, and that lie about their size."""

    def __init__(self, payload: bytes, seconds: float) -> None:
        self.payload, self.seconds = payload, seconds

    def __reduce__(self) -> Any:
        return slowly, (self.payload, self.seconds)

    def __sizeof__(self) -> int:
        return 10


def slowly(payload: bytes, seconds: float) -> Slow:
    """Put one together."""
    time.sleep(seconds)
    return Slow(payload, seconds)


def frame_of(client: Client) -> pd.DataFrame:
    frame: Any = transfers(client)
    assert isinstance(frame, pd.DataFrame)
    return frame


def workers_of(client: Client) -> list[str]:
    # Asked of the scheduler: what `scheduler_info` gives may be replaced by another answer, without
    # workers, which the client asks for every two seconds.
    return list(client.nthreads())


def between(frame: pd.DataFrame, receiver: str, sender: str) -> pd.DataFrame:
    """Sum up one link by class of sizes."""
    link = frame[(frame.receiver == receiver) & (frame.sender == sender)]
    columns = ["messages", "bytes", "lent_bytes", "seconds"]
    return link.groupby("size_class", observed=False)[columns].sum()


def move(client: Client, make: Any, sender: str, receiver: str) -> dict[str, Any]:
    """Make a value on a worker and fetch it on another; return upstream's entry for that."""
    made = client.submit(make, workers=[sender], pure=False)
    client.submit(lambda _: None, made, workers=[receiver], pure=False).result()

    def last(dask_worker: Any) -> Any:
        return dict(dask_worker.transfer_incoming_log[-1])

    found: dict[str, Any] = client.run(last, workers=[receiver])[receiver]
    assert found["who"] == sender
    return found


def test_bytes_and_messages_of_each_link_are_reported(client: Client) -> None:
    a, b = workers_of(client)
    before = frame_of(client)
    for _ in range(3):
        move(client, lambda: np.ones(MIB), a, b)
    after = frame_of(client)
    moved = between(after, b, a) - between(before, b, a)
    large = moved.loc["1-16MiB"]
    assert large.messages == 3
    # The arrays, and what Dask says about them.
    assert 3 * 8 * MIB <= large.bytes < 3 * 8 * MIB + 3 * 4096
    assert large.lent_bytes == 3 * 8 * MIB
    assert large.seconds > 0
    back = between(after, a, b) - between(before, a, b)
    assert back.loc["1-16MiB"].messages == 0
    # It asked for them.
    assert back.loc["<4KiB"].messages >= 3


def test_the_columns_are_as_documented(client: Client) -> None:
    a, b = workers_of(client)
    move(client, lambda: np.ones(MIB), a, b)
    frame = frame_of(client)
    assert {column: str(dtype) for column, dtype in frame.dtypes.items()} | {
        "receiver": "str",
        "sender": "str",
    } == {
        "receiver": "str",
        "sender": "str",
        "lane": "category",
        "size_class": "category",
        "messages": "int64",
        "bytes": "int64",
        "lent_bytes": "int64",
        "seconds": "float64",
        "bandwidth": "float64",
        "first": "datetime64[ns, UTC]",
        "last": "datetime64[ns, UTC]",
        "present": "bool",
    }
    link = frame[(frame.receiver == b) & (frame.sender == a)]
    assert set(link.lane) == {"shm"}
    assert link.present.all()
    assert (link["first"] <= link["last"]).all()
    timed = frame[frame.size_class >= "64KiB-1MiB"]
    pd.testing.assert_series_equal(timed.bandwidth, timed.bytes / timed.seconds, check_names=False)
    assert frame[frame.size_class < "64KiB-1MiB"].seconds.isna().all()
    scheduler = client.scheduler_info()["address"]
    assert scheduler in set(frame.sender)


def test_time_is_that_of_the_bytes_not_of_what_is_done_with_them(client: Client) -> None:
    # The first way in which upstream's averages are wrong.
    a, b = workers_of(client)
    before = frame_of(client)
    upstream = move(client, lambda: Slow(bytes(3 * MIB), 0.5), a, b)
    moved = (between(frame_of(client), b, a) - between(before, b, a)).loc["1-16MiB"]
    assert moved.messages == 1
    assert upstream["duration"] >= 0.5
    assert 0 < moved.seconds <= upstream["duration"] - 0.5


def test_no_time_is_rounded_up(client: Client) -> None:
    # The same, where it makes fast links look slow: 2 MiB never move at more than 2 GB/s there.
    a, b = workers_of(client)
    ours, upstreams = [], []
    # On a busy machine most moves take longer than a millisecond.
    for _ in range(300):
        before = frame_of(client)
        upstreams.append(move(client, lambda: np.ones(MIB // 4), a, b)["duration"])
        moved = between(frame_of(client), b, a) - between(before, b, a)
        assert moved.loc["1-16MiB"].messages == 1
        ours.append(moved.loc["1-16MiB"].seconds)
        if min(ours) < 0.001:
            break
    assert min(upstreams) >= 0.001
    assert 0 < min(ours) < 0.001


def test_bytes_are_those_of_the_message_not_of_its_objects(client: Client) -> None:
    # The second way: estimates, and only if they say more than a megabyte.
    a, b = workers_of(client)
    before = frame_of(client)
    upstream = move(client, lambda: Slow(bytes(100_000), 0.0), a, b)
    moved = (between(frame_of(client), b, a) - between(before, b, a)).loc["64KiB-1MiB"]
    assert upstream["total"] < 1000
    assert moved.messages == 1
    assert 100_000 <= moved.bytes < 104_096


def test_the_scheduler_says_what_the_workers_have_counted(client: Client) -> None:
    # The third way: there, the scheduler makes averages of averages, and sums of some of them.
    a, b = workers_of(client)
    for _ in range(30):
        move(client, lambda: np.ones(MIB // 8), a, b)
    frame = frame_of(client)

    def counted(dask_worker: Any) -> Any:
        from backhaul._native import process_token

        flows = process_flows()
        return process_token(), {
            (flow.process, flow.lane): [(size, *counts) for size, counts in flow.sizes.items()]
            for flow in flows
        }

    of_a, of_b = (client.run(counted, workers=[worker])[worker] for worker in (a, b))
    (size, messages, nbytes, lent_bytes, seconds) = next(
        counts for counts in of_b[1][of_a[0], "shm"] if counts[0] == MIB
    )
    assert size == MIB
    row = frame[(frame.receiver == b) & (frame.sender == a) & (frame.size_class == "1-16MiB")]
    assert row[["messages", "bytes", "lent_bytes"]].to_numpy().tolist() == [
        [messages, nbytes, lent_bytes]
    ]
    assert row.seconds.item() == pytest.approx(seconds)
    assert row.bandwidth.item() == pytest.approx(nbytes / seconds)


def test_metrics_for_prometheus_have_the_data_that_each_process_received(client: Client) -> None:
    a, b = workers_of(client)
    before = metrics_of(client, b)
    move(client, lambda: np.ones(MIB), a, b)
    after = metrics_of(client, b)
    labels = '{lane="shm",peer_host="127.0.0.1",size_class="1-16MiB"}'

    def grown(name: str) -> float:
        key = f"dask_backhaul_{name}_total{labels}"
        return after[key] - before.get(key, 0.0)

    assert grown("received_messages") == 1
    assert 8 * MIB <= grown("received_bytes") < 8 * MIB + 4096
    assert grown("received_lent_bytes") == 8 * MIB
    assert 0 < grown("receiving_seconds") < 60
    # Short messages are not timed, so they have no series of seconds.
    seconds = [key for key in after if key.startswith("dask_backhaul_receiving_seconds_total")]
    assert not any("<4KiB" in key for key in seconds)
    assert metrics_of(client, None)
    peers = {key for key in after if key.startswith("dask_backhaul")}
    assert not any("backhaul://" in key for key in peers), "a worker is no label"


def metrics_of(client: Client, worker: str | None) -> dict[str, float]:
    """Read what a worker, or the scheduler, tells Prometheus of Backhaul."""
    if worker is None:
        url = client.dashboard_link.replace("/status", "/metrics")
    else:
        found: Any = client.sync(client.scheduler.identity, n_workers=-1)  # type: ignore[union-attr]
        info = found["workers"][worker]
        url = f"http://{info['host']}:{info['services']['dashboard']}/metrics"
    with urllib.request.urlopen(url, timeout=300) as answer:
        lines = answer.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("dask_backhaul_")]
    return {key: float(value) for key, value in pairs}


def test_a_heartbeat_tells_without_being_asked(client: Client) -> None:
    a, b = workers_of(client)
    known: Any = transfers(client, refresh=False)
    messages = between(known, b, a).loc["1-16MiB"].messages
    move(client, lambda: np.ones(MIB), a, b)
    while between(known, b, a).loc["1-16MiB"].messages == messages:
        known = transfers(client, refresh=False)


def test_the_metrics_of_a_joining_worker_can_be_written_to_a_file(tmp_path: Path) -> None:
    with (
        LocalCluster(protocol="backhaul", n_workers=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.write_scheduler_file(str(tmp_path / "scheduler.json"))
        (worker,) = json.loads((tmp_path / "scheduler.json").read_text())["workers"].values()
        assert not worker["metrics"].get("backhaul")


def test_transfers_of_workers_that_left_stay() -> None:
    with (
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        a, b = workers_of(client)
        move(client, lambda: np.ones(MIB), a, b)
        before = between(frame_of(client), b, a)
        client.retire_workers([a])
        while a in workers_of(client):
            pass
        frame = frame_of(client)
        link = frame[(frame.receiver == b) & (frame.sender == a)]
        assert not link.present.any()
        assert between(frame, b, a).loc["1-16MiB"].bytes == before.loc["1-16MiB"].bytes > 0


def test_a_cluster_without_backhaul_has_no_rows() -> None:
    with (
        LocalCluster(
            protocol="tcp", n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        frame = frame_of(client)
        assert frame.empty
        assert list(frame.columns)[:4] == ["receiver", "sender", "lane", "size_class"]
        assert frame.bytes.sum() == 0
        assert str(frame["first"].dtype) == "datetime64[ns, UTC]"


def test_a_scheduler_that_keeps_no_account_is_named_with_what_to_do(start: Start) -> None:
    with (
        LocalCluster(protocol="tcp", n_workers=0, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        worker = start(*WORKER, "--protocol", "backhaul", cluster.scheduler_address)
        worker.wait_for(r"Registered to:\s+(tcp://)")
        client.wait_for_workers(1)
        with pytest.raises(NotObserved, match=r"1 workers use Backhaul.*backhaul\.dask\.preload"):
            frame_of(client)
        worker.kill()


def test_a_scheduler_that_speaks_only_tcp_keeps_account_with_the_preload(start: Start) -> None:
    scheduler = start(
        *("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-show"),
        *("--dashboard-address", "127.0.0.1:0", "--preload", "backhaul.dask.preload"),
    )
    address = scheduler.wait_for(r"Scheduler at:\s+(tcp://\S+)")
    for _ in range(2):
        worker = start(*WORKER, "--protocol", "backhaul", address)
        worker.wait_for(r"Registered to:\s+(tcp://)")
    with Client(address) as client:
        client.wait_for_workers(2)
        a, b = workers_of(client)
        move(client, lambda: np.ones(MIB), a, b)
        assert between(frame_of(client), b, a).loc["1-16MiB"].messages == 1


def test_it_can_be_switched_off() -> None:
    with (
        dask.config.set({"distributed.comm.backhaul.transfers.enabled": False}),
        LocalCluster(
            protocol="backhaul", n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        names = client.submit(lambda: list(get_worker().metrics)).result()
        assert "backhaul-transfers" not in names
        with pytest.raises(NotObserved, match=r"transfers\.enabled"):
            frame_of(client)


def test_a_worker_that_does_not_answer_is_not_waited_for(client: Client) -> None:
    a, b = workers_of(client)
    move(client, lambda: np.ones(MIB), a, b)
    before = frame_of(client)
    stopped = client.run(os.getpid)[a]
    os.kill(stopped, signal.SIGSTOP)
    try:
        # Dask would wait for as long as it stands still, which is until this is over.
        with pytest.warns(UserWarning, match="the last heartbeats count"):
            frame = frame_of(client)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert (between(frame, b, a) >= between(before, b, a)).all(axis=None)
    assert len(frame_of(client)) >= len(before)
