"""The limit of a job, on clusters with jobs that one cause limits each."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask
from backhaul.dask import explain
from backhaul.dask.observe.counters import Counts
from backhaul.dask.observe.explain import _links
from backhaul.dask.observe.job_runs import Run, last_job
from backhaul.dask.observe.ledger import Row
from backhaul.dask.observe.spill_history import SpillHistory
from backhaul.dask.observe.thread_time import thread_time
from backhaul.dask.observe.verdict import Link, Site, judge

MIB = 1 << 20
#: Idle time that separates jobs for the command
IDLE_S = 0.3

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start two workers in processes of their own, with little memory."""
    config = {
        "distributed.worker.memory.target": 0.3,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(config),
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            memory_limit="400 MiB",
            dashboard_address=None,
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Connect a client that sends the functions of this file by value."""
    cloudpickle = importlib.import_module("cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Client(cluster) as client:
        client.wait_for_workers(2)
        # The modules that the jobs use are loaded before the jobs.
        client.run(np.ones, 1)
        yield client
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def sleep(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


def sleep_by_number(number: int) -> int:
    """Run for as long as others, but for the last."""
    time.sleep(1.5 if number == 11 else 0.05)
    return number


def array(number: int, mib: int) -> Any:
    return np.full(mib * MIB, number, dtype="u1")


def total(values: Any) -> int:
    return int(values[0])


class SlowToRead:
    """A value that takes long to transfer, on every lane."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> Any:
        return read_slowly, (self.seconds,)


def read_slowly(seconds: float) -> SlowToRead:
    time.sleep(seconds)
    return SlowToRead(seconds)


def explained(client: Client, start_s: float) -> Any:
    """Explain the runs that ended since a time."""
    found: Any = explain(client, since=start_s)
    shares = [row.share for row in found.evidence]
    assert sum(shares) == pytest.approx(1.0)
    assert all(share >= 0 for share in shares)
    return found


def test_tasks_that_compute_limit_a_job_themselves(client: Client) -> None:
    start_s = time.time()
    wait(client.map(sleep, range(8), seconds=0.4))
    found = explained(client, start_s)
    assert found.limit == "compute", str(found)
    assert found.runs == 8
    assert found.is_whole


def test_keys_that_are_tuples_are_shown_as_dask_shows_them(client: Client) -> None:
    start_s = time.time()
    graph = {("part-of-a-job", 0): (sleep, 0, 0.0), ("whole",): (sleep, ("part-of-a-job", 0), 0.0)}
    client.get(graph, ("whole",))
    found = explained(client, start_s)
    keys = {
        event["args"]["key"] for event in found.trace()["traceEvents"] if "key" in event["args"]
    }
    assert keys == {"('part-of-a-job', 0)", "('whole',)"}


def test_straggler_is_named(client: Client) -> None:
    start_s = time.time()
    futures = client.map(sleep_by_number, range(12))
    wait(futures)
    found = explained(client, start_s)
    assert found.limit == "stragglers", str(found)
    (row,) = (each for each in found.evidence if each.use == "waiting for stragglers")
    assert row.detail.startswith(f"1 of 12 runs; {futures[11].key} took 1.")
    assert "Stragglers limited the job, the longest on worker " in found.sentence


def test_one_task_on_two_workers_is_too_few(client: Client) -> None:
    start_s = time.time()
    client.submit(sleep, 1, seconds=0.5).result()
    found = explained(client, start_s)
    assert found.limit == "few-tasks", str(found)
    assert "1.0 of 2 threads" in found.sentence


def test_many_tiny_tasks_are_too_small(client: Client) -> None:
    start_s = time.time()
    wait(client.map(total, [[number] for number in range(2000)]))
    found = explained(client, start_s)
    assert found.limit == "small-tasks", str(found)
    assert found.runs == 2000
    assert "make larger partitions" in found.sentence


def test_transfers_limit_a_job(client: Client) -> None:
    here, there = client.scheduler_info()["workers"]
    values = client.map(lambda seconds: SlowToRead(seconds), [0.4, 0.41], workers=[here])
    wait(values)
    start_s = time.time()
    wait(client.map(lambda value: value.seconds, values, workers=[there]))
    found = explained(client, start_s)
    assert found.limit in ("transfer", "slow-link"), str(found)
    (row,) = (each for each in found.evidence if each.use == "waiting for transfers")
    assert row.share > 0.3
    assert "fetches" in row.detail


def test_spilling_limits_a_job(client: Client) -> None:
    start_s = time.time()
    made = client.map(array, range(10), mib=60)
    wait(made)
    totals = client.map(total, made)
    assert client.gather(totals) == list(range(10))
    found = explained(client, start_s)
    (row,) = (each for each in found.evidence if each.use == "waiting for spilled results")
    # How much of the time it takes depends on the disk, and on what the page cache has.
    assert row.seconds > 0
    written, read = map(int, re.findall(r"(\d+) MiB", row.detail))
    assert min(written, read) >= 60, row.detail


def test_command_prints_the_same(client: Client, tmp_path: Path) -> None:
    # The command finds the job by the idle time before it.
    time.sleep(2 * IDLE_S)
    start_s = time.time()
    wait(client.map(sleep, range(6), seconds=0.2, pure=False))
    assert client.scheduler is not None
    command = [sys.executable, "-m", "backhaul", "explain", str(client.scheduler.address)]
    trace_file = tmp_path / "job.json"
    arguments = ["--json", "--idle", str(IDLE_S), "--trace", str(trace_file)]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    said = json.loads(done.stdout)
    assert (said["schema"], said["limit"], said["runs"]) == ("backhaul.explain/1", "compute", 6)
    assert said["evidence"][0]["use"] == "computing"
    trace = json.loads(trace_file.read_text(encoding="utf-8"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    computed = [event for event in events if event["cat"] == "compute"]
    assert len(computed) == 6
    assert {event["name"] for event in computed} == {"sleep"}
    assert all(event["dur"] >= 200_000 for event in computed)
    assert len({event["pid"] for event in computed}) == 2
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"0", "1"} <= names
    found = explained(client, start_s)
    assert repr(found).splitlines()[0] == said["sentence"] == found.sentence
    assert found.sentence.split(":")[0] in found._repr_html_()


# The division of time


def run(worker: str, start_s: float, stop_s: float, *actions: Any, prefix: str = "x") -> Run:
    return Run("key", prefix, worker, 1, 8, (("compute", start_s, stop_s), *actions))


TWO = {"a": 1, "b": 1}


def test_each_moment_of_each_thread_counts_once() -> None:
    runs = [
        run("a", 0, 1),
        run("b", 1, 2, ("transfer", 0.5, 1)),
        run("a", 1.01, 1.5, ("disk-read", 1.5, 1.7)),
        run("b", 3, 4),
    ]
    spent = thread_time(runs, TWO)
    assert sum(spent.values()) == pytest.approx(8)
    assert spent["compute"] == pytest.approx(1 + 1 + 0.49 + 1)
    assert spent["transfer"] == pytest.approx(0.5)
    assert spent["spilling"] == pytest.approx(0.2)
    # Between two tasks of a, and while no worker had a task
    assert spent["overhead"] == pytest.approx(0.01 + 2)
    assert spent["few-tasks"] == pytest.approx(0.5 + 0.3 + 1)


def test_slow_link_is_named() -> None:
    runs = [run("b", 4, 4.5, ("transfer", 0, 4)), run("a", 0, 0.5)]
    sites = {"a": Site("alpha", 1), "b": Site("beta", 1)}
    links = [Link("a", "b", 40 * MIB, 4.0), Link("b", "a", 40 * MIB, 0.1)]
    verdict = judge(runs, sites, links=links)
    assert verdict.limit == "slow-link"
    way = "from alpha (a) to beta (b) with 10.5 MB/s"
    assert verdict.sentence.startswith(f"One slow link limited the job, {way}: ")
    assert judge(runs, sites, links=links[:1]).limit == "transfer"


def test_link_that_lends_is_fast_though_only_its_headers_move() -> None:
    runs = [run("b", 4, 4.5, ("transfer", 0, 4)), run("a", 0, 0.5)]
    sites = {name: Site(name, 1) for name in "abc"}
    slow = Link("a", "b", 40 * MIB, 4.0)
    lent = Link("c", "a", 40 * MIB, 0.02, lent_bytes=40 * MIB - 500)
    for others in ([lent], [lent, Link("b", "a", 40 * MIB, 0.1)]):
        assert judge(runs, sites, links=[slow, *others]).limit == "slow-link"


def test_links_of_earlier_jobs_do_not_count() -> None:
    counts = Counts(1, 64 * MIB, MIB, 0.5)
    rows = [
        Row(receiver, "a", "tcp", 16 * MIB, counts, 1.0, last_s, True)
        for receiver, last_s in (("b", 9.0), ("c", 5.0), ("left", 9.0))
    ]
    assert _links(rows, {"a", "b", "c"}, 8.0) == [("a", "b", 64 * MIB, 0.5, MIB)]


def test_loss_beside_much_computing_is_named_and_limits_nothing() -> None:
    runs = [run("a", 0, 8), run("b", 2, 8, ("transfer", 0, 2))]
    verdict = judge(runs, {"a": Site("a", 1), "b": Site("b", 1)})
    assert verdict.limit == "compute"
    assert verdict.sentence.endswith(
        "threads computed 88% of the time, and were waiting for transfers 12% of the time."
    )


def test_last_job_begins_after_the_cluster_was_idle() -> None:
    old, long, short, new = run("a", 0, 1), run("a", 3, 9), run("b", 3.5, 4), run("b", 9.5, 10)
    assert last_job([new, old, short, long], 1.0) == [long, short, new]
    assert last_job([new, old, short, long], 0.4) == [new]


def test_spills_of_a_job_are_those_since_its_begin() -> None:
    history = SpillHistory()
    name = ("memory-monitor", "disk-write")
    before = {(*name, "bytes"): 5.0, (*name, "seconds"): 1.0, "other": 3.0}
    after = {(*name, "bytes"): 9.0, (*name, "seconds"): 4.0, ("x", "disk-read", "bytes"): 2.0}
    assert history.between(100.0, before) == (5.0, 0.0, 1.0)
    history.note(before, 99.0)
    history.note(after, 99.1)
    assert history.between(100.0, after) == (4.0, 2.0, 3.0)
    assert history.between(50.0, after) == (9.0, 2.0, 4.0)
