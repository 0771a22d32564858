"""Looks at a cluster: holders, sizes, processing, stacks, stories, dumps and reports."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from typing import Any

import numpy as np
from dask.utils import key_split
from distributed import Client, Event, wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def inc(x: int) -> int:
    return x + 1


def wait_for(name: str) -> str:
    Event(name).wait()
    return name


def made_of(run: Run) -> list[Any]:
    """Puts results of known keys on known workers."""
    first = run.client.submit(np.zeros, 1000, key="zeros", workers=run.workers[:1])
    second = run.client.submit(inc, 1, key="two", workers=run.workers[1:])
    third = run.client.submit(len, first, key="length", workers=run.workers[:1])
    wait([first, second, third])
    return [first, second, third]


@program()
def holders_and_sizes(run: Run) -> Observation:
    """`who_has`, `has_what`, `nbytes`, `ncores`, `nthreads` with and without arguments."""
    client, workers = run.client, run.workers
    held = made_of(run)
    number = {address: position for position, address in enumerate(workers)}
    who = {key: sorted(number[each] for each in has) for key, has in client.who_has().items()}
    # Workers are listed in the order in which they have registered.
    what = sorted((number[address], sorted(keys)) for address, keys in client.has_what().items())
    return [
        who, what,
        {key: len(each) for key, each in client.who_has(held[:1]).items()},
        {number[address]: sorted(keys) for address, keys in client.has_what(workers[:1]).items()},
        sorted(client.nbytes(summary=False).items()),
        sorted(client.nbytes().items()),
        sorted(client.nthreads().values()), sorted(client.ncores([workers[0]]).values()),
        outcome(client.who_has, [run.client.submit(inc, 1, key="two")]),
        outcome(client.has_what, ["tcp://127.0.0.1:1"]),
        client.who_has([]), repr(client.has_what()) != "",
    ]  # fmt: skip


@program()
def processing(run: Run) -> Observation:
    """`processing`, `call_stack` and `profile` while tasks run and wait."""
    client = run.client
    running = client.submit(wait_for, "processing", key="running", workers=run.workers[:1])
    behind = client.submit(inc, 1, key="behind", workers=run.workers[:1])
    while not Event("processing").wait(timeout=0) and not client.call_stack([running]):
        pass
    (stacks,) = client.call_stack([running]).values()
    frames = [line for line in stacks["running"] if "wait_for" in line]
    everything = client.call_stack(keys=[])
    found = [
        sorted(sorted(map(str, each)) for each in client.processing().values()),
        len(frames),
        [list(each) for each in everything.values()],
        sorted(client.processing([run.workers[1]]).values()),
        [running.status, behind.status],
    ]
    Event("processing").set()
    found.append(client.gather([running, behind]))
    Event("processing").clear()
    found.append([client.call_stack([running]), type(client.profile()).__name__])
    return found


@program()
def stories(run: Run) -> Observation:
    """`Client.story` of tasks that ran, moved and failed, without times."""
    client = run.client
    held = made_of(run)
    failed = client.submit(lambda: 1 / 0, key="failed", workers=run.workers[:1])
    wait(failed)
    story = client.story(*held, failed)
    steps = []
    for each in story:
        row = [x for x in each if isinstance(x, str)]
        steps.append([key_split(x) if "-" in x else x for x in row if "://" not in x][:3])
    return sorted(map(str, steps))


@program()
def state_of_the_scheduler(run: Run) -> Observation:
    """Attributes that `run_on_scheduler` reads of tasks, groups, prefixes, clients and workers."""
    client = run.client
    held = made_of(run)
    with dask.annotate(priority=5, retries=2, mark="x"):
        held.append(client.submit(inc, held[1], key=("tuple-key", 5)))
    held.append(client.submit(lambda: 1 / 0, key="broken"))
    wait(held)

    def read(dask_scheduler: Any) -> Any:
        tasks = [
            [
                str(ts.key), ts.state, ts.nbytes,
                ts.typename if hasattr(ts, "typename") else ts.type,
                sorted(str(each.key) for each in ts.dependencies),
                sorted(str(each.key) for each in ts.dependents),
                sorted(str(each.name) for each in ts.who_has or ()), len(ts.who_wants or ()),
                ts.retries,
                ts.suspicious, ts.actor, ts.prefix.name, ts.group.name, str(ts.annotations),
                sorted(ts.worker_restrictions or ()) != [], ts.loose_restrictions,
                str(ts.exception_text), bool(ts.erred_on), ts.priority[0],
            ]
            for ts in dask_scheduler.tasks.values()
        ]  # fmt: skip
        groups = [
            [str(each.name), dict(each.states), each.nbytes_total, str(sorted(each.types))]
            for each in dask_scheduler.task_groups.values()
        ]
        workers = [
            [str(ws.name), ws.nbytes, sorted(str(ts.key) for ts in ws.has_what), ws.status.name]
            for ws in dask_scheduler.workers.values()
        ]
        return sorted(tasks, key=str), sorted(groups, key=str), sorted(workers)

    return client.run_on_scheduler(read)


@program()
def dumps(run: Run) -> Observation:
    """`dump_cluster_state` has the tasks of scheduler and workers."""
    held = made_of(run)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "dump"
        # YAML is written in Python, and the histories are those of all programs before.
        histories = ("events", "log", "stimulus_log", "transition_log")
        run.client.dump_cluster_state(str(path), exclude=histories, format="yaml")
        text = path.with_suffix(".yaml").read_text()
        excluded = pathlib.Path(folder) / "excluded"
        run.client.dump_cluster_state(str(excluded), exclude=("run_spec", "workers"))
        names = sorted(each.name for each in pathlib.Path(folder).iterdir())
    keys = [each.key for each in held]
    return [names, ["!!python" in text, [key in text for key in keys]], keys]


@program()
def computations(run: Run) -> Observation:
    """Groups, counts of states and codes of computations that the scheduler keeps."""
    held = run.client.map(inc, range(5), key="computed")
    wait(held)

    def read(dask_scheduler: Any) -> Any:
        last = dask_scheduler.computations[-1]
        prefix = dask_scheduler.task_prefixes["computed"]
        return [sorted(map(str, last.groups)) != [], dict(last.states), dict(prefix.states)]

    found = run.client.run_on_scheduler(read)
    with Client(run.cluster) as second:
        found.append(second.submit(sum, [1, 2], key="second").result())
    return found


@program()
def values_that_run_replaces(run: Run) -> Observation:
    """Results that `Client.run` replaces in the data of a worker, of this and of another client."""
    client = run.client

    def replace(key: str, value: Any, dask_worker: Any) -> list[Any]:
        found = dask_worker.data.get(key)
        if found is not None:
            dask_worker.data[key] = value
        return [found]

    future = client.submit(inc, 1, key="replaced", workers=run.workers[:1])
    found: list[Any] = [future.result()]
    found.append(client.run(replace, "replaced", 20)[run.workers[0]])
    found += [future.result(), client.gather([future]), client.submit(inc, future).result()]
    with Client(run.cluster, set_as_default=False) as second:
        second.run(replace, "replaced", "text")
        found += [future.result(), second.submit(str.upper, future).result()]

    async def both() -> Any:
        async with Client(run.cluster.scheduler_address, asynchronous=True) as third:
            mine = third.submit(inc, 1, key="awaited")
            first = await mine
            await third.run(replace, "awaited", -1.5)
            return [first, await mine, await third.gather([mine])]

    found.append(asyncio.run(both()))
    later = client.submit(inc, 5, key="later")
    return [*found, later.result(), future.result()]
