"""``alloc``: a large NumPy array made and filled, dropped, and made again.

Most of the first fill is page faults. The second one is quick if the allocator kept the pages of
the array that was dropped. Each allocator has a new process for every repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backhaul import Arena, numpy_memory
from backhaul._machine import Machine, installed_versions
from backhaul_bench.contenders import RECYCLED_MEMORY
from backhaul_bench.report import Report
from backhaul_bench.summary import Spread, spread
from benches.python.children import in_turn, run_child

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "Options",
    "Row",
    "fill_twice",
    "install_arena",
    "run",
]


@dataclass(frozen=True)
class Allocator:
    """Where NumPy has memory from."""

    #: Added to the environment of the process
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Function to call first, as ``module:function``; empty if none
    install: str = ""


#: Allocators that can be compared, by name
ALLOCATORS = {
    "stock": Allocator(),
    "recycled": Allocator(RECYCLED_MEMORY),
    "backhaul": Allocator(install="benches.python.alloc:install_arena"),
}


def install_arena() -> None:
    """Make NumPy take memory from an arena of this process."""
    numpy_memory.install(Arena())


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the benchmark."""

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


def run(options: Options, *, on_step: Callable[[str, int], None]) -> Report[Options, Row]:
    """Let each allocator give the array twice, in turn.

    Parameters
    ----------
    options : Options
        Options of the benchmark.
    on_step : callable
        Called before each step with what comes, and how many steps are left.

    Returns
    -------
    Report
        A row for each allocator.

    Raises
    ------
    BenchmarkFailed
        If a process fails or takes too long.
    """
    machine = Machine.here()
    found = in_turn(
        options.allocators,
        lambda name: fill_twice(ALLOCATORS[name], options.nbytes),
        repetitions=options.repetitions,
        on_step=on_step,
    )
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
    return Report(
        schema="backhaul.benches.alloc/1",
        machine=machine,
        versions=installed_versions("backhaul", "numpy"),
        options=options,
        rows=rows,
    )


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
    BenchmarkFailed
        If the process fails or takes too long.
    """
    found: list[list[float]] = run_child(
        "the measured process",
        "benches.python.alloc_child",
        str(nbytes),
        allocator.install,
        environment=allocator.environment,
    )
    return found
