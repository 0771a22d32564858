"""``backhaul bench memory``: what a whole cluster holds over time, while it sums ``x + x.T``.

One cluster after the other, so that none shares pages with the next. The processes are read from
outside; nothing runs in them for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul.bench.cases import VERSIONS_OF
from backhaul.bench.contenders import ClusterOptions
from backhaul.bench.dask_cluster import BenchmarkFailed, DaskCluster
from backhaul.bench.interleaved import Measured, Steps, lanes_between_workers, measure, open_all
from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.pss import Memory, Sample, Sampler
from backhaul.bench.report import Report
from backhaul.bench.summary import Spread, spread

__all__ = ["Options", "Row", "Series", "mean_pss", "run"]

_JOB = "transpose-sum"
#: Rows and chunks of an array that loads every module, and is not worth a figure
_FIRST_SIZE = 200
_FIRST_CHUNKS = 100


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Rows and columns of the array of float64
    size: int = 12_000
    #: Rows and columns of a chunk
    chunks: int = 2000
    #: Repetitions of the job on each cluster
    repetitions: int = 5
    #: Rest between two samples
    interval_s: float = 0.05
    #: Time between the end of a repetition and the sample of the cluster at rest
    settle_s: float = 0.5


@dataclass(frozen=True)
class Series:
    """Samples as columns, in order of time."""

    #: Since the first one
    seconds: list[float]
    #: ``prepare`` makes the array, ``run`` is the job, ``check`` sums the array alone, ``release``
    #: drops it all, ``rest`` follows
    phase: list[str]
    #: By role
    pss_bytes: dict[str, list[int]]
    anon_bytes: dict[str, list[int]]
    shmem_bytes: dict[str, list[int]]
    swap_bytes: dict[str, list[int]]
    #: Pages that the memfds of all processes have, mapped or not
    memfd_bytes: list[int]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Series:
        """Turn samples into columns.

        Parameters
        ----------
        samples : sequence of Sample
            Of one cluster; at least one.

        Returns
        -------
        Series
            The same.
        """
        pss, anon, shmem, swap = (
            {role: [each.memory[role][field] for each in samples] for role in samples[0].memory}
            for field in range(len(Memory._fields))
        )
        return cls(
            seconds=[each.seconds for each in samples],
            phase=[each.phase for each in samples],
            pss_bytes=pss,
            anon_bytes=anon,
            shmem_bytes=shmem,
            swap_bytes=swap,
            memfd_bytes=[each.memfd_bytes for each in samples],
        )


@dataclass(frozen=True)
class Row:
    """One cluster."""

    configuration: str
    input_bytes: int
    #: Wall-clock of each repetition, sampled
    seconds: list[float]
    #: Most that all processes held together while the job ran, of each repetition
    peak_pss_bytes: list[int]
    peak_pss: Spread
    #: Parts of the highest of the peaks
    peak: Memory
    #: Most that memfds had in the runs, mapped or not
    peak_memfd_bytes: int
    #: Mean over the time that the job ran, of each repetition
    mean_pss_bytes: list[float]
    #: Before the first repetition, all modules loaded
    fresh: Memory
    #: Once each repetition is over and everything dropped
    rest: list[Memory]
    rest_memfd_bytes: list[int]
    #: Rest after the last repetition less rest after the first, over the repetitions between
    growth_bytes_per_repetition: float
    #: Median of the peaks over that of the first configuration
    ratio: float
    #: CPU time of sampling over the time that it went on
    sampling_cpu_share: float
    #: Between two samples: median, least and most
    sampling_interval_s: Spread
    series: Series


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Run the job on one cluster after the other, sampling its memory.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each configuration.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, a result is wrong, or the kernel does not
        tell what a process holds.
    """
    machine = Machine.here()
    steps = Steps(on_step, total=len(options.configurations) * (2 + options.repetitions))
    rows: list[Row] = []
    lanes: dict[str, list[str]] = {}
    for configuration in options.configurations:
        with open_all(
            [configuration],
            workers=options.workers,
            threads=options.threads,
            steps=steps,
            memory_limit="auto",
        ) as clusters:
            try:
                rows.append(_watch(clusters[0], options, steps, first=rows[0] if rows else None))
            except OSError as error:
                raise BenchmarkFailed(f"cannot read the memory of a process: {error}") from error
            lanes |= lanes_between_workers(clusters)
    steps.done()
    return Report(
        schema="backhaul.bench.memory/1",
        machine=machine,
        versions=installed_versions(*VERSIONS_OF, "numpy"),
        options=options,
        rows=rows,
        lanes=lanes,
    )


def _watch(cluster: DaskCluster, options: Options, steps: Steps, *, first: Row | None) -> Row:
    """Run the job on a cluster, sampling its memory."""
    label = cluster.configuration.label
    steps.next(f"{label}: first")
    measure(cluster, _JOB, {"size": _FIRST_SIZE, "chunks": _FIRST_CHUNKS, "seed": 0})
    measured: list[Measured] = []
    runs: list[list[Sample]] = []
    rests: list[Sample] = []
    with Sampler(cluster.pids, interval_s=options.interval_s) as sampler:

        def mark(_: DaskCluster, phase: str) -> None:
            # However short a run, it has a sample at its start and one at its end.
            if phase == "check":
                sampler.sample()
            sampler.phase = phase
            if phase == "run":
                sampler.sample()

        sampler.phase = "rest"
        fresh = sampler.sample()
        for number in range(1, options.repetitions + 1):
            steps.next(f"{label}: {number}/{options.repetitions}")
            before = len(sampler.samples)
            parameters = {"size": options.size, "chunks": options.chunks, "seed": number}
            measured.append(measure(cluster, _JOB, parameters, watch=mark))
            time.sleep(options.settle_s)
            rests.append(sampler.sample())
            runs.append([each for each in sampler.samples[before:] if each.phase == "run"])
        cpu_share = sampler.cpu_seconds / sampler.seconds
    highest = max((each for run in runs for each in run), key=lambda each: each.total.pss)
    peaks = [max(each.total.pss for each in run) for run in runs]
    peak = spread(peaks)
    grown = rests[-1].total.pss - rests[0].total.pss
    return Row(
        configuration=label,
        input_bytes=measured[0].input_bytes,
        seconds=[each.seconds for each in measured],
        peak_pss_bytes=peaks,
        peak_pss=peak,
        peak=highest.total,
        peak_memfd_bytes=max(each.memfd_bytes for run in runs for each in run),
        mean_pss_bytes=[mean_pss(run) for run in runs],
        fresh=fresh.total,
        rest=[each.total for each in rests],
        rest_memfd_bytes=[each.memfd_bytes for each in rests],
        growth_bytes_per_repetition=grown / max(1, len(rests) - 1),
        ratio=peak.median / (first.peak_pss.median if first else peak.median),
        sampling_cpu_share=cpu_share,
        sampling_interval_s=spread([gap for run in runs for gap in _gaps(run)]),
        series=Series.of(sampler.samples),
    )


def mean_pss(samples: Sequence[Sample]) -> float:
    """Average PSS over time, linear between samples.

    Parameters
    ----------
    samples : sequence of Sample
        In order of time; at least two.

    Returns
    -------
    float
        In bytes.
    """
    held = [each.total.pss for each in samples]
    pairs = zip(_gaps(samples), itertools.pairwise(held), strict=True)
    areas = [gap * (one + two) / 2 for gap, (one, two) in pairs]
    return sum(areas) / (samples[-1].seconds - samples[0].seconds)


def _gaps(samples: Sequence[Sample]) -> list[float]:
    return [later.seconds - earlier.seconds for earlier, later in itertools.pairwise(samples)]
