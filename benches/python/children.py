"""Measured processes that are started anew for each repetition, one contender after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from backhaul_bench.cases import Row
from backhaul_bench.dask_cluster import ROLES, BenchmarkFailed
from backhaul_bench.summary import spread

__all__ = ["child_row", "in_turn", "run_child"]

_TIMEOUT_S = 120.0

T = TypeVar("T")


def in_turn(
    names: Sequence[str],
    measure: Callable[[str], T],
    *,
    repetitions: int,
    on_step: Callable[[str, int], None],
) -> dict[str, list[T]]:
    """Measure each contender once in every round.

    Parameters
    ----------
    names : sequence of str
        The contenders.
    measure : callable
        Measures the one of that name once.
    repetitions : int
        Rounds.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    dict of str to list
        Measurements, by name.
    """
    left = len(names) * repetitions
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(1, repetitions + 1):
        for name in names:
            on_step(f"{name}: {number}/{repetitions}", left)
            left -= 1
            found[name].append(measure(name))
    on_step("done", 0)
    return found


def run_child(
    what: str,
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> Any:
    """Run a measured process, and read what it prints as JSON.

    Parameters
    ----------
    what : str
        Name of the task, for messages.
    module : str
        Its program.
    *arguments : str
        Its arguments.
    environment : mapping of str to str, optional
        Variables to add to those of this process.
    timeout_s : float
        How long it may take.

    Raises
    ------
    BenchmarkFailed
        If it fails or takes too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkFailed(f"{what} took more than {timeout_s:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = "\n".join(error.stderr.strip().splitlines()[-6:])
        raise BenchmarkFailed(f"{what} ended with {error.returncode}:\n{said}") from None
    return json.loads(done.stdout)


def child_row(first: Row, configuration: str, found: Sequence[Sequence[float]]) -> Row:
    """Make the row of a process that does the job of a case without a cluster.

    Parameters
    ----------
    first : Row
        The row of the case that the process is compared with.
    configuration : str
        Name of the process.
    found : sequence of sequence of float
        Seconds, CPU seconds and page faults of each repetition.
    """
    seconds, cpu_seconds, faults = (list(column) for column in zip(*found, strict=True))
    wall, nothing = spread(seconds), spread([0.0])
    none = dict.fromkeys(ROLES, nothing)
    return replace(
        first,
        configuration=configuration,
        seconds=seconds,
        seconds_median=wall.median,
        seconds_min=wall.minimum,
        seconds_max=wall.maximum,
        input_bytes_per_s=first.input_bytes / wall.median,
        ratio=first.seconds_median / wall.median,
        cpu_seconds={**none, "workers": spread(cpu_seconds)},
        context_switches=none,
        page_faults={**none, "workers": spread(faults)},
        facts=[],
    )
