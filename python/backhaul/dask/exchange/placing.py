"""Hosts of the workers of an exchange: which of them makes which outputs, and where tasks run.

Workers of one host share memory, those of several hosts do not. An exchange between hosts gives
each host a range of the outputs, and annotates its tasks with the workers that they may run on, so
that each row crosses a link once at most. These restrictions are strict, because Dask's work
stealing would take tasks with loose ones to another host. `PinnedTasks` therefore replaces the
workers of tasks that have lost all of theirs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from distributed import Scheduler, SchedulerPlugin

from backhaul.dask.compat.operations import EXCHANGE

__all__ = [
    "Host",
    "OutputRange",
    "PinnedTasks",
    "Pins",
    "host_name",
    "output_ranges",
    "restricts_workers",
    "shift_of",
]

#: Annotation of the tasks that an exchange restricts to workers
_ANNOTATION: Final = "backhaul-exchange"
#: Annotations with which a program chooses workers
_RESTRICTING: Final = ("workers", "restrictions", "resources")
#: Hexadecimal digits of a token that choose the host of the first outputs
_SHIFT_DIGITS: Final = 8


def host_name() -> str:
    """Identify the kernel, the namespaces and the user that processes share memory in."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = (os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid"))
    return "-".join(map(str, (boot, *namespaces, os.getuid())))


@dataclass(frozen=True)
class Host:
    """Workers that share memory.

    Parameters
    ----------
    name : str
        As `host_name` gives it there.
    threads : dict of str to int
        Threads of the workers, by their addresses.
    """

    name: str
    threads: dict[str, int]


@dataclass(frozen=True)
class OutputRange:
    """The output partitions that one host makes.

    Parameters
    ----------
    host : Host
        The host.
    start, stop : int
        Its first slot, and the one after its last.
    """

    host: Host
    start: int
    stop: int

    def worker_of(self, slot: int) -> str:
        """Return the worker that makes an output partition, in proportion to the threads."""
        shares = _shares(self.stop - self.start, list(self.host.threads.values()))
        place = next(at for at, (_, stop) in enumerate(shares) if slot - self.start < stop)
        return list(self.host.threads)[place]


def output_ranges(hosts: Sequence[Host], slots: int, shift: int) -> list[OutputRange]:
    """Assign output partitions to hosts, in proportion to their threads.

    Parameters
    ----------
    hosts : sequence of Host
        The hosts.
    slots : int
        Number of output partitions.
    shift : int
        The host that has the first ones; hosts without any are left out.
    """
    first = shift % len(hosts)
    turned = [*hosts[first:], *hosts[:first]]
    shares = _shares(slots, [sum(host.threads.values()) for host in turned])
    return [
        OutputRange(host, start, stop)
        for host, (start, stop) in zip(turned, shares, strict=True)
        if start < stop
    ]


def shift_of(token: str) -> int:
    """Choose the host that has the first outputs, so that small exchanges use different ones."""
    return int(token[-_SHIFT_DIGITS:], 16)


def restricts_workers(annotations: Any) -> bool:
    """Tell whether the program chooses workers by annotations."""
    return any(name in (annotations or ()) for name in _RESTRICTING)


def _shares(count: int, weights: Sequence[int]) -> list[tuple[int, int]]:
    """Divide a range by weights."""
    ends = [-(-count * end // sum(weights)) for end in itertools.accumulate(weights, initial=0)]
    return list(itertools.pairwise(ends))


@dataclass
class Pins:
    """Workers that the tasks of a graph are restricted to, and tasks that run before others.

    Parameters
    ----------
    workers : dict
        The addresses, by the keys of the tasks.
    early : set
        Keys of tasks that run as soon as they can.
    priority : float
        The priority of the program's tasks.
    """

    workers: dict[Any, list[str]] = field(default_factory=dict)
    early: set[Any] = field(default_factory=set)
    priority: float = 0

    def annotate(self, expr: Any) -> None:
        """Let an expression give these restrictions when Dask next reads its annotations."""
        if not self.workers:
            return

        def __dask_annotations__() -> dict[str, dict[Any, Any]]:
            del vars(expr)["__dask_annotations__"]
            found = {name: dict(by_key) for name, by_key in expr.__dask_annotations__().items()}
            found.setdefault("workers", {}).update(self.workers)
            early = dict.fromkeys(self.early, self.priority + 1)
            found.setdefault("priority", {}).update(early)
            found[_ANNOTATION] = dict.fromkeys(self.workers, True)
            return found

        vars(expr)["__dask_annotations__"] = __dask_annotations__

    def annotations(self, priority: Any) -> dict[str, Any]:
        """Return these restrictions as annotations of all tasks of a graph.

        Dask calls a function with the key of each task. A task of an empty list may run anywhere.

        Parameters
        ----------
        priority : float or callable
            The program's annotation.
        """

        def workers_of(key: Any) -> list[str]:
            return self.workers.get(key, [])

        def priority_of(key: Any) -> Any:
            of_program = priority(key) if callable(priority) else priority
            return of_program + 1 if key in early else of_program

        early = self.early
        return {"workers": workers_of, "priority": priority_of, _ANNOTATION: True}

    def clear(self) -> None:
        """Forget all tasks."""
        self.workers.clear()
        self.early.clear()


class PinnedTasks(SchedulerPlugin):
    """Gives tasks of exchanges other workers when all of theirs have left.

    Attributes
    ----------
    hosts : dict of str to str
        Names of hosts by the addresses of workers that had tasks of an exchange between hosts.
    """

    name = "backhaul-exchange"

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}

    def note(self, hosts: Iterable[Host]) -> None:
        """Note the workers that may get tasks."""
        self.hosts.update((address, host.name) for host in hosts for address in host.threads)

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Move the tasks of a worker that leaves, if it had any."""
        if worker in self.hosts:
            self.move_tasks(scheduler, stimulus_id)

    def move_tasks(self, scheduler: Scheduler, stimulus_id: str) -> None:
        """Restrict tasks whose workers have all left to others, of one host if there are any."""
        if all(address in scheduler.workers for address in self.hosts):
            return
        moved: list[Any] = []
        choices: dict[str, itertools.cycle[str]] = {}
        for ts in scheduler.tasks.values():
            workers = ts.worker_restrictions
            if (
                not workers
                or _ANNOTATION not in (ts.annotations or ())
                or any(address in scheduler.workers for address in workers)
            ):
                continue
            host = self.hosts.get(min(workers), "")
            found = _workers_near(scheduler, host)
            if len(workers) == 1 and found:
                choice = choices.setdefault(host, itertools.cycle(found))
                found = [next(choice)]
            scheduler.set_restrictions({ts.key: found or None})
            if ts.state == "no-worker":
                moved.append(ts.key)
        self.hosts = {
            address: host for address, host in self.hosts.items() if address in scheduler.workers
        }
        scheduler.transitions(dict.fromkeys(moved, "processing"), stimulus_id)


def _workers_near(scheduler: Scheduler, host: str) -> list[str]:
    """List the workers of a host, or else those of the host with the most threads."""
    by_host: dict[str, list[str]] = {}
    threads: dict[str, int] = {}
    for address, ws in scheduler.workers.items():
        name = str((ws.extra.get(EXCHANGE) or {}).get("host"))
        by_host.setdefault(name, []).append(address)
        threads[name] = threads.get(name, 0) + ws.nthreads
    if host not in by_host and by_host:
        host = max(sorted(by_host), key=threads.__getitem__)
    return by_host.get(host, [])
