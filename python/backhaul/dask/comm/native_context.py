"""The native context that the comms of this process share.

A context owns an engine thread and receive buffers, so a process has one for each configuration in
use: normally one. It is made at the first listener or comm and lives as long as the process; it is
bound to no event loop. A forked child gets its own: the parent's engine thread does not exist
there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from backhaul import Arena, Context
from backhaul._locks import RLock
from backhaul._native import MemoryWatch
from backhaul.dask.config.settings import Settings

__all__ = ["bound_memory", "contexts", "memory_watch", "shared_arena", "shared_context"]

logger = logging.getLogger(__name__)

_NO_BOUNDS: Mapping[str, int] = MappingProxyType({})

#: How UCX learns of memory that is unmapped. Where there is no RDMA, a context has UCX patch the
#: tables of each library, which is quick to begin with (0.04 instead of 0.43 s), but is done again
#: for all libraries whenever one is loaded: `import pandas` takes 8 instead of 0.4 s.
_HOOKS = {"UCX_MEM_MMAP_HOOK_MODE": "bistro"}

#: Free blocks that a process keeps whatever it needs, until it has taken none for `_IDLE_S`. Beyond
#: that it keeps free blocks below the peak of the last `_WINDOW_S`: to make pages anew takes some
#: 0.1 s per GiB.
_KEPT_BYTES = 8 << 20
_WINDOW_S = 1.0
_IDLE_S = 10.0
_INTERVAL_S = 0.5

#: Time between two looks where workers are; Dask's own default for its memory monitor.
_WORKER_INTERVAL_S = 0.1

_lock = RLock()
_arena: Arena | None = None
#: Gives idle blocks of the arena back in every process: a client, a scheduler, a worker.
_watch: MemoryWatch | None = None
#: The limit of `_watch`, once the process has a worker
_bound: tuple[int | None] | None = None
_contexts: dict[tuple[object, ...], Context] = {}
#: Contexts of a parent process. Never dropped: closing one here would reach for threads that the
#: fork did not copy, and for sockets that the parent still uses.
_inherited: list[Context] = []
_inherited_arenas: list[Arena | None] = []


def shared_context(settings: Settings) -> Context:
    """Get this process's context for a configuration, making it if there is none.

    Raises
    ------
    backhaul.ConfigError
        If a setting cannot work.
    backhaul.BackhaulError
        If the engine cannot be started.
    """
    with _lock:
        key = (settings.native, settings.secret, settings.ucx)
        context = _contexts.get(key)
        if context is None:
            arena = shared_arena(settings)
            # A worker reads what it has asked for: map its pages when they arrive.
            with _variables({**_HOOKS, **dict(settings.ucx)}):
                context = Context(
                    **dict(settings.native),
                    arena=arena,
                    populate_leases=True,
                    secret=None if settings.secret is None else settings.secret.value,
                )
            _contexts[key] = context
        return context


def shared_arena(settings: Settings, bounds: Mapping[str, int] = _NO_BOUNDS) -> Arena | None:
    """Get this process's arena, making it if there is none; None if it is switched off.

    It has the bounds of who asks first, where the configuration has none: what lies in it is found
    by all.
    """
    global _arena, _watch
    if settings.arena is None:
        return None
    with _lock:
        if _arena is None:
            _arena = Arena(**{**bounds, **dict(settings.arena)})
            _watch = _started(_arena, settings, _INTERVAL_S)
        return _arena


def memory_watch() -> MemoryWatch | None:
    """Get the watch over the memory of this process; None if there is none."""
    return _watch


def bound_memory(settings: Settings, limit_bytes: int | None) -> None:
    """Let the watch of this process look as often as workers need, and heed their limit.

    Beyond the limit the arena hands out no blocks. A process has one watch, however many workers
    have closed in it: a watch is a thread and a descriptor, and two limits of one arena would
    contradict each other.
    """
    global _bound, _watch
    with _lock:
        if _arena is not None and _bound != (limit_bytes,):
            watch = _started(_arena, settings, _WORKER_INTERVAL_S, limit_bytes)
            if watch is not None:
                _watch, _bound = watch, (limit_bytes,)


def _started(
    arena: Arena, settings: Settings, interval_s: float, limit_bytes: int | None = None
) -> MemoryWatch | None:
    """Start a watch over the memory of this process; None if the system gives no thread."""
    try:
        return MemoryWatch(
            arena,
            kept_bytes=dict(settings.arena or ()).get("cached_bytes_max", _KEPT_BYTES),
            window_s=_WINDOW_S,
            idle_s=_IDLE_S,
            interval_s=interval_s,
            limit_bytes=limit_bytes,
        )
    except OSError as error:
        logger.warning("Freed blocks of the arena are not given back when they are idle: %s", error)
        return None


def contexts() -> list[Context]:
    """List the contexts that the comms of this process have used so far."""
    with _lock:
        return list(_contexts.values())


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set, while UCX reads them; called with the lock held.

    Not for longer: processes that are started from here read the configuration themselves.
    """
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _start_anew_after_fork() -> None:
    global _arena, _bound, _lock, _watch
    # Another thread of the parent may have held the lock.
    _lock = RLock()
    _inherited.extend(_contexts.values())
    _contexts.clear()
    _inherited_arenas.append(_arena)
    _arena = _bound = _watch = None


os.register_at_fork(after_in_child=_start_anew_after_fork)
