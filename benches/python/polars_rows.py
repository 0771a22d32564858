"""Rows of Polars beside those of clusters: the same work in one process with as many threads."""

from __future__ import annotations

import importlib.util

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from benches.python.children import child_row, run_child

__all__ = ["has_polars", "polars_row"]


def has_polars() -> bool:
    """Tell whether Polars is installed."""
    return importlib.util.find_spec("polars") is not None


def polars_row(
    first: cases.Row, options: ClusterOptions, module: str, *arguments: object
) -> cases.Row:
    """Measure one case by Polars.

    Parameters
    ----------
    first : Row
        Row that it is compared with.
    options : ClusterOptions
        Options of the clusters.
    module : str
        Program that prints seconds, CPU seconds and page faults of each repetition as JSON.
    *arguments : object
        Its arguments.
    """
    threads = str(options.workers * options.threads)
    found = run_child(
        "polars", module, *map(str, arguments), environment={"POLARS_MAX_THREADS": threads}
    )
    return child_row(first, "polars", found)
