"""Our scheduler core, called with the same events."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from dask.utils import key_split
from distributed.utils import key_split_group

from backhaul._native import SchedulerCore

from .asking import requirements_of
from .events import Event, Graph
from .placed import OurLinks, tell_links

__all__ = ["Ours"]


class Ours:
    """One core, and what it has to send."""

    def __init__(
        self,
        core: SchedulerCore,
        split: Callable[[Any], Any],
        asks: bool = False,
        links: OurLinks | None = None,
    ) -> None:
        self.core = core
        #: Tells addresses from hosts, as upstream's caller does.
        self.split = split
        #: Whether what tasks ask for is heeded
        self.asks = asks
        #: Links by which tasks are placed, if they are
        self.links = links
        self.clients: list[str] = []
        self.steal_log: list[Any] = []

    def take_steal_log(self) -> list[Any]:
        taken = self.steal_log[:]
        self.steal_log.clear()
        return taken

    def apply(self, event: Event, now_s: float, culled: dict[str, list[str]]) -> bool:
        """Handle an event; return whether it was refused."""
        self.refusal: BaseException | None = None
        try:
            if self.links is not None:
                self.links.before(event)
            self._apply(event, now_s, culled)
            if self.links is not None:
                self.links.after(event)
        except (KeyError, RuntimeError, ValueError) as error:
            self.refusal = error
        return self.refusal is not None

    def _apply(self, event: Event, now_s: float, culled: dict[str, list[str]]) -> None:
        arguments = event.arguments
        handle: Any = getattr(self.core, f"handle_{event.name}", None)
        if event.name == "graph":
            handle(event.stimulus, now_s, **self._graph(arguments["graph"], culled))
        elif event.name == "update_data":
            placed = [
                (key, key_split_group(key), key_split(key), nbytes, workers)
                for key, nbytes, workers in arguments["placed"]
            ]
            handle(event.stimulus, now_s, placed, arguments["client"])
        elif event.name == "links":
            assert self.links is not None
            tell_links(self.links.mirror, **arguments)
        elif event.name == "balance":
            requested = self.core.balance(now_s)
            if requested:
                log = []
                for one in requested:
                    moves = one.victim, one.victim_s, one.thief, one.thief_s
                    log.append((now_s, one.level, one.key, one.cost_s, *moves))
                self.steal_log.append(("request", log))
        elif event.name == "steal_response":
            self._answer(event.stimulus, now_s, **arguments)
        elif event.name in ("task_finished", "task_erred", "worker_added"):
            handle(event.stimulus, now_s, **arguments)
        elif event.name in ("heartbeat", "client_added", "report_key", "restrictions"):
            handle(*arguments.values())
        elif event.name == "no_workers_check":
            handle(f"check-no-workers-timeout-{now_s}", now_s)
        elif event.name == "retry":
            handle(f"stimulus-retry-{now_s}", now_s, *arguments.values())
        elif event.name == "cancel":
            handle(f"cancel-key-{now_s}", now_s, *arguments.values())
        else:
            handle(event.stimulus, now_s, *arguments.values())
        if event.name == "client_added":
            self.clients.append(arguments["client"])
        elif event.name == "client_removed" and arguments["client"] in self.clients:
            self.clients.remove(arguments["client"])

    def _answer(self, stimulus: str, now_s: float, key: str, state: str | None) -> None:
        answer = self.core.confirm_steal(stimulus, now_s, key, state)
        told, victim, thief = answer.outcome, answer.victim, answer.thief
        if told in ("stale-response", "already-aborted"):
            self.steal_log.append((told, key, state, "w", stimulus))
        elif told == "reschedule":
            self.steal_log.append((told, answer.is_thief_gone, key, state, victim, thief, stimulus))
        elif told != "unknown":
            self.steal_log.append((told, key, state, victim, thief, stimulus))

    def _graph(self, graph: Graph, culled: dict[str, list[str]]) -> dict[str, Any]:
        names = {*graph.wanted, *graph.actors, *culled}
        names.update(name for dependencies in culled.values() for name in dependencies)
        number = {name: place for place, name in enumerate(sorted(names))}
        user = graph.user_priority
        tasks = []
        for key, dependencies in culled.items():
            task = graph.tasks[key]
            annotations = {name: task.annotations[name] for name in graph.annotated}
            tasks.append(
                (
                    number[key],
                    key_split_group(key),
                    key_split(key),
                    pickle.dumps((key, tuple(task.dependencies), task.data_producer)),
                    [number[name] for name in dependencies],
                    float(task.order),
                    float(user.get(key, 0)) if isinstance(user, dict) else None,
                    self._requirements(annotations),
                    task.data_producer,
                )
            )
        return {
            "keys": sorted(names),
            "tasks": tasks,
            "wanted": [number[name] for name in dict.fromkeys(graph.wanted)],
            "client": graph.client,
            "user_priority": 0.0 if isinstance(user, dict) else float(user),
            "submitting_task": graph.submitting_task,
            "fifo_timeout_s": graph.fifo_timeout_s,
            "actors": [number[name] for name in graph.actors],
        }

    def _requirements(self, annotations: dict[str, Any]) -> dict[str, Any] | None:
        if not annotations:
            return None
        hosts, workers = self.split(annotations.get("workers", []))
        annotations = dict(annotations)
        resources = (
            requirements_of(annotations)
            if self.asks
            else {"resources": annotations.get("resources")}
        )
        return {
            "hosts": hosts,
            "workers": workers,
            **resources,
            "loose": annotations.get("allow_other_workers", False),
            "priority": annotations.get("priority"),
            "retries": annotations.get("retries"),
            "annotations": pickle.dumps(annotations),
        }

    def take_messages(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Messages by kind and name of their receiver, in the order of sending."""
        taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for kind, name, message in self.core.take_messages():
            for receiver in [name] if name is not None else self.clients:
                taken.setdefault((kind, receiver), []).append(message)
        return taken
