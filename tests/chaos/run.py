"""Runs Dask jobs with known answers while processes die and stop and the network breaks.

::

    make chaos                              # 20 seeds
    make chaos ARGS='--seeds 200 --log chaos.log'
    make chaos ARGS='--trust certificate'   # over TLS; or secret
    .venv/bin/python -m tests.chaos.run --first 37 --seeds 1

Two hosts in network namespaces, a cluster on both (`tests.chaos.cluster`). Each seed is one job and
what goes wrong meanwhile (`tests.chaos.schedule`). In the end everything is undone, and all workers
must come back. The exit status is 1 if a result was wrong, a job failed or hung, or the cluster did
not become whole again; then the logs of all processes are kept, with what each of them waited for.

A few runs follow each other on one cluster, so what a run leaves behind can break the next one; a
seed with ``--seeds 1`` has a cluster of its own.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.cluster import ADDRESSES, WORKERS, Cluster, Hung
from tests.chaos.mischief import Mischief
from tests.chaos.network import Network, why_no_network
from tests.chaos.schedule import LANES, Plan, draw
from tests.chaos.trust import KINDS

#: Far more than a job takes, whatever happens to it
JOB_TIMEOUT_S = 300.0

#: Runs on one cluster
JOBS_PER_CLUSTER = 10


def main() -> int:
    """Run the seeds, print what became of each, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--protocol", default="backhaul", help="tcp, to compare")
    parser.add_argument("--lane", choices=LANES, help="instead of the one of each seed")
    parser.add_argument("--trust", choices=KINDS, default="anyone", help="what peers have to show")
    parser.add_argument("--seconds", type=float, help="begin no run after so long")
    parser.add_argument("--log", type=Path, help="file for the lines, too")
    options = parser.parse_args()
    if reason := why_no_network():
        sys.stderr.write(f"no chaos here: {reason}\n")
        return 1
    plans = [
        draw(seed, workers=len(WORKERS), jobs_per_cluster=JOBS_PER_CLUSTER)
        for seed in range(options.first, options.first + options.seeds)
    ]
    log = open(options.log, "a", encoding="utf-8") if options.log else None  # noqa: SIM115

    def show(line: str) -> None:
        for stream in filter(None, (sys.stdout, log)):
            stream.write(line + "\n")
            stream.flush()

    last = options.first + options.seeds - 1
    show(f"seeds {options.first} to {last}, {options.protocol}, trust: {options.trust}")
    # Ended from outside, it leaves no cluster behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began_at = time.monotonic()
    outcomes: Counter[str] = Counter()
    with Bed(options.protocol, options.lane, options.trust) as bed:
        for plan in plans:
            if options.seconds is not None and time.monotonic() - began_at > options.seconds:
                break
            outcome, line = bed.run(plan)
            outcomes[outcome] += 1
            show(line)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    show(f"{outcomes.total()} runs in {time.monotonic() - began_at:.0f} s: {counts}")
    return int(set(outcomes) != {"right"})


class Bed:
    """Two hosts, and a cluster on them that is made anew when it is needed.

    Parameters
    ----------
    protocol : str
        ``backhaul``, or ``tcp`` to compare.
    lane : str, optional
        Lane of the processes of one host, instead of the seeds' choice.
    trust : str
        Proof that the processes have to show each other, one of `tests.chaos.trust.KINDS`.
    """

    def __init__(
        self, protocol: str = "backhaul", lane: str | None = None, trust: str = "anyone"
    ) -> None:
        self._protocol = protocol
        self._lane = lane
        self._trust = trust
        self._folder = Path(tempfile.mkdtemp(prefix="backhaul-chaos-"))
        self._network = Network(ADDRESSES, seed=0)
        self._cluster: Cluster | None = None
        self._serves: tuple[int, str] | None = None
        self._has_failed = False

    def __enter__(self) -> Bed:
        self._network.make()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_cluster()
        self._network.close()
        if not self._has_failed:
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, plan: Plan) -> tuple[str, str]:
        """Run one; says in a word what became of it, and in a line all there is to know."""
        began_at = time.monotonic()
        happened: list[str] = []
        try:
            cluster = self._cluster_for(plan)
            began_at = time.monotonic()
            outcome = self._run(cluster, plan, happened)
            took_s = time.monotonic() - began_at
            cluster.wait_until_whole()
        except Hung as hung:
            outcome, took_s = f"hung: {hung}", time.monotonic() - began_at
        word = outcome.partition(" ")[0].rstrip(":")
        if word != "right":
            outcome += f" ({self._keep(plan)})"
        faults = ", ".join(happened) or "nothing happened"
        lane = self._lane or plan.lane
        line = f"{plan.seed:5} {lane:3} {plan.job:9} {took_s:6.1f} s  {outcome}; {plan.link}; "
        return word, line + faults

    def _run(self, cluster: Cluster, plan: Plan, happened: list[str]) -> str:
        mischief = Mischief(plan, cluster, self._network)
        began_at = time.monotonic()
        cluster.begin(plan.job, plan.seed)
        try:
            for at_s, fault, begins in mischief.timeline():
                outcome = cluster.outcome_until(began_at + at_s)
                if outcome is not None:
                    return outcome
                if begins:
                    mischief.begin(fault)
                else:
                    mischief.undo(fault)
            return cluster.outcome(JOB_TIMEOUT_S)
        finally:
            mischief.undo_all()
            happened.extend(mischief.done)

    def _cluster_for(self, plan: Plan) -> Cluster:
        lane = self._lane or plan.lane
        wanted = (plan.seed // JOBS_PER_CLUSTER, lane)
        if self._cluster is not None and self._serves == wanted:
            return self._cluster
        self._end_cluster()
        folder = self._folder / f"from-seed-{plan.seed}"
        self._cluster = Cluster(
            self._network, protocol=self._protocol, lane=lane, folder=folder, trust=self._trust
        )
        self._serves = wanted
        self._cluster.start()
        return self._cluster

    def _keep(self, plan: Plan) -> Path:
        """Make the rest of a run explain itself, and end it."""
        self._has_failed = True
        assert self._cluster is not None
        folder = self._cluster.explain()
        self._end_cluster()
        kept = folder.with_name(f"seed-{plan.seed}")
        folder.rename(kept)
        return kept

    def _end_cluster(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None


if __name__ == "__main__":
    sys.exit(main())
