"""Verdict on a job: the use of its threads' time, the cause of the largest loss, and a sentence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from backhaul.dask.observe.job_runs import DISK, Run
from backhaul.dask.observe.ledger import LENT_SHARE
from backhaul.dask.observe.thread_time import KINDS, stragglers, thread_time

__all__ = ["Evidence", "Link", "Site", "Spilled", "Verdict", "judge"]

#: A loss below this share of the threads' time limits no job, and one below the next is not named
_LIMIT_SHARE: Final = 0.25
_NAMED_SHARE: Final = 0.1
#: Tasks whose median is below this are too small where Dask's overhead limits the job, in seconds
_SMALL_TASK_S: Final = 0.01
#: A link is slow if its rate is below this part of the median of all links
_SLOW_LINK_RATIO: Final = 0.25
_NAMES: Final = {
    "compute": "computing",
    "transfer": "waiting for transfers",
    "spilling": "waiting for spilled results",
    "overhead": "between tasks (Dask)",
    "stragglers": "waiting for stragglers",
    "few-tasks": "without a task",
}


class Evidence(NamedTuple):
    """One row of the table."""

    use: str
    seconds: float
    share: float
    detail: str


class Site(NamedTuple):
    """Name and threads of a worker."""

    name: str
    threads: int


class Spilled(NamedTuple):
    """Spilled results of all workers during a job: bytes, and seconds of their event loops."""

    written_bytes: float
    read_bytes: float
    seconds: float


_NOTHING: Final = Spilled(0.0, 0.0, 0.0)


class Link(NamedTuple):
    """Timed messages between two workers: bytes, of which some are lent, and seconds."""

    sender: str
    receiver: str
    nbytes: float
    seconds: float
    lent_bytes: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The limit of a job: its name, a sentence, and a row of evidence for each use of time."""

    limit: str
    sentence: str
    evidence: list[Evidence]


def judge(
    runs: Sequence[Run],
    sites: Mapping[str, Site],
    spilled: Spilled = _NOTHING,
    links: Sequence[Link] = (),
) -> Verdict:
    """Find the limit of a job of at least one run.

    The workers, those of all runs among them, are by address. `spilled` are the results that were
    spilled during the job, and `links` those between workers.
    """
    spent = thread_time(runs, {address: site.threads for address, site in sites.items()})
    _add_spills(spent, runs, sites, spilled)
    total_s = sum(spent.values()) or 1e-9
    details = _details(runs, sites, spent, spilled)
    evidence = [
        Evidence(_NAMES[kind], spent[kind], spent[kind] / total_s, details[kind]) for kind in KINDS
    ]
    losses = {kind: spent[kind] / total_s for kind in KINDS if kind != "compute"}
    cause = max(losses, key=lambda kind: losses[kind])
    if losses[cause] < _LIMIT_SHARE:
        share = spent["compute"] / total_s
        sentence = f"The tasks themselves limited the job: threads computed {share:.0%} of the time"
        if losses[cause] >= _NAMED_SHARE:
            sentence = f"{sentence}, and {_cost(cause, losses[cause]).removeprefix('threads ')}"
        return Verdict("compute", f"{sentence}.", evidence)
    limit, told = _told(cause, runs, sites, links, details)
    return Verdict(limit, f"{told}: {_cost(cause, losses[cause])}.", evidence)


def _cost(cause: str, share: float) -> str:
    way = "had no task" if cause == "few-tasks" else f"were {_NAMES[cause]}"
    return f"threads {way} {share:.0%} of the time"


def _told(
    cause: str,
    runs: Sequence[Run],
    sites: Mapping[str, Site],
    links: Sequence[Link],
    details: Mapping[str, str],
) -> tuple[str, str]:
    """Return the name of a limit, and the first half of the sentence about it."""
    detail = details[cause]
    if cause == "transfer":
        if (slow := _slow_link(links)) is not None:
            speed = f"{_rate(slow) / 1e6:.3g} MB/s"
            way = f"from {_called(slow.sender, sites)} to {_called(slow.receiver, sites)}"
            return "slow-link", f"One slow link limited the job, {way} with {speed}"
        return cause, f"Transfers limited the job ({detail})"
    if cause == "spilling":
        return cause, f"Spilling limited the job ({detail})"
    if cause == "stragglers":
        longest = stragglers(runs)[0]
        name = sites[longest.worker].name
        return cause, f"Stragglers limited the job, the longest on worker {name} ({detail})"
    if cause == "few-tasks":
        return cause, f"Too few tasks ran at the same time ({detail}); make more partitions"
    if statistics.median(run.compute_s for run in runs) < _SMALL_TASK_S:
        return "small-tasks", f"Tasks are too small ({detail}); make larger partitions"
    return cause, f"Dask's overhead limited the job ({detail})"


def _details(
    runs: Sequence[Run],
    sites: Mapping[str, Site],
    spent: Mapping[str, float],
    spilled: Spilled,
) -> dict[str, str]:
    median_s = statistics.median(run.compute_s for run in runs)
    fetches = [
        stop - start for run in runs for name, start, stop in run.actions if name == "transfer"
    ]
    late = stragglers(runs)
    job_s = max(run.stop_s for run in runs) - min(run.start_s for run in runs)
    threads = sum(site.threads for site in sites.values())
    slowest = (
        f"{len(late)} of {len(runs)} runs; {late[0].key} took {_time(late[0].compute_s)}"
        if late
        else ""
    )
    running = spent["compute"] / job_s if job_s > 0 else 0.0
    return {
        "compute": f"{len(runs)} runs, median {_time(median_s)}",
        "transfer": f"{len(fetches)} fetches, {_time(sum(fetches))} together",
        "spilling": (
            f"{spilled.written_bytes / 2**20:.0f} MiB written, "
            f"{spilled.read_bytes / 2**20:.0f} MiB read"
        ),
        "overhead": (
            f"{_time(spent['overhead'] / len(runs))} of Dask for each task of {_time(median_s)}"
        ),
        "stragglers": slowest,
        "few-tasks": f"{running:.1f} of {threads} threads computed on average",
    }


def _add_spills(
    spent: dict[str, float],
    runs: Sequence[Run],
    sites: Mapping[str, Site],
    spilled: Spilled,
) -> None:
    """Move idle time to spilling for the spills that are no actions of runs.

    The memory monitor spills on the event loop, so that a worker starts no task meanwhile.
    """
    known_s = sum(stop - start for run in runs for name, start, stop in run.actions if name in DISK)
    threads = sum(site.threads for site in sites.values()) / len(sites)
    idle = {kind: spent[kind] for kind in ("overhead", "stragglers", "few-tasks")}
    idle_s = sum(idle.values())
    moved_s = min(idle_s, max(0.0, spilled.seconds - known_s) * threads)
    if moved_s > 0:
        for kind, seconds in idle.items():
            spent[kind] -= moved_s * seconds / idle_s
        spent["spilling"] += moved_s


def _slow_link(links: Sequence[Link]) -> Link | None:
    """Return a link that took most of the time of all links and is slower than the others."""
    timed = [link for link in links if link.seconds > 0 and link.nbytes > 0]
    if len(timed) < 2:
        return None
    slow = max(timed, key=lambda link: link.seconds)
    others = [_rate(link) for link in timed if link is not slow]
    is_slow = _rate(slow) < _SLOW_LINK_RATIO * statistics.median(others)
    return slow if is_slow and slow.seconds > sum(link.seconds for link in timed) / 2 else None


def _rate(link: Link) -> float:
    """Return the rate of the bytes that moved; infinite if all were lent."""
    moved = link.nbytes - link.lent_bytes
    return math.inf if link.lent_bytes >= LENT_SHARE * link.nbytes else moved / link.seconds


def _called(address: str, sites: Mapping[str, Site]) -> str:
    """Return the name of a worker with its address, unless its name is its address."""
    name = sites[address].name if address in sites else address
    return name if name == address else f"{name} ({address})"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 0.01:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"
