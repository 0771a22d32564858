"""Plugins of schedulers, workers and nannies, actors, and functions that workers are sent."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

from distributed import (
    Event,
    NannyPlugin,
    SchedulerPlugin,
    WorkerPlugin,
    get_client,
    get_worker,
    wait,
)

from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def inc(x: int) -> int:
    return x + 1


class Transitions(SchedulerPlugin):
    """Notes transitions, graphs, clients and removed clients."""

    name = "transitions"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def start(self, scheduler: Any) -> None:
        scheduler.like_tcp_seen = self.seen

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.seen.append((str(key), start, finish))

    def update_graph(self, scheduler: Any, *, keys: Any, **kwargs: Any) -> None:
        self.seen.append(("graph", *sorted(map(str, keys))))


class Noting(WorkerPlugin):
    """Notes set-ups and transitions of tasks on a worker."""

    name = "noting"

    def setup(self, worker: Any) -> None:
        self.worker = worker
        worker.like_tcp_noted = ["setup"]

    def teardown(self, worker: Any) -> None:
        worker.like_tcp_noted.append("teardown")

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        self.worker.like_tcp_noted.append((str(key), start, finish))


class Variables(NannyPlugin):
    """Sets a variable in the environment of a nanny."""

    name = "variables"
    restart = False

    def setup(self, nanny: Any) -> None:
        nanny.env["LIKE_TCP"] = "set"


class Broken(WorkerPlugin):
    """Fails when it is set up."""

    name = "broken"

    def setup(self, worker: Any) -> None:
        raise RuntimeError("no set-up")


def transitions_by_key(noted: list[Any]) -> dict[str, list[Any]]:
    """Groups transitions by key: their order between tasks differs from run to run."""
    found: dict[str, list[Any]] = {}
    for key, *steps in noted:
        found.setdefault(key, []).append(steps)
    return found


@program(own_cluster=True)
def scheduler_plugins(run: Run) -> Observation:
    """Transitions, graphs and messages that a plugin of the scheduler sees of each task."""
    client = run.client
    client.register_plugin(Transitions())
    one = client.submit(inc, 1, key="one", workers=run.workers[:1])
    two = client.submit(inc, one, key="two", workers=run.workers[1:])
    two.result()
    failed = client.submit(lambda: 1 / 0, key="failed")
    wait(failed)
    many = client.map(inc, range(5), key="many", workers=run.workers[:1])
    wait(many)
    del many, one, two, failed

    def seen(dask_scheduler: Any) -> Any:
        return [] if dask_scheduler.tasks else list(dask_scheduler.like_tcp_seen)

    while not (found := client.run_on_scheduler(seen)):
        pass
    by_key = transitions_by_key(found)
    client.unregister_scheduler_plugin("transitions")
    return [by_key, outcome(client.unregister_scheduler_plugin, "transitions")]


@program(own_cluster=True)
def worker_plugins(run: Run) -> Observation:
    """Set-up, transitions of tasks, tear-down, and failing plugins of workers."""
    client = run.client
    client.register_plugin(Noting())
    future = client.submit(inc, 1, key="one", workers=run.workers[:1])
    moved = client.submit(inc, future, key="two", workers=run.workers[1:])
    failed = client.submit(lambda: 1 / 0, key="failed", workers=run.workers[:1])
    wait([moved, failed])
    del future, moved, failed

    def noted(dask_worker: Any) -> Any:
        return [] if dask_worker.state.tasks else [dask_worker.name, *dask_worker.like_tcp_noted]

    while not all(found := list(client.run(noted).values())):
        pass
    by_worker = {name: (steps[0], transitions_by_key(steps[1:])) for name, *steps in sorted(found)}
    client.unregister_worker_plugin("noting")
    after = sorted(client.run(lambda dask_worker: dask_worker.like_tcp_noted[-1]).values())
    return [by_worker, after, outcome(client.register_plugin, Broken())]


# The names of files that are uploaded stay, and a worker that is restarted may be killed.
@program(logs=False, left=False)
def nanny_plugins(run: Run) -> Observation:
    """A plugin of nannies; variables of workers that come later; files that are uploaded."""
    client = run.client
    client.register_plugin(Variables())
    client.restart()
    found: list[Any] = [list(client.run(os.environ.get, "LIKE_TCP").values())]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "like_tcp_uploaded.py")
        with open(path, "w", encoding="utf-8") as module:
            module.write("value = 42\n")
        client.upload_file(path)

    def use() -> int:
        module = __import__("like_tcp_uploaded")
        return int(module.value)

    found.append(run.submit_on(1, use).result())
    client.unregister_worker_plugin("variables", nanny=True)
    return found


class Counter:
    """Actor of the programs."""

    n = 0

    def __init__(self, start: int = 0) -> None:
        self.n = start
        self.history: list[int] = []

    def add(self, amount: int = 1) -> int:
        self.n += amount
        self.history.append(self.n)
        return self.n

    def fail(self) -> None:
        raise ValueError("actor", self.n)

    def look(self) -> list[int]:
        return self.history

    async def later(self, x: int) -> int:
        await asyncio.sleep(0)
        return x + self.n


@program()
def actors(run: Run) -> Observation:
    """Calls, attributes, errors and coroutines of actors, from clients and from tasks."""
    client = run.client
    counter = client.submit(Counter, 5, actor=True, key="actor", workers=run.workers[:1]).result()
    # One after the other: calls that are under way together are run in any order.
    calls = [counter.add(n).result() for n in range(20)]
    found = [calls, counter.n, counter.add().result(timeout=60)]
    found += [outcome(counter.fail().result), counter.later(3).result(), counter.look().result()]
    found += [outcome(getattr, counter, "missing"), repr(counter), dir(counter)]

    def inside(actor: Any) -> Any:
        return actor.add(100).result(), actor.n

    found.append(run.submit_on(1, inside, counter).result())
    found.append(run.submit_on(0, lambda actor: type(actor).__name__, counter).result())
    found.append(counter.n)
    return found


@program()
def actor_states(run: Run) -> Observation:
    """An actor that cannot be made; futures of actors; an actor that a client lets go."""
    client = run.client
    failing = client.submit(Counter, "a", "b", actor=True, key="bad actor")
    found = [outcome(failing.result)]
    future = client.submit(Counter, actor=True, key="held actor")
    actor = future.result()
    waited = actor.add()
    found += [waited.result(), waited.done(), future.status, future.type]
    found.append(client.submit(lambda x: x.n, future, key="uses").result())
    del actor, waited, future
    return found


@program()
def coroutines(run: Run) -> Observation:
    """Tasks that are coroutine functions, and functions that `run` awaits."""

    async def task(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    async def failing() -> None:
        raise ValueError("coroutine")

    async def on_worker(dask_worker: Any) -> str:
        await asyncio.sleep(0)
        return str(dask_worker.name)

    return [
        run.client.submit(task, 1, key="coroutine").result(),
        outcome(run.client.submit(failing, key="failing").result),
        sorted(run.client.run(on_worker).values()),
        run.client.submit(lambda: get_client().run_on_scheduler(len, [1]), key="n").result(),
    ]


@program()
def state_of_worker_objects(run: Run) -> Observation:
    """Attributes that tasks keep on the worker and in globals of its process."""

    def keep(value: Any) -> Any:
        worker: Any = get_worker()
        kept: list[Any] = worker.__dict__.setdefault("like_tcp_kept", [])
        kept.append(value)
        return list(kept)

    found = [run.submit_on(0, keep, value).result() for value in ("a", 2, [3])]
    found.append(run.submit_on(1, keep, "other").result())
    Event("unused").clear()
    run.client.run(lambda dask_worker: dask_worker.__dict__.pop("like_tcp_kept", None) and None)
    return found
