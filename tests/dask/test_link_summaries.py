"""Summaries of transfers and links: one row for each pair of hosts and lane."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster

from backhaul.dask import links, transfers
from backhaul.dask.observe import link_table as link_frames
from backhaul.dask.observe import transfers as transfer_frames
from backhaul.dask.observe.counters import SIZE_CLASSES
from backhaul.dask.observe.summaries import link_table, summarized, transfer_table

MIB = 1 << 20
GIB = 1 << 30
SHORT, LONG = min(SIZE_CLASSES), 1 << 20
A, B, C, GONE = (
    f"backhaul://10.0.0.{host}:{port}" for host, port in ((1, 1), (1, 2), (2, 1), (3, 1))
)
PROCESSES = {
    A: ("10.0.0.1", ["alpha", "beta", "gamma", "delta", "epsilon"]),
    B: ("10.0.0.1", ["zeta"]),
    C: ("10.0.0.2", ["eta"]),
}


def transferred(*rows: tuple[Any, ...]) -> Any:
    """Make the frame of (receiver, sender, lane, class, messages, bytes, lent bytes, seconds)."""
    frame = transfer_frames._frame([(*row, 0.0, 0.0, True) for row in rows])
    return summarized(frame, transfer_table, PROCESSES)


def expected(*rows: tuple[Any, ...]) -> Any:
    """Make the frame of (receiver, sender, lane, class, bandwidth, latency, samples, origin)."""
    listed = [(to, of, lane, "host", *others) for to, of, lane, *others in rows]
    return summarized(link_frames._frame(listed), link_table, PROCESSES)


def cells(text: str) -> list[list[str]]:
    """Split a table at two blanks or more."""
    return [
        [cell.strip() for cell in line.strip().split("  ") if cell.strip()]
        for line in text.splitlines()
    ]


def test_each_two_hosts_and_lane_have_a_row_those_of_most_bytes_first() -> None:
    frame = transferred(
        (C, A, "tcp", LONG, 2, GIB, 0, 2.0),
        (C, B, "tcp", LONG, 1, GIB, 0, 2.0),
        (C, B, "tcp", SHORT, 7, 100, 0, 0.0),
        (B, A, "shm", LONG, 3, GIB, GIB, 0.001),
        (A, C, "tcp", SHORT, 1, 100, 0, 0.0),
    )
    head, *rows = cells(frame.summary())
    assert head == ["from", "to", "lane", "messages", "GiB", "lent GiB", "GB/s"]
    first = "10.0.0.1 (alpha, beta, gamma, delta"
    assert rows[0][0] == f"{first} +2)"
    assert rows[0][1:] == ["10.0.0.2 (eta)", "tcp", "10", "2.000", "0.000", "0.54"]
    assert rows[1] == [f"{first} +1)", "10.0.0.1 (zeta)", "shm", "3", "1.000", "1.000", "lent"]
    assert rows[2][2:] == ["tcp", "1", "<0.001", "0.000", "–"]


def test_the_rate_is_that_of_bytes_that_moved() -> None:
    frame = transferred((B, A, "shm", LONG, 9, 3 * GIB, 2 * GIB, 1.0))
    assert cells(frame.summary())[1][-1] == "1.07"


def test_processes_without_workers_have_their_host() -> None:
    frame = transferred(
        (GONE, "process 12 on desk", "tcp", LONG, 1, 2 * GIB, 0, 1.0),
        (A, "(others)", "tcp", LONG, 1, GIB, 0, 1.0),
    )
    _, gone, others = cells(frame.summary())
    assert gone[:2] == ["desk (process 12)", f"10.0.0.3 ({GONE})"]
    assert others[0] == "(others)"


def test_links_have_the_range_of_their_pairs_the_slowest_first() -> None:
    frame = expected(
        (B, A, "shm", LONG, math.inf, 1e-3, 3, "process pair"),
        (C, A, "tcp", SHORT, 1e6, 1e-4, 3, "process pair"),
        (C, A, "tcp", LONG, 1e9, 1e-4, 3, "process pair"),
        (C, B, "tcp", LONG, 2e9, 2e-4, 3, "process pair"),
        (A, C, None, LONG, 5e8, 1e-4, 0, "host pair"),
    )
    head, *rows = cells(frame.summary())
    assert head == ["from", "to", "lane", "pairs", "GB/s", "µs", "messages", "origin"]
    assert [row[2:] for row in rows] == [
        ["–", "1", "0.50", "100", "0", "host pair"],
        ["tcp", "2", "1.00 – 2.00", "100 – 200", "9", "process pair"],
        ["shm", "1", "lent", "1000", "3", "process pair"],
    ]


def test_pairs_that_have_not_met_are_in_the_row_of_their_hosts() -> None:
    frame = expected(
        (C, A, "tls", LONG, 1e9, 1e-4, 3, "process pair"),
        (C, B, None, LONG, 1e9, 1e-4, 0, "host pair"),
    )
    (row,) = cells(frame.summary())[1:]
    assert row[2:4] == ["tls", "2"]
    assert row[-1] == "host pair, process pair"


def test_a_frame_shows_its_summary_and_is_one_of_pandas_otherwise() -> None:
    frame = transferred((C, A, "tcp", LONG, 2, GIB, 0, 2.0))
    assert repr(frame).startswith(frame.summary())
    assert "[1 row with the columns receiver, sender, lane, size_class" in repr(frame)
    assert "<td>tcp</td>" in frame._repr_html_()
    for derived in (frame[["lane", "bytes"]], frame.head(), pickle.loads(pickle.dumps(frame))):
        assert type(derived) is pd.DataFrame
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(frame)), pd.DataFrame(frame))
    del frame["lane"]
    assert "[1 rows x 11 columns]" in repr(frame)
    assert "<th>size_class</th>" in frame._repr_html_()


def test_the_representation_has_twenty_rows_and_the_summary_all() -> None:
    rows = [
        (f"backhaul://10.1.0.{host}:1", A, "tcp", LONG, 1, host * MIB, 0, 1.0)
        for host in range(1, 31)
    ]
    frame = transferred(*rows)
    assert len(cells(frame.summary())) == 31
    assert len(cells(repr(frame))) == 22
    assert "[10 more in summary(); 30 rows" in repr(frame)
    assert frame._repr_html_().count("<tr") == 21


def test_a_cluster_without_backhaul_has_no_links() -> None:
    assert transferred().summary() == "no links"
    assert repr(expected()).startswith("no links\n[0 rows")


@gen_cluster(
    client=True,
    scheduler_kwargs={"protocol": "backhaul"},
    worker_kwargs={"protocol": "backhaul"},
)
async def test_a_running_cluster_names_its_workers(
    client: Client, scheduler: Scheduler, a: Worker, b: Worker
) -> None:
    x = client.submit(np.ones, MIB, workers=a.address)
    await client.submit(np.sum, x, workers=b.address)
    asked: Any = transfers(client)
    frame = await asked
    # The scheduler is in the same process as its workers.
    inproc = next(row for row in cells(frame.summary()) if "inproc" in row)
    host = scheduler.workers[a.address].host
    names = f"{host} (0, 1, scheduler)"
    assert inproc[:2] == [names, names]
    estimated: Any = links(client)
    assert type(await estimated).__name__ == "SummarizedFrame"
