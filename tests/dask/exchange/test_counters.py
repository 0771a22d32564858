"""Counters of exchanges: in ``/metrics`` of workers, and in their reports to the scheduler."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.exchange_counters import (
    EXCHANGES_MAX,
    ExchangeAccount,
    ExchangeCounters,
    ExchangeCounts,
)
from backhaul.dask.observe.exchange_view import ExchangeView, exchange_table
from backhaul.dask.observe.page_html import SCROLLED
from tests.dask.exchange.conftest import DEADLINE_S, kept

dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
pytest.importorskip("prometheus_client")
pytest.importorskip("bokeh")


@pytest.fixture(scope="module")
def observed(workers_are_forked: None) -> Iterator[Client]:
    """Connect to two workers that have an HTTP server."""
    with (
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def scheduler_of(client: Client) -> Any:
    cluster: Any = client.cluster
    return cluster.scheduler


def metrics_of(client: Client) -> Counter[str]:
    """Add up what all workers tell Prometheus of exchanges."""
    found: Counter[str] = Counter()
    for ws in scheduler_of(client).workers.values():
        url = f"http://{ws.host}:{ws.services['dashboard']}/metrics"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name.startswith("dask_backhaul_exchange_") and "_total" in name:
                    found[name.removeprefix("dask_backhaul_exchange_")] += int(float(value))
    return found


def reported(client: Client, name: str, outputs: int) -> ExchangeCounts:
    """Wait until the scheduler knows all outputs of an exchange of a kind."""
    account = account_of(scheduler_of(client))
    assert account is not None
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        for exchange, counts in account.exchanges.by_name().items():
            if exchange.startswith(name) and counts.outputs == outputs:
                return counts
        assert time.monotonic() < deadline_s, account.exchanges.by_name()
        time.sleep(0.02)


def test_a_skewed_shuffle_is_counted_by_workers_and_scheduler(
    observed: Client, exchanged: list[bool]
) -> None:
    rows = 1_200
    # Two thirds of the rows have one key.
    keys = np.where(np.arange(rows) % 3 > 0, 0, np.arange(rows))
    frame = dd.from_pandas(pd.DataFrame({"key": keys, "value": keys * 2.0}), npartitions=6)
    before = metrics_of(observed)
    shuffled = kept(frame.shuffle("key", npartitions=12))
    persisted = observed.persist(shuffled)
    outputs = observed.gather(observed.compute(persisted.to_delayed(optimize_graph=False)))
    assert exchanged == [True]
    grown = metrics_of(observed)
    grown.subtract(before)
    assert grown['blocks_total{place="memory"}'] == 6
    assert grown['block_bytes_total{place="memory"}'] >= 16 * rows
    assert grown['blocks_total{place="file"}'] == 0
    assert grown["outputs_total"] == 12
    assert grown["output_rows_total"] == rows
    counts = reported(observed, "shuffle ", 12)
    assert counts.blocks == 6
    assert counts.block_bytes == grown['block_bytes_total{place="memory"}']
    largest = max(map(len, outputs))
    assert counts.output_rows_max == largest > rows // 2
    assert counts.skew == pytest.approx(largest * 12 / rows)


def shown(client: Client) -> str:
    """Open the dashboard's page, and read its table of exchanges."""
    session = pytest.importorskip("bokeh.client").pull_session(
        url=client.dashboard_link.replace("/status", "/backhaul")
    )
    try:
        return str(session.document.get_model_by_name("backhaul-exchanges").text)
    finally:
        session.close()


def test_both_sides_of_a_merge_are_one_exchange(observed: Client, exchanged: list[bool]) -> None:
    left, right = (
        dd.from_pandas(pd.DataFrame({"key": np.arange(90), name: 1}), npartitions=9)
        for name in ("left", "right")
    )
    merged = kept(left.merge(right, on="key", broadcast=False))
    assert len(observed.compute(merged).result()) == 90
    assert exchanged == [True]
    counts = reported(observed, "merge ", 9)
    assert counts.blocks == 18
    assert counts.output_rows == 90
    page = shown(observed)
    (line,) = (line for line in page.split("</tr>") if 'class="text">merge ' in line)
    # Blocks, bytes, files, other hosts, outputs, rows, skew
    cells = [cell.rpartition(">")[2] for cell in line.split("</td>")[1:-1]]
    assert cells[0] == "18"
    assert cells[2:6] == ["–", "–", "9", "90"]
    assert float(cells[6]) == pytest.approx(counts.skew, abs=0.06)


def test_spilled_blocks_and_names_are_shown() -> None:
    view = ExchangeView(ExchangeAccount())
    assert view.root.text == ""
    assert view.root.styles == SCROLLED, "wider than a phone"
    table = exchange_table({"shuffle <0123456789>": ExchangeCounts(1, 10, 2, 2_000_000)})
    assert "<td>2.00 MB in 2</td>" in table
    assert "shuffle &lt;0123456<" in table


def test_chunks_of_arrays_are_counted(observed: Client) -> None:
    da = pytest.importorskip("dask.array")
    before = metrics_of(observed)
    array = da.ones((40, 40), chunks=(10, 40)).rechunk((40, 10), method="p2p")
    assert observed.compute(array.sum()).result() == 1600
    grown = metrics_of(observed)
    grown.subtract(before)
    assert grown["chunks_total"] == 4
    assert grown["chunk_bytes_total"] == 8 * 1600


def test_a_worker_and_a_scheduler_keep_the_last_exchanges() -> None:
    counters, account = ExchangeCounters(), ExchangeAccount()
    for number in range(EXCHANGES_MAX + 3):
        counters.note_block(f"{number:x}-left", 100, in_file=number == 0)
        counters.note_block(f"{number:x}-right", 10, in_file=False)
        account.note("a", counters.report())
        # A report that comes twice changes nothing.
        account.note("a", counters.report())
    account.note("b", [["merge 12", 1, 5, 0, 0, 2, 8, 6, 0, 0]])
    names = [f"merge {number:x}" for number in range(EXCHANGES_MAX + 2, 2, -1)]
    assert sorted(account.by_name()) == sorted(names)
    assert next(iter(account.by_name())) == "merge 12"
    assert account.by_name()["merge 12"] == ExchangeCounts(3, 115, 0, 0, 2, 8, 6)
    total = counters.total()
    assert (total.file_blocks, total.file_bytes) == (1, 100)
    assert total.blocks == 2 * (EXCHANGES_MAX + 3) - 1
