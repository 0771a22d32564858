"""Work stealing while the core has the state: the core decides, and Dask's extension reports.

The core keeps the stealable tasks and chooses the tasks to move
(``crates/dask/src/scheduler/stealing.rs``). Dask's extension counts and logs the moves as it does
without the core. Its collections of tasks are written when the state leaves the core, or when a
program reads them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import WorkStealing, fast_tasks, time
from backhaul.dask.scheduler.core.failures import worker_that_left
from backhaul.errors import EscapeError

if TYPE_CHECKING:
    from backhaul._native import SchedulerCore
    from backhaul.dask.scheduler.core.guarded_classes import Guards
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["ATTRIBUTES", "Stealing", "begin_stealing", "empty_stealing", "write_stealing"]

logger = logging.getLogger("distributed.stealing")

#: Attributes of the extension that depend on tasks
ATTRIBUTES = (
    "_in_flight_event",
    "_request_counter",
    "in_flight",
    "in_flight_occupancy",
    "in_flight_tasks",
    "key_stealable",
    "stealable",
    "unknown_durations",
)

#: Number of cost levels
LEVELS = len(WorkStealing.cost_multipliers)

#: Prefix of the stimulus ids of Dask's own requests
_STIMULUS = "steal-"


def begin_stealing(
    core: SchedulerCore, scheduler: Any, key_text: Callable[[Any], str] = str
) -> None:
    """Import the state of work stealing into a core with the tasks, if the scheduler steals.

    Raises
    ------
    EscapeError
        If a task is moving from or to a worker that has left; the core is unusable then.
    """
    extension = scheduler.extensions.get("stealing")
    if type(extension) is not WorkStealing:
        return
    core.begin_stealing(sorted(map(str, fast_tasks)), extension._request_counter)
    try:
        core.inherit_stealing(_said(extension, scheduler, key_text))
    except LookupError as error:
        raise EscapeError(str(error)) from error


def _said(extension: Any, scheduler: Any, key_text: Callable[[Any], str]) -> dict[str, Any]:
    """Return the state of the extension in the form of `SchedulerCore.stealing`."""
    workers, tasks = scheduler.workers, scheduler.tasks

    def is_here(ws: Any) -> bool:
        return workers.get(ws.address) is ws

    def texts(some: Iterable[Any]) -> list[str]:
        # Dask's sets of tasks with unknown durations keep forgotten tasks.
        return [key_text(ts.key) for ts in some if tasks.get(ts.key) is ts]

    for ts, info in extension.in_flight.items():
        if not (is_here(info["victim"]) and is_here(info["thief"])):
            raise EscapeError(f"{ts.key!r} is stolen from or for a worker that has left")
    return {
        "stealable": [
            (address, level, texts(some))
            for address, levels in extension.stealable.items()
            for level, some in enumerate(levels)
            if some and address in workers
        ],
        "in_flight": [
            (
                key_text(ts.key),
                info["victim"].address,
                info["thief"].address,
                info["victim_duration"],
                info["thief_duration"],
                info["stimulus_id"],
            )
            for ts, info in extension.in_flight.items()
        ],
        "occupancy": [
            (ws.address, s) for ws, s in extension.in_flight_occupancy.items() if is_here(ws)
        ],
        "tasks": [(ws.address, n) for ws, n in extension.in_flight_tasks.items() if is_here(ws)],
        "unknown": [(prefix, texts(some)) for prefix, some in extension.unknown_durations.items()],
        "requests": extension._request_counter,
    }


def empty_stealing(scheduler: Any) -> None:
    """Clear the collections of the extension, which a core has imported."""
    extension = scheduler.extensions.get("stealing")
    if type(extension) is not WorkStealing:
        return
    for levels in extension.stealable.values():
        for level in levels:
            level.clear()
    for name in ("key_stealable", "in_flight", "in_flight_occupancy", "in_flight_tasks"):
        getattr(extension, name).clear()
    extension.unknown_durations.clear()


def write_stealing(
    core: SchedulerCore,
    scheduler: Any,
    key_of: Callable[[str], Any],
    departed: dict[str, Any] | None = None,
) -> None:
    """Export a core's state of work stealing to the extension, after the export of the tasks.

    `departed` are workers that have left, by address.
    """
    extension = scheduler.extensions.get("stealing")
    said = core.stealing()
    if extension is None or said is None:
        return
    workers, tasks = scheduler.workers, scheduler.tasks
    departed = departed or {}

    def task(text: str) -> Any:
        return tasks[key_of(text)]

    to_departed = _moves_to_departed(said)

    def thief_at(address: str) -> Any:
        here = workers.get(address)
        if here is not None and to_departed[address] <= 0:
            return here
        to_departed[address] -= 1
        return departed.get(address) or worker_that_left(address, scheduler=scheduler)

    new_set = type(scheduler.running)
    for levels in extension.stealable.values():
        for level in levels:
            level.clear()
    extension.key_stealable.clear()
    for address, level, texts in said["stealable"]:
        for text in texts:
            extension.stealable[address][level].add(task(text))
            extension.key_stealable[task(text)] = address, level
    extension.in_flight.clear()
    for text, victim, thief, victim_s, thief_s, stimulus_id in said["in_flight"]:
        extension.in_flight[task(text)] = {
            "victim": workers[victim],
            "thief": thief_at(thief),
            "victim_duration": victim_s,
            "thief_duration": thief_s,
            "stimulus_id": stimulus_id,
        }
    for own, counts in (
        (extension.in_flight_occupancy, said["occupancy"]),
        (extension.in_flight_tasks, said["tasks"]),
    ):
        own.clear()
        own.update({workers[address]: count for address, count in counts})
    extension.unknown_durations.clear()
    for prefix, texts in said["unknown"]:
        extension.unknown_durations[prefix] = new_set(map(task, texts))
    extension._request_counter = said["requests"]
    if extension.in_flight:
        extension._in_flight_event.clear()
    else:
        extension._in_flight_event.set()


def _moves_to_departed(said: dict[str, Any]) -> Counter[str]:
    """Count, by address, the moves to workers that have left; these are the earliest moves.

    Another worker may have joined with that address since. The core counts the moves from and to
    each current worker; any further move to its address is for the worker that left.
    """
    moves = Counter(thief for _, _, thief, *_ in said["in_flight"])
    moves.subtract(victim for _, victim, *_ in said["in_flight"])
    moves.subtract(dict(said["tasks"]))
    return moves


class Stealing:
    """The extension of one scheduler while a core has the state."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        extension = live.scheduler.extensions.get("stealing")
        self.extension = extension if type(extension) is WorkStealing else None

    def guard(self, guards: Guards) -> None:
        """Answer the attributes and methods of the extension from the core."""
        if self.extension is not None:
            methods: dict[str, Callable[..., Any]] = {
                "add_worker": self._add_worker,
                "balance": self._balance,
                "move_task_confirm": self._confirm,
                "remove_worker": self._remove_worker,
            }
            guards.guard_extension(self.extension, ATTRIBUTES, methods)

    def balance(self) -> None:
        """Let the core choose tasks to move, and report them in the extension."""
        live, extension = self._live, self.extension
        if extension is None or not live.core.may_balance():
            return
        start = time()
        log = []
        for one in live.core.balance(start):
            level, moves = one.level, (one.victim, one.victim_s, one.thief, one.thief_s)
            extension.metrics["request_count_total"][level] += 1
            extension.metrics["request_cost_total"][level] += one.cost_s
            log.append((start, level, live.texts.key(one.key), one.cost_s, *moves))
        live.send()
        if log:
            extension.log(("request", log))
            extension.count += 1
        digests = live.scheduler.digests
        if digests:
            digests["steal-duration"].add(time() - start)

    def confirm(self, key: Any, state: str | None, stimulus_id: str, worker: str | None) -> None:
        """Pass a worker's response to a request to move a task to the core."""
        live, extension = self._live, self.extension
        text = live.texts.known(key)
        if text is None or extension is None:
            return
        answer = live.call(live.core.confirm_steal, stimulus_id, time(), text, state)
        told, victim, thief = answer.outcome, answer.victim, answer.thief
        # Dask logs the same, before or after it sends.
        if told in ("stale-response", "already-aborted"):
            extension.log((told, key, state, worker, stimulus_id))
        elif told == "reschedule":
            extension.log((told, answer.is_thief_gone, key, state, victim, thief, stimulus_id))
        elif told != "unknown":
            extension.log((told, key, state, victim, thief, stimulus_id))
        live.send()

    def response(self, upstream: Callable[..., None]) -> Callable[..., None]:
        """Make the handler of ``steal-response``."""

        def handle(
            *, key: Any, state: str | None, stimulus_id: str, worker: str | None = None
        ) -> None:
            if stimulus_id.startswith(_STIMULUS):
                self.confirm(key, state, stimulus_id, worker)
            else:
                # The response to a request that another object made before the core had the state
                upstream(key=key, state=state, stimulus_id=stimulus_id, worker=worker)

        return handle

    # Replacements of methods of the extension

    def _add_worker(self, scheduler: Any = None, worker: Any = None) -> None:
        vars(self.extension)["stealable"][worker] = tuple(set() for _ in range(LEVELS))

    def _remove_worker(self, scheduler: Any, worker: str, **more: Any) -> None:
        del vars(self.extension)["stealable"][worker]

    def _balance(self) -> None:
        if self._live.loop_thread.is_current():
            self.balance()
        else:
            self._live.loop_thread.run(self.balance)

    def _confirm(
        self, *, key: Any, state: str | None, stimulus_id: str, worker: str | None = None
    ) -> None:
        self.confirm(key, state, stimulus_id, worker)
