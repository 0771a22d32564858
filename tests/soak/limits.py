"""Runs random jobs at random memory limits, and checks that results are right and none hangs.

::

    .venv/bin/python -m tests.soak.limits --seeds 200

A seed chooses the memory limit and the threads of two workers, the size of an array or a dataframe
(from a quarter to three times their memory), its chunks, what is computed of it, and whether a
worker is killed meanwhile. A job may fail with an error of memory or of lost workers, which are
counted; a wrong result, another error or a job that takes longer than `JOB_S` makes the exit status
1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, KilledWorker, LocalCluster, wait

import dask
from tests.soak.victims import running_pid

MIB = 1 << 20
#: Far more than a job takes, in seconds
JOB_S = 240.0
#: Errors that say that memory was short, or that workers ended
SHORT = (MemoryError, KilledWorker)

#: Tasks that compute a result, and its check
Job = tuple[Any, Callable[[Any], bool]]


def main() -> int:
    """Run the jobs, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--protocol", default="backhaul", help="tcp, to compare")
    options = parser.parse_args()
    # A LocalCluster gives a worker up that has ended twice within this time, whatever the protocol.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        start_s = time.monotonic()
        outcome = run(seed, options.protocol)
        counts[outcome.partition(":")[0]] += 1
        show(f"{seed}: {outcome} ({time.monotonic() - start_s:.1f} s)")
    show(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return 1 if counts["wrong"] or counts["hung"] or counts["failed"] else 0


def show(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(seed: int, protocol: str) -> str:
    """Run the job of a seed, and tell its outcome in words."""
    chance = random.Random(seed)
    limit_bytes = chance.randrange(250, 500) * MIB
    threads = chance.choice((1, 2))
    nbytes = int(2 * limit_bytes * chance.uniform(0.25, 3))
    job = chance.choice((array_job, frame_job))
    kills = chance.random() < 0.3
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=threads,
        memory_limit=limit_bytes,
        protocol=protocol,
        host="127.0.0.1",
        dashboard_address=":0",
        silence_logs=50,
    )
    with closing(cluster), Client(cluster) as client:
        what, (tasks, is_right) = job(chance, nbytes)
        label = (
            f"{what} of {nbytes >> 20} MiB, {limit_bytes >> 20} MiB and {threads} threads a worker"
            f"{', one killed' if kills else ''}"
        )
        timer = threading.Timer(chance.uniform(0.2, 3), kill, [cluster, chance]) if kills else None
        if timer is not None:
            timer.start()
        future = client.compute(tasks)
        try:
            wait(future, timeout=JOB_S)
            result = future.result(timeout=JOB_S)
        except TimeoutError:
            return f"hung: {label}"
        except SHORT as error:
            return f"{type(error).__name__}: {label}"
        except Exception as error:
            return f"failed: {label}: {error!r}"
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
        return f"{'right' if is_right(result) else 'wrong'}: {label}"


@contextlib.contextmanager
def closing(cluster: LocalCluster) -> Iterator[None]:
    """Close a cluster; a nanny gives its worker two seconds to end, too few on a busy machine."""
    try:
        yield
    finally:
        with contextlib.suppress(TimeoutError):
            cluster.close()


def kill(cluster: LocalCluster, chance: random.Random) -> None:
    """Kill one of the workers."""
    nannies = list(cluster.workers.values())
    if (process := running_pid(chance.choice(nannies))) is not None:
        os.kill(process, signal.SIGKILL)


def array_job(chance: random.Random, nbytes: int) -> tuple[str, Job]:
    """Choose a computation on a square array."""
    side = int((nbytes // 8) ** 0.5)
    chunk = max(64, side // chance.choice((6, 12, 18)))
    numbers = da.arange(side, chunks=chunk, dtype=float)
    array = (numbers[:, None] * 31 + numbers[None, :] * 17) % 1013
    plain = np.arange(side, dtype=float)

    def rows() -> Any:
        return ((start * 31 + plain * 17) % 1013 for start in plain)

    kind = chance.choice(("transpose", "centred", "rechunk", "std"))
    if kind == "transpose":
        wanted = 2 * sum(row.sum() for row in rows())
        return kind, ((array + array.T).sum(), lambda found: bool(found == wanted))
    if kind == "centred":
        means = sum(rows()) / side
        wanted = max((row - means).max() for row in rows())
        tasks = (array - array.mean(axis=0)).max()
        return kind, (tasks, lambda found: bool(np.isclose(found, wanted)))
    if kind == "rechunk":
        columns = sum(rows())
        tasks = array.rechunk((side, max(1, chunk // 8))).sum(axis=0)
        return kind, (tasks, lambda found: bool((found == columns).all()))
    mean = sum(row.sum() for row in rows()) / side**2
    deviation = (sum(((row - mean) ** 2).sum() for row in rows()) / side**2) ** 0.5
    return kind, (array.std(), lambda found: bool(np.isclose(found, deviation)))


def frame_job(chance: random.Random, nbytes: int) -> tuple[str, Job]:
    """Choose a computation on a dataframe of three columns."""
    count = chance.choice((12, 24, 48))
    size = nbytes // 24 // count
    frame = dd.from_map(part, range(count), size=size, meta=part(0, 1))
    numbers = np.arange(count * size)
    keys = numbers * 7919 % 10_007
    kind = chance.choice(("groupby", "shuffle", "merge"))
    if kind == "groupby":
        sums = np.bincount(keys, numbers, 10_007)
        found = frame.groupby("key").value.sum()
        return kind, (
            found,
            lambda found: bool(np.allclose(found.sort_index(), sums[found.index.sort_values()])),
        )
    if kind == "shuffle":
        wanted = float(numbers.sum())
        return kind, (
            frame.shuffle("key").value.sum(),
            lambda found: bool(np.isclose(found, wanted)),
        )
    small = pd.DataFrame({"key": np.arange(10_007), "weight": np.arange(10_007) % 5})
    merged = frame.merge(dd.from_pandas(small, npartitions=3), on="key")
    wanted = float((numbers * (keys % 5)).sum())
    tasks = (merged.value * merged.weight).sum()
    return kind, (tasks, lambda found: bool(np.isclose(found, wanted)))


def part(number: int, size: int) -> pd.DataFrame:
    """Make one part of the dataframe."""
    numbers = np.arange(number * size, (number + 1) * size)
    return pd.DataFrame(
        {"key": numbers * 7919 % 10_007, "value": numbers.astype(float), "other": numbers % 17}
    )


if __name__ == "__main__":
    sys.exit(main())
