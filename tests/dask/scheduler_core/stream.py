"""Random events from a seed, chosen by what upstream's scheduler knows when each is made.

Most are what a cluster would say. Some are not: workers finish what they were not given, or old
runs of it, lose what they do not have, and say things twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from backhaul.dask.scheduler.core.placement import placement_of

from .events import Event
from .graphs import Graphs

__all__ = ["Stream"]

#: Resources of workers
HAVE: list[dict[str, float]] = [{}, {"GPU": 1}, {"GPU": 2, "FOO": 10.5}, {"GPU": 4}]

ANY_STATE = ("released", "waiting", "no-worker", "queued", "processing", "memory", "erred")


class Stream:
    """A source of events; `next` makes one."""

    def __init__(self, seed: int, asks: bool = False, places: bool = False) -> None:
        self.random = random.Random(seed)
        self.made = 0
        self.workers_made = 0
        self.asks = asks
        # Large results are worth planning where they are made.
        large = [10**8, 10**8, 10**9]
        self.sizes = [28, 10**6, *large] if places else [0, 28, 28, 1000, 10**6]
        self.graphs = Graphs(self.random, asks, places)
        self.clients = ["alice", "bob"]
        self.old_runs: list[tuple[str, str, int]] = []
        self.gone: list[str] = []
        self.makers = [*MAKERS, *([_links] if places else [])]
        weights = [self._weight(make) for make in MAKERS] + ([3.0] if places else [])
        self.weights = list(accumulate(weights))

    def _weight(self, make: Maker) -> float:
        # Each stream has some kinds of events more often, and some not at all.
        usual = MAKERS[make]
        return usual * self.random.choice([0, 0.3, 1, 1, 2]) if usual < ALWAYS else usual

    def first(self) -> list[Event]:
        """Clients and some workers."""
        events = [self.event("client_added", client=client) for client in self.clients]
        return events + [self.worker() for _ in range(self.random.choice([0, 1, 2, 3, 5, 22]))]

    def next(self, state: Any) -> Event:
        """Make an event that fits the state, mostly."""
        while True:
            make = self.random.choices(self.makers, cum_weights=self.weights)[0]
            event = make(self, state)
            if event is not None:
                return event

    def releases(self, state: Any) -> Iterator[Event]:
        """Make events after which no client wants anything, so that no task is left.

        Each is made when the one before it was handled.
        """
        for _ in range(50):
            # No client wants results that clients scattered and did not keep.
            if state.tasks and state.clients:
                desired, client = list(state.tasks), self.clients[0]
                yield self.event("client_desires_keys", desired=desired, client=client)
            for client in list(state.clients):
                wants = [ts.key for ts in state.clients[client].wants_what]
                if wants:
                    yield self.event("client_releases_keys", released=wants, client=client)
            if not state.tasks:
                return

    def event(self, name: str, after_s: float = 0.01, /, **arguments: Any) -> Event:
        self.made += 1
        return Event(name, f"{name}-{self.made}", arguments, after_s)

    def worker(self) -> Event:
        rnd = self.random
        if self.gone and rnd.random() < 0.5:
            address = self.gone.pop(rnd.randrange(len(self.gone)))
        else:
            self.workers_made += 1
            host = rnd.randrange(1, 4)
            # Addresses do not sort in the order of coming.
            address = f"tcp://10.0.0.{host}:{9999 - self.workers_made * 7 % 100}"
        return self.event(
            "worker_added",
            address=address,
            name=f"name of {address}",
            host=address[len("tcp://") :].rpartition(":")[0],
            nthreads=rnd.choice([1, 1, 2, 4]),
            memory_limit=rnd.choice([0, 2**33, 2**33, 3_000_000]),
            status=rnd.choice(["running"] * 9 + ["paused"]),
            resources=rnd.choice(HAVE if self.asks else [{}, {}, *HAVE[1:3]]),
            bandwidth_bytes_per_s=rnd.choice([100e6, 100e6, 50e6, 1e9]),
        )

    def some(self, state: Any, *states: str) -> str | None:
        """Choose a task in one of these states."""
        keys = [key for key, ts in state.tasks.items() if ts.state in states]
        return self.random.choice(keys) if keys else None

    def many(self, keys: list[str], at_most: int = 3) -> list[str]:
        return self.random.sample(keys, min(len(keys), self.random.randint(1, at_most)))

    def address(self, state: Any) -> str | None:
        return self.random.choice(list(state.workers)) if state.workers else None

    def run(self, state: Any) -> tuple[str, str, int] | None:
        """Choose a run of a task: key, worker, number; some are lies."""
        rnd = self.random
        lie = rnd.random()
        if lie < 0.04 and self.old_runs:
            return rnd.choice(self.old_runs)
        key = self.some(state, "processing")
        if lie < 0.08:
            key = self.some(state, *ANY_STATE)
            address = self.address(state)
            if key is None or address is None:
                return None
            run_id = state.tasks[key].run_id
            # The latter is what a worker says that was never sent the task.
            no_run = 0 if lie < 0.06 else -1
            return key, address, rnd.choice([no_run, run_id if run_id is not None else 1])
        if key is None:
            return None
        ts = state.tasks[key]
        if ts.processing_on is None or ts.run_id is None:
            # Left half done by an event that was refused
            return None
        run = key, ts.processing_on.address, ts.run_id
        self.old_runs = [*self.old_runs[-20:], run]
        return run


def _graph(stream: Stream, state: Any) -> Event | None:
    graph = stream.graphs.next(state, stream.random.choice(stream.clients))
    return stream.event("graph", stream.random.choice([0.01, 1.0]), graph=graph)


def _finished(stream: Stream, state: Any) -> Event | None:
    run = stream.run(state)
    if run is None:
        return None
    key, worker, run_id = run
    rnd = stream.random
    start = 1e9 + stream.made * 0.37
    took = rnd.choice([1e-3, 0.01, 0.5, 3.0, rnd.random()])
    startstops = [("compute", start, start + took)]
    if rnd.random() < 0.2:
        startstops.insert(0, ("transfer", start - 0.2, start - 0.1))
    return stream.event(
        "task_finished",
        key=key,
        worker=worker,
        run_id=run_id,
        nbytes=rnd.choice([*stream.sizes, rnd.randrange(10**7)]),
        type=b"pickled type",
        typename=rnd.choice(["int", "str"]),
        startstops=startstops,
    )


def _erred(stream: Stream, state: Any) -> Event | None:
    run = stream.run(state)
    if run is None:
        return None
    key, worker, run_id = run
    return stream.event(
        "task_erred",
        key=key,
        worker=worker,
        run_id=run_id,
        exception=b"raised %d" % stream.made,
        traceback=stream.random.choice([b"where", None]),
        exception_text=f"text {stream.made}",
        traceback_text="where",
    )


def _releases(stream: Stream, state: Any) -> Event | None:
    client = stream.random.choice(stream.clients)
    wants = [ts.key for ts in state.clients[client].wants_what] if client in state.clients else []
    if not wants:
        return None
    return stream.event("client_releases_keys", released=stream.many(wants, 8), client=client)


def _desires(stream: Stream, state: Any) -> Event | None:
    if not state.tasks:
        return None
    client = stream.random.choice([*stream.clients, "fire-and-forget", "variable"])
    return stream.event(
        "client_desires_keys", desired=stream.many([*state.tasks, "no-such-key"]), client=client
    )


def _client_goes(stream: Stream, state: Any) -> Event | None:
    if len(stream.clients) < 2:
        client = f"carol {stream.made}"
        stream.clients.append(client)
        return stream.event("client_added", client=client)
    client = stream.clients.pop(stream.random.randrange(len(stream.clients)))
    return stream.event("client_removed", client=client)


def _cancel(stream: Stream, state: Any) -> Event | None:
    if not state.tasks:
        return None
    client = stream.random.choice(stream.clients)
    force = stream.random.random() < 0.4
    wants = [ts.key for ts in state.clients[client].wants_what] if client in state.clients else []
    keys = stream.many(wants or list(state.tasks), 2)
    return stream.event(
        "cancel", cancelled=keys, client=client, force=force, reason="why", msg="more"
    )


def _retry(stream: Stream, state: Any) -> Event | None:
    erred = [key for key, ts in state.tasks.items() if ts.state == "erred"]
    return stream.event("retry", retried=stream.many(erred)) if erred else None


def _report(stream: Stream, state: Any) -> Event | None:
    keys = [*state.tasks, "no-such-key"]
    client = stream.random.choice([*stream.clients, None])
    return stream.event("report_key", reported=stream.random.choice(keys), client=client)


def _reschedule(stream: Stream, state: Any) -> Event | None:
    run = stream.run(state)
    if run is None:
        return None
    key, worker, _ = run
    return stream.event("reschedule", key=key, worker=stream.random.choice([worker, None]))


def _long_running(stream: Stream, state: Any) -> Event | None:
    run = stream.run(state)
    if run is None:
        return None
    key, worker, run_id = run
    compute_s = stream.random.choice([None, 0.1, 2.0])
    return stream.event("long_running", key=key, worker=worker, run_id=run_id, compute_s=compute_s)


def _worker_comes(stream: Stream, state: Any) -> Event | None:
    return stream.worker()


def _worker_goes(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    stream.gone.append(address)
    rnd = stream.random
    return stream.event(
        "worker_removed",
        address=address,
        expected=rnd.random() < 0.3,
        close=rnd.random() < 0.5,
    )


def _status(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    statuses = ["running", "running", "running", "paused", "closing_gracefully"]
    return stream.event("worker_status", address=address, status=stream.random.choice(statuses))


def _heartbeat(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    rnd = stream.random
    keys = [key for key, ts in state.tasks.items() if ts.state == "processing"]
    executing = [(key, rnd.choice([0.1, 1.0, 30.0])) for key in stream.many([*keys, "no-such-key"])]
    return stream.event(
        "heartbeat",
        address=address,
        bandwidth_bytes_per_s=rnd.choice([100e6, 20e6, 3.7e9]),
        executing=executing,
    )


def _balance(stream: Stream, state: Any) -> Event | None:
    return stream.event("balance")


def _steal_response(stream: Stream, state: Any) -> Event | None:
    rnd = stream.random
    in_flight = state.extensions["stealing"].in_flight
    if not in_flight:
        return None
    ts, info = rnd.choice(list(in_flight.items()))
    usual = ["ready", "ready", "ready", "waiting", "constrained", "executing", "memory", None]
    answer = rnd.choice([*usual, "released", "long-running", "cancelled", "resumed"])
    event = stream.event("steal_response", key=ts.key, state=answer)
    if rnd.random() < 0.1:
        # It has been asked for since.
        return event
    return replace(event, stimulus=info["stimulus_id"])


def _resources(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    resources = stream.random.choice([{"GPU": 1}, {"GPU": 0}, {"FOO": 3}])
    return stream.event("resources", address=address, resources=resources)


def _no_workers(stream: Stream, state: Any) -> Event | None:
    return stream.event("no_workers_check", stream.random.choice([0.01, 40.0]))


def _add_keys(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    memory = [key for key, ts in state.tasks.items() if ts.state == "memory"]
    keys = stream.many([*memory, *stream.many([*state.tasks, "no-such-key"])])
    return stream.event("add_keys", address=address, added=keys)


def _release_data(stream: Stream, state: Any) -> Event | None:
    key = stream.some(state, "memory") or stream.some(state, *ANY_STATE)
    address = stream.address(state)
    if key is None or address is None:
        return None
    who_has = [ws.address for ws in state.tasks[key].who_has or ()]
    if who_has and stream.random.random() < 0.8:
        address = stream.random.choice(who_has)
    return stream.event("release_worker_data", key=key, address=address)


def _refresh(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    keys = stream.many([*state.tasks, "no-such-key"])
    return stream.event("request_refresh_who_has", asked=keys, address=address)


def _acquire(stream: Stream, state: Any) -> Event | None:
    address, key = stream.address(state), stream.some(state, "memory")
    if key is None:
        return None
    return stream.event("acquire_replicas", address=address, acquired=[key])


def _remove_replicas(stream: Stream, state: Any) -> Event | None:
    keys = [ts.key for ts in state.replicated_tasks]
    if not keys:
        return None
    key = stream.random.choice(keys)
    who_has = [ws.address for ws in state.tasks[key].who_has or ()]
    address = stream.random.choice(who_has)
    return stream.event("remove_replicas", address=address, removed=[key])


def _update_data(stream: Stream, state: Any) -> Event | None:
    address = stream.address(state)
    if address is None:
        return None
    rnd = stream.random
    memory = stream.some(state, "memory")
    key = memory if memory and rnd.random() < 0.3 else stream.graphs.name()
    placed = [(key, rnd.choice([None, 100, 10**6]), [address])]
    return stream.event("update_data", placed=placed, client=rnd.choice([None, *stream.clients]))


def _restrictions(stream: Stream, state: Any) -> Event | None:
    key, address = stream.some(state, *ANY_STATE), stream.address(state)
    if key is None or address is None:
        return None
    addresses = stream.random.choice([None, [address]])
    return stream.event("restrictions", key=key, addresses=addresses)


def _links(stream: Stream, state: Any) -> Event | None:
    # Where tasks are placed by that
    placement = placement_of(state)
    hosts = 0 if placement is None else len(placement.hosts)
    if not hosts:
        return None
    rnd = stream.random
    nics = [(rnd.randrange(hosts), rnd.choice([1e7, 1e9, 1.25e10])) for _ in range(2)]
    flows = [
        (rnd.randrange(hosts), rnd.randrange(hosts), rnd.choice([1e6, 5e8, 5e9]), rnd.random() / 99)
        for _ in range(3)
    ]
    return stream.event("links", nics=nics, flows=flows, request_s=rnd.choice([0.0, 1e-3, 0.1]))


Maker = Callable[[Stream, Any], Event | None]

#: Weights from this on are the same in all streams.
ALWAYS = 8
MAKERS: dict[Maker, float] = {
    _finished: 40,
    _graph: 10,
    _releases: 5,
    _erred: 4,
    _worker_comes: 1.5,
    _worker_goes: 2,
    _status: 2,
    _desires: 1,
    _client_goes: 0.5,
    _cancel: 1,
    _retry: 2,
    _report: 0.5,
    _reschedule: 2,
    _long_running: 3,
    _heartbeat: 2,
    _balance: 4,
    _steal_response: 7,
    _resources: 0.5,
    _no_workers: 2,
    _add_keys: 2,
    _release_data: 2,
    _refresh: 1,
    _acquire: 1,
    _remove_replicas: 2,
    _update_data: 1,
    _restrictions: 0.5,
}
