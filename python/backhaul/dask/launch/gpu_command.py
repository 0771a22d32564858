"""Options of ``dask backhaul worker`` for GPUs, by their names in ``dask cuda worker``."""

from __future__ import annotations

import click

__all__ = ["GPU_OPTIONS"]

_SIZE = "bytes, a fraction of the GPU's memory like 0.8, or a size like 5GB"


def _switch(on: str, off: str, text: str, *, default: bool | None) -> click.Option:
    return click.Option([f"--{on}/--{off}"], default=default, help=text)


def _size(option: str, text: str) -> click.Option:
    return click.Option([f"--{option}"], help=f"{text}: {_SIZE}.")


GPU_OPTIONS: list[click.Parameter] = [
    _size(
        "device-memory-limit",
        "Most memory of its GPU that a worker's results may take before they move to the host",
    ),
    _size("rmm-pool-size", "What a pool of GPU memory of each worker begins with"),
    _size("rmm-maximum-pool-size", "What it may grow to"),
    _size("rmm-release-threshold", "Free memory above which CUDA's own pool gives it back"),
    _switch(
        "rmm-managed-memory",
        "no-rmm-managed-memory",
        "Allocate memory that moves between host and GPU by itself.",
        default=False,
    ),
    _switch("rmm-async", "no-rmm-async", "Allocate from CUDA's own pool.", default=False),
    click.Option(
        ["--set-rmm-allocator-for-libs", "rmm_allocator_external_lib_list"],
        help="Libraries that shall allocate from the same, like cupy,torch.",
    ),
    click.Option(["--rmm-log-directory"], help="Where each worker logs what it allocates."),
    _switch(
        "rmm-track-allocations",
        "no-rmm-track-allocations",
        "Count what is allocated, for the dashboard.",
        default=False,
    ),
    *(
        _switch(
            f"enable-{way}",
            f"disable-{way}",
            f"As the key {key} of distributed-ucxx; by default chosen for each pair of workers.",
            default=None,
        )
        for way, key in (
            ("tcp-over-ucx", "tcp"),
            ("infiniband", "infiniband"),
            ("nvlink", "nvlink"),
            ("rdmacm", "rdmacm"),
        )
    ),
    click.Option(
        ["--pre-import"], help="Modules that workers import as they start, like cudf,rmm."
    ),
]
