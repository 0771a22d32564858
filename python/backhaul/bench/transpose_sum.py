"""``backhaul bench transpose-sum``: one Dask array job over several protocols, results compared.

Each protocol has a LocalCluster of two worker processes with one thread each. In turn, each
persists a random array, which is not timed, and computes ``(x + x.T).sum()``, which is. Every
repetition has a new array: workers keep what they fetched, so that a second sum over the same
array would move less.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, Worker, wait

from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.summary import spread
from backhaul.bench.transfers import PairBandwidth, pair_bandwidths

__all__ = ["RELATIVE_TOLERANCE", "Options", "ProtocolResult", "Report", "run"]

#: Results may differ this much: the order of summation is Dask's choice
RELATIVE_TOLERANCE = 1e-9

_RELEASE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Options:
    """What to compute."""

    #: Rows and columns of the array of float64
    size: int = 8000
    #: Rows and columns of a chunk
    chunks: int = 1000
    #: Timed repetitions for each protocol
    repeats: int = 5
    #: Repetitions before them that are not counted
    warmup: int = 1
    #: Seed of the first array; the next ones count up
    seed: int = 1
    #: URI schemes
    protocols: Sequence[str] = ("tcp", "backhaul")

    @property
    def array_bytes(self) -> int:
        """Size of one array."""
        return self.size * self.size * 8


@dataclass(frozen=True)
class ProtocolResult:
    """What one protocol took."""

    protocol: str
    #: Wall-clock of each timed repetition
    seconds: list[float]
    seconds_median: float
    seconds_min: float
    seconds_max: float
    #: Size of the array over the median time
    array_bytes_per_s: float
    #: Bytes that workers fetched from each other, median over repetitions
    moved_bytes_median: float
    #: Lane of each pair of workers that is in use, by ``(from, to)``
    lanes: dict[str, str]
    bandwidths: list[PairBandwidth]
    #: Sum of each timed repetition
    sums: list[float]


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    machine: Machine
    versions: dict[str, str]
    options: Options
    results: list[ProtocolResult]
    #: Whether all protocols computed the same sums
    equal: bool
    relative_tolerance: float = RELATIVE_TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            With ``schema`` naming this layout.
        """
        return {"schema": "backhaul.bench.transpose-sum/1", **asdict(self)}


@dataclass
class _Run:
    """A cluster that runs, with what was measured on it."""

    protocol: str
    client: Client
    seconds: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    moved_bytes: list[int] = field(default_factory=list)
    transfers: defaultdict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report:
    """Run the job over every protocol, in turn.

    Parameters
    ----------
    options : Options
        What to compute.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        Times, transfers, and whether the results are equal.

    Raises
    ------
    ValueError
        If a protocol is unknown to Dask.
    OSError
        If a cluster cannot start.
    """
    machine = Machine.here()
    rounds = options.warmup + options.repeats
    left = len(options.protocols) * (rounds + 1)
    with ExitStack() as stack:
        runs = []
        for protocol in options.protocols:
            on_step(f"starting two workers over {protocol}://", left)
            left -= 1
            cluster = stack.enter_context(_cluster(protocol))
            runs.append(_Run(protocol, stack.enter_context(Client(cluster))))
        for number in range(rounds):
            # Every other round in the other order: nobody is always the first after another
            for each in runs if number % 2 == 0 else reversed(runs):
                timed = number >= options.warmup
                what = f"{number - options.warmup + 1}/{options.repeats}" if timed else "warm-up"
                on_step(f"{each.protocol}:// {what}", left)
                left -= 1
                _repeat(each, options, seed=options.seed + number, timed=timed)
        results = [_result(each, options) for each in runs]
        on_step("done", 0)
    return Report(
        machine,
        installed_versions("backhaul", "dask", "distributed", "numpy", "tornado"),
        options,
        results,
        equal=_all_equal([result.sums for result in results]),
    )


def _cluster(protocol: str) -> LocalCluster:
    return LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        protocol=f"{protocol}://",
        host="127.0.0.1",
        # Any port: the dashboard is not shown, but cannot be left out
        dashboard_address=":0",
        silence_logs=logging.ERROR,
    )


def _repeat(run: _Run, options: Options, *, seed: int, timed: bool) -> None:
    shape = (options.size, options.size)
    x = da.random.default_rng(seed).random(shape, chunks=(options.chunks, options.chunks))
    x = run.client.persist(x)
    wait(x)
    _take_transfers(run.client)
    start = time.perf_counter()
    total = float(run.client.compute((x + x.T).sum()).result())
    seconds = time.perf_counter() - start
    logs = _take_transfers(run.client)
    if timed:
        run.seconds.append(seconds)
        run.sums.append(total)
        run.moved_bytes.append(sum(int(e["total"]) for log in logs.values() for e in log))
        for worker, log in logs.items():
            run.transfers[worker].extend(log)
    del x
    _wait_released(run.client)


def _take_transfers(client: Client) -> dict[str, list[dict[str, Any]]]:
    logs: dict[str, list[dict[str, Any]]] = client.run(_take_log)
    return logs


def _take_log(dask_worker: Worker) -> list[dict[str, Any]]:
    """Empty the log of fetched data; runs on the worker."""
    log = dask_worker.transfer_incoming_log
    taken = [{key: entry[key] for key in ("who", "total", "bandwidth")} for entry in log]
    log.clear()
    return taken


def _count_data(dask_worker: Worker) -> int:
    return len(dask_worker.data)


def _wait_released(client: Client) -> None:
    """Wait until no worker holds data, so that the next array finds the same room."""
    deadline = time.monotonic() + _RELEASE_TIMEOUT_S
    while any(client.run(_count_data).values()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"workers still hold data after {_RELEASE_TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def _result(run: _Run, options: Options) -> ProtocolResult:
    workers = run.client.scheduler_info(n_workers=-1)["workers"]
    names = {address: f"w{info['name']}" for address, info in workers.items()}
    seconds = spread(run.seconds)
    return ProtocolResult(
        protocol=run.protocol,
        seconds=run.seconds,
        seconds_median=seconds.median,
        seconds_min=seconds.minimum,
        seconds_max=seconds.maximum,
        array_bytes_per_s=options.array_bytes / seconds.median,
        moved_bytes_median=spread(run.moved_bytes).median,
        lanes=_lanes(run, names),
        bandwidths=pair_bandwidths(run.transfers, names=names),
        sums=run.sums,
    )


def _lanes(run: _Run, names: dict[str, str]) -> dict[str, str]:
    from backhaul.dask import lanes

    found: Any = lanes(run.client)
    return {f"{names[source]} to {names[target]}": lane for (source, target), lane in found.items()}


def _all_equal(sums: Sequence[Sequence[float]]) -> bool:
    first = np.asarray(sums[0])
    return all(
        bool(np.allclose(np.asarray(other), first, rtol=RELATIVE_TOLERANCE, atol=0.0))
        for other in sums[1:]
    )
