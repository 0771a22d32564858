"""Placement of tasks by the costs of links while the core has the state.

The core decides (``crates/dask/src/scheduler/placing.rs``, ``roots.rs``); `LinkPlacement` reports
links to the core. Promises and plans end with the core; the expected sizes of results stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backhaul.dask.placement.link_placement import LinkPlacement, memory_target

if TYPE_CHECKING:
    from backhaul._native import SchedulerCore

__all__ = ["end_placing", "place_by_links", "placement_of"]


def placement_of(scheduler: Any) -> LinkPlacement | None:
    """Return the plugin that places tasks by the costs of links; None if there is none."""
    found = scheduler.plugins.get(LinkPlacement.name)
    return found if isinstance(found, LinkPlacement) else None


def place_by_links(core: SchedulerCore, scheduler: Any) -> LinkPlacement | None:
    """Let a new core place tasks by the costs of links, if the scheduler does.

    The scheduler has no tasks. Returns the plugin of the scheduler.
    """
    placement = placement_of(scheduler)
    if placement is not None:
        sizes = list(placement.result_bytes.items())
        core.place_by_links(placement.mirror, sizes, memory_target())
    return placement


def end_placing(core: SchedulerCore, placement: LinkPlacement | None) -> None:
    """Keep what a core that gives up the state has learned of results, and forget its promises."""
    said = core.placing()
    if placement is not None and said is not None:
        placement.renew(dict(said["result_bytes"]))
