"""The client of a chaos run: computes the requested jobs, and says whether the results are right.

A program, so that it can live on one of the hosts and be looked into when it hangs::

    python -m tests.chaos.driver SCHEDULER

It reads lines ``JOB SEED`` and answers each with ``right``, ``WRONG …`` or ``failed …``.
``workers N`` waits for that many, ``restart`` forgets what runs, ``trust`` says what the scheduler
had to show.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

import dask
from tests.chaos import diagnose

#: Keeps tasks long enough for something to happen while they run.
TASK_S = 0.02


def slowly(value: Any) -> Any:
    """Give a value back after a moment."""
    time.sleep(TASK_S)
    return value


def shuffle(client: Client, seed: int) -> bool:
    """Shuffle a dataframe, p2p or by tasks, and sum by its key."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"key": generator.integers(0, 500, 100_000), "value": generator.random(100_000)}
    )
    method = ("p2p", "tasks")[seed // 4 % 2]
    with dask.config.set({"distributed.p2p.storage.disk": False}):
        parts = dd.from_pandas(frame, npartitions=16).map_partitions(slowly, meta=frame)
        sums = parts.shuffle("key", shuffle_method=method).groupby("key")["value"].sum()
        found = client.compute(sums).result()
    return bool(np.allclose(found.sort_index(), frame.groupby("key")["value"].sum().sort_index()))


def transpose(client: Client, seed: int) -> bool:
    """Add an array to its transpose: every chunk off the diagonal is moved or lent."""
    x = da.random.default_rng(seed).integers(0, 1 << 20, (3000, 3000), chunks=(250, 250))
    y = x.map_blocks(slowly, dtype=x.dtype)
    total, doubled = client.gather(client.compute([x.sum(), (y + y.T).sum()]))
    return bool(doubled == 2 * total)


def chain(client: Client, seed: int) -> bool:
    """Hand arrays through long chains, each step perhaps on another worker."""
    rng = np.random.default_rng(seed)
    starts = [rng.integers(0, 1000, 100_000) for _ in range(6)]
    ends = [client.submit(slowly, start, pure=False) for start in starts]
    for _ in range(40):
        ends = [
            client.submit(mixed, end, ends[place - 1], pure=False) for place, end in enumerate(ends)
        ]
    expected = starts
    for _ in range(40):
        expected = [mixed(end, expected[place - 1]) for place, end in enumerate(expected)]
    found = client.gather(ends)
    return all(bool((a == b).all()) for a, b in zip(found, expected, strict=True))


def mixed(one: Any, other: Any) -> Any:
    """Make a step of a chain of two neighbours."""
    return (3 * one + other) % 1_000_003


def many(client: Client, seed: int) -> bool:
    """Map a function over many small inputs."""
    numbers = list(range(seed, seed + 400))
    futures = client.map(lambda number: slowly(number) ** 2, numbers, pure=False)
    return bool(sum(client.gather(futures)) == sum(number**2 for number in numbers))


JOBS: dict[str, Callable[[Client, int], bool]] = {
    "shuffle": shuffle,
    "transpose": transpose,
    "chain": chain,
    "map": many,
}


def answer(client: Client, line: str) -> str:
    """Do what a line asks for."""
    command, *arguments = line.split()
    if command == "workers":
        client.wait_for_workers(int(arguments[0]))
        return "right"
    if command == "trust":
        stream = client.scheduler_comm
        return "nothing" if stream is None else str(stream.comm.info["trust"])
    if command == "restart":
        client.restart(timeout=60)
        return "right"
    try:
        return "right" if JOBS[command](client, int(arguments[0])) else "WRONG result"
    except Exception as error:
        traceback.print_exc()
        return f"failed {error!r:.300}".replace("\n", " ")


def main() -> None:
    """Answer until there are no more lines."""
    diagnose.install()
    with Client(sys.argv[1], timeout="60s") as client:
        say("ready")
        for line in sys.stdin:
            say(answer(client, line))


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # Workers cannot import this file, and get what is in it by value.
    main()
