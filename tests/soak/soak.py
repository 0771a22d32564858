"""Runs jobs on a cluster of workers that are killed at random, and checks results and memory.

::

    make soak                              # ten minutes
    .venv/bin/python -m tests.soak.soak --seconds 60 --workers 3

A cluster with nannies, over ``backhaul://``. One thread kills a random worker by SIGKILL every few
seconds; jobs go on meanwhile: array sums that move every chunk, p2p shuffles, rechunks, broadcasts,
tasks that change their inputs in place, tasks that fork.
Each result is compared with what NumPy or pandas says. Between rounds the cluster rests, and the
PSS of all its processes is taken. The exit status is 1 if a result was wrong, if a job failed for
another reason than a lost worker, or if memory grew: the median PSS of the last third of the rounds
over that of the second third by more than a tenth.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
from distributed import Client, KilledWorker, LocalCluster, wait
from distributed.client import FutureCancelledError
from distributed.scheduler import NoValidWorkerError

import backhaul.dask  # noqa: F401  registers the defaults of its configuration
import dask
from tests.soak.victims import running_pid

#: Errors that a job may end with when the workers that hold its inputs die again and again.
LOST = (
    KilledWorker,
    NoValidWorkerError,
    # Scattered data dies with the only worker that has it yet.
    FutureCancelledError,
    RuntimeError,
    TimeoutError,
    OSError,
)

GROWTH_MAX = 1.1

#: Far more than a job takes with workers that come back after each kill.
JOB_TIMEOUT_S = 300.0


def main() -> int:
    """Run the soak, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-every", type=float, default=7, help="mean seconds between kills")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--protocol", default="backhaul", help="tcp, to compare")
    parser.add_argument("--jobs", default=",".join(JOBS), help="some of them, comma-separated")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    show(f"seed {seed}, {options.seconds:g} s, {options.workers} workers")
    rng = random.Random(seed)
    lenient = {
        # A worker that dies is no fault of the task it ran.
        "distributed.scheduler.allowed-failures": 1000,
        # A cluster gives a worker up that is not there this long after it died, or is dead again.
        "distributed.deploy.lost-worker-timeout": "1 day",
    }
    with (
        dask.config.set(lenient),
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=1,
            protocol=options.protocol,
            dashboard_address=None,
            memory_limit="4GiB",
        ) as cluster,
        Client(cluster) as client,
    ):
        killer = Killer(cluster, options.kill_every, rng)
        jobs = {name: JOBS[name] for name in options.jobs.split(",")}
        return soak(client, cluster, killer, jobs, options.seconds, rng)


def soak(
    client: Client,
    cluster: LocalCluster,
    killer: Killer,
    jobs: dict[str, Callable[[Client, int], bool]],
    seconds: float,
    rng: random.Random,
) -> int:
    """Run rounds of all jobs until time is up."""
    outcomes: Counter[str] = Counter()
    resting_pss: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(resting_pss) < 6:
        killer.go_on()
        for name, job in jobs.items():
            # A job that hangs shows where, and ends the soak.
            faulthandler.dump_traceback_later(JOB_TIMEOUT_S, exit=True)
            show(f"     {name}")
            try:
                right = job(client, rng.randrange(1 << 32))
                outcomes[f"{name}: {'right' if right else 'WRONG'}"] += 1
            except LOST as error:
                outcomes[f"{name}: lost ({type(error).__name__})"] += 1
        faulthandler.cancel_dump_traceback_later()
        killer.rest()
        resting_pss.append(resting(client, cluster))
        show(f"{len(resting_pss):4} {resting_pss[-1] / 2**20:7.0f} MiB, {killer.kills} killed")
    third = len(resting_pss) // 3
    before, after = (
        statistics.median(part) for part in (resting_pss[third:-third], resting_pss[-third:])
    )
    growth = after / before
    for outcome, count in sorted(outcomes.items()):
        show(f"{count:6}  {outcome}")
    show(f"{killer.kills} killed; PSS at rest {before / 2**20:.0f} MiB, later times {growth:.3f}")
    wrong = any("WRONG" in outcome for outcome in outcomes)
    nothing_right = not any("right" in outcome for outcome in outcomes)
    return int(wrong or nothing_right or growth > GROWTH_MAX or killer.kills == 0)


class Killer:
    """Kills a random worker every few seconds while it may."""

    def __init__(self, cluster: LocalCluster, every_s: float, rng: random.Random) -> None:
        self.kills = 0
        self._cluster = cluster
        self._every_s = every_s
        self._rng = rng
        self._active = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """Kill again."""
        self._active.set()

    def rest(self) -> None:
        """Leave the workers alone."""
        self._active.clear()

    def _run(self) -> None:
        while True:
            time.sleep(self._rng.expovariate(1 / self._every_s))
            self._active.wait()
            nannies = list(self._cluster.workers.values())
            nanny = self._rng.choice(nannies)
            if (pid := running_pid(nanny)) is not None:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    pass


def transpose_sum(client: Client, seed: int) -> bool:
    """Add an array to its transpose: every chunk off the diagonal is moved or lent."""
    x = da.random.default_rng(seed).random((3000, 3000), chunks=(1000, 1000)).persist()
    wait(x, timeout=300)
    total, doubled = dask.compute(x.sum(), (x + x.T).sum())
    return bool(np.isclose(doubled, 2 * total, rtol=1e-12))


def lent_inputs(client: Client, seed: int) -> bool:
    """Read one array on all workers while its owner releases it."""
    owned = client.submit(np.full, 1 << 20, float(seed % 1000), pure=False)
    totals = [client.submit(np.add, owned, number, pure=False) for number in range(8)]
    del owned
    expected = [float(seed % 1000) + number for number in range(8)]
    found = client.gather(totals)
    return all(bool((total == one).all()) for total, one in zip(found, expected, strict=True))


def rechunk(client: Client, seed: int) -> bool:
    """Turn rows into columns."""
    x = da.random.default_rng(seed).random((2000, 2000), chunks=(200, 2000))
    return bool(np.array_equal(x.rechunk((2000, 200)).compute(), x.compute()))


def shuffle(client: Client, seed: int) -> bool:
    """Shuffle a dataframe by p2p."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"key": generator.integers(0, 500, 200_000), "value": generator.random(200_000)}
    )
    shuffled = dd.from_pandas(frame, npartitions=12).shuffle("key", shuffle_method="p2p")
    found = shuffled.groupby("key")["value"].sum().compute().sort_index()
    return bool(np.allclose(found, frame.groupby("key")["value"].sum().sort_index()))


def broadcast(client: Client, seed: int) -> bool:
    """Scatter an array to all workers and read it on each."""
    array = np.random.default_rng(seed).random(1 << 20)
    future = client.scatter(array, broadcast=True, hash=False)
    totals = client.gather([client.submit(np.sum, future, pure=False) for _ in range(4)])
    return all(np.isclose(total, array.sum()) for total in totals)


def written_in_place(client: Client, seed: int) -> bool:
    """Change an array in place on its workers after a client has received the array."""
    level = float(seed % 1000)
    value = client.submit(np.full, 1 << 19, level, pure=False)
    received = [value.result() for _ in range(2)]
    # A worker may be sent the array while another task writes to it, so its copy may be of both.
    client.gather([client.submit(write_in_place, value, n, pure=False) for n in range(6)])
    return all(bool((each == level).all()) for each in received)


def write_in_place(value: np.ndarray[Any, Any], number: int) -> None:
    """Add to an array in place."""
    value += number


def forks(client: Client, seed: int) -> bool:
    """Forks in tasks whose inputs the parents change while the children look."""
    level = float(seed % 1000)
    values = [client.submit(np.full, 1 << 18, level + number, pure=False) for number in range(4)]
    received = client.gather(values)
    seen = [client.submit(fork_and_write, value, pure=False) for value in values * 2]
    kept = all(client.gather(seen))
    return kept and all(bool((each == level + n).all()) for n, each in enumerate(received))


def fork_and_write(value: np.ndarray[Any, Any]) -> bool:
    """Forks, writes in the parent, then asks the child what it sees: what was there at the fork."""
    before = float(value.sum())
    gate, opened = os.pipe()
    answers, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(gate, 1)
            os.write(answer, repr(float(value.sum())).encode())
        finally:
            os._exit(0)
    value += 1
    os.write(opened, b"x")
    seen = os.read(answers, 100).decode()
    os.waitpid(pid, 0)
    for descriptor in (gate, opened, answers, answer):
        os.close(descriptor)
    return seen == repr(before)


JOBS: dict[str, Callable[[Client, int], bool]] = {
    "transpose-sum": transpose_sum,
    "lent inputs": lent_inputs,
    "rechunk": rechunk,
    "shuffle": shuffle,
    "broadcast": broadcast,
    "written in place": written_in_place,
    "forks": forks,
}


def resting(client: Client, cluster: LocalCluster) -> int:
    """Wait until all workers are back and quiet; PSS of this process and all below it, in bytes."""
    client.wait_for_workers(len(cluster.workers), timeout=60)
    time.sleep(1)
    here = psutil.Process()
    total = 0
    for process in [here, *here.children(recursive=True)]:
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as rollup:
                total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except OSError:
            continue
    return total * 1024


def show(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
