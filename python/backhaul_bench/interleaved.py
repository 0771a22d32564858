"""The interleaved runner: a job on several clusters in turn, with the usage of each repetition.

Each configuration has a cluster of its own; all are up at once and used in turn, so that whatever
else the machine does hits all alike.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from backhaul_bench.contenders import Configuration
from backhaul_bench.dask_cluster import ROLES, DaskCluster
from backhaul_bench.profiles import Profile, Profiler
from backhaul_bench.summary import Spread, spread
from backhaul_bench.usage import Usage, take_snapshot, usage_between

__all__ = [
    "Measured",
    "Steps",
    "Watch",
    "lanes_between_workers",
    "measure",
    "measure_in_turn",
    "open_all",
    "profile_in_turn",
    "spread_by_role",
]

#: Called with each phase of a repetition as it begins: ``prepare``, ``run``, ``check``,
#: ``release``,
#: ``rest``
Watch = Callable[[DaskCluster, str], None]

_STEP_TIMEOUT_S = 60.0
_PREPARE_TIMEOUT_S = 300.0
# Above those of the repetitions that are timed
_PROFILE_SEED = 10_000


class Steps:
    """Counts down the steps of a run.

    Parameters
    ----------
    on_step : callable
        Called before each step with what comes, and how many steps are left.
    total : int
        Number of steps.
    """

    def __init__(self, on_step: Callable[[str, int], None], *, total: int) -> None:
        self._on_step = on_step
        self._left = total

    def next(self, what: str) -> None:
        """Say what comes now."""
        self._on_step(what, self._left)
        self._left -= 1

    def done(self) -> None:
        """Say that nothing is left."""
        self._on_step("done", 0)


@dataclass(frozen=True)
class Measured:
    """One repetition."""

    #: Tasks that the job asks for; 0 if it does not say
    tasks: int
    #: Size of the data that the job read, in bytes
    input_bytes: int
    seconds: float
    #: By role
    usage: dict[str, Usage]
    #: Facts that the job reports of it
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def open_all(
    configurations: Sequence[Configuration],
    *,
    workers: int,
    threads: int,
    steps: Steps,
    memory_limit: str = "0",
) -> Iterator[list[DaskCluster]]:
    """Start a cluster for each configuration, and end them all afterwards.

    Parameters
    ----------
    configurations : sequence of Configuration
        Differences between the clusters.
    workers, threads : int
        Worker processes of each cluster, and threads of each worker.
    steps : Steps
        Called at each start.
    memory_limit : str
        Of each worker, as ``dask worker`` takes it. Without one they neither spill nor pause.

    Yields
    ------
    list of DaskCluster
        In the order of the configurations.

    Raises
    ------
    BenchmarkFailed
        If one does not start.
    """
    with ExitStack() as stack:
        clusters = []
        for configuration in configurations:
            steps.next(f"starting a cluster: {configuration.label}")
            cluster = DaskCluster(
                configuration, workers=workers, threads=threads, memory_limit=memory_limit
            )
            clusters.append(stack.enter_context(cluster))
        yield clusters


def measure_in_turn(
    clusters: Sequence[DaskCluster],
    job: str,
    parameters: dict[str, Any],
    *,
    repetitions: int,
    steps: Steps,
    case: str | None = None,
    warmup: int = 1,
    seed: int = 0,
    watch: Watch | None = None,
) -> dict[str, list[Measured]]:
    """Run a job on each cluster, first to warm up and then several times.

    Parameters
    ----------
    clusters : sequence of DaskCluster
        Used in turn.
    job : str
        Its name, as ``backhaul_bench.jobs`` knows it.
    parameters : dict of str to Any
        Parameters of the job; ``seed`` is added, and differs between repetitions.
    repetitions : int
        Repetitions that count.
    steps : Steps
        Called at each repetition.
    case : str, optional
        How the steps name it, if not by the job's name.
    warmup : int
        Repetitions before them that do not count.
    seed : int
        Of the first repetition; the next ones count up.
    watch : callable, optional
        Called with each phase of the repetitions that count.

    Returns
    -------
    dict of str to list of Measured
        By label of the configuration, in the order of the clusters.

    Raises
    ------
    BenchmarkFailed
        If a job fails, takes too long or gives a wrong result.
    """
    found: dict[str, list[Measured]] = {each.configuration.label: [] for each in clusters}
    for number in range(1 - warmup, 1 + repetitions):
        # Every other round in the other order: no cluster is always the first after another
        for cluster in clusters if number % 2 == 0 else reversed(clusters):
            label = cluster.configuration.label
            counts = number > 0
            what = f"{number}/{repetitions}" if counts else "warm-up"
            steps.next(f"{case or job}, {label}: {what}")
            measured = measure(
                cluster,
                job,
                {**parameters, "seed": seed + number + warmup - 1},
                watch=watch if counts else None,
            )
            if counts:
                found[label].append(measured)
    return found


def measure(
    cluster: DaskCluster, job: str, parameters: dict[str, Any], *, watch: Watch | None = None
) -> Measured:
    """Run a job once.

    Parameters
    ----------
    cluster : DaskCluster
        Where.
    job : str
        Its name, as ``backhaul_bench.jobs`` knows it.
    parameters : dict of str to Any
        Parameters of the job.
    watch : callable, optional
        Called with each phase.

    Returns
    -------
    Measured
        Time and usage of the run, without preparing and checking.

    Raises
    ------
    BenchmarkFailed
        If it fails, takes too long or gives a wrong result.
    """
    watch = watch or _ignore
    watch(cluster, "prepare")
    prepared = cluster.command(
        "prepare", job=job, parameters=parameters, timeout_s=_PREPARE_TIMEOUT_S
    )
    timeout_s = prepared["timeout_s"]
    pids = cluster.pids
    everyone = [pid for role in ROLES for pid in pids[role]]
    watch(cluster, "run")
    before = take_snapshot(everyone)
    seconds = cluster.command("run", timeout_s=timeout_s)["seconds"]
    after = take_snapshot(everyone)
    watch(cluster, "check")
    facts = cluster.command("check", timeout_s=timeout_s)["facts"]
    watch(cluster, "release")
    cluster.command("release", timeout_s=timeout_s)
    watch(cluster, "rest")
    usage = {role: usage_between(before, after, pids[role]) for role in ROLES}
    return Measured(prepared["tasks"], prepared["input_bytes"], seconds, usage, facts)


def profile_in_turn(
    clusters: Sequence[DaskCluster],
    job: str,
    parameters: dict[str, Any],
    profiler: Profiler,
    *,
    steps: Steps,
    case: str | None = None,
) -> list[Profile]:
    """Profile a job on each cluster.

    Parameters
    ----------
    clusters : sequence of DaskCluster
        Used in turn.
    job : str
        Its name, as ``backhaul_bench.jobs`` knows it.
    parameters : dict of str to Any
        Parameters of the job; ``seed`` is added.
    profiler : Profiler
        Where to.
    steps : Steps
        Called at each cluster.
    case : str, optional
        How the profiles name it, if not by the job's name.

    Returns
    -------
    list of Profile
        One for each cluster and role.

    Raises
    ------
    BenchmarkFailed
        If a job fails, takes too long or gives a wrong result.
    ProfilerFailed
        If the processes cannot be profiled.
    """
    found = []
    seeds = itertools.count(_PROFILE_SEED)
    for cluster in clusters:
        steps.next(f"{case or job}, {cluster.configuration.label}: profile")
        repeat = functools.partial(_repeat, cluster, job, parameters, seeds)
        found += profiler.profile(cluster, case or job, repeat)
    return found


def spread_by_role(
    repetitions: Sequence[Measured], value: Callable[[Usage], float]
) -> dict[str, Spread]:
    """Give the spread of something that each role used.

    Parameters
    ----------
    repetitions : sequence of Measured
        At least one.
    value : callable
        Value to take of the usage of one role in one repetition.

    Returns
    -------
    dict of str to Spread
        By role.
    """
    return {role: spread([value(each.usage[role]) for each in repetitions]) for role in ROLES}


def lanes_between_workers(clusters: Sequence[DaskCluster]) -> dict[str, list[str]]:
    """Tell the lanes between the workers of each cluster.

    Parameters
    ----------
    clusters : sequence of DaskCluster
        Clusters that have moved data.

    Returns
    -------
    dict of str to list of str
        By label of the configuration.
    """
    return {
        each.configuration.label: each.command("lanes", timeout_s=_STEP_TIMEOUT_S)["lanes"]
        for each in clusters
    }


def _repeat(
    cluster: DaskCluster, job: str, parameters: dict[str, Any], seeds: Iterator[int]
) -> None:
    measure(cluster, job, {**parameters, "seed": next(seeds)})


def _ignore(cluster: DaskCluster, phase: str) -> None:
    """Watch nothing."""
