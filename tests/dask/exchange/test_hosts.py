"""Exchanges between hosts, which are network namespaces: all results equal those of P2P.

::

    scheduler, client 10.79.0.1 ── bridge ── 10.79.0.2 one worker
                                        ├─── 10.79.0.3 two workers
                                        └─── 10.79.0.4 one worker
"""

from __future__ import annotations

import gc
import itertools
import logging
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Scheduler, SchedulerPlugin, wait

import dask
from backhaul.dask.exchange import cluster
from backhaul.dask.exchange.blocks import Block, SentBlock
from backhaul.dask.exchange.placing import Host, output_ranges
from backhaul.dask.observe.exchange_counters import exchange_counters
from tests.dask.exchange.conftest import DEADLINE_S, Parts, kept, wait_until_forgotten
from tests.dask.hosts import Hosts, needs_namespaces

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

from tests.dask.exchange import test_arrays, test_equal  # noqa: E402

pytestmark = [needs_namespaces]

HERE = "10.79.0.1"
ADDRESSES = {"near": "10.79.0.2", "far": "10.79.0.3", "third": "10.79.0.4"}
WORKERS = {"near": 1, "far": 2, "third": 1}
#: What the hosts send where a test needs time, in bytes per second
SLOW_BYTES_PER_S = 4e6
#: Rate of the hosts where an exchange is cancelled, in bytes per second: 1 Gb/s
LINK_BYTES_PER_S = 1.25e8
#: Within how many seconds a cancelled exchange leaves nothing
RELEASE_S = 1.0

#: Tests of one host that run on three
EQUAL = (
    "test_merges_are_equal",
    "test_merges_on_several_keys_of_different_types_are_equal",
    "test_merges_on_indexes_and_with_options_are_equal",
    "test_merges_of_arrow_tables_are_equal",
    "test_merges_of_nullable_types_and_categories_are_equal",
    "test_shuffles_to_any_number_of_partitions_are_equal",
    "test_shuffles_of_arrow_tables_are_equal",
    "test_categories_that_differ_by_partition_are_joined",
    "test_set_index_and_sort_values_are_equal",
    "test_drop_duplicates_and_groupby_are_equal",
    "test_a_part_of_the_outputs_is_equal",
    "test_partitions_that_differ_from_their_meta_are_equal",
)
globals().update({name: getattr(test_equal, name) for name in EQUAL})
EQUAL_ARRAYS = (
    "test_chunks_are_equal",
    "test_a_chunk_of_another_shape_than_its_metadata_says_is_as_with_p2p",
    "test_an_output_chunk_is_private_and_writable",
    "test_random_rechunks_are_equal",
    "direct",
)
globals().update({name: getattr(test_arrays, name) for name in EQUAL_ARRAYS})


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Make the hosts, and remove them in the end."""
    hosts = Hosts(ADDRESSES)
    try:
        hosts.make()
        hosts.join_here(HERE)
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def workers() -> dict[str, list[BaseProcess]]:
    """Collect the processes of the workers, by host."""
    return {}


@pytest.fixture(scope="module")
def client(
    hosts: Hosts, workers: dict[str, list[BaseProcess]], workers_are_forked: None
) -> Iterator[Client]:
    """Connect to a cluster on three hosts."""
    with (
        # A stolen transfer would take its input to the other host, and its rows from there.
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(protocol="backhaul", host=HERE, n_workers=0, dashboard_address=None) as made,
        Client(made) as client,
    ):
        try:
            for host in ADDRESSES:
                workers[host] = [
                    hosts.start_worker(host, made.scheduler_address) for _ in range(WORKERS[host])
                ]
            client.wait_for_workers(sum(WORKERS.values()), timeout=300)
            yield client
        finally:
            for process in itertools.chain(*workers.values()):
                process.kill()
                process.join()


def rows_of(number: int, rows: int = 50_000) -> Any:
    random = np.random.default_rng(number)
    columns = {f"value{column}": random.random(rows) for column in range(8)}
    return pd.DataFrame({"key": random.integers(0, 1_000_000, rows), **columns})


def collection(inputs: int) -> Any:
    return dd.from_map(rows_of, range(inputs), meta=rows_of(0, 1).iloc[:0])


def counter(hosts: Hosts, host: str, way: str) -> int:
    path = f"/sys/class/net/eth0/statistics/{way}_bytes"
    found = subprocess.run(
        [*hosts.within(host), "cat", path], capture_output=True, text=True, check=True, timeout=60
    )
    return int(found.stdout)


def received_bytes() -> int:
    return exchange_counters.total().received_bytes


def host_of(address: str) -> str:
    (found,) = (host for host, own in ADDRESSES.items() if own in address)
    return found


def test_each_row_crosses_the_link_once(
    client: Client, exchanged: list[bool], hosts: Hosts
) -> None:
    inputs = client.persist(collection(16))
    wait(inputs)
    inputs_at = Counter(host_of(who[0]) for who in client.who_has(inputs).values())
    before = {host: counter(hosts, host, "rx") for host in ADDRESSES}
    already = sum(client.run(received_bytes).values())
    found = client.persist(kept(inputs.shuffle("key", npartitions=12, shuffle_method="p2p")))
    wait(found)
    assert exchanged == [True]
    outputs_at = Counter(host_of(who[0]) for who in client.who_has(found).values())
    assert outputs_at == {"near": 3, "far": 6, "third": 3}
    # The index, the key and eight columns of the rows that have to cross
    away = sum(count * (12 - outputs_at[host]) / 12 for host, count in inputs_at.items())
    needed = 50_000 * 10 * 8 * away
    sent = sum(client.run(received_bytes).values()) - already
    assert sent == pytest.approx(needed, rel=0.05)
    crossed = sum(counter(hosts, host, "rx") - before[host] for host in ADDRESSES)
    assert sent < crossed < 1.05 * sent + 4e6
    # The blocks go with the last output, though the outputs stay.
    deadline_s = time.monotonic() + DEADLINE_S
    while any(client.run(live_blocks).values()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("transposes", [False, True])
def test_only_the_parts_that_a_host_needs_cross_the_link(
    client: Client, hosts: Hosts, direct: list[bool], transposes: bool
) -> None:
    array = da.random.random((2400, 2400), chunks=(150, 2400))
    inputs = client.persist(array)
    wait(inputs)
    inputs_at = Counter(host_of(who[0]) for who in client.who_has(inputs).values())
    before = {host: counter(hosts, host, "rx") for host in ADDRESSES}
    already = sum(client.run(received_bytes).values())
    turned, chunks = (inputs.T, (200, 2400)) if transposes else (inputs, (2400, 200))
    # Dask would merge small chunks first, and fuse the addition with the tasks before.
    made = turned.rechunk(chunks, method="p2p", block_size_limit=1)
    found = client.persist(made + 1)
    wait(found)
    assert direct == [True]
    outputs_at = Counter(host_of(who[0]) for who in client.who_has(found).values())
    assert outputs_at == {"near": 3, "far": 6, "third": 3}
    needed = sum(
        count * 150 * 200 * 8 * (12 - outputs_at[host]) for host, count in inputs_at.items()
    )
    assert sum(client.run(received_bytes).values()) - already == needed
    crossed = sum(counter(hosts, host, "rx") - before[host] for host in ADDRESSES)
    assert needed < crossed < 1.05 * needed + 4e6
    expected = inputs.compute()
    np.testing.assert_array_equal(found.compute(), (expected.T if transposes else expected) + 1)


def test_chunks_that_no_other_output_reads_are_joined_where_they_are(
    client: Client, hosts: Hosts, direct: list[bool]
) -> None:
    workers = sorted(client.has_what())
    with dask.config.set({"optimization.fuse.active": False}):
        with dask.annotate(workers=lambda key: workers[key[1] // 3 % len(workers)]):
            inputs = client.persist(da.random.random((1200, 3000), chunks=(50, 3000)))
        wait(inputs)
    already = sum(counter(hosts, host, "rx") for host in ADDRESSES)
    found = client.persist(inputs.rechunk((150, 3000), method="p2p"))
    wait(found)
    assert direct == [True]
    # All inputs of an output are on one worker.
    assert sum(counter(hosts, host, "rx") for host in ADDRESSES) - already < inputs.nbytes / 4
    np.testing.assert_array_equal(found.compute(), inputs.compute())


def live_blocks() -> int:
    return sum(type(each) in (Block, SentBlock) for each in gc.get_objects())


class Priorities(SchedulerPlugin):
    """Notes the priorities of the tasks of each graph."""

    name = "test-priorities"

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[float, ...]]] = {}

    def update_graph(self, scheduler: Scheduler, *, priority: Any, **kwargs: Any) -> None:
        for key, found in priority.items():
            self.of.setdefault("-".join(str(key[0]).split("-")[:2]), []).append(found)


@pytest.mark.parametrize("of_program", [0, 7])
def test_blocks_are_sent_before_other_rows_are_grouped(client: Client, of_program: int) -> None:
    plugin = Priorities()
    assert isinstance(client.cluster, LocalCluster)
    scheduler = client.cluster.scheduler
    assert scheduler is not None
    scheduler.add_plugin(plugin)
    try:
        shuffled = kept(collection(6).shuffle("key", npartitions=5, shuffle_method="p2p"))
        wait(client.persist(shuffled, priority=of_program))
    finally:
        scheduler.remove_plugin(plugin.name)
    sent = plugin.of["split-shuffle"] + plugin.of["exchange-receive"]
    assert len(sent) == 2 * 6 * len(ADDRESSES)
    # Dask begins with the smallest.
    assert max(sent) < min(plugin.of["exchange-transfer"])
    assert {found[0] for found in plugin.of["exchange-transfer"]} == {-of_program}


def test_hosts_get_outputs_in_proportion_to_their_threads() -> None:
    hosts = [Host("a", {"a1": 1, "a2": 3}), Host("b", {"b1": 8})]
    ranges = output_ranges(hosts, 30, shift=0)
    assert [(each.host.name, each.start, each.stop) for each in ranges] == [
        ("a", 0, 10),
        ("b", 10, 30),
    ]
    assert [ranges[0].worker_of(slot) for slot in range(10)] == ["a1"] * 3 + ["a2"] * 7
    assert [each.host.name for each in output_ranges(hosts, 30, shift=1)] == ["b", "a"]
    assert [(each.host.name, each.stop) for each in output_ranges(hosts, 1, shift=1)] == [("b", 1)]


def test_workers_that_the_program_chooses_are_left_to_p2p(
    client: Client, exchanged: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    workers = list(client.has_what())
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.graphs"):
        shuffled = kept(collection(3).shuffle("key", shuffle_method="p2p"))
        assert len(client.compute(shuffled, workers=workers).result()) == 150_000
    assert exchanged == [False]
    assert "the program chooses the workers" in caplog.text


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler of this process give blocks no memory, so that all go to files."""
    original = cluster._view_of

    def view_of(scheduler: Any) -> Any:
        view = original(scheduler)
        vars(view)["block_bytes"] = 0
        return view

    monkeypatch.setattr(cluster, "_view_of", view_of)


def test_blocks_in_files_are_equal(parts: Parts, no_memory: None) -> None:
    pandas = test_equal.frame(5, 3000)
    shuffled = lambda: test_equal.collection(pandas, 6).shuffle("key", shuffle_method="p2p")  # noqa: E731
    test_equal.check(parts, shuffled)


def test_a_cancelled_exchange_leaves_nothing(client: Client, hosts: Hosts) -> None:
    inputs = client.persist(collection(16))
    wait(inputs)
    for host in ADDRESSES:
        hosts.slow_down(host, LINK_BYTES_PER_S)
    try:
        found = client.persist(kept(inputs.shuffle("key", shuffle_method="p2p")))
        deadline_s = time.monotonic() + DEADLINE_S
        while not begun(client):
            assert time.monotonic() < deadline_s
        assert any(client.run(live_blocks).values())
        client.cancel(found)
        del found
        began_s = time.monotonic()
        while client.run_on_scheduler(exchange_tasks) or any(client.run(live_blocks).values()):
            assert time.monotonic() - began_s < RELEASE_S
    finally:
        for host in ADDRESSES:
            hosts.slow_down(host, 1e9)


def exchange_tasks(dask_scheduler: Scheduler) -> list[str]:
    return [key for key in map(str, dask_scheduler.tasks) if "exchange" in key or "split" in key]


def begun(client: Client) -> bool:
    """Tell whether a block has arrived from another host, or from this one."""
    found: bool = client.run_on_scheduler(
        lambda dask_scheduler: any(
            ts.state == "memory" and "exchange-receive" in str(key)
            for key, ts in list(dask_scheduler.tasks.items())
        )
    )
    return found


# The last test, because the cluster loses a host.
def test_lost_workers_and_a_lost_host_cost_no_result(
    client: Client, hosts: Hosts, workers: dict[str, list[BaseProcess]]
) -> None:
    for host in ADDRESSES:
        hosts.slow_down(host, SLOW_BYTES_PER_S)
    for losses in (1, 2):
        # Another number of outputs, so that no result is used again
        outputs = 10 + losses
        shuffled = kept(collection(12).shuffle("key", npartitions=outputs, shuffle_method="p2p"))
        expected = pd.concat(map(rows_of, range(12)))
        found = client.compute(shuffled)
        numbers = np.arange(600.0 * 600).reshape(600, 600) + losses
        array = da.from_array(numbers, chunks=(50, 600), name=False)
        chunks = client.compute(array.rechunk((600, 50), method="p2p", block_size_limit=1))
        deadline_s = time.monotonic() + DEADLINE_S
        while not begun(client):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for process in workers["far"][:losses]:
            process.kill()
            process.join()
        rows = found.result(timeout=DEADLINE_S)
        pd.testing.assert_frame_equal(
            rows.sort_values("value0", ignore_index=True),
            expected.sort_values("value0", ignore_index=True),
        )
        np.testing.assert_array_equal(chunks.result(timeout=DEADLINE_S), numbers)
        del found, chunks
        wait_until_forgotten(client)
    assert {host_of(address) for address in client.has_what()} == {"near", "third"}
