"""Arrays of a worker in the arena of its process.

Whatever a task makes with NumPy may be asked for by another worker: in the arena it is lent, not
copied, and its memory is recycled without page faults when it is freed.

NumPy's allocator is a matter of the context (`backhaul.numpy_memory`). It is chosen in the one that
starts the worker, from which those of its event loop and of its tasks are copied, and once more for
each task that runs our way, whatever the context that caused it. A thread that a task starts is its
own.
"""

from __future__ import annotations

import logging

from distributed import Worker

from backhaul import _native
from backhaul.dask.config import Settings
from backhaul.dask.context import shared_arena

__all__ = ["allocate_in_arena", "install"]

logger = logging.getLogger(__name__)

#: NumPy's handler of this process's workers.
_handler: object = None


def install(worker: Worker) -> None:
    """Let the arrays of a worker be born in the arena, if that is switched on; again costs little.

    To be called in the context that starts the worker. Where somebody has chosen an allocator of
    NumPy's there, it stays.
    """
    global _handler
    settings = Settings.current()
    arena = shared_arena(settings, memory_limit_bytes=worker.memory_manager.memory_limit)
    if arena is None or not settings.allocate:
        return
    try:
        if _handler is None or _native.arena_of_numpy_handler(_handler) is not arena:
            _handler = _native.numpy_handler(arena)
    except ImportError as error:
        logger.debug("Arrays stay in private memory: %s", error)
        return
    allocate_in_arena()


def allocate_in_arena() -> None:
    """Let arrays be born in the arena in the current context, if workers of this process do so."""
    if _handler is not None:
        _native.set_default_numpy_handler(_handler)
