"""A graph of plain tasks as the core takes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Any

from backhaul.dask.compat.names import key_split, key_split_group
from backhaul.dask.resource_pools.requests import ANNOTATION, CPU, Needs, anyone_asks, needs_of
from backhaul.dask.resource_pools.scheduler_slots import SchedulerSlots
from backhaul.dask.scheduler.core.adopted_tasks import SHUFFLE_PREFIX
from backhaul.dask.scheduler.core.key_text import KeyTexts
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import PickledTask
from backhaul.errors import ConfigError

__all__ = ["Annotations", "NotPlainError", "is_plain", "parts_of"]

#: Most retries that the core counts
_RETRIES_MAX = (1 << 31) - 1

#: Annotations that other parts than the state machine read, too
_DASKS_OWN = ("span", "shuffle")


class NotPlainError(Exception):
    """A graph asks for something that the core does not understand."""


def is_plain(dsk: Mapping[Any, Any], asked: Mapping[str, Any]) -> bool:
    """Tell whether the core understands all that a graph asks for.

    The graph is materialized and culled; `asked` are further arguments of
    `Scheduler._create_taskstate_from_graph`.
    """
    annotations = (*(asked["global_annotations"] or ()), *asked["annotations_by_type"])
    if any(name in _DASKS_OWN for name in annotations):
        return False
    actors = asked["actors"]
    # Those of another graph are Dask's to look for.
    if not isinstance(actors, (bool, NoneType)) and not all(actor in dsk for actor in actors):
        return False
    ordered = asked["ordered"]
    return all(key in ordered and not _text_of(key).startswith(SHUFFLE_PREFIX) for key in dsk)


def _text_of(key: Any) -> str:
    if type(key) is tuple and key:
        key = key[0]
    return key if type(key) is str else ""


class Annotations:
    """The annotations of a graph, as the core has them.

    `asked` are further arguments of `Scheduler._create_taskstate_from_graph`. `kept` gets each set
    of annotations, by its payload in the core. `address_of` gives the address of a worker of a
    name; `ValueError` if it is not one. Without `slots` only Dask's resource requests apply.
    """

    def __init__(
        self,
        asked: Mapping[str, Any],
        kept: dict[bytes, dict[str, Any]],
        address_of: Callable[[Any], str],
        slots: SchedulerSlots | None,
    ) -> None:
        self._of_all = asked["global_annotations"] or {}
        self._by_type = asked["annotations_by_type"]
        self._kept = kept
        self._address_of = address_of
        self._slots = slots
        self._looks = slots is not None and anyone_asks()

    def requirements(self, key: Any, node: Any) -> dict[str, Any] | None:
        """Return the requests of a task in the form of `SchedulerCore.handle_graph`, or None."""
        found = None
        # A task that arrived as a pickle has no requests, because the client would have sent a
        # graph otherwise; and a check would have to load the pickle.
        if self._looks and type(node) is not PickledTask:
            found = needs_of(node)
        if not self._of_all and not self._by_type and found is None:
            return None
        # As Dask does: those of the task go before those of all.
        own = {
            name: value(key) if callable(value) else value for name, value in self._of_all.items()
        }
        for name, by_key in self._by_type.items():
            if (value := by_key.get(key)) is not None:
                own[name] = value
        if not own and found is None:
            return None
        asks = self._resources(own, found) if "resources" in own or found is not None else {}
        try:
            payload = codec.pack(own)
        except Exception as error:  # Any error of msgpack
            raise NotPlainError(f"annotations {own!r}") from error
        self._kept[payload] = own
        asks["annotations"] = payload
        for name, value in own.items():
            match name:
                case "workers" | "restrictions":
                    asks |= self._restrictions(value)
                case "allow_other_workers" | "loose_restrictions":
                    asks["loose"] = _of_type(bool, value)
                case "priority":
                    asks["priority"] = _number(value)
                case "retries":
                    asks["retries"] = _of_type(int, value)
                    if not -_RETRIES_MAX <= value <= _RETRIES_MAX:
                        raise NotPlainError("an annotation of very many retries")
        return asks

    def _resources(self, own: dict[str, Any], found: Needs | None) -> dict[str, Any]:
        """Return the resource requests of a task; adds the carried ones to its annotations."""
        amounts = own.get("resources")
        if not isinstance(amounts, (dict, NoneType)) or not _are_numbers(amounts or {}):
            raise NotPlainError(f"an annotation {amounts!r}")
        try:
            amounts = {name: float(units) for name, units in (amounts or {}).items()}
        except OverflowError as error:
            raise NotPlainError("an amount that is a very large number") from error
        if self._slots is None:
            return {"resources": amounts}
        if CPU in amounts and self._slots.declares_cpu:
            raise NotPlainError("resources of workers that are called as threads are")
        try:
            wanted = self._slots.wanted(own, amounts, found)
        except (ConfigError, TypeError) as error:
            # Dask's own path reports the error to the client.
            raise NotPlainError(str(error)) from error
        if wanted is None:
            return {}
        asks: dict[str, Any] = {}
        if wanted.restrictions:
            asks["resources"] = wanted.restrictions
        if wanted.carried is not None:
            own[ANNOTATION] = wanted.carried
            asks["threads"] = wanted.carried["CPU"]
        return asks

    def _restrictions(self, value: Any) -> dict[str, Any]:
        names = value if isinstance(value, (list, tuple, set)) else [value]
        hosts: dict[str, None] = {}
        workers: dict[str, None] = {}
        for name in names:
            try:
                workers[_of_type(str, self._address_of(name))] = None
            except ValueError:
                # It may be the name of a host.
                hosts[_of_type(str, name)] = None
        found: dict[str, Any] = {}
        if hosts:
            found["hosts"] = list(hosts)
        if workers:
            found["workers"] = list(workers)
        return found


def _are_numbers(amounts: dict[Any, Any]) -> bool:
    return all(
        type(name) is str and isinstance(units, (int, float)) and not isinstance(units, bool)
        for name, units in amounts.items()
    )


def _of_type(types: Any, value: Any) -> Any:
    if not isinstance(value, types):
        raise NotPlainError(f"an annotation {value!r}")
    return value


def _number(value: Any) -> float:
    try:
        number = float(_of_type((int, float), value))
    except OverflowError as error:
        raise NotPlainError("an annotation of a very large number") from error
    if math.isnan(number):
        raise NotPlainError("a priority that is no number")
    return number


def parts_of(
    dsk: Mapping[Any, Any],
    *,
    keys: Collection[Any],
    ordered: Mapping[Any, int],
    user_priority: Any,
    texts: KeyTexts,
    groups: dict[str, tuple[str, Any]],
    annotations: Annotations,
    actors: bool | Collection[Any] | None,
) -> dict[str, Any]:
    """Turn a graph into keyword arguments of `SchedulerCore.handle_graph`.

    The graph is materialized and culled. `keys` are those that the client wants; they are the keys
    of actors if `actors` is True. `groups` is filled: by name of each group that the graph touches,
    its prefix and one of its keys.

    Raises
    ------
    NotPlainError
        If annotations request anything that the core does not support.
    """
    number: dict[Any, int] = {}
    for key in dsk:
        number[key] = len(number)
    for key in keys:
        number.setdefault(key, len(number))
    tasks = []
    by_task = isinstance(user_priority, dict)
    for key, node in dsk.items():
        needs = []
        for name in node.dependencies:
            place = number.get(name)
            if place is None:
                place = number[name] = len(number)
            needs.append(place)
        group = key_split_group(key)
        if type(group) is not str:
            # Dask names a group by the first of a tuple, whatever it is.
            raise NotPlainError("a key that names no group")
        prefix = key_split(key)
        if group not in groups:
            groups[group] = prefix, key
        tasks.append(
            (
                number[key],
                group,
                prefix,
                b"",
                needs,
                float(ordered[key]),
                _number(user_priority.get(key, 0)) if by_task else None,
                annotations.requirements(key, node),
                node.data_producer,
            )
        )
    return {
        "keys": [texts.text(key) for key in number],
        "tasks": tasks,
        "wanted": [number[key] for key in keys],
        "actors": [number[key] for key in (keys if actors is True else actors or ())],
        "user_priority": 0.0 if by_task else _number(user_priority),
    }
