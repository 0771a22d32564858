"""``overproduction``: peak memory of jobs that suffer when roots run ahead of what releases them.

Upstream bounds the number of root tasks on a worker for the sake of these (dask/distributed#5223,
#5555, #6360, #7128, and its test ``test_graph_execution_width``). Each job runs on one cluster,
with `backhaul.dask.scheduler.window` and without, in turn, and the peaks are compared: of the data
that workers hold, and of the resident memory of their processes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, Scheduler, Worker, WorkerPlugin

import dask
from backhaul_bench.summary import Spread, spread

__all__ = ["JOBS", "Options", "Row", "main", "run"]

_MB = 1e6


@dataclass(frozen=True)
class Options:
    """Options of the benchmark."""

    #: Names of jobs
    jobs: Sequence[str] = field(default_factory=lambda: tuple(JOBS))
    #: Repetitions of each job, each way
    repeats: int = 5
    #: Worker processes
    workers: int = 2
    #: Threads of each
    threads: int = 2
    #: Memory of each, in bytes
    memory_bytes: int = 4 * 2**30
    #: URI scheme
    protocol: str = "tcp"


@dataclass(frozen=True)
class Row:
    """Peaks of one job one way, each summed over the workers."""

    job: str
    #: Whether the in-flight window was on
    ours: bool
    #: Most bytes of data that workers held
    managed_bytes: Spread
    #: Growth of the resident memory of the workers' processes, at its peak, in bytes
    resident_bytes: Spread
    #: Wall-clock, in seconds
    seconds: Spread


def run(options: Options, *, on_step: Callable[[str], None]) -> list[Row]:
    """Run every job both ways, in turn.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each job with its name.

    Returns
    -------
    list of Row
        Two for each job: upstream's, then ours.

    Raises
    ------
    KeyError
        If a job is unknown.
    RuntimeError
        If the in-flight window cannot be installed.
    """
    rows = []
    with (
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=options.threads,
            memory_limit=options.memory_bytes,
            protocol=f"{options.protocol}://",
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(_Peak(), name=_Peak.name)
        for name in options.jobs:
            on_step(name)
            job = JOBS[name]
            samples: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
            # The first of each is a warm-up: it imports modules and fills pools of memory.
            for number in range(options.repeats + 1):
                for ours in (number % 2 == 0, number % 2 == 1):
                    sample = _sample(client, job, ours=ours)
                    if number:
                        samples[ours].append(sample)
            for ours, taken in samples.items():
                columns = [spread(column) for column in zip(*taken, strict=True)]
                rows.append(Row(name, ours, *columns))
    return rows


def _sample(client: Client, job: Callable[[], Any], *, ours: bool) -> tuple[float, ...]:
    if client.run_on_scheduler(_switch, ours=ours) != ours:
        raise RuntimeError("the in-flight window could not be installed")
    client.run(_start)
    start = time.perf_counter()
    client.compute(job()).result()
    seconds = time.perf_counter() - start
    peaks = client.run(_peaks).values()
    managed, resident = zip(*peaks, strict=True)
    _wait_released(client)
    return sum(managed), sum(resident), seconds


def _switch(dask_scheduler: Scheduler, ours: bool) -> bool:
    from backhaul.dask.scheduler.window import install, uninstall

    uninstall(dask_scheduler)
    return install(dask_scheduler) if ours else False


class _Peak(WorkerPlugin):
    """Notes the most that a worker held; runs on the worker."""

    name = "backhaul-peak"

    def setup(self, worker: Worker) -> None:
        self.state = worker.state
        self.start()

    def start(self) -> None:
        self.managed_bytes = 0
        # Resets the peak of the resident memory: proc(5), "clear_refs".
        Path("/proc/self/clear_refs").write_text("5")
        self.resident_bytes = _status_bytes("VmRSS")

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        self.managed_bytes = max(self.managed_bytes, self.state.nbytes)

    def peaks(self) -> tuple[int, int]:
        return self.managed_bytes, _status_bytes("VmHWM") - self.resident_bytes


def _start(dask_worker: Worker) -> None:
    cast(_Peak, dask_worker.plugins[_Peak.name]).start()


def _peaks(dask_worker: Worker) -> tuple[int, int]:
    return cast(_Peak, dask_worker.plugins[_Peak.name]).peaks()


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{name} is not in /proc/self/status")


def _wait_released(client: Client) -> None:
    while any(client.run(lambda dask_worker: len(dask_worker.data)).values()):
        time.sleep(0.02)


# --- Jobs -----------------------------------------------------------------------------------------


def _random(rows: int = 200, *, columns: int = 1000, chunk_rows: int = 125) -> Any:
    """Make an array of 1 MB chunks, as quick to make as they are light."""
    rng = da.random.default_rng(1)
    shape = (rows * chunk_rows, columns)
    return rng.random(shape, chunks=(chunk_rows, columns))


def _ones() -> Any:
    """Make an array of 4 MB chunks that cost next to nothing to make: the worst for us."""
    return da.ones((150 * 500, 1000), chunks=(500, 1000))


def _mean() -> Any:
    return _random().mean()


def _rolling() -> Any:
    array = _random()
    return array.map_overlap(lambda block: block.cumsum(axis=0), depth={0: 5, 1: 0}).mean()


def _anomaly() -> Any:
    array = _random(100)
    return (array - array.mean(axis=0)).std()


def _by_day() -> Any:
    """Mean by group of a time: ``Dataset.groupby("time.dayofyear").mean`` without xarray."""
    array = _random()
    return da.stack([array[day::20].mean(axis=0) for day in range(20)]).sum()


def _sum_of_ones() -> Any:
    return _ones().sum()


def _store() -> Any:
    nowhere: Any = _Nowhere()
    return da.store(_random() + 1, nowhere, lock=False, compute=False)


def _timeseries() -> Any:
    frame = dask.datasets.timeseries(
        start="2000-01-01", end="2000-03-31", freq="10s", partition_freq="1d", seed=1
    )
    return frame.groupby("name").x.mean()


def _width() -> Any:
    """Run chains of steps that end in nothing, as in ``test_graph_execution_width``."""
    make, same, drop = (dask.delayed(each) for each in (_megabyte, _same, _nothing))
    return dask.delayed(len)([drop(same(same(make(number)))) for number in range(150)])


class _Nowhere:
    """Forgets what is stored in it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def _megabyte(number: int) -> Any:
    return np.full(125_000, float(number))


def _same(value: Any) -> Any:
    return value.copy()


def _nothing(value: Any) -> None:
    return None


JOBS: dict[str, Callable[[], Any]] = {
    "mean": _mean,
    "rolling": _rolling,
    "anomaly": _anomaly,
    "mean by day": _by_day,
    "sum of ones": _sum_of_ones,
    "store": _store,
    "timeseries": _timeseries,
    "width": _width,
}


@click.command("overproduction")
@click.argument("jobs", nargs=-1, type=click.Choice(list(JOBS)))
def main(jobs: tuple[str, ...]) -> None:
    """Compare the peak memory of jobs with and without the in-flight window."""
    options = Options(jobs=jobs) if jobs else Options()
    lines = ["| job | | managed, MB | resident, MB | s |", "|---|---|---|---|---|"]

    def show(name: str) -> None:
        click.echo(name, err=True)

    for row in run(options, on_step=show):
        cells = [
            f"{each.median * scale:.{digits}f} ({each.minimum * scale:.{digits}f}–"
            f"{each.maximum * scale:.{digits}f})"
            for each, scale, digits in [
                (row.managed_bytes, 1 / _MB, 0),
                (row.resident_bytes, 1 / _MB, 0),
                (row.seconds, 1, 2),
            ]
        ]
        lines.append(f"| {row.job} | {'ours' if row.ours else 'upstream'} | {' | '.join(cells)} |")
    click.echo("\n".join(lines))
