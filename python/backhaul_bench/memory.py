"""``backhaul bench memory``: peak memory of clusters over time, while they run whole jobs.

Every job has a cluster of each configuration, all up together and used in turn, so that times can
be compared. The processes are read from outside; nothing runs in them for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from backhaul._machine import Machine, installed_versions
from backhaul_bench.cases import VERSIONS_OF
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.dask_cluster import BenchmarkFailed, DaskCluster
from backhaul_bench.interleaved import Measured, Steps, lanes_between_workers, measure, open_all
from backhaul_bench.memory_cases import CASES, TRANSPOSE_SUM
from backhaul_bench.pss import Memory, Sample, Sampler
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread

__all__ = ["Options", "Row", "Series", "geometric_means", "mean_pss", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(ClusterOptions):
    """Options of the benchmark."""

    #: Some of :data:`backhaul_bench.memory_cases.CASES`
    jobs: Sequence[str] = (TRANSPOSE_SUM,)
    #: Rows and columns of the array of float64, for the job ``transpose-sum``
    size: int = 12_000
    #: Rows and columns of a chunk, for the job ``transpose-sum``
    chunks: int = 2000
    #: Share of their default size that the other jobs have
    scale: float = 1.0
    #: Of each worker; each job's own if None
    memory_limit: int | None = None
    #: Repetitions of each job on each cluster
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
    """One job on one cluster."""

    job: str
    configuration: str
    input_bytes: int
    #: Wall-clock of each repetition, sampled
    seconds: list[float]
    seconds_median: float
    #: Median over that of the first configuration
    seconds_ratio: float
    #: Most that all processes held together while the job ran, of each repetition
    peak_pss_bytes: list[int]
    peak_pss: Spread
    #: The same of the workers alone
    peak_workers_pss: Spread
    #: Median of that over that of the first configuration
    workers_ratio: float
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
    #: Facts that the job reports of each repetition, where it reports some
    facts: list[dict[str, Any]]
    #: CPU time of sampling over the time of the runs
    sampling_cpu_share: float
    #: Between two samples: median, least and most
    sampling_interval_s: Spread
    series: Series


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Run each job on a cluster of each configuration in turn, sampling their memory.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each job and configuration. The findings have, by configuration, the ratios to the
        first one (``ratios``) and their geometric means over the jobs (``means``).

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, a result is wrong, or the kernel does not
        tell what a process holds.
    """
    machine = Machine.here()
    of_job = len(options.configurations) * (2 + options.repetitions)
    steps = Steps(on_step, total=len(options.jobs) * of_job)
    rows: list[Row] = []
    lanes: dict[str, list[str]] = {}
    for job in options.jobs:
        with open_all(
            options.configurations,
            workers=options.workers,
            threads=options.threads,
            steps=steps,
            memory_limit=str(options.memory_limit or CASES[job].memory_limit),
        ) as clusters:
            try:
                rows += _watch(job, clusters, options, steps)
            except OSError as error:
                raise BenchmarkFailed(f"cannot read the memory of a process: {error}") from error
            lanes |= lanes_between_workers(clusters)
    steps.done()
    return Report(
        schema="backhaul.bench.memory/2",
        machine=machine,
        versions=installed_versions(*VERSIONS_OF, "numpy", "pandas", "pyarrow"),
        options=options,
        rows=rows,
        lanes=lanes,
        findings={"means": geometric_means(rows)},
    )


def geometric_means(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Average the ratios to the first configuration over the jobs.

    Parameters
    ----------
    rows : sequence of Row
        Of a report.

    Returns
    -------
    dict of str to dict of str to float
        By configuration: ``workers`` (peak PSS of the workers), ``all`` (of all processes) and
        ``seconds``.
    """
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.configuration, []).append(row)
    return {
        configuration: {
            "workers": geometric_mean([row.workers_ratio for row in own]),
            "all": geometric_mean([row.ratio for row in own]),
            "seconds": geometric_mean([row.seconds_ratio for row in own]),
        }
        for configuration, own in found.items()
    }


def _watch(job: str, clusters: Sequence[DaskCluster], options: Options, steps: Steps) -> list[Row]:
    """Run a job on clusters in turn, sampling the memory of the one that runs it."""
    with ExitStack() as stack:
        watched = [stack.enter_context(_Watched(cluster, job, options)) for cluster in clusters]
        for each in watched:
            steps.next(f"{job}, {each.label}: first")
            each.start()
        for number in range(1, options.repetitions + 1):
            # Every other round in the other order: no cluster is always the first after another
            for each in watched if number % 2 else reversed(watched):
                steps.next(f"{job}, {each.label}: {number}/{options.repetitions}")
                each.repeat(number)
    rows: list[Row] = []
    for each in watched:
        rows.append(each.row(rows[0] if rows else None))
    return rows


class _Watched:
    """One cluster, which runs one job and is sampled while it does.

    Parameters
    ----------
    cluster : DaskCluster
        The cluster.
    job : str
        One of :data:`CASES`.
    options : Options
        Options of the benchmark.
    """

    def __init__(self, cluster: DaskCluster, job: str, options: Options) -> None:
        self.label = cluster.configuration.label
        self._cluster = cluster
        self._job = job
        self._case = CASES[job]
        self._options = options
        self._sampler = Sampler(cluster.pids, interval_s=options.interval_s)
        self._measured: list[Measured] = []
        self._runs: list[list[Sample]] = []
        self._rests: list[Sample] = []
        self._fresh: Sample | None = None

    def __enter__(self) -> _Watched:
        self._sampler.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._sampler.__exit__(*raised)

    def start(self) -> None:
        """Run the job once at a small size, so that all modules are loaded."""
        measure(
            self._cluster, self._case.job, {**self._parameters(), **self._case.first, "seed": 0}
        )
        self._fresh = self._sample("rest")

    def repeat(self, number: int) -> None:
        """Run the job once more; the samples of the run count."""
        sampler = self._sampler
        before = len(sampler.samples)
        parameters = {**self._parameters(), "seed": number}
        self._measured.append(measure(self._cluster, self._case.job, parameters, watch=self._mark))
        time.sleep(self._options.settle_s)
        self._rests.append(self._sample("rest"))
        self._runs.append([each for each in sampler.samples[before:] if each.phase == "run"])

    def row(self, first: Row | None) -> Row:
        """Sum up the repetitions, beside those of the first configuration."""
        assert self._fresh is not None
        runs, rests, sampler = self._runs, self._rests, self._sampler
        highest = max((each for run in runs for each in run), key=lambda each: each.total.pss)
        peaks = [max(each.total.pss for each in run) for run in runs]
        peak = spread(peaks)
        workers = spread([max(each.memory["workers"].pss for each in run) for run in runs])
        seconds = [each.seconds for each in self._measured]
        seconds_median = spread(seconds).median
        grown = rests[-1].total.pss - rests[0].total.pss
        return Row(
            job=self._job,
            configuration=self.label,
            input_bytes=self._measured[0].input_bytes,
            seconds=seconds,
            seconds_median=seconds_median,
            seconds_ratio=seconds_median / first.seconds_median if first else 1.0,
            peak_pss_bytes=peaks,
            peak_pss=peak,
            peak_workers_pss=workers,
            workers_ratio=workers.median / first.peak_workers_pss.median if first else 1.0,
            peak=highest.total,
            peak_memfd_bytes=max(each.memfd_bytes for run in runs for each in run),
            mean_pss_bytes=[mean_pss(run) for run in runs],
            fresh=self._fresh.total,
            rest=[each.total for each in rests],
            rest_memfd_bytes=[each.memfd_bytes for each in rests],
            growth_bytes_per_repetition=grown / max(1, len(rests) - 1),
            ratio=peak.median / first.peak_pss.median if first else 1.0,
            facts=[each.facts for each in self._measured] if self._case.has_facts else [],
            sampling_cpu_share=sampler.cpu_seconds / sampler.seconds,
            sampling_interval_s=spread([gap for run in runs for gap in _gaps(run)]),
            series=Series.of(sampler.samples),
        )

    def _parameters(self) -> dict[str, Any]:
        options = self._options
        if self._job == TRANSPOSE_SUM:
            return {"size": options.size, "chunks": options.chunks}
        return {**self._case.parameters, "scale": options.scale}

    def _mark(self, _: DaskCluster, phase: str) -> None:
        # However short a run, it has a sample at its start and one at its end.
        if phase == "check":
            self._sampler.sample()
        self._sampler.phase = phase
        if phase == "run":
            self._sampler.sample()

    def _sample(self, phase: str) -> Sample:
        """Sample once, and then no more while another cluster runs."""
        self._sampler.phase = phase
        try:
            return self._sampler.sample()
        finally:
            self._sampler.phase = ""


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
