"""A graph of plain tasks as the core takes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backhaul.dask.kept_specs import KeptSpec
from backhaul.dask.private import key_split, key_split_group
from backhaul.dask.requests import anyone_asks, needs_of
from backhaul.dask.scheduler_core.keys import KeyTexts

__all__ = ["is_plain", "parts_of"]

#: Prefix of the keys that a shuffle's plugin looks for among transitions
_SHUFFLE = "shuffle-"


def is_plain(dsk: Mapping[Any, Any], asked: Mapping[str, Any]) -> bool:
    """Tell whether the core understands all that a graph asks for.

    Parameters
    ----------
    dsk : mapping of keys to tasks
        Materialized, culled.
    asked : mapping
        Further arguments of ``Scheduler._create_taskstate_from_graph``.
    """
    if asked["actors"] or asked["annotations_by_type"] or asked["global_annotations"]:
        return False
    # What came as a pickle asks for nothing, or the client would have sent a graph; to look into it
    # would be to load it.
    if anyone_asks() and any(
        type(node) is not KeptSpec and needs_of(node) is not None for node in dsk.values()
    ):
        return False
    ordered = asked["ordered"]
    return all(key in ordered and not _text_of(key).startswith(_SHUFFLE) for key in dsk)


def _text_of(key: Any) -> str:
    if type(key) is tuple and key:
        key = key[0]
    return key if type(key) is str else ""


def parts_of(
    dsk: Mapping[Any, Any],
    *,
    keys: Collection[Any],
    ordered: Mapping[Any, int],
    user_priority: Any,
    texts: KeyTexts,
    groups: dict[str, tuple[str, Any]],
) -> dict[str, Any]:
    """Turn a graph into what `SchedulerCore.handle_graph` takes.

    Parameters
    ----------
    dsk : mapping of keys to tasks
        Materialized, culled.
    keys : collection of keys
        What the client wants.
    ordered : mapping of keys to int
        Their order.
    user_priority : float, or mapping of keys to float
        What the client gave.
    texts : KeyTexts
        What gives the texts of keys.
    groups : dict
        Is filled: by name of each group that the graph touches, its prefix and one of its keys.

    Returns
    -------
    dict
        Keyword arguments.
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
                float(user_priority.get(key, 0)) if by_task else None,
                None,
                node.data_producer,
            )
        )
    return {
        "keys": [texts.text(key) for key in number],
        "tasks": tasks,
        "wanted": [number[key] for key in keys],
        "user_priority": 0.0 if by_task else float(user_priority),
    }
