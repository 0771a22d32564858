"""State of tasks on a scheduler, in a form that equals itself on another cluster."""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task
from distributed import Client, Scheduler, SchedulerPlugin
from distributed.scheduler import TaskState

__all__ = ["Forgetful", "Updates", "said_of_all", "state_of"]


class Updates(SchedulerPlugin):
    """Records the graphs that plugins get."""

    name = "updates"

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.generations: list[float] = []

    def update_graph(self, scheduler: Scheduler, **options: Any) -> None:
        del options["stimulus_id"]
        # In the order of a set
        options["tasks"] = sorted(options["tasks"], key=repr)
        options["client"] = options["client"][:6]
        options["annotations"] = {name: dict(of) for name, of in options["annotations"].items()}
        spans = options["annotations"].pop("span", {})
        options["spans"] = {key: value["name"] for key, value in spans.items()}
        generation = options["priority"][next(iter(options["keys"]))][1]
        # It hangs on how fast this machine is.
        options["priority"] = {key: (p[0], p[2]) for key, p in options["priority"].items()}
        self.generations.append(generation)
        self.seen.append(options)


#: Attributes that differ from run to run: times, counters of the process, addresses of objects
_PASSING = {"run_id", "__weakref__", "_hash", "last_worker_death", "metadata", "last_duration"}


def plain(value: Any, workers: dict[str, int]) -> Any:
    """Make something that equals itself on another cluster."""
    if isinstance(value, TaskState):
        return value.key
    if isinstance(value, Task):
        return repr(value)
    if isinstance(value, dict):
        return {repr(plain(key, workers)): plain(each, workers) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(each, workers) for each in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain(each, workers) for each in value]
    if isinstance(value, str):
        return workers.get(value, value)
    if isinstance(value, (int, float, bool, type(None))):
        return value
    address = getattr(value, "address", None)
    return workers[address] if address in workers else getattr(value, "name", type(value).__name__)


def state_of(scheduler: Scheduler, key: Any, workers: dict[str, int]) -> dict[str, Any]:
    ts = scheduler.tasks[key]
    found = {
        slot: plain(getattr(ts, slot), workers)
        for slot in TaskState.__slots__
        if slot not in _PASSING
    }
    # The id of a span is random; which one it is, is compared below.
    (found["annotations"] or {}).pop("'span'", None)
    # The generation hangs on how fast this machine is.
    found["priority"] = [found["priority"][0], found["priority"][2]]
    # Whether there was anything to wait for, likewise.
    found["waiting_on"] = found["waiting_on"] or []
    # The worker that ran it is chance, unless it is restricted.
    if not ts.worker_restrictions:
        for slot in ("who_has", "erred_on"):
            found[slot] = bool(getattr(ts, slot))
    found["group"] = plain(ts.group.states, workers), ts.group.prefix.name, len(ts.group)
    return found


def said_of_all(
    scheduler: Scheduler, client: Client, plugin: Updates, addresses: dict[str, int]
) -> dict[str, Any]:
    """Tell what plugins, events, computations and spans say of all tasks."""
    found: dict[str, Any] = {}
    found["plugin"] = plain(plugin.seen, addresses)
    events = [event for _, event in scheduler.get_events(client.id)]
    found["events"] = [
        {**event, "stimulus_id": "", "metrics": sorted(event.get("metrics", {}))}
        for event in events
        if isinstance(event, dict) and event["action"] == "update-graph"
    ]
    found["tasks"] = [
        event["metrics"][name]
        for event in events
        if isinstance(event, dict) and event["action"] == "update-graph"
        for name in ("tasks", "new_tasks", "key_collisions")
    ]
    found["computations"] = [
        (
            sorted(group.name for group in each.groups),
            [[frame.code for frame in code] for code in each.code],
            sorted(each.annotations),
        )
        for each in scheduler.computations
    ]
    found["spans"] = sorted(
        (each.name, sorted(group.name for group in each.groups), each.metadata["collections"][0])
        for each in scheduler.extensions["spans"].spans.values()
    )
    return found


class Forgetful(set[int]):
    """Never has anything."""

    def __contains__(self, item: object) -> bool:
        return False
