"""Limits of the system for a process: descriptors, and CPUs to poll on."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from backhaul.doctor.findings import Finding, State

__all__ = ["examine"]

#: Descriptors that a hundred peers on one host need, about: each has a socket, two memories, a
#: doorbell and the carriers' own
_DESCRIPTORS_WANTED = 1024


def examine() -> Iterator[Finding]:
    """Look at the limits that are met first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{_count(soft)}, of at most {_count(hard)}"
    if soft == resource.RLIM_INFINITY or soft >= _DESCRIPTORS_WANTED:
        yield Finding("limits", "descriptors", State.WORKS, detail)
    else:
        advice = f"raise it: ulimit -n {_DESCRIPTORS_WANTED}; a peer on this host takes about eight"
        yield Finding("limits", "descriptors", State.LIMITED, detail, advice)
    cpus = len(os.sched_getaffinity(0))
    if cpus > 1:
        yield Finding("limits", "CPUs", State.WORKS, f"{cpus} may be used")
    else:
        advice = "with one CPU no thread polls, and each message costs a wake-up"
        yield Finding("limits", "CPUs", State.LIMITED, "one may be used", advice)


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
