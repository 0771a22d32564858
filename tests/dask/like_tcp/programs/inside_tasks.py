"""Tasks that use clients, leave their threads, wait for others, print and look around."""

from __future__ import annotations

import contextlib
import io
import threading
import time
import warnings
from typing import Any

import dask.bag
from distributed import (
    Event,
    as_completed,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed import (
    print as dask_print,
)
from distributed import (
    warn as dask_warn,
)

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def inc(x: int) -> int:
    return x + 1


def fib(n: int) -> int:
    if n < 2:
        return n
    client = get_client()
    a, b = client.submit(fib, n - 1), client.submit(fib, n - 2)
    secede()
    values = client.gather([a, b])
    rejoin()
    return sum(values)


@program()
def recursion(run: Run) -> Observation:
    """Tasks that submit tasks, secede, gather and rejoin."""
    return [run.client.submit(fib, 7, key="fib").result(), run.client.submit(fib, 6).result()]


@program()
def clients_of_tasks(run: Run) -> Observation:
    """`worker_client` and `get_client` map, gather, scatter and compute."""

    def with_worker_client() -> Any:
        with worker_client() as client:
            futures = client.map(inc, range(10), pure=False)
            total = client.submit(sum, futures, pure=False)
            one = client.scatter({"x": [1]})
            return total.result(), client.gather(one), len(client.gather(futures))

    elsewhere = run.workers[1:]

    def without_leaving() -> Any:
        with worker_client(separate_thread=False) as client:
            return client.submit(inc, 1, key="elsewhere", workers=elsewhere).result()

    def computes() -> Any:
        return dask.compute(dask.delayed(inc)(1), dask.bag.range(10, npartitions=2).sum())

    calls = [run.submit_on(0, call) for call in (with_worker_client, without_leaving, computes)]
    return [outcome(each.result) for each in calls]


@program()
def leaving_threads(run: Run) -> Observation:
    """A task that has seceded leaves its thread to the next one."""

    def leave() -> str:
        secede()
        Event("leaving").wait()
        return "back"

    first = run.submit_on(0, leave)
    second = run.submit_on(0, inc, 1)
    found = [second.result(), first.status]
    Event("leaving").set()
    found.append(first.result())
    Event("leaving").clear()
    return found


@program()
def completion_in_tasks(run: Run) -> Observation:
    """`as_completed` and `wait` in a task."""

    def collect() -> Any:
        with worker_client() as client:
            futures = client.map(inc, range(8), pure=False)
            wait(futures)
            return sorted(each.result() for each in as_completed(futures))

    return run.submit_on(1, collect).result()


@program()
def surroundings(run: Run) -> Observation:
    """Keys, workers, threads, configuration, names and thread states that tasks see."""

    def look() -> Any:
        worker: Any = get_worker()
        state = worker.state
        return [
            worker.get_current_task(),
            worker.name,
            worker.nthreads if hasattr(worker, "nthreads") else None,
            threading.current_thread().name.partition("-")[0],
            threading.current_thread().daemon,
            threading.current_thread() is threading.main_thread(),
            sorted(map(str, state.executing)) != [],
            dask.config.get("scheduler", None),
            get_client().status,
            outcome(lambda: get_client() is get_client()).text,
        ]

    own = run.client.submit(look, key="look-one", workers=run.workers[:1])
    with dask.config.set({"scheduler": "threads"}):
        other = run.client.submit(look, key=("look", 2), workers=run.workers[1:])
    return [own.result(), other.result(), outcome(get_worker)]


@program()
def printing(run: Run) -> Observation:
    """`distributed.print` and `distributed.warn` in tasks come out at the client."""
    text, said = io.StringIO(), []
    done = threading.Event()

    def talk() -> None:
        dask_print("first", 2, [3], sep="|", end="!\n")
        dask_print("second")
        dask_warn("careful", UserWarning)
        dask_print("last")

    with contextlib.redirect_stdout(text), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.submit_on(0, talk).result()
        while "last" not in text.getvalue() or not caught:
            time.sleep(0.01)
        said = [str(each.message) for each in caught]
        done.set()
    return [text.getvalue(), said]


@program()
def timings(run: Run) -> Observation:
    """`startstops`, metadata and typenames that the scheduler keeps of tasks."""
    client = run.client

    def set_metadata() -> int:
        client = get_client()
        client.set_metadata(["from", "task"], 5)
        return 1

    found = [run.submit_on(0, set_metadata).result(), client.get_metadata(["from", "task"])]
    client.set_metadata("plain", {"x": [1]})
    found += [client.get_metadata("plain"), outcome(client.get_metadata, "missing")]
    found.append(client.get_metadata("missing", default=None))
    with dask.config.set({"distributed.client.x": 1}):
        future = client.submit(inc, 1, key="timed")
        future.result()

    def read(dask_scheduler: Any) -> Any:
        ts = dask_scheduler.tasks["timed"]
        return [ts.type, ts.nbytes, ts.state, ts.prefix.name, ts.group.name, len(ts.who_has)]

    found.append(client.run_on_scheduler(read))
    return found
