"""ClientInterests of `fire_and_forget` for tasks that have ended.

`fire_and_forget` has the pseudo client ``fire-and-forget`` want the task, and the scheduler drops
that wish when the task ends. Dask's client sends the submission and the wish in one batch. A thread
that submits by `backhaul.dask.client.send` sends the submission first, so a short task may have
ended when the wish arrives. The scheduler then drops the wish again: otherwise it would keep the
result for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from distributed import Scheduler

from backhaul.dask.compat.instance_patches import DESIRED_KEYS

__all__ = ["ENDED", "FIRE_AND_FORGET", "install_for_scheduler"]

#: Name of the pseudo client
FIRE_AND_FORGET: Final = "fire-and-forget"

#: States of tasks that have ended
ENDED: Final = frozenset({"memory", "erred"})


def install_for_scheduler(scheduler: Scheduler) -> None:
    """Install the handler that drops such wishes; a second call changes nothing."""
    handlers = scheduler.stream_handlers
    handler = handlers.get("client-desires-keys")
    if handler is not None and not getattr(handler, "_drops_ended", False):
        (slot,) = DESIRED_KEYS.slots
        DESIRED_KEYS.install(scheduler, {slot: _dropping(scheduler, handler)})


def _dropping(scheduler: Any, original: Callable[..., Any]) -> Callable[..., None]:
    """Make a handler of ``client-desires-keys`` that drops wishes for tasks that have ended."""

    def client_desires_keys(keys: Collection[Any], client: str) -> None:
        original(keys=keys, client=client)
        if client != FIRE_AND_FORGET:
            return
        tasks = map(scheduler.tasks.get, keys)
        ended = [task.key for task in tasks if task is not None and task.state in ENDED]
        if ended:
            scheduler.client_releases_keys(keys=ended, client=client)

    client_desires_keys._drops_ended = True  # type: ignore[attr-defined]
    return client_desires_keys
