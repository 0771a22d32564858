"""How fast links are, as their receivers say; asked of a real cluster, and fed by hand."""

from __future__ import annotations

import logging
import math
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dask
from backhaul._native import Links, Placement
from backhaul.dask import links
from backhaul.dask.observe import dashboard
from backhaul.dask.observe.account import account_of as account_of_scheduler
from backhaul.dask.observe.counters import process_flows
from backhaul.dask.observe.heartbeat import nic_bytes_per_s
from backhaul.dask.observe.link_estimates import LinkAccount
from backhaul.dask.placement.link_model import LearnedLinks

pytestmark = pytest.mark.usefixtures("forked_workers")

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
#: Number of the class of 1 to 16 MiB
OF_MIB = 3


def estimate(bandwidth: float, latency: float = 0.0, samples: int = 6, kind: int = OF_MIB) -> bytes:
    """Write an estimate as the fabric does."""
    return struct.pack("<BIff", kind, samples, bandwidth, latency)


def report(process: str, *flows: tuple[str, str, bytes]) -> dict[str, Any]:
    """Make the part of a report that is about links, of ``(sender, lane, estimates)``."""
    return {
        "process": process,
        "flows": [[sender, 1, "10.0.0.9", lane, []] for sender, lane, _ in flows],
        "links": [estimates for _, _, estimates in flows],
    }


def account_of(workers: int) -> LinkAccount:
    """Make an account that knows workers ``w0`` and so on, two on each host."""
    account = LinkAccount(1000)
    for number in range(workers):
        account.handle_report(f"w{number}", f"h{number // 2}", report(f"p{number}"))
    return account


def origin(account: LinkAccount, sender: str, receiver: str) -> tuple[Any, Any]:
    answer = account.answer(sender, receiver, 4 * MIB)
    assert answer is not None
    return answer[4], answer[1]


def test_a_pair_that_has_not_met_gets_the_nearest_estimate() -> None:
    account = account_of(6)
    assert origin(account, "w0", "w2") == ("prior", pytest.approx(1e8))
    account.handle_report("w2", "h1", report("p2", ("p0", "tcp", estimate(2e8))))
    assert origin(account, "w0", "w2") == ("process pair", pytest.approx(2e8))
    assert origin(account, "w1", "w3") == ("host pair", pytest.approx(2e8))
    assert origin(account, "w4", "w0") == ("class", pytest.approx(2e8))
    seconds = account.links.seconds("w0", "w2", 20_000_000)
    assert seconds == pytest.approx(0.1)
    assert account.answer("w0", "nobody", MIB) is None
    with pytest.raises(KeyError, match="nobody"):
        account.links.seconds("nobody", "w0", MIB)


def test_processes_that_share_a_nic_are_not_blamed_for_it() -> None:
    account = LinkAccount(1000)
    for number in range(16):
        host = "near" if number < 8 else "far"
        account.handle_report(f"w{number}", host, report(f"p{number}"), now_s=0.0)
    for second in range(1, 4):
        # Each of four receives a quarter of 125 MB/s all the time, from a peer of its own.
        for number in range(4):
            told = report(f"p{8 + number}", (f"p{number}", "tcp", estimate(31.25e6)))
            told["flows"][0][4] = [
                [0, 100, 1000, 0, 0.0],
                [MIB, 10 * second, 31_250_000 * second, 0, float(second)],
            ]
            account.handle_report(f"w{8 + number}", "far", told, now_s=float(second))
    for number in range(4):
        _, bandwidth = origin(account, f"w{number}", f"w{8 + number}")
        assert 125e6 / 1.5 < bandwidth < 125e6 * 1.5


def test_placement_gets_measured_links_and_no_others() -> None:
    account = account_of(6)
    told: list[Any] = []
    clock = [0.0]
    learned = LearnedLinks(account, lambda *found: told.append(found), clock=lambda: clock[0])
    hosts = {"h0": 0, "h1": 1, "h2": 2}
    workers = {host: [f"w{2 * number}", f"w{2 * number + 1}"] for host, number in hosts.items()}
    assert not learned.refresh(hosts, workers)
    account.handle_report("w2", "h1", report("p2", ("p0", "tcp", estimate(2e8))))
    # At most once a second.
    assert not learned.refresh(hosts, workers)
    clock[0] += 1.5
    assert learned.refresh(hosts, workers)
    ((nics, flows),) = told
    assert nics == [(number, pytest.approx(2e8)) for number in range(3)]
    # The others of its kind are taken to be like it; nothing is known within a host.
    pairs = {(sender, receiver) for sender, receiver, _, _ in flows}
    assert pairs == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    assert all(bytes_per_s == pytest.approx(2e8) for _, _, bytes_per_s, _ in flows)
    clock[0] += 1.5
    assert not learned.refresh(hosts, workers)
    # Lent bytes do not move, and have no bandwidth.
    account.handle_report("w1", "h0", report("p1", ("p0", "shm", estimate(math.inf))))
    clock[0] += 1.5
    assert learned.refresh(hosts, workers)
    inside = {(sender, receiver): rate for sender, receiver, rate, _ in told[-1][1]}
    assert inside[0, 0] == 1e12
    mirror = Placement(beta=3.0, beta_private=2.0)
    for number in range(3):
        mirror.add_worker(SimpleNamespace(address=f"w{number}"), number, number)
    for found in told:
        mirror.set_hosts(*found)


def test_links_of_a_worker_that_left_are_forgotten_and_those_of_its_host_are_not() -> None:
    account = account_of(4)
    account.handle_report("w2", "h1", report("p2", ("p0", "tcp", estimate(2e8))))
    account.keep(["w0", "w1", "w3"])
    assert account.rows() == []
    assert sorted(account.links.workers()) == ["w0", "w1", "w3"]
    assert origin(account, "w0", "w3") == ("host pair", pytest.approx(2e8))


def test_a_worker_that_left_is_noticed_beside_workers_without_backhaul() -> None:
    account = account_of(4)
    there = ["w0", "w1", "w3", "tcp://10.0.0.1:1"]
    account.keep(there)
    assert len(account.links) == 4
    account.keep(there, thoroughly=True)
    assert sorted(account.links.workers()) == ["w0", "w1", "w3"]
    account = account_of(4)
    for _ in range(300):
        account.keep(there)
    assert len(account.links) == 3


@pytest.mark.parametrize(
    ("nonsense", "named"),
    [
        (estimate(math.nan), "NaN bytes per second"),
        (estimate(-5.0), "-5 bytes per second"),
        (estimate(0.0), "0 bytes per second"),
        (estimate(1e30), "bytes per second"),
        (estimate(1e9, latency=-1.0), "a latency of -1 s"),
        (estimate(1e9, samples=0), "0 samples"),
        (estimate(1e9, kind=77), "77"),
        (b"123", "3 bytes"),
        (estimate(1e9) * 100, "1300 bytes"),
        ("text", "str"),
        (None, "None"),
    ],
)
def test_a_worker_that_reports_nonsense_is_ignored_with_one_line(
    nonsense: Any, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    account = account_of(4)
    account.handle_report("w2", "h1", report("p2", ("p0", "tcp", estimate(2e8))))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            account.handle_report("w2", "h1", report("p2", ("p0", "tcp", nonsense)))
    (line,) = caplog.messages
    assert line.startswith("Left out what worker w2 says of its links: ")
    assert named in line
    # Its earlier report stays, and reports of others are used.
    assert origin(account, "w0", "w2") == ("process pair", pytest.approx(2e8))
    account.handle_report("w1", "h0", report("p1", ("p3", "tcp", estimate(3e8))))
    assert origin(account, "w3", "w1") == ("process pair", pytest.approx(3e8))


def test_a_report_without_links_is_one_of_another_release(caplog: pytest.LogCaptureFixture) -> None:
    account = account_of(2)
    old = report("p0", ("p1", "shm", b""))
    del old["links"]
    account.handle_report("w0", "h0", old)
    assert caplog.messages == []
    assert account.rows() == []


def test_priors_that_are_no_figures_are_refused() -> None:
    for figures in ((0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1e9, -1.0), (1e9, math.inf)):
        with pytest.raises(ValueError, match="device must be a bandwidth in bytes per second"):
            Links(same_host=(1e9, 0.0), other_host=(1e9, 0.0), device=figures, links_max=1)


def test_an_address_that_is_none_of_ours_has_no_speed() -> None:
    assert nic_bytes_per_s("192.0.2.77") is None
    assert nic_bytes_per_s("127.0.0.1") is None


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Start three workers in processes of their own, and connect a client."""
    with (
        LocalCluster(
            protocol="backhaul", n_workers=3, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(3)
        yield client


def move(client: Client, sender: str, receiver: str, messages: int, nbytes: int) -> None:
    """Make arrays on one worker, and fetch them one by one on another."""
    for _ in range(messages):
        made = client.submit(np.ones, nbytes, "u1", workers=[sender], pure=False)
        client.submit(len, made, workers=[receiver], pure=False).result()


def only(frame: pd.DataFrame, receiver: str, sender: str, **values: str) -> Any:
    chosen = (frame.receiver == receiver) & (frame.sender == sender)
    for column, value in values.items():
        chosen &= frame[column] == value
    assert chosen.sum() == 1, frame
    return frame[chosen].iloc[0]


def test_each_link_has_its_samples_and_the_origin_of_its_estimate(client: Client) -> None:
    a, b, c = client.nthreads()
    move(client, a, b, 3, 4 * MIB)
    frame: Any = links(client)
    assert {column: str(dtype) for column, dtype in frame.dtypes.items()} | {
        "receiver": "str",
        "sender": "str",
    } == {
        "receiver": "str",
        "sender": "str",
        "lane": "category",
        "memory": "category",
        "size_class": "category",
        "bandwidth": "float64",
        "latency": "float64",
        "samples": "int64",
        "origin": "category",
    }
    met = only(frame, b, a, size_class="1-16MiB")
    assert (met.lane, met.memory, met.origin) == ("shm", "host", "process pair")
    assert met.samples == 3
    # Results are lent: that takes time, but moves nothing.
    assert met.bandwidth == math.inf
    assert 0 < met.latency < 10
    unmet = only(frame, c, a, size_class="1-16MiB")
    assert pd.isna(unmet.lane)
    assert (unmet.origin, unmet.bandwidth) == ("host pair", math.inf)
    measured: Any = links(client, unmet=False)
    assert set(measured.origin) == {"process pair"}
    assert c not in set(measured.receiver)


def test_the_page_says_what_to_expect_of_the_next_message(client: Client) -> None:
    a, b, _ = client.nthreads()
    move(client, a, b, 2, 4 * MIB)
    frame: Any = links(client)
    samples = only(frame, b, a, size_class="1-16MiB").samples
    found: Any = client.run_on_scheduler(_expected)
    assert found[b, a].endswith(f"s, lent, from {samples} messages of this pair")
    # It only asked for it.
    assert found[a, b].endswith("messages of these hosts")


def _expected(dask_scheduler: Any) -> dict[tuple[str, str], str]:
    account = account_of_scheduler(dask_scheduler)
    assert account is not None
    matrix = dashboard._look(dask_scheduler, account.current(), account.links, False)
    titles = matrix.titles
    return {(titles[cell.row], titles[cell.column]): cell.expected for cell in matrix.cells}


def test_a_heartbeat_has_at_most_32_bytes_more_for_each_link(client: Client) -> None:
    a, b, _ = client.nthreads()
    move(client, a, b, 1, 4 * MIB)

    def told(dask_worker: Any) -> list[tuple[int, int]]:
        timed = 64 << 10
        return [
            (sum(size >= timed for size in flow.sizes), len(flow.links)) for flow in process_flows()
        ]

    found = client.run(told, workers=[b])[b]
    assert any(length > 0 for _, length in found)
    for classes, length in found:
        assert length <= 32 * classes


def test_a_copied_message_has_a_bandwidth() -> None:
    settings = {"distributed.comm.backhaul.lanes": "tcp"}
    with (
        dask.config.set(settings),
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        a, b = client.nthreads()
        move(client, a, b, 6, 4 * MIB)
        row = only(links(client), b, a, size_class="1-16MiB")
        assert (row.lane, row.samples) == ("tcp", 6)
        assert 1e5 < row.bandwidth < 1e12
        # The scheduler has what the receiver reports.
        (said,) = client.run(_of_class, workers=[b])[b]
        assert row.bandwidth == pytest.approx(said)


def _of_class(dask_worker: Any) -> list[float]:
    told = [flow.links for flow in process_flows()]
    each = [t[at : at + 13] for t in told for at in range(0, len(t), 13)]
    return [struct.unpack("<BIff", one)[2] for one in each if one[0] == OF_MIB]
