"""Reports of a worker, the scheduler's account of them, and the layout of the page."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from backhaul._native import process_token
from backhaul.dask.observe.counters import OTHERS, SIZE_CLASSES, Counts, Flow, Reporter, Sizes
from backhaul.dask.observe.ledger import Ledger, Row, moved_bytes_per_s
from backhaul.dask.observe.matrix import (
    Matrix,
    Peer,
    amount,
    duration,
    host_rows,
    matrix_of,
    size_rows,
)
from backhaul.dask.observe.transfer_history import INTERVAL_S, INTERVALS, TransferHistory

MIB = 1 << 20


def report(process: str, flows: list[list[Any]], totals: list[list[Any]] | None = None) -> Any:
    """Make a report of flows like ``["sender", "shm", {MIB: Counts(...)}]``."""
    listed = [
        [sender, 1, "10.0.0.1", lane, [[bytes_min, *counts] for bytes_min, counts in sizes.items()]]
        for sender, lane, sizes in flows
    ]
    if totals is None:
        totals = []
        for lane in sorted({flow[3] for flow in listed}):
            sizes: Sizes = {}
            for _, its_lane, its_sizes in flows:
                for bytes_min, counts in its_sizes.items():
                    if its_lane == lane:
                        zero = Counts(0, 0, 0, 0.0)
                        sizes[bytes_min] = sizes.get(bytes_min, zero).plus(counts)
            totals.append([lane, [[bytes_min, *counts] for bytes_min, counts in sizes.items()]])
    return {"process": process, "totals": totals, "flows": listed}


def ledger_of(processes: int, **limits: int) -> Ledger:
    """Make a ledger that knows workers ``w0``, ``w1`` and so on, in processes ``p0``, ``p1``."""
    ledger = Ledger(**{"links_max": 1000, **limits})
    for number in range(processes):
        ledger.handle_report(f"w{number}", report(f"p{number}", []), 0)
    return ledger


def only_row(ledger: Ledger) -> Row:
    (row,) = ledger.rows()
    return row


def test_a_link_is_named_by_the_workers_at_its_ends() -> None:
    ledger = ledger_of(2)
    counts = Counts(2, 4 * MIB, MIB, 0.5)
    ledger.handle_report("w0", report("p0", [["p1", "shm", {MIB: counts}]]), 7.0)
    assert only_row(ledger) == Row("w0", "w1", "shm", MIB, counts, 7.0, 7.0, True)


def test_a_process_without_a_worker_has_its_process_id_and_host() -> None:
    ledger = ledger_of(1)
    counts = Counts(1, 10, 0, 0.0)
    ledger.handle_report("w0", report("p0", [["stranger", "tcp", {0: counts}]]), 7.0)
    row = only_row(ledger)
    assert (row.sender, row.present) == ("process 1 on 10.0.0.1", False)


def test_workers_of_one_process_are_named_by_the_first_and_the_number_of_others() -> None:
    ledger = ledger_of(2)
    counts = Counts(1, 10, 0, 0.0)
    for address in ("w0", "w2", "w3"):
        # Each tells the same: it is counted once.
        ledger.handle_report(address, report("p0", [["p1", "inproc", {0: counts}]]), 7.0)
    row = only_row(ledger)
    assert (row.receiver, row.counts) == ("w0 +2", counts)
    ledger.leave("w0")
    assert only_row(ledger).receiver == "w2 +1"
    assert only_row(ledger).present


def test_a_report_that_is_repeated_or_lost_does_no_harm() -> None:
    ledger = ledger_of(2)
    for number in (1, 1, 3):
        counts = Counts(number, number * MIB, 0, number * 0.1)
        ledger.handle_report("w0", report("p0", [["p1", "shm", {MIB: counts}]]), float(number))
    row = only_row(ledger)
    assert row.counts == Counts(3, 3 * MIB, 0, 3 * 0.1)
    assert (row.first_s, row.last_s) == (1.0, 3.0)


def test_a_bandwidth_is_bytes_over_seconds_however_many_transfers_a_heartbeat_brings() -> None:
    # Upstream's average of these is seven times too high from the second heartbeat on.
    ledger = ledger_of(2)
    for heartbeat in range(1, 11):
        transfers = 7 * heartbeat
        counts = Counts(transfers, transfers * 2_000_000, 0, transfers * 0.002)
        small = Counts(100 * heartbeat, 100_000 * heartbeat, 0, 0.0)
        sizes = {0: small, MIB: counts}
        ledger.handle_report("w0", report("p0", [["p1", "tcp", sizes]]), float(heartbeat))
        (_, _, link) = next(ledger.links())
        # Small messages, which are not timed, add nothing to it.
        assert moved_bytes_per_s(link.sizes) == pytest.approx(1e9)


def test_lent_bytes_have_no_rate_and_do_not_raise_that_of_others() -> None:
    lent = Counts(4, 4 * MIB, 4 * MIB - 500, 0.001)
    assert math.isinf(moved_bytes_per_s({MIB: lent}))
    assert amount(moved_bytes_per_s({MIB: lent}), "B/s") == "lent"
    mixed = lent.plus(Counts(4, 4 * MIB, 0, 0.039))
    assert moved_bytes_per_s({MIB: mixed}) == pytest.approx(100 * MIB, rel=1e-3)


def test_the_history_has_what_came_since_a_report_by_interval_and_lane() -> None:
    ledger, history = Ledger(links_max=10), TransferHistory()

    def told(shm: int, tcp: int, now_s: float) -> None:
        lanes = {"shm": Counts(shm, shm * MIB, shm * MIB, 0.0), "tcp": Counts(tcp, tcp * MIB, 0, 1)}
        totals = [[lane, [[MIB, *counts]]] for lane, counts in lanes.items() if counts.messages]
        gained = ledger.handle_report("w0", {"process": "p0", "totals": totals, "flows": []}, now_s)
        history.note(gained, now_s)

    # A process may have received its first messages long ago, from another scheduler.
    told(90, 90, 0.0)
    told(91, 92, 1.0)
    told(91, 95, INTERVAL_S + 1.0)
    number, rates = history.rates(INTERVAL_S + 2.0)
    assert number == 1
    assert {part: each[-1] * INTERVAL_S / MIB for part, each in rates.items()} == {
        ("shm", True): 1,
        ("tcp", False): 2,
    }
    _, rates = history.rates(2 * INTERVAL_S)
    assert [rate * INTERVAL_S / MIB for rate in rates["tcp", False][-2:]] == [2, 3]
    assert rates["shm", True][-2:] == [MIB / INTERVAL_S, 0]
    assert {len(each) for each in rates.values()} == {INTERVALS}
    # Ten minutes later it is gone, and what is kept has a bound.
    assert history.rates((INTERVALS + 1.0) * INTERVAL_S)[1].keys() == {("tcp", False)}
    assert history.rates((INTERVALS + 2.0) * INTERVAL_S)[1] == {}
    for at in range(3 * INTERVALS):
        told(91, 96 + at, at * INTERVAL_S + 10.0)
    assert len(history._intervals) == INTERVALS + 1


def test_the_bandwidth_of_untimed_messages_is_no_number() -> None:
    assert math.isnan(moved_bytes_per_s({0: Counts(5, 500, 0, 0.0)}))
    assert math.isnan(moved_bytes_per_s({}))


def test_transfers_of_a_worker_that_left_stay() -> None:
    ledger = ledger_of(3)
    counts = Counts(1, MIB, 0, 0.1)
    ledger.handle_report("w0", report("p0", [["p1", "shm", {MIB: counts}]]), 1.0)
    ledger.handle_report("w1", report("p1", [["p2", "shm", {MIB: counts}]]), 1.0)
    ledger.leave("w1")
    rows = [(row.receiver, row.sender, row.present) for row in ledger.rows()]
    assert rows == [("w0", "w1", False), ("w1", "w2", False)]
    assert list(ledger.links()) == []
    ledger.leave("w1")
    ledger.leave("never heard of")


def test_processes_that_left_long_ago_are_forgotten() -> None:
    ledger = ledger_of(1, left_max=10)
    for number in range(100):
        counts = Counts(1, MIB, 0, 0.1)
        token = f"old{number}"
        ledger.handle_report(token, report(token, [["p0", "tcp", {MIB: counts}]]), float(number))
        ledger.leave(token)
    assert sorted(row.receiver for row in ledger.rows()) == [f"old{n}" for n in range(90, 100)]
    assert len(ledger) == 10


def test_links_are_bounded_and_the_others_still_add_up() -> None:
    ledger = ledger_of(2, links_max=5)
    counts = Counts(1, MIB, 0, 0.1)
    flows = [[f"p{number}", "tcp", {MIB: counts}] for number in range(1, 9)]
    for number in range(2, 9):
        ledger.handle_report(f"w{number}", report(f"p{number}", []), 0)
    ledger.handle_report("w0", report("p0", flows), 1.0)
    rows = list(ledger.rows())
    assert len(ledger) == 5
    assert sum(row.counts.messages for row in rows) == 8
    assert sum(row.counts.nbytes for row in rows) == 8 * MIB
    others = [row for row in rows if row.sender == OTHERS]
    assert [row.counts.messages for row in others] == [3]


def test_links_of_workers_that_left_make_room_for_new_ones() -> None:
    ledger = ledger_of(4, links_max=2)
    counts = Counts(1, MIB, 0, 0.1)
    flows = [[f"p{number}", "tcp", {MIB: counts}] for number in (1, 2)]
    ledger.handle_report("w0", report("p0", flows), 1.0)
    ledger.leave("w1")
    flows.append(["p3", "tcp", {MIB: counts}])
    ledger.handle_report("w0", report("p0", flows[1:], [["tcp", [[MIB, 3, 3 * MIB, 0, 0.3]]]]), 2.0)
    assert {row.sender for row in ledger.rows()} == {"w2", "w3", OTHERS}


def test_an_address_that_another_process_has_taken_is_the_new_ones() -> None:
    ledger = ledger_of(2)
    counts = Counts(1, MIB, 0, 0.1)
    ledger.handle_report("w0", report("p0", [["p1", "shm", {MIB: counts}]]), 1.0)
    ledger.handle_report("w1", report("p9", []), 2.0)
    assert not only_row(ledger).present
    assert ledger.name_of("w1") == "w1"


def test_recent_rates_fade() -> None:
    ledger = ledger_of(2)
    ledger.handle_report("w0", report("p0", [["p1", "shm", {MIB: Counts(1, 10**9, 0, 1.0)}]]), 5.0)
    (_, _, link) = next(ledger.links())
    assert link.recent_bytes_per_s(5.0) == pytest.approx(1e8)
    assert link.recent_bytes_per_s(15.0) == pytest.approx(1e8 / math.e)
    assert link.recent_bytes_per_s(500.0) < 1


class Flows:
    """A process whose flows a test makes up."""

    def __init__(self, peers: int) -> None:
        self.messages = dict.fromkeys(range(peers), 0)

    def __call__(self) -> list[Flow]:
        return [
            Flow(f"p{peer}", peer, "h", "tcp", {0: Counts(messages, 10 * messages * peer, 0, 0.0)})
            for peer, messages in self.messages.items()
            if messages
        ]


def told(made: Any) -> set[str]:
    return {flow[0] for flow in made["flows"]}


def test_a_heartbeat_reports_changes() -> None:
    flows = Flows(3)
    reporter = Reporter(flows)
    assert reporter() == {"process": process_token(), "totals": [], "flows": [], "links": []}
    flows.messages[1] = 2
    made = reporter()
    assert made["flows"] == [["p1", 1, "h", "tcp", [[0, 2, 20, 0, 0.0]]]]
    assert made["totals"] == [["tcp", [[0, 2, 20, 0, 0.0]]]]
    assert made["links"] == [b""]


def test_a_heartbeat_is_bounded_and_nothing_is_left_out_for_ever() -> None:
    flows = Flows(1000)
    reporter = Reporter(flows)
    for peer in flows.messages:
        flows.messages[peer] = 1
    first = reporter()
    # Those of most bytes.
    assert told(first) == {f"p{peer}" for peer in range(936, 1000)}
    assert first["totals"] == [["tcp", [[0, 1000, 10 * sum(range(1000)), 0, 0.0]]]]
    heard = told(first)
    for _ in range(15):
        made = reporter()
        assert len(made["flows"]) <= 64 + 4
        heard |= told(made)
    assert len(heard) == 1000
    assert len(reporter(changed_max=None)["flows"]) == 4


def test_a_heartbeat_that_was_lost_is_made_good() -> None:
    flows = Flows(20)
    reporter = Reporter(flows)
    for peer in flows.messages:
        flows.messages[peer] = 1
    reporter()
    # That one was lost, and nothing changes any more.
    heard: set[str] = set()
    for _ in range(5):
        heard |= told(reporter())
    assert len(heard) == 20


def test_all_reports_add_up_after_any_sequence() -> None:
    rng = random.Random(3)
    flows, ledger = Flows(150), ledger_of(0)
    reporter = Reporter(flows)
    for step in range(60):
        for peer in rng.sample(range(150), 30):
            flows.messages[peer] += rng.randrange(3)
        made = reporter()
        if rng.random() < 0.3:
            continue
        ledger.handle_report("w0", made, float(step))
    ledger.handle_report("w0", reporter(changed_max=None), 61.0)
    for step in range(40):
        ledger.handle_report("w0", reporter(), 62.0 + step)
    known = {row.sender: row.counts.messages for row in ledger.rows()}
    assert sum(known.values()) == sum(flows.messages.values())
    assert OTHERS not in known


def peers_of(number: int, per_host: int) -> list[Peer]:
    return [
        Peer(f"w{worker}", f"10.0.0.{worker // per_host}", str(worker)) for worker in range(number)
    ]


def matrix_for(number: int, per_host: int, **limits: int) -> Matrix:
    """Lay out a cluster in which everybody has sent to everybody."""
    ledger = ledger_of(number, links_max=100_000)
    for receiver in range(number):
        flows = [
            [
                f"p{sender}",
                "shm" if sender // per_host == receiver // per_host else "tcp",
                {MIB: Counts(1, MIB, 0, 0.001 * (1 + sender))},
            ]
            for sender in range(number)
            if sender != receiver
        ]
        ledger.handle_report(f"w{receiver}", report(f"p{receiver}", flows), 1.0)
    return matrix_of(ledger, peers_of(number, per_host), 1.0, **limits)


def test_workers_are_laid_out_by_host_and_number() -> None:
    matrix = matrix_for(12, 6)
    assert matrix.labels == [str(worker) for worker in range(12)]
    assert matrix.bounds == [6]
    assert len(matrix.cells) == 12 * 11
    cell = next(cell for cell in matrix.cells if (cell.row, cell.column) == (3, 10))
    assert (cell.lane, cell.counts.messages) == ("tcp", 1)
    assert cell.bandwidth_bytes_per_s == pytest.approx(MIB / 0.011)
    assert not matrix.by_host


def test_more_workers_than_can_be_shown_are_summed_up_by_host() -> None:
    matrix = matrix_for(12, 4, workers_max=10)
    assert matrix.by_host
    assert matrix.labels == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    within = next(cell for cell in matrix.cells if cell.row == cell.column == 0)
    assert (within.counts.messages, list(within.lanes)) == (4 * 3, ["shm"])
    between = next(cell for cell in matrix.cells if (cell.row, cell.column) == (0, 2))
    assert (between.counts.messages, list(between.lanes)) == (16, ["tcp"])
    assert sum(counts.messages for _, _, counts, _ in size_rows(matrix)) == 12 * 11


def test_sums_by_host_tell_what_comes_from_others_and_what_stays() -> None:
    rows = {row.host: row for row in host_rows(matrix_for(12, 4))}
    assert set(rows) == {"10.0.0.0", "10.0.0.1", "10.0.0.2"}
    row = rows["10.0.0.1"]
    assert row.workers == 4
    assert (row.within.messages, row.received.messages, row.sent.messages) == (12, 32, 32)
    assert row.nbytes == 76 * MIB
    by_host = {row.host: row for row in host_rows(matrix_for(12, 4, workers_max=0))}
    assert by_host["10.0.0.1"].received == pytest.approx(row.received)
    assert by_host["10.0.0.1"].workers == 4


def test_workers_that_have_said_nothing_are_shown() -> None:
    matrix = matrix_of(Ledger(links_max=10), peers_of(3, 3), 1.0)
    assert (matrix.labels, matrix.cells) == (["0", "1", "2"], [])


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (99_960, "100 kB"), (1.5e10, "15.0 GB")],
)
def test_amounts_are_written_in_three_digits(number: float, text: str) -> None:
    assert amount(number, "B") == text


def test_times_are_written_in_three_digits() -> None:
    assert [duration(s) for s in (1e-6, 0.0123, 1.5, 7200)] == [
        "1.00 µs",
        "12.3 ms",
        "1.50 s",
        "120 min",
    ]


def test_classes_of_sizes_have_names_in_order() -> None:
    assert list(SIZE_CLASSES.values()) == [
        "<4KiB",
        "4-64KiB",
        "64KiB-1MiB",
        "1-16MiB",
        "16-256MiB",
        ">=256MiB",
    ]
