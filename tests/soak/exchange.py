"""Kills workers at chosen moments of exchanges, and checks that results are right.

::

    .venv/bin/python -m tests.soak.exchange --seeds 200

A seed chooses a job (join, sort, shuffle, rechunk), its partitions and its rows, and the moment at
which one of two workers is killed: in which call of transfer, bundle, unpack or the assembly of a
chunk, or in a write to a file of blocks. The result is compared with that of pandas or NumPy, and
no worker may keep a file of blocks open once the job is released. A wrong result, an error, a job
that takes longer than `JOB_S` or an open file makes the exit status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import dask
from tests.soak.kill_points import KillPoint, arm, open_files
from tests.soak.limits import closing, show

__all__ = ["JOBS", "Plan", "Run", "cluster_of_two", "draw", "run"]

#: Far more than a job takes, in seconds
JOB_S: Final = 180.0
#: Seeds that share a cluster
SEEDS_PER_CLUSTER: Final = 25
#: Enough for all jobs, so that only a kill ends a worker
MEMORY_LIMIT: Final = "4GB"
JOBS: Final = ("join", "sort", "shuffle", "rechunk")
#: Delays of a kill, beside those after the end of the call
_DELAYS_US: Final = (0, 100, 1_000, 5_000)
_HOWS: Final = ("inner", "left", "outer")


@dataclass(frozen=True)
class Plan:
    """All that a seed chooses.

    Parameters
    ----------
    seed : int
        The seed.
    job : str
        One of `JOBS`.
    inputs : int
        Partitions of a frame, or chunks of an array along each axis.
    rows : int
        Of all partitions, or of the array.
    how : str
        Of a join.
    point : KillPoint
        Moment of the kill; its marker is empty.
    """

    seed: int
    job: str
    inputs: int
    rows: int
    how: str
    point: KillPoint


@dataclass(frozen=True)
class Run:
    """The outcome of a seed.

    Parameters
    ----------
    outcome : str
        ``right``, ``wrong``, ``failed``, ``hung`` or ``kept a file open``.
    killed : bool
        Whether the moment of the kill was reached.
    error : str
        The error of a failed job.
    """

    outcome: str
    killed: bool
    error: str = ""


def draw(seed: int) -> Plan:
    """Choose the job of a seed, and the moment of the kill."""
    chance = random.Random(seed)
    job = chance.choice(JOBS)
    # More outputs than twice the threads, or there is no bundle
    inputs = chance.randrange(3, 7) if job == "rechunk" else chance.randrange(9, 20)
    phases = ["assemble"] if job == "rechunk" else ["transfer", "bundle", "unpack", "spill"]
    phase = chance.choice(phases)
    most = {"bundle": 1, "assemble": inputs**2 // 4}.get(phase, inputs // 3)
    point = KillPoint(
        phase=phase,
        call=chance.randint(1, most),
        delay_us=chance.choice((*_DELAYS_US, None)),
        marker="",
        spills=phase == "spill" or chance.random() < 0.3,
    )
    rows = (
        chance.choice((1_000, 20_000, 100_000)) if job != "rechunk" else chance.randrange(50, 900)
    )
    return Plan(seed, job, inputs, rows, chance.choice(_HOWS), point)


def run(client: Client, plan: Plan, folder: Path) -> Run:
    """Run the job of a plan on a cluster of two workers."""
    client.wait_for_workers(2, timeout=JOB_S)
    marker = folder / str(plan.seed)
    client.run(arm, replace(plan.point, marker=str(marker)))
    tasks, is_right = _MAKERS[plan.job](plan)
    # Dask computes a sorted frame in one partition, unless each is wanted.
    persisted = client.persist(tasks)
    future = client.compute(persisted)
    try:
        result = future.result(timeout=JOB_S)
    except TimeoutError:
        return Run("hung", marker.exists())
    except Exception as error:
        return Run("failed", marker.exists(), repr(error))
    finally:
        del future, persisted
    if not is_right(result):
        return Run("wrong", marker.exists())
    del result
    deadline_s = time.monotonic() + JOB_S
    while any(client.run(open_files).values()):
        if time.monotonic() > deadline_s:
            return Run("kept a file open", marker.exists())
        time.sleep(0.05)
    return Run("right", marker.exists())


Job = tuple[Any, Callable[[Any], bool]]


def _part(number: int, *, plan: Plan, name: str, step: int) -> pd.DataFrame:
    """Make a partition: keys that other partitions have not, in random order."""
    rows = plan.rows // plan.inputs
    chance = np.random.default_rng([plan.seed, number])
    keys = step * (number + plan.inputs * chance.permutation(rows))
    return pd.DataFrame({"key": keys, name: keys * 0.5, f"{name}_text": keys.astype(str)})


def _frame(plan: Plan, name: str, *, step: int = 1) -> tuple[Any, pd.DataFrame]:
    """Make a collection, and the same rows in one frame."""
    part = functools.partial(_part, plan=plan, name=name, step=step)
    whole = pd.concat([part(number) for number in range(plan.inputs)])
    return dd.from_map(part, range(plan.inputs), meta=whole.iloc[:0]), whole


def _equal(found: Any, expected: Any, *by: str) -> bool:
    """Compare rows, in any order where `by` names columns that sort them."""
    if by:
        found, expected = (each.sort_values(list(by)) for each in (found, expected))
    found, expected = (each.reset_index(drop=True) for each in (found, expected))
    try:
        # Dask has other types of text.
        pd.testing.assert_frame_equal(found, expected.astype(found.dtypes))
    except AssertionError as error:
        show(str(error))
        return False
    return True


def _join(plan: Plan) -> Job:
    # Every second key of the left side, and others
    (left, whole), (right, other) = _frame(plan, "left"), _frame(plan, "right", step=2)
    tasks = left.merge(right, on="key", how=plan.how, shuffle_method="p2p", broadcast=False)
    expected = whole.merge(other, on="key", how=plan.how)
    return tasks, lambda found: _equal(found, expected, "key")


def _sort(plan: Plan) -> Job:
    frame, whole = _frame(plan, "left")
    expected = whole.sort_values("key")
    return frame.sort_values("key"), lambda found: _equal(found, expected)


def _shuffle(plan: Plan) -> Job:
    frame, whole = _frame(plan, "left")
    return frame.shuffle("key"), lambda found: _equal(found, whole, "key")


def _rechunk(plan: Plan) -> Job:
    whole = np.arange(plan.rows**2, dtype=float).reshape(plan.rows, plan.rows)
    size = -(-plan.rows // plan.inputs)
    array = da.from_array(whole, chunks=(size, plan.rows)).rechunk((plan.rows, size), method="p2p")
    return array + 1, lambda found: bool((found == whole + 1).all())


_MAKERS: Final[dict[str, Callable[[Plan], Job]]] = {
    "join": _join,
    "sort": _sort,
    "shuffle": _shuffle,
    "rechunk": _rechunk,
}


def main() -> int:
    """Run the jobs, print what happened, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    kills: Counter[str] = Counter()
    seeds = list(range(options.first, options.first + options.seeds))
    for at in range(0, len(seeds), SEEDS_PER_CLUSTER):
        with tempfile.TemporaryDirectory() as folder, cluster_of_two() as client:
            for seed in seeds[at : at + SEEDS_PER_CLUSTER]:
                plan, start_s = draw(seed), time.monotonic()
                found = run(client, plan, Path(folder))
                counts[found.outcome] += 1
                kills[plan.point.phase if found.killed else "none"] += 1
                show(f"{plan}: {found} ({time.monotonic() - start_s:.1f} s)")
    show(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    show("killed in: " + ", ".join(f"{phase} {count}" for phase, count in kills.most_common()))
    return 0 if set(counts) == {"right"} else 1


@contextlib.contextmanager
def cluster_of_two() -> Iterator[Client]:
    """Start two workers, and connect to them."""
    # A LocalCluster gives a worker up that has ended twice within this time.
    settings = {
        "distributed.deploy.lost-worker-timeout": "1 hour",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
    with dask.config.set(settings):
        cluster = LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            memory_limit=MEMORY_LIMIT,
            protocol="backhaul",
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=50,
        )
        with closing(cluster), Client(cluster) as client:
            yield client


if __name__ == "__main__":
    sys.exit(main())
