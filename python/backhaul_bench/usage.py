"""Usage of processes between two moments: CPU time, context switches, page faults, of all threads.

Linux only. Read from outside, so that the measured process does nothing for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Snapshot", "Usage", "process_cpu_seconds", "take_snapshot", "usage_between"]

# CPUCLOCK_SCHED of include/linux/posix-timers.h: time on a CPU as the scheduler counts it, in ns.
# The files of /proc that psutil reads count in steps of 10 ms.
_CPUCLOCK_SCHED = 2
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """Resources that one or several processes used."""

    #: User and system time of all threads, those that ended included
    cpu_seconds: float
    #: Voluntary and involuntary, of threads that still run; each voluntary one is a wait
    context_switches: int
    #: Page faults that read nothing from disk; each new page costs one
    page_faults: int


@dataclass(frozen=True)
class Snapshot:
    """The counters of some processes at one moment."""

    cpu_seconds: Mapping[int, float]
    #: By process and thread
    context_switches: Mapping[tuple[int, int], int]
    page_faults: Mapping[int, int]


def process_cpu_seconds(pid: int) -> float:
    """Read the CPU time of a process.

    Parameters
    ----------
    pid : int
        The process; any process of this machine may be asked for.

    Returns
    -------
    float
        Seconds of user and system time since it started, of all its threads.

    Raises
    ------
    ProcessLookupError
        If there is no such process.

    Notes
    -----
    The clock of a process is ``~pid << 3`` with the kind in the lower bits, as
    ``clock_getcpuclockid`` computes it (include/linux/posix-timers.h).
    """
    try:
        return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"process {pid} ended") from error


def take_snapshot(pids: Iterable[int]) -> Snapshot:
    """Read the counters of some processes.

    Parameters
    ----------
    pids : iterable of int
        The processes.

    Returns
    -------
    Snapshot
        Their counters now.

    Raises
    ------
    ProcessLookupError
        If one of them ended.
    """
    pids = list(pids)
    switches = {(pid, tid): count for pid in pids for tid, count in _thread_switches(pid)}
    return Snapshot(
        {pid: process_cpu_seconds(pid) for pid in pids},
        switches,
        {pid: _page_faults(pid) for pid in pids},
    )


def usage_between(before: Snapshot, after: Snapshot, pids: Iterable[int]) -> Usage:
    """Sum what some of the processes used from one snapshot to the next.

    Parameters
    ----------
    before, after : Snapshot
        Both hold every one of the processes.
    pids : iterable of int
        The processes to sum over.

    Returns
    -------
    Usage
        The sum.
    """
    wanted = set(pids)
    return Usage(
        cpu_seconds=sum(after.cpu_seconds[pid] - before.cpu_seconds[pid] for pid in wanted),
        context_switches=sum(
            count - before.context_switches.get(thread, 0)
            for thread, count in after.context_switches.items()
            if thread[0] in wanted
        ),
        page_faults=sum(after.page_faults[pid] - before.page_faults[pid] for pid in wanted),
    )


def _page_faults(pid: int) -> int:
    """Read field 10, ``minflt``, of proc_pid_stat(5); the second may hold blanks and brackets."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"process {pid} ended") from error
    return int(fields[7])


def _thread_switches(pid: int) -> list[tuple[int, int]]:
    try:
        threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} ended") from error
    found = []
    for thread in threads:
        try:
            status = Path(f"/proc/{pid}/task/{thread}/status").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended meanwhile
        found.append((thread, sum(int(count) for count in _SWITCHES.findall(status))))
    return found
