"""Threads of one client that submit, wait and gather, while workers are killed at random.

::

    make soak-threads                              # a minute
    .venv/bin/python -m tests.soak.threads --seconds 300 --seed 7

Four threads share a client of a cluster of three workers with two threads each. Each submits random
graphs of additions, asks for intermediate results in between, gathers, drops futures, and checks
every number. A random worker dies by SIGKILL every few seconds, once all are there. When a thread
has waited for one thing for longer than ``--patience``, the state of the futures is printed, as the
client, the scheduler and the workers have it, with the stacks of all threads; three times as long
is a stall. Time in which this process does not run, on a machine that is too busy, does not count.
The exit status is 1 after a stall or a wrong number.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from operator import add
from typing import Any

from distributed import Client, Future, LocalCluster, as_completed, wait
from distributed.scheduler import Scheduler

import backhaul.dask  # noqa: F401  registers the defaults of its configuration
import dask
from tests.soak.victims import running_pid

#: A worker that dies is no fault of the task it ran; and it comes back, however often.
LENIENT = {
    "distributed.scheduler.allowed-failures": 1000,
    "distributed.deploy.lost-worker-timeout": "1 day",
}

#: How long the cluster may take to end
END_TIMEOUT_S = 150.0

#: How often it is looked for stalls
LOOK_EVERY_S = 0.2


def main() -> int:
    """Run for a while, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kill-every", type=float, nargs=2, default=(2.0, 6.0), metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds")
    parser.add_argument("--off", action="append", default=[], metavar="SWITCH", help="to compare")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    show(f"seed {seed}, {options.seconds:g} s")
    switches = {f"distributed.comm.backhaul.{switch}": False for switch in options.off}
    with (
        dask.config.set({**LENIENT, **switches}),
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=2,
            protocol="backhaul",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        stress = Stress(client, cluster, seed, options.patience)
        stress.run(options.seconds, options.threads, options.kill_every)
        for what, count in sorted(stress.counts.items()):
            show(f"{count:8}  {what}")
        for problem in stress.problems:
            show(f"*** {problem}")
        # An end that hangs shows where.
        faulthandler.dump_traceback_later(END_TIMEOUT_S, exit=True)
    faulthandler.cancel_dump_traceback_later()
    return int(bool(stress.problems) or not stress.counts["results"])


class Stress:
    """Threads at work, and what goes wrong.

    Parameters
    ----------
    client : distributed.Client
        Shared by all threads.
    cluster : distributed.LocalCluster
        Its workers die and come back.
    seed : int
        Of all that is random but time.
    patience_s : float
        How long a thread may wait for one thing.
    """

    def __init__(self, client: Client, cluster: LocalCluster, seed: int, patience_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._client = client
        self._cluster = cluster
        self._seed = seed
        self._patience_s = patience_s
        self._is_over = threading.Event()
        #: Wait of each thread, and the look that saw it first
        self._waits: dict[int, tuple[int, str, list[Future[Any]]]] = {}
        self._looks = 0
        self._reported: set[tuple[int, int]] = set()

    def run(self, seconds: float, threads: int, kill_every_s: tuple[float, float]) -> None:
        """Let threads work, and workers die, for a while."""
        working = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(threads)
        ]
        killing = threading.Thread(target=self._kill, args=(kill_every_s,), daemon=True)
        for thread in (*working, killing):
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._is_over.wait(LOOK_EVERY_S):
            self._look_for_stalls()
        self._is_over.set()
        killing.join()
        # Work under way comes to its end.
        while any(thread.is_alive() for thread in working) and not self.problems:
            time.sleep(LOOK_EVERY_S)
            self._look_for_stalls()

    def _work(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        try:
            while not self._is_over.is_set() and not self.problems:
                rng.choice(GRAPHS)(self, rng)
                self.counts["graphs"] += 1
        except Exception as error:
            self.problems.append(f"thread {number}: {type(error).__name__}: {error}")
            raise

    def _kill(self, every_s: tuple[float, float]) -> None:
        rng = random.Random(f"{self._seed} kill")
        while not self._is_over.wait(rng.uniform(*every_s)):
            pids = [running_pid(nanny) for nanny in list(self._cluster.workers.values())]
            # Where processes start slowly, none would be left to get anywhere.
            if None in pids:
                continue
            if (pid := rng.choice(pids)) is not None:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.counts["workers killed"] += 1

    # Waits of threads

    def waited(self, what: str, futures: list[Future[Any]], call: Callable[[], Any]) -> Any:
        """Make a call that waits, where a stall is seen."""
        me = threading.get_ident()
        self._waits[me] = self._looks, what, futures
        try:
            return call()
        finally:
            del self._waits[me]

    def result(self, future: Future[Any], expected: int, timeout: float | None = None) -> None:
        """Ask for a result, and check it."""
        self.check(self.waited("result", [future], lambda: future.result(timeout)), expected)

    def gather(self, futures: list[Future[Any]], expected: list[int]) -> None:
        """Gather results, and check them."""
        found = self.waited("gather", futures, lambda: self._client.gather(futures))
        for one, right in zip(found, expected, strict=True):
            self.check(one, right)

    def completed(self, futures: list[Future[Any]], expected: list[int]) -> None:
        """Ask for results in the order in which they come, and check them."""
        total = self.waited(
            "as_completed", futures, lambda: sum(f.result() for f in as_completed(futures))
        )
        self.check(total, sum(expected))

    def wait(self, futures: list[Future[Any]]) -> None:
        """Wait for futures."""
        self.waited("wait", futures, lambda: wait(futures))

    def check(self, found: int, expected: int) -> None:
        """Count a result, right or wrong."""
        self.counts["results"] += 1
        if found != expected:
            self.problems.append(f"{found} instead of {expected}")

    def submit(self, *numbers: Any) -> Future[Any]:
        """Submit an addition."""
        return self._client.submit(add, *numbers, pure=False)

    # Stalls

    def _look_for_stalls(self) -> None:
        self._looks += 1
        for thread, (since, what, futures) in list(self._waits.items()):
            waited_s = (self._looks - since) * LOOK_EVERY_S
            if waited_s > self._patience_s and (thread, since) not in self._reported:
                self._reported.add((thread, since))
                self.counts["long waits"] += 1
                show(f"thread {thread} has waited in {what} for {waited_s:.0f} s")
                if len(self._reported) == 1:
                    try:
                        self._report(futures)
                    except Exception as error:
                        # The data that it looks at changes meanwhile.
                        show(f"no more to report: {type(error).__name__}: {error}")
            if waited_s > 3 * self._patience_s and not self.problems:
                self.problems.append(f"thread {thread} has waited in {what} for {waited_s:.0f} s")

    def _report(self, futures: list[Future[Any]]) -> None:
        """Print all that might explain a stall."""
        faulthandler.dump_traceback()
        scheduler: Any = self._cluster.scheduler
        pending = [future for future in futures if not future.done()]
        show(f"{len(pending)} of {len(futures)} futures are not done")
        client: Any = self._client
        stream = client.scheduler_comm
        show(f"stream {stream!r}: {str(vars(stream))[:1000]}")
        show(f"reports {vars(client).get('_backhaul_thread_reports')!r}")
        for future in (pending or futures)[:3]:
            show(f"{future.key}: {future.status}, {vars(future)}")
            self._report_key(scheduler, str(future.key))
        for address, ws in scheduler.workers.items():
            show(f"worker {address} {ws.status}: processing {[ts.key for ts in ws.processing][:5]}")
        processing = {
            address: [str(ts.key) for ts in ws.processing][:5]
            for address, ws in scheduler.workers.items()
        }
        try:
            states = client.run(report_of_worker, processing, on_error="return")
        except Exception as error:
            show(f"workers do not answer: {error}")
        else:
            for address, state in states.items():
                show(f"    {address}: {state}")

    def _report_key(self, scheduler: Scheduler, key: str) -> None:
        ts = scheduler.tasks.get(key)
        if ts is None:
            show("    unknown to the scheduler")
            return
        wanted = [cs.client_key for cs in ts.who_wants or ()]
        show(f"    {ts.state} on {ts.processing_on}, in {ts.who_has}, wanted by {wanted}")
        for dependency in ts.dependencies:
            show(f"    needs {dependency.key}: {dependency.state} in {dependency.who_has}")
        for entry in scheduler.story(key)[-12:]:
            show(f"        {entry}")


def report_of_worker(processing: dict[str, list[str]], dask_worker: Any = None) -> str:
    """Report a worker's state of the tasks that the scheduler has it process."""
    state = dask_worker.state
    queue = getattr(dask_worker.executors["default"], "_work_queue", None)
    local_queue, reader = getattr(queue, "local_queue", None), getattr(queue, "reader", None)
    inbox = getattr(reader, "_inbox", None)
    lines = [
        f"executing {[ts.key for ts in state.executing]}, ready {len(state.ready)}",
        f"threads {dask_worker.active_threads}",
    ]
    if local_queue is not None:
        queued = (local_queue.early_tasks, local_queue._ended, local_queue._next)
        lines.append(f"queue {queued}, {local_queue._phase}, called {local_queue._is_called}")
    if inbox is not None:
        said = (inbox.is_handling, inbox.taken, inbox.may_look(), inbox._request)
        lines += [f"inbox {said}", f"unhandled {str(inbox.unhandled)[:1000]}"]
    for key in processing.get(dask_worker.address, ()):
        ts = state.tasks.get(key)
        lines.append(f"{ts!r}: needs {[str(each) for each in ts.dependencies] if ts else None}")
        for each in [key, *([dep.key for dep in ts.dependencies] if ts else ())]:
            lines += [f"    {entry}" for entry in state.story(each)[-12:]]
    return "\n        ".join(lines)


# Work of a thread


def one_by_one(stress: Stress, rng: random.Random) -> None:
    """Ask for each result before the next task is submitted."""
    total = 0
    for _ in range(rng.randrange(1, 40)):
        number = rng.randrange(100)
        stress.result(stress.submit(total, number), total + number)
        total += number


def chain(stress: Stress, rng: random.Random) -> None:
    """Submit tasks that each need the last, and ask for some on the way."""
    future, total = stress.submit(0, 1), 1
    for _ in range(rng.randrange(5, 60)):
        number = rng.randrange(100)
        future, total = stress.submit(future, number), total + number
        if rng.random() < 0.1:
            stress.result(future, total, timeout=rng.choice([None, 600]))
    stress.result(future, total)


def graph(stress: Stress, rng: random.Random) -> None:
    """Submit tasks that need any of those before, drop some, and gather the others."""
    futures = [stress.submit(number, number) for number in range(4)]
    totals = [2 * number for number in range(4)]
    for _ in range(rng.randrange(5, 80)):
        first, second = rng.randrange(len(futures)), rng.randrange(len(futures))
        futures.append(stress.submit(futures[first], futures[second]))
        totals.append(totals[first] + totals[second])
        if rng.random() < 0.1:
            at = rng.randrange(len(futures))
            stress.result(futures[at], totals[at])
        if rng.random() < 0.1 and len(futures) > 4:
            at = rng.randrange(len(futures))
            del futures[at], totals[at]
    asked = sorted(rng.sample(range(len(futures)), rng.randrange(1, len(futures))))
    ways = [stress.gather, stress.gather, stress.completed]
    rng.choice(ways)([futures[at] for at in asked], [totals[at] for at in asked])


def many(stress: Stress, rng: random.Random) -> None:
    """Submit many at once, and gather."""
    count = rng.randrange(50, 400)
    futures = [stress.submit(number, 1) for number in range(count)]
    if rng.random() < 0.3:
        stress.wait(futures)
    stress.gather(futures, list(range(1, count + 1)))


def tree(stress: Stress, rng: random.Random) -> None:
    """Add numbers pair by pair."""
    numbers = [rng.randrange(100) for _ in range(32)]
    level = [stress.submit(number, 0) for number in numbers]
    while len(level) > 1:
        level = [stress.submit(*level[at : at + 2]) for at in range(0, len(level), 2)]
    stress.result(level[0], sum(numbers))


GRAPHS: list[Callable[[Stress, random.Random], None]] = [one_by_one, chain, graph, many, tree]


def show(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
