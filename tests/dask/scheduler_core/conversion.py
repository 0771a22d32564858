"""The core converted to upstream's machine in the middle of a stream, and what is checked of it."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

from backhaul._native import SchedulerCore
from backhaul.dask.scheduler.core import write_into
from backhaul.dask.scheduler.core.stealing import write_stealing

from .asking import AskingUpstream
from .ours import Ours
from .upstream import Clock, Upstream, exception_name, node

__all__ = ["convert", "flaws"]


class Payloads:
    """Objects that the harness gives the core as bytes."""

    def key(self, text: str) -> str:
        return text

    def run_spec(self, text: str, payload: bytes) -> Any:
        return node(*pickle.loads(payload))

    def annotations(self, text: str, payload: bytes) -> Any:
        return pickle.loads(payload)

    def exception(self, text: str, payload: bytes) -> bytes:
        return payload

    def traceback(self, text: str, payload: bytes) -> bytes:
        return payload


def convert(
    ours: Ours, settings: dict[str, Any], joins: dict[str, dict[str, Any]], clock: Clock
) -> Upstream:
    """Make a scheduler of upstream's of a core: first its cluster, then all that the core holds.

    ``joins`` is what each worker said when it joined, by address.
    """
    core: SchedulerCore = ours.core
    converted = (AskingUpstream if ours.asks else Upstream)(settings, clock, validate=True)
    hosts = core.dump(tasks=False)["hosts"]
    present = {address for addresses in hosts.values() for address in addresses}
    for address in joins:
        if address in present:
            converted._worker_added("joined", **joins[address])
    for client in ours.clients:
        converted._client_added("joined", client)
    write_into(core, converted.state, Payloads())
    write_stealing(core, converted.state, str)
    if ours.links is not None:
        ours.links.go_on(core, converted.state)
    if isinstance(converted, AskingUpstream):
        converted.go_on(core)
    # Only asked for below, of both alike: some events break its invariants.
    converted.state.validate = False
    converted.keep_run_ids()
    converted.take_messages()
    converted.take_transitions()
    return converted


def flaws(upstream: Upstream, converted: Upstream) -> str | None:
    """Say what is wrong with a converted scheduler besides its attributes: objects and invariants.

    Upstream's own validation must come to the same verdict on both. Some of the events that streams
    have, such as a task that leaves its thread twice, break its invariants.
    """
    verdicts = []
    for side in (upstream, converted):
        side.state.validate = True
        try:
            side.state.validate_state()
            verdicts.append("valid")
        except Exception as error:
            # Where an event left things half done, it may not even get that far.
            verdicts.append(type(error).__name__)
        finally:
            side.state.validate = False
    if verdicts[0] != verdicts[1]:
        return f"validation: upstream is {verdicts[0]}, converted {verdicts[1]}"
    thieves = [_thieves(side) for side in (upstream, converted)]
    if thieves[0] != thieves[1]:
        return f"thieves: upstream has {thieves[0]}, converted {thieves[1]}"
    return _strangers(converted.state) or _slots_differ(upstream.state, converted.state)


def _thieves(side: Upstream) -> dict[str, bool]:
    """Say of each task that is on its way whether the worker that is to have it is there."""
    workers = side.state.workers
    moves = ((ts.key, info["thief"]) for ts, info in side.stealing.in_flight.items())
    return {key: workers.get(thief.address) is thief for key, thief in moves}


#: Attributes that the core does not have, or that differ between any two schedulers.
NOT_CONVERTED = {
    "_hash",
    "_memory_unmanaged_history",
    "_memory_unmanaged_old",
    "__weakref__",
    "last_seen",
    "last_worker",
    "metrics",
    "scheduler_ref",
    "server_id",
}


def _slots_differ(one: Any, other: Any) -> str | None:
    """Say which attribute of an object differs, whatever attributes upstream's classes have."""
    for kind in ("tasks", "workers", "clients", "task_groups", "task_prefixes"):
        for name, ours in getattr(other, kind).items():
            theirs = getattr(one, kind)[name]
            slots = [slot for cls in type(ours).__mro__ for slot in getattr(cls, "__slots__", ())]
            for slot in sorted({*slots} - NOT_CONVERTED):
                values = [_plain(getattr(side, slot), slot) for side in (theirs, ours)]
                if values[0] != values[1]:
                    return f"{kind}/{name}/{slot}: upstream has {values[0]!r}, ours {values[1]!r}"
    return None


def _plain(value: Any, slot: str = "") -> Any:
    if slot == "exception":
        return exception_name(value)
    if slot == "resource_restrictions":
        # An annotation without amounts
        value = value or None
    for name in ("client_key", "address", "key", "name"):
        if hasattr(value, name):
            return getattr(value, name)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        return [_plain(member) for member in value]
    return value


def _strangers(state: Any) -> str | None:
    """Say which object is not the one that the scheduler knows by its name."""
    for ts in state.tasks.values():
        tasks = [*ts.dependencies, *ts.dependents, *(ts.waiting_on or ()), *(ts.waiters or ())]
        workers = [*(ts.who_has or ()), *([ts.processing_on] if ts.processing_on else [])]
        for one in tasks:
            if state.tasks.get(one.key) is not one:
                return f"strangers: {ts} has {one}"
        for ws in workers:
            if state.workers.get(ws.address) not in (ws, None):
                return f"strangers: {ts} has {ws}"
        for cs in ts.who_wants or ():
            if state.clients[cs.client_key] is not cs:
                return f"strangers: {ts} has {cs}"
        if state.task_groups[ts.group.name] is not ts.group:
            return f"strangers: {ts} has {ts.group}"
        if state.task_prefixes[ts.prefix.name] is not ts.prefix:
            return f"strangers: {ts} has {ts.prefix}"
    holders = [
        *((ws, [*ws.has_what, *ws.processing, *ws.long_running]) for ws in state.workers.values()),
        *((cs, list(cs.wants_what)) for cs in state.clients.values()),
        ("cluster", [*state.queued, *state.unrunnable, *state.replicated_tasks]),
    ]
    for holder, tasks in holders:
        for one in tasks:
            if state.tasks.get(one.key) is not one:
                return f"strangers: {holder} has {one}"
    known = set(map(id, state.workers.values()))
    for ws in [*state.running, *state.idle.values(), *state.idle_task_count, *state.saturated]:
        if id(ws) not in known:
            return f"strangers: the cluster has {ws}"
    return None
