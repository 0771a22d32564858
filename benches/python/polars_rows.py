"""Rows of Polars beside those of clusters: the same work in one process with as many threads."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from backhaul_bench import cases
from backhaul_bench.contenders import ClusterOptions
from backhaul_bench.dask_cluster import ROLES
from backhaul_bench.summary import spread
from benches.python.children import run_child

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
    seconds, cpu_seconds, faults = (list(column) for column in zip(*found, strict=True))
    wall, nothing = spread(seconds), spread([0.0])
    none = dict.fromkeys(ROLES, nothing)
    return replace(
        first,
        configuration="polars",
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
