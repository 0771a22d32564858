"""Placement of tasks by the costs of links while the core has the state.

The core decides by the rules of `backhaul.dask.placement.link_placement` and
`backhaul.dask.placement.root_plan` (``crates/dask/src/scheduler/placing.rs``, ``roots.rs``). What
is known of links is one for both, and goes on being told to `LinkPlacement`; what is promised,
planned and learned goes with the state.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backhaul.dask.placement.link_placement import LinkPlacement
from backhaul.dask.placement.root_plan import memory_target
from backhaul.dask.scheduler.core.export_state import forgotten_task

if TYPE_CHECKING:
    from backhaul._native import SchedulerCore

__all__ = ["place_by_links", "placement_of", "write_placing"]


def placement_of(scheduler: Any) -> LinkPlacement | None:
    """Return the plugin that places tasks by the costs of links; None if there is none."""
    found = scheduler.plugins.get(LinkPlacement.name)
    return found if isinstance(found, LinkPlacement) else None


def place_by_links(core: SchedulerCore, scheduler: Any) -> LinkPlacement | None:
    """Let a new core place tasks by the costs of links, if the scheduler does.

    Parameters
    ----------
    core : SchedulerCore
        The core.
    scheduler : distributed.Scheduler
        Has no tasks.

    Returns
    -------
    LinkPlacement or None
        The plugin of the scheduler.
    """
    placement = placement_of(scheduler)
    if placement is not None:
        roots = placement.roots
        # These belong to tasks that are forgotten
        roots.hints.clear()
        roots.own.clear()
        core.place_by_links(placement.mirror, list(roots.nbytes.items()), memory_target())
    return placement


def write_placing(core: SchedulerCore, scheduler: Any, key_of: Callable[[str], Any]) -> None:
    """Export the core's data about placement to a scheduler that has the core's tasks.

    Parameters
    ----------
    core : SchedulerCore
        The core.
    scheduler : distributed.Scheduler
        Has the tasks.
    key_of : callable
        Gives the key of a text.
    """
    placement = placement_of(scheduler)
    said = core.placing()
    if placement is None or said is None:
        return
    workers, tasks = scheduler.workers, scheduler.tasks
    roots = placement.roots
    roots.nbytes = dict(said["result_bytes"])
    # One that left half done, as an event was refused, is not there.
    roots.hints = OrderedDict(
        (key_of(text), workers[address])
        for text, address in said["hints"].items()
        if address in workers
    )

    def planned(text: str, is_there: bool) -> Any:
        key = key_of(text)
        return tasks[key] if is_there else forgotten_task(key, scheduler)

    roots.own = {
        workers[address]: deque(planned(*root) for root in own)
        for address, own in said["own"].items()
        if address in workers
    }
    promised = [one for one in said["promised"] if one[2] in workers]
    needed = {
        address: {ts.key: ts for ts in workers[address].needs_what} for _, _, address in promised
    }
    renamed = ((number, needed[address].get(key_of(text))) for number, text, address in promised)
    placement.mirror.rename([(number, ts) for number, ts in renamed if ts is not None])
