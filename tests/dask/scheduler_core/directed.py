"""Streams that are written out, for what random ones hardly ever come to, and what is refused.

Each says what the core must have come to when it is converted, so that it cannot become void.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from distributed.scheduler import ClientState
from distributed.stealing import WorkStealing

from backhaul.dask.scheduler.core import adopt, obstacle, register_stealable, write_into
from backhaul.errors import EscapeError

from .conversion import Payloads
from .differential import ADOPT, CONVERT, Pair, run
from .events import Event, Graph, GraphTask
from .upstream import TakenPayloads, Upstream

__all__ = ["run_all"]

ONE, OTHER = "tcp://10.0.0.1:1", "tcp://10.0.0.2:2"


def run_all() -> list[str]:
    """Run all of them; say what is wrong."""
    warnings.simplefilter("ignore")
    found = []
    for play in (_departed_worker, _need_of_the_forgotten, _actor_of_the_forgotten):
        pair = Pair(0)
        try:
            for event, expected in play():
                if expected is not None and not expected(pair.ours.core.dump(tasks=False)):
                    found.append(f"{play.__name__}: the core is not as expected before {event}")
                wrong, _ = pair.apply(event)
                if wrong:
                    found.append(f"{play.__name__}, {event}: {wrong}")
                    break
        finally:
            pair.close()
    for check in (_refusals, _forgotten_blame, _thieves, _thief_that_came_back, _endless):
        found += [f"{check.__name__}: {wrong}" for wrong in check()]
    return found


def _endless() -> Iterator[str]:
    """Let the core refuse a retry that upstream follows for ever: inputs are too large."""
    events, _ = run(22002737, 120, Counter())
    pair = Pair(22002737)
    try:
        for event in events[:-1]:
            pair.apply(event)
        core = pair.ours
        refused = core.apply(events[-1], pair.now_s + events[-1].after_s, {})
        if not refused or "transitions come of one event" not in str(core.refusal):
            yield f"{events[-1].name} was not refused: {core.refusal!r}"
    finally:
        pair.close()


Expected = Callable[[dict[str, Any]], bool]
Play = Iterator[tuple[Event, Expected | None]]


def _event(name: str, /, **arguments: Any) -> tuple[Event, None]:
    return Event(name, f"{name} said", arguments), None


def _worker(address: str, **different: Any) -> tuple[Event, None]:
    joins: dict[str, Any] = {
        "address": address,
        "name": address,
        "host": address[len("tcp://") :].rpartition(":")[0],
        "nthreads": 2,
        "memory_limit": 0,
        "status": "running",
        "resources": {},
        "bandwidth_bytes_per_s": 100e6,
    }
    return _event("worker_added", **{**joins, **different})


def _graph(tasks: dict[str, tuple[str, ...]], **different: Any) -> tuple[Event, None]:
    annotations = different.pop("annotations", {})
    graph = Graph(
        tasks={
            key: GraphTask(dependencies, order, annotations)
            for order, (key, dependencies) in enumerate(tasks.items())
        },
        wanted=tuple(tasks),
        client="alice",
        annotated=tuple(annotations),
        **different,
    )
    return _event("graph", graph=graph)


def _gone(address: str) -> tuple[Event, None]:
    return _event("worker_removed", address=address, expected=False, close=False)


def _departed_worker() -> Play:
    """Leave tasks on a worker that is gone, as the first of them fits no other resource."""
    yield _event("client_added", client="alice")
    yield _worker(ONE, resources={"GPU": 1})
    yield _worker(OTHER)
    loose = {"resources": {"GPU": 1}, "allow_other_workers": True}
    yield _graph({"inc-1": (), "inc-2": (), "inc-3": ()}, annotations=loose)
    yield _gone(ONE)
    yield CONVERT, lambda said: len(said["departed_workers"][ONE]["processing"]) == 2
    yield _event("task_erred", **_failure("inc-3", OTHER, 3))
    yield _worker("tcp://10.0.0.3:3", resources={"GPU": 1})
    yield _event("reschedule", key="inc-1", worker=None)
    yield _event("client_releases_keys", released=["inc-1", "inc-2", "inc-3"], client="alice")


def _failure(key: str, worker: str, run_id: int) -> dict[str, Any]:
    return {
        "key": key,
        "worker": worker,
        "run_id": run_id,
        "exception": b"raised here",
        "traceback": None,
        "exception_text": "here",
        "traceback_text": "",
    }


def _need_of_the_forgotten() -> Play:
    """Lose scattered data that a worker was to fetch: it goes on being counted as to be fetched."""
    yield _event("client_added", client="alice")
    yield _worker(ONE)
    yield _worker(OTHER)
    yield _event("update_data", placed=[("data-1", 1000, [ONE])], client="alice")
    yield _graph({"inc-1": ("data-1",)}, annotations={"workers": [OTHER]})
    yield _gone(ONE)
    yield CONVERT, lambda said: said["workers"][OTHER]["needs_what"] == {"data-1": 1}
    yield ADOPT, None
    yield _event("heartbeat", address=OTHER, bandwidth_bytes_per_s=50e6, executing=[])
    yield CONVERT, lambda said: said["workers"][OTHER]["needs_what"] == {"data-1": 1}
    yield ADOPT, None
    yield _graph({"data-1": (), "inc-1": ("data-1",)})
    yield _event("update_data", placed=[("data-1", 10, [OTHER])], client="alice")
    yield CONVERT, lambda said: said["workers"][OTHER]["needs_what"] == {}


def _actor_of_the_forgotten() -> Play:
    """Forget an actor before it was made: its worker goes on counting it."""
    yield _event("client_added", client="alice")
    yield _worker(ONE)
    yield _worker(OTHER)
    yield _graph({"actor-1": ()}, actors=("actor-1",))
    yield _event("client_releases_keys", released=["actor-1"], client="alice")
    yield CONVERT, lambda said: said["workers"][ONE]["actors"] == ["actor-1"]
    yield ADOPT, None
    yield CONVERT, lambda said: said["workers"][ONE]["actors"] == ["actor-1"]
    yield ADOPT, None
    yield _graph({"actor-1": (), "actor-2": ()}, actors=("actor-1", "actor-2"))


def _busy(pair: Pair) -> None:
    """Give two workers a task each."""
    for event, _ in (
        _event("client_added", client="alice"),
        _worker(ONE),
        _worker(OTHER),
        _graph({"inc-1": (), "inc-2": ()}),
    ):
        pair.apply(event)


def _refusals() -> Iterator[str]:
    pair = Pair(0)
    _busy(pair)
    core = pair.ours.core
    empty = Upstream(pair.settings, pair.upstream.clock)
    for scheduler, words in (
        (pair.upstream.state, "has 2 tasks already"),
        (empty.state, f"lacks workers that the core has: ['{ONE}', '{OTHER}']"),
    ):
        try:
            write_into(core, scheduler, Payloads())
        except EscapeError as error:
            if words not in str(error):
                yield f"{error} does not say {words!r}"
        else:
            yield f"was written, though it {words}"
    yield from _refused_adoptions(pair.upstream.state)
    empty.state.clients["alice"] = ClientState("alice")
    try:
        adopt(empty.state, {"no_such_setting": 1}, TakenPayloads())
    except ValueError as error:
        if "no_such_setting" not in str(error):
            yield f"{error} does not say which setting"
    empty.close()
    pair.close()


def _refused_adoptions(state: Any) -> Iterator[str]:
    """Put into a scheduler what no core can hold; what was there is put back each time."""
    ts = state.tasks["inc-1"]
    for holder, name, value, words in (
        (ts, "priority", ("first",), "'inc-1' has the priority ('first',)"),
        (ts, "retries", 1 << 31, "inc-1 has 2147483648 retries"),
        (ts.processing_on, "nbytes", float("nan"), "results took nan bytes"),
        (state, "workers", {}, "is on a worker that has left"),
    ):
        before = getattr(holder, name)
        setattr(holder, name, value)
        try:
            adopt(state, {}, TakenPayloads())
        except EscapeError as error:
            if words not in str(error):
                yield f"{error} does not say {words!r}"
        else:
            yield f"was adopted, though {words}"
        finally:
            setattr(holder, name, before)
    if obstacle(state) is not None:
        yield f"{obstacle(state)} is in the way of a core"


class _Blaming:
    """A core whose tasks blame one that is forgotten, which no stream has led to."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def task(self, key: str) -> dict[str, Any]:
        blame = {"exception_blame": "inc-1", "forgotten_blame": 0}
        return {**self.core.task(key), **blame}


def _forgotten_blame() -> Iterator[str]:
    pair = Pair(0)
    _busy(pair)
    other = Upstream(pair.settings, pair.upstream.clock)
    for event in (_worker(ONE)[0], _worker(OTHER)[0]):
        other.apply(event, pair.now_s)
    blaming: Any = _Blaming(pair.ours.core)
    write_into(blaming, other.state, Payloads())
    one, another = (other.state.tasks[key] for key in ("inc-1", "inc-2"))
    blamed = one.exception_blame
    if blamed is not another.exception_blame or blamed is one:
        yield f"{one} and {another} blame {blamed} and {another.exception_blame}"
    if (blamed.key, blamed.state, blamed.exception) != ("inc-1", "forgotten", None):
        yield f"{blamed} does not stand in for a forgotten inc-1"
    if blamed.group is one.group or len(one.group) != len(pair.upstream.state.tasks[one.key].group):
        yield f"{blamed} is counted in {one.group}"
    other.close()
    pair.close()


def _thieves() -> Iterator[str]:
    """Stealing knows of what is processing afterwards, but for what has left its thread."""
    pair = Pair(0)
    _busy(pair)
    ts = pair.upstream.state.tasks["inc-2"]
    address = ts.processing_on.address
    pair.apply(
        _event("long_running", key="inc-2", worker=address, run_id=ts.run_id, compute_s=1.0)[0]
    )
    pair.apply(CONVERT)
    assert pair.converted is not None
    state = pair.converted.state
    register_stealable(state)  # There are none: nothing happens.
    stealing = state.extensions["stealing"] = WorkStealing(state)
    register_stealable(state)
    known = {one.key for one in stealing.key_stealable}
    if known != {"inc-1"}:
        yield f"stealing knows of {known}"
    pair.close()


def _thief_that_came_back() -> Iterator[str]:
    """Let a worker come to the address of one that was to have a task: it must not get the task."""
    pair = Pair(0)
    tasks: dict[str, tuple[str, ...]] = {f"('map-{number}', 0)": () for number in range(40)}
    for event, _ in (
        _event("client_added", client="alice"),
        _worker(ONE),
        _graph(tasks),
        _worker(OTHER),
        _event("balance"),
    ):
        pair.apply(event)
    said: Any = pair.ours.core.stealing()
    moved = said["in_flight"]
    if not moved:
        yield "nothing is on its way to the other worker"
        return
    key, *_, stimulus = moved[0]
    for event in (
        _gone(OTHER)[0],
        _worker(OTHER)[0],
        CONVERT,
        Event("steal_response", stimulus, {"key": key, "state": "ready"}),
    ):
        wrong, _ = pair.apply(event)
        if wrong:
            yield f"{event}: {wrong}"
            break
    pair.close()
