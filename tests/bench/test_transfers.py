from __future__ import annotations

from backhaul_bench.transfers import pair_bandwidths

NAMES = {"a://1": "w0", "a://2": "w1"}


def entry(who: str, total: int, bandwidth: float) -> dict[str, object]:
    return {"who": who, "total": total, "bandwidth": bandwidth}


def test_quartiles_and_total_are_given_for_each_pair() -> None:
    log = [entry("a://2", 2_000_000, 1e8 * n) for n in range(1, 6)]
    (pair,) = pair_bandwidths({"a://1": log, "a://2": []}, names=NAMES)
    assert (pair.receiver, pair.sender) == ("w0", "w1")
    assert pair.quartiles_bytes_per_s == (2e8, 3e8, 4e8)
    assert (pair.total_bytes, pair.transfers) == (10_000_000, 5)
    assert pair.format_row()[:4] == ("(w0, w1)", "0.20 GB/s", "0.30 GB/s", "0.40 GB/s")


def test_small_transfers_are_left_out() -> None:
    log = [entry("a://2", 1_000_000, 1e6)]
    assert pair_bandwidths({"a://1": log}, names=NAMES) == []


def test_a_worker_that_left_keeps_its_address() -> None:
    (pair,) = pair_bandwidths({"a://1": [entry("a://9", 2_000_000, 1e6)]}, names=NAMES)
    assert pair.sender == "a://9"
