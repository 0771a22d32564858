"""``backhaul bench alloc``: a large NumPy array made and filled, dropped, and made again.

Most of the first fill is page faults. The second one is quick if the allocator kept the pages of
the array that was dropped. Each allocator has a new process for every repetition.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backhaul import Arena, numpy_memory
from backhaul.bench.configurations import RECYCLED_MEMORY
from backhaul.bench.machine import Machine, installed_versions
from backhaul.bench.summary import Spread, spread

__all__ = [
    "ALLOCATORS",
    "AllocationFailed",
    "Allocator",
    "Options",
    "Report",
    "Row",
    "fill_twice",
    "install_arena",
    "run",
]

_TIMEOUT_S = 120.0


class AllocationFailed(RuntimeError):
    """A measured process failed or took too long."""


@dataclass(frozen=True)
class Allocator:
    """Where NumPy has memory from."""

    #: Added to the environment of the process
    environment: Mapping[str, str] = field(default_factory=dict)
    #: What to call first, as ``module:function``; empty if nothing
    install: str = ""


#: What can be compared, by name
ALLOCATORS = {
    "stock": Allocator(),
    "recycled": Allocator(RECYCLED_MEMORY),
    "backhaul": Allocator(install="backhaul.bench.alloc:install_arena"),
}


def install_arena() -> None:
    """Have NumPy take memory from an arena of this process."""
    numpy_memory.install(Arena())


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run."""

    #: Some of :data:`ALLOCATORS`; the first one is what the others are held to
    allocators: Sequence[str] = tuple(ALLOCATORS)
    #: Size of the array
    nbytes: int = 128 * 2**20
    #: Processes for each allocator
    repetitions: int = 5


@dataclass(frozen=True)
class Row:
    """One allocator."""

    allocator: str
    #: Of the first array and of the second, over the repetitions
    first_seconds: Spread
    second_seconds: Spread
    first_page_faults: Spread
    second_page_faults: Spread
    #: Median of the first allocator's second fill over this one's
    ratio: float


@dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    machine: Machine
    versions: dict[str, str]
    options: Options
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON values.

        Returns
        -------
        dict of str to Any
            With ``schema`` naming this layout. A spread is median, minimum and maximum.
        """
        return {"schema": "backhaul.bench.alloc/1", **asdict(self)}


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report:
    """Have each allocator give the array twice, in turn.

    Parameters
    ----------
    options : Options
        What to run.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each allocator.

    Raises
    ------
    AllocationFailed
        If a process fails or takes too long.
    """
    machine = Machine.here()
    left = len(options.allocators) * options.repetitions
    found: dict[str, list[list[list[float]]]] = {name: [] for name in options.allocators}
    for number in range(1, options.repetitions + 1):
        for name in options.allocators:
            on_step(f"{name}: {number}/{options.repetitions}", left)
            left -= 1
            found[name].append(fill_twice(ALLOCATORS[name], options.nbytes))
    on_step("done", 0)
    rows: list[Row] = []
    for name, repetitions in found.items():
        # From repetition, fill, figure to fill, figure
        figures = [
            [spread(figure) for figure in zip(*fills, strict=True)]
            for fills in zip(*repetitions, strict=True)
        ]
        (first_s, first_faults), (second_s, second_faults) = figures
        base = rows[0].second_seconds.median if rows else second_s.median
        ratio = base / second_s.median
        rows.append(Row(name, first_s, second_s, first_faults, second_faults, ratio))
    return Report(machine, installed_versions("backhaul", "numpy"), options, rows)


def fill_twice(allocator: Allocator, nbytes: int) -> list[list[float]]:
    """Fill two arrays, one after the other, in a process of their own.

    Parameters
    ----------
    allocator : Allocator
        Where they have memory from.
    nbytes : int
        Size of each.

    Returns
    -------
    list of list of float
        For each fill its seconds and page faults.

    Raises
    ------
    AllocationFailed
        If the process fails or takes too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "backhaul.bench.alloc_child", str(nbytes), allocator.install],
            env={**os.environ, **allocator.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise AllocationFailed(f"two fills took more than {_TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = "\n".join(error.stderr.strip().splitlines()[-6:])
        raise AllocationFailed(
            f"the measured process ended with {error.returncode}:\n{said}"
        ) from None
    found: list[list[float]] = json.loads(done.stdout)
    return found
