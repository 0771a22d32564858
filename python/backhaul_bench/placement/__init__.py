"""``backhaul bench placement``: where Dask puts work, on machines that are simulated.

Dask's own scheduler, work stealing and worker state machines run in simulated time, as they are and
with Backhaul's placement, and what a workload takes is held against what it takes at least. How
that is done is in `simulation_job`, in child processes, as a run depends on ``PYTHONHASHSEED``.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backhaul._machine import Machine as ThisMachine
from backhaul._machine import installed_versions
from backhaul_bench.dask_cluster import BenchmarkFailed
from backhaul_bench.placement.described import load_machine
from backhaul_bench.placement.gantt import write_gantt
from backhaul_bench.placement.machines import COMPARED
from backhaul_bench.placement.workloads import WORKLOADS
from backhaul_bench.report import Report

__all__ = ["POLICIES", "Options", "Row", "run"]

#: Policies that place tasks: Dask alone, or with Backhaul
POLICIES = ("upstream", "backhaul")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the benchmark."""

    #: Names of built-in machines, or paths of files that describe one
    machines: Sequence[str] = COMPARED
    #: Some of `WORKLOADS`
    workloads: Sequence[str] = tuple(WORKLOADS)
    #: Some of `POLICIES`
    policies: Sequence[str] = POLICIES
    #: Runs of each, with hash seeds from 0
    seeds: int = 1
    #: A few tasks of each workload
    small: bool = False
    #: Where to draw the first workload on the first machine, if anywhere
    plot: str | None = None


@dataclass(frozen=True)
class Row:
    """One workload on one machine under one policy. Medians over the seeds."""

    machine: str
    workload: str
    policy: str
    #: Simulated time, in seconds
    seconds: float
    #: Least time that it takes: all tasks over all threads, or the critical path
    bound_s: float
    over_bound: float
    #: Time of the first policy over this one's
    ratio: float
    #: Between workers, and between hosts
    moved_bytes: int
    crossed_bytes: int


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Simulate every workload on every machine under every policy.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each run with what comes, and how many runs are left.

    Returns
    -------
    Report
        A row for each, and the geometric mean of ``over_bound`` and ``ratio`` by machine and
        policy as the finding ``means``.

    Raises
    ------
    MachineError
        If a file does not describe a machine.
    BenchmarkFailed
        If a simulation failed.
    """
    machines = {name: load_machine(name) for name in options.machines}
    cases = [
        {"machine": machine, "workload": workload, "policy": policy, "seed": seed}
        for machine in options.machines
        for workload in options.workloads
        for policy in options.policies
        for seed in range(options.seeds)
    ]
    drawn = (options.machines[0], options.workloads[0])
    for case in cases:
        case["small"] = options.small
        case["traced"] = bool(
            options.plot and (case["machine"], case["workload"]) == drawn and case["seed"] == 0
        )
    found = _simulate(cases, on_step)
    rows = [
        row
        for machine in options.machines
        for workload in options.workloads
        for row in _rows(machine, workload, options, found)
    ]
    if options.plot is not None:
        traces = {
            answer["case"]["policy"]: answer["trace"] for answer in found if "trace" in answer
        }
        write_gantt(
            Path(options.plot), machines[drawn[0]], traces, title=f"{drawn[1]} on {drawn[0]}"
        )
    return Report(
        schema="backhaul.bench.placement/1",
        machine=ThisMachine.here(),
        versions=installed_versions("backhaul", "distributed", "dask"),
        options=options,
        rows=rows,
        findings={"means": _means(rows)},
    )


def _rows(
    machine: str, workload: str, options: Options, found: Sequence[dict[str, Any]]
) -> list[Row]:
    rows: list[Row] = []
    for policy in options.policies:
        named = {"machine": machine, "workload": workload, "policy": policy}
        runs = [answer for answer in found if named.items() <= answer["case"].items()]
        seconds = statistics.median(answer["seconds"] for answer in runs)
        first_s = rows[0].seconds if rows else seconds
        rows.append(
            Row(
                **named,
                seconds=seconds,
                bound_s=runs[0]["bound_s"],
                over_bound=seconds / runs[0]["bound_s"],
                ratio=first_s / seconds,
                moved_bytes=int(statistics.median(answer["moved_bytes"] for answer in runs)),
                crossed_bytes=int(statistics.median(answer["crossed_bytes"] for answer in runs)),
            )
        )
    return rows


def _means(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Geometric means, by machine and policy."""
    means: list[dict[str, Any]] = []
    for machine, policy in dict.fromkeys((row.machine, row.policy) for row in rows):
        of = [row for row in rows if (row.machine, row.policy) == (machine, policy)]
        means.append(
            {
                "machine": machine,
                "policy": policy,
                "over_bound": math.exp(statistics.fmean(math.log(row.over_bound) for row in of)),
                "ratio": math.exp(statistics.fmean(math.log(row.ratio) for row in of)),
                "ratio_min": min(row.ratio for row in of),
            }
        )
    return means


def _simulate(
    cases: list[dict[str, Any]], on_step: Callable[[str, int], None]
) -> list[dict[str, Any]]:
    """Run all cases, on as many processes as there are CPUs; each is tied to one hash seed."""
    answers: list[dict[str, Any]] = []
    left = list(cases)
    lock = threading.Lock()

    def take(seed: int | None) -> dict[str, Any] | None:
        with lock:
            case = next((case for case in left if seed is None or case["seed"] == seed), None)
            if case is not None:
                on_step(f"{case['workload']} on {case['machine']}", len(left))
                left.remove(case)
            return case

    def work() -> None:
        while (case := take(None)) is not None:
            with _Child(int(case["seed"])) as child:
                following: dict[str, Any] | None = case
                while following is not None:
                    answers.append({**child.ask(following), "case": following})
                    following = take(int(case["seed"]))

    processes = min(len(os.sched_getaffinity(0)), len(cases))
    with ThreadPoolExecutor(processes) as pool:
        try:
            for done in [pool.submit(work) for _ in range(processes)]:
                done.result()
        finally:
            with lock:
                left.clear()
    return answers


class _Child:
    """A process that simulates one case after another."""

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backhaul_bench.placement.case_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        """Simulate a case in the process."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            _, said = process.communicate()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise BenchmarkFailed(
                f"simulating {case['workload']} on {case['machine']} ended: {last[0]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
