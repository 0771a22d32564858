"""Faults of a run, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["JOBS", "KEEP_ALIVE_S", "LANES", "Fault", "Link", "Plan", "draw"]

#: Jobs of a run, see `tests.chaos.driver`
JOBS = ("shuffle", "transpose", "chain", "map")

#: Lanes of the processes of one host. Between hosts it is tcp always.
LANES = ("shm", "tcp")

#: Silence after which a peer counts as dead. Short, so that a run can outlast it.
KEEP_ALIVE_S = 4.0


@dataclass(frozen=True)
class Fault:
    """Something that happens to a worker, to the scheduler, or to the link between the hosts.

    Parameters
    ----------
    at_s : float
        When, in seconds since the job began.
    kind : str
        ``kill`` or ``stop`` a worker, ``stop-scheduler``, ``cut`` the link.
    worker : int
        Which worker, where that matters.
    seconds : float
        How long until it is undone; a kill stays.
    """

    at_s: float
    kind: str
    worker: int
    seconds: float

    def __str__(self) -> str:
        who = f" {self.worker}" if self.kind in ("kill", "stop") else ""
        how_long = f" for {self.seconds:.1f}" if self.seconds else ""
        return f"{self.kind}{who} at {self.at_s:.1f}{how_long}"


@dataclass(frozen=True)
class Link:
    """The link between the hosts while a job runs; as in `Network.set_link`."""

    delay_s: float
    loss: float
    bytes_per_s: float | None

    def __str__(self) -> str:
        rate = "" if self.bytes_per_s is None else f", {self.bytes_per_s / 1e6:.0f} MB/s"
        return f"{self.delay_s * 1e3:.0f} ms, {self.loss:.1%} lost{rate}"


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    job: str
    lane: str
    link: Link
    faults: tuple[Fault, ...]


def draw(seed: int, *, workers: int, jobs_per_cluster: int) -> Plan:
    """Say what happens in the run of a seed.

    Parameters
    ----------
    seed : int
        The same seed gives the same run.
    workers : int
        How many there are to choose from.
    jobs_per_cluster : int
        Runs that follow each other on one cluster, and so have a lane in common.
    """
    rng = random.Random(f"chaos {seed}")
    faults = sorted(
        (_draw_fault(rng, workers) for _ in range(rng.randint(1, 4))), key=lambda one: one.at_s
    )
    link = Link(
        delay_s=rng.choice([0.0, 0.0, 0.002, 0.02]),
        loss=rng.choice([0.0, 0.0, 0.002, 0.01]),
        bytes_per_s=rng.choice([None, None, 100e6, 30e6]),
    )
    return Plan(
        seed=seed,
        # Neighbours in a cluster run different jobs, and each job meets both lanes.
        job=JOBS[seed % len(JOBS)],
        lane=LANES[seed // jobs_per_cluster % len(LANES)],
        link=link,
        faults=tuple(faults),
    )


def _draw_fault(rng: random.Random, workers: int) -> Fault:
    at_s, worker = rng.uniform(0.1, 4.0), rng.randrange(workers)
    kind = rng.choices(["kill", "stop", "stop-scheduler", "cut"], [4, 3, 1, 3])[0]
    seconds = {
        "kill": 0.0,
        # Longer than the keep-alive, too: who is stopped is not dead.
        "stop": rng.uniform(0.2, 1.5 * KEEP_ALIVE_S),
        "stop-scheduler": rng.uniform(0.2, 3.0),
        # Half of them so short that no connection may end, half so long that all must.
        "cut": rng.choice([rng.uniform(0.2, 2.0), rng.uniform(2.0, 3.0) * KEEP_ALIVE_S]),
    }[kind]
    return Fault(at_s, kind, worker, seconds)
