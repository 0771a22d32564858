"""``backhaul bench tasks``: what a trivial task costs over several protocols.

Each configuration has a cluster of its own (``backhaul.bench.dask_cluster``), all of them up at
once and used in turn, so that whatever else the machine does hits all alike. Reported for each
task: wall-clock as the client sees it, CPU time and context switches of client, scheduler and
workers, from the moment of submission until the results are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from backhaul.bench.dask_cluster import ROLES, Configuration, DaskCluster
from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.summary import Spread, spread
from backhaul.bench.usage import Usage, take_snapshot, usage_between

__all__ = ["DEFAULT_TASKS", "VERSIONS_OF", "Measured", "Options", "Report", "Row", "measure", "run"]

#: Cases, and how many tasks each has unless something else is asked for
DEFAULT_TASKS = {"map": 5000, "chain": 300, "tree": 1023, "all-to-all": 100, "submit": 200}
#: Distributions whose version is reported
VERSIONS_OF = ("backhaul", "dask", "distributed", "cloudpickle", "msgpack", "tornado")

_STEP_TIMEOUT_S = 60.0
_TASK_TIMEOUT_S = 0.05


@dataclass(frozen=True)
class Options:
    """What to run."""

    #: Some of :data:`DEFAULT_TASKS`
    cases: Sequence[str] = tuple(DEFAULT_TASKS)
    #: URI schemes
    protocols: Sequence[str] = ("tcp", "backhaul")
    #: Values of ``distributed.scheduler.worker-saturation``, each with every protocol
    saturations: Sequence[float] = (1.1, 20.0)
    workers: int = 2
    #: Of each worker
    threads: int = 1
    #: Timed repetitions of each case in each configuration
    repetitions: int = 5
    #: Tasks of every case; each case's own number if None
    tasks: int | None = None
    #: How the functions of the tasks are pickled, one of ``backhaul.bench.jobs.FUNCTIONS``
    function: str = "module"

    @property
    def configurations(self) -> list[Configuration]:
        """What is compared; the first one is what the others are held to."""
        return [Configuration(p, s) for p in self.protocols for s in self.saturations]


@dataclass(frozen=True)
class Measured:
    """One repetition."""

    #: Tasks that the cluster ran
    tasks: int
    #: Size of the data that the job read, in bytes
    input_bytes: int
    seconds: float
    #: By role
    usage: dict[str, Usage]


@dataclass(frozen=True)
class Row:
    """One case in one configuration. Every figure is for one task."""

    case: str
    configuration: str
    tasks: int
    #: Wall-clock, of each repetition
    us: list[float]
    us_median: float
    us_min: float
    us_max: float
    #: Wall-clock of the first configuration over this one's, medians
    ratio: float
    #: By role, summed over its processes
    cpu_us: dict[str, Spread]
    context_switches: dict[str, Spread]


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    machine: Machine
    versions: dict[str, str]
    options: Options
    rows: list[Row]
    #: Lanes between the workers of each configuration
    lanes: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            With ``schema`` naming this layout. A spread is median, minimum and maximum.
        """
        return {"schema": "backhaul.bench.tasks/1", **asdict(self)}


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report:
    """Run every case in every configuration, in turn.

    Parameters
    ----------
    options : Options
        What to run.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each case and configuration.

    Raises
    ------
    BenchmarkFailed
        If a cluster does not start or does not answer, or a result is wrong.
    """
    machine = Machine.here()
    configurations = options.configurations
    left = len(configurations) * (1 + len(options.cases) * (1 + options.repetitions))
    rows: list[Row] = []
    with ExitStack() as stack:
        clusters = []
        for configuration in configurations:
            on_step(f"starting a cluster: {configuration.label}", left)
            left -= 1
            clusters.append(
                stack.enter_context(
                    DaskCluster(configuration, workers=options.workers, threads=options.threads)
                )
            )
        for case in options.cases:
            # The order of the configurations is that of the report
            found: dict[str, list[Measured]] = {each.label: [] for each in configurations}
            for number in range(1 + options.repetitions):
                # Every other round in the other order: nobody is always the first after another
                for cluster in clusters if number % 2 == 0 else reversed(clusters):
                    label = cluster.configuration.label
                    what = f"{number}/{options.repetitions}" if number else "warm-up"
                    on_step(f"{case}, {label}: {what}", left)
                    left -= 1
                    measured = measure(cluster, case, _parameters(options, case, number))
                    if number:
                        found[label].append(measured)
            rows += _rows(case, found)
        lanes = {
            each.configuration.label: each.command("lanes", timeout_s=_STEP_TIMEOUT_S)["lanes"]
            for each in clusters
        }
        on_step("done", 0)
    return Report(machine, installed_versions(*VERSIONS_OF), options, rows, lanes)


def measure(cluster: DaskCluster, job: str, parameters: dict[str, Any]) -> Measured:
    """Run a job once.

    Parameters
    ----------
    cluster : DaskCluster
        Where.
    job : str
        Its name, as ``backhaul.bench.jobs`` knows it.
    parameters : dict of str to Any
        What the job takes.

    Returns
    -------
    Measured
        Time and usage of the run, without preparing and checking.

    Raises
    ------
    BenchmarkFailed
        If it fails, takes too long or gives a wrong result.
    """
    prepared = cluster.command("prepare", job=job, parameters=parameters, timeout_s=_STEP_TIMEOUT_S)
    timeout_s = _STEP_TIMEOUT_S + _TASK_TIMEOUT_S * prepared["tasks"]
    pids = cluster.pids
    everyone = [pid for role in ROLES for pid in pids[role]]
    before = take_snapshot(everyone)
    seconds = cluster.command("run", timeout_s=timeout_s)["seconds"]
    after = take_snapshot(everyone)
    cluster.command("finish", timeout_s=timeout_s)
    usage = {role: usage_between(before, after, pids[role]) for role in ROLES}
    return Measured(prepared["tasks"], prepared["input_bytes"], seconds, usage)


def _parameters(options: Options, case: str, number: int) -> dict[str, Any]:
    tasks = DEFAULT_TASKS[case] if options.tasks is None else options.tasks
    return {"tasks": tasks, "function": options.function, "seed": number}


def _rows(case: str, found: dict[str, list[Measured]]) -> list[Row]:
    rows: list[Row] = []
    for label, repetitions in found.items():
        tasks = repetitions[0].tasks
        us = [each.seconds / tasks * 1e6 for each in repetitions]
        wall = spread(us)
        cpu_us = {
            role: spread([each.usage[role].cpu_seconds / tasks * 1e6 for each in repetitions])
            for role in ROLES
        }
        switches = {
            role: spread([each.usage[role].context_switches / tasks for each in repetitions])
            for role in ROLES
        }
        first = rows[0].us_median if rows else wall.median
        ratio = first / wall.median
        rows.append(Row(case, label, tasks, us, *wall, ratio, cpu_us, switches))
    return rows
