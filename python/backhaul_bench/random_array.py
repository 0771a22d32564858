"""``backhaul bench random-array``: one reduction of random numbers, on one core up to all GPUs.

The experiment of M. Rocklin, "GPU Dask Arrays, first steps" (2019): ``(x + 1)[::2, ::2].sum()`` of
an array of normal numbers that is made as it is summed. There it had 500,000 rows and took 159 min
on one core, 11.5 min on forty, 97 s on one GPU and 19 s on eight. Here the size is an option.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backhaul._machine import Machine, installed_versions
from backhaul_bench.dask_cluster import BenchmarkFailed
from backhaul_bench.report import Missing, Report
from backhaul_bench.summary import Spread, spread

__all__ = ["ARCHITECTURES", "MEAN", "Options", "Row", "run"]

#: Ways to compute it: name of the option, and of the row
ARCHITECTURES = {
    "core": "one core",
    "threads": "all cores, threads",
    "workers": "all cores, workers over backhaul",
    "gpu": "one GPU",
    "gpus": "all GPUs",
}

#: Of the numbers, whose standard deviation is 1; each has one added
MEAN = 10.0

#: Sums of the same numbers differ this much at most: the order of summation is Dask's choice
RELATIVE_TOLERANCE = 1e-9

#: A mean of independent numbers is off by more than that many standard errors once in 10⁸ runs
_STANDARD_ERRORS = 6.0

_GPU_NEEDS = "pip install cupy-cuda12x, and a GPU"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the benchmark."""

    #: Some of :data:`ARCHITECTURES`
    on: Sequence[str] = tuple(ARCHITECTURES)
    #: Rows and columns of the array of float64
    size: int = 10_000
    #: Rows and columns of a chunk
    chunks: int = 1000
    repetitions: int = 3
    seed: int = 1
    #: Seconds after which one computation counts as failed
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Row:
    """Results of one architecture."""

    on: str
    #: Threads, workers or GPUs
    units: int
    seconds: Spread
    #: Of the random numbers, over the median
    bytes_per_s: float
    #: The median of the first row over this one's
    times_as_fast: float
    #: Of each repetition
    sums: list[float]


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Compute on each architecture in turn, each in a process of its own.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each computation with what comes, and how many are left.

    Returns
    -------
    Report
        Hardware that is missing, such as a GPU, is in `missing`, without a row.

    Raises
    ------
    BenchmarkFailed
        If a computation fails, or its result is wrong.
    """
    found: dict[str, list[dict[str, float]]] = {}
    missing: dict[str, Missing] = {}
    left = options.repetitions * len(options.on)
    for number in range(options.repetitions):
        for on in options.on:
            on_step(f"{ARCHITECTURES[on]}: {number + 1}/{options.repetitions}", left)
            left -= 1
            if on in missing:
                continue
            answer = _compute(on, options, options.seed + number)
            if "missing" in answer:
                missing[on] = Missing(ARCHITECTURES[on], str(answer["missing"]), _GPU_NEEDS)
            else:
                found.setdefault(on, []).append(answer)
    on_step("done", 0)
    rows = _rows(found, options)
    _check_sums(rows, options)
    return Report(
        schema="backhaul.bench.random-array/1",
        machine=Machine.here(),
        versions=installed_versions("backhaul", "dask", "distributed", "numpy", "cupy-cuda12x"),
        options=options,
        rows=rows,
        missing=list(missing.values()),
    )


def _compute(on: str, options: Options, seed: int) -> dict[str, float]:
    arguments = (on, options.size, options.chunks, seed, MEAN)
    command = [sys.executable, "-m", "backhaul_bench.random_array_child", *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=options.timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired:
        name = ARCHITECTURES[on]
        raise BenchmarkFailed(f"{name}: no result within {options.timeout_s:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = "\n".join(error.stderr.strip().splitlines()[-6:])
        name = ARCHITECTURES[on]
        raise BenchmarkFailed(f"{name}: ended with {error.returncode}:\n{said}") from None
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _rows(found: dict[str, list[dict[str, float]]], options: Options) -> list[Row]:
    rows: list[Row] = []
    for on, answers in found.items():
        seconds = spread([answer["seconds"] for answer in answers])
        first = rows[0].seconds.median if rows else seconds.median
        rows.append(
            Row(
                on=on,
                units=int(answers[0]["units"]),
                seconds=seconds,
                bytes_per_s=8 * options.size**2 / seconds.median,
                times_as_fast=first / seconds.median,
                sums=[answer["sum"] for answer in answers],
            )
        )
    return rows


def _check_sums(rows: Sequence[Row], options: Options) -> None:
    """Compare the sums of the same seeds on CPUs, and all with what is expected."""
    count = math.ceil(options.size / 2) ** 2
    expected = (MEAN + 1) * count
    tolerance = _STANDARD_ERRORS * math.sqrt(count)
    for row in rows:
        for each in row.sums:
            if abs(each - expected) > tolerance:
                raise BenchmarkFailed(
                    f"{ARCHITECTURES[row.on]}: the sum is {each!r}, expected {expected!r}"
                    f" ± {tolerance:.3g}"
                )
    on_cpus = [row for row in rows if not row.on.startswith("gpu")]
    for row in on_cpus[1:]:
        for one, other in zip(on_cpus[0].sums, row.sums, strict=True):
            if abs(one - other) > RELATIVE_TOLERANCE * abs(one):
                raise BenchmarkFailed(
                    f"{ARCHITECTURES[row.on]}: the sum is {other!r},"
                    f" on {ARCHITECTURES[on_cpus[0].on]} {one!r}"
                )
