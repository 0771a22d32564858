"""Transfer logs of Dask's workers, as a table of bandwidths.

The table is the one of M. Rocklin, "Experiments in High Performance Networking with UCX and DGX":
for each pair of workers the quartiles of the bandwidths of transfers above 1 MB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backhaul._units import format_bytes, format_rate
from backhaul_bench.summary import quantile

__all__ = ["MIN_TOTAL_BYTES", "PairBandwidth", "pair_bandwidths"]

#: Transfers below are left out: their time is latency
MIN_TOTAL_BYTES = 1_000_000


@dataclass(frozen=True)
class PairBandwidth:
    """Bandwidths of the transfers that one worker fetched from another."""

    #: Name of the worker that received
    receiver: str
    #: Name of the worker that sent
    sender: str
    #: 25 %, 50 % and 75 % quantiles, in bytes per second, as Dask logs them
    quartiles_bytes_per_s: tuple[float, float, float]
    #: Sum over the transfers
    total_bytes: int
    transfers: int

    def format_row(self) -> tuple[str, ...]:
        """Write the pair as the source does, ``(w1, w2)``, with its figures.

        Returns
        -------
        tuple of str
            Pair, three quartiles, total, number of transfers.
        """
        rates = (format_rate(rate) for rate in self.quartiles_bytes_per_s)
        pair = f"({self.receiver}, {self.sender})"
        return (pair, *rates, format_bytes(self.total_bytes), str(self.transfers))


def pair_bandwidths(
    logs: Mapping[str, Iterable[Mapping[str, Any]]], *, names: Mapping[str, str]
) -> list[PairBandwidth]:
    """Group logged transfers by the pair of workers.

    Parameters
    ----------
    logs : mapping of str to iterable of mapping
        For the address of each worker, its ``transfer_incoming_log``: entries with ``who`` (the
        address of the sender), ``total`` (bytes) and ``bandwidth`` (bytes per second).
    names : mapping of str to str
        Name of the worker at each address.

    Returns
    -------
    list of PairBandwidth
        One for each pair with transfers above :data:`MIN_TOTAL_BYTES`, by name.
    """
    bandwidths: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    totals: defaultdict[tuple[str, str], int] = defaultdict(int)
    for receiver, entries in logs.items():
        for entry in entries:
            if entry["total"] > MIN_TOTAL_BYTES:
                pair = names.get(receiver, receiver), names.get(entry["who"], entry["who"])
                bandwidths[pair].append(float(entry["bandwidth"]))
                totals[pair] += int(entry["total"])
    return [
        PairBandwidth(
            *pair,
            (quantile(rates, 0.25), quantile(rates, 0.50), quantile(rates, 0.75)),
            totals[pair],
            len(rates),
        )
        for pair, rates in sorted(bandwidths.items())
    ]
