"""A worker's memory: its arrays lie in the arena, and what it holds is counted once.

Whatever a task makes with NumPy may be asked for by another worker: in the arena it is lent, not
copied, and its memory is recycled without page faults when it is freed. NumPy's allocator is a
matter of the context (`backhaul.numpy_memory`). It is chosen in the one that starts the worker,
from which those of its event loop and of its tasks are copied, and once more for each task that
runs our way, whatever the context that caused it. A thread that a task starts is its own.

Dask spills, pauses and terminates by the resident memory of a process. With an arena that says too
much: pages that are borrowed belong to the worker that lends them, and free blocks are given back
when memory is short. The memory of a worker is here

- what is private to it, and the files it has mapped;
- the blocks of its arena that it uses, or has freed but lent;
- other shared memory that it has mapped.

What is borrowed counts where it was made. Free blocks count nowhere, and are given back as soon as
they and the memory of the worker exceed the first threshold at which Dask would act, or when they
have been free for a while.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from distributed import Nanny, Worker

from backhaul import Arena, _native
from backhaul.dask.config import Settings
from backhaul.dask.context import shared_arena
from backhaul.dask.instance_patches import (
    NANNY_MEMORY_MONITOR,
    WORKER_MEMORY,
    WORKER_MEMORY_MONITOR,
)

__all__ = [
    "MemoryMonitor",
    "NannyMonitor",
    "allocate_in_arena",
    "arena_actor",
    "install",
    "install_for_nanny",
    "process_memory_bytes",
]

logger = logging.getLogger(__name__)

#: NumPy's handler of this process's workers.
_handler: object = None

#: Free blocks that nobody needed for so long are given back. To make pages anew takes some 0.1 s
#: per GiB, which is nothing in that time.
_IDLE_S = 10.0

#: What the kernel calls the memory of an arena, see ``crates/shm/src/arena/memory.rs``.
_MAPPING = b"/memfd:backhaul-arena"


def install(worker: Worker) -> None:
    """Do what a worker needs; again costs little.

    To be called in the context that starts the worker. Where somebody has chosen an allocator of
    NumPy's there, it stays.
    """
    settings = Settings.current()
    arena = shared_arena(settings, _bounds(worker))
    if arena is None:
        return
    if "get_process_memory" not in vars(worker.monitor):
        WORKER_MEMORY.install(worker.monitor, functools.partial(process_memory_bytes, arena))
    monitor = worker.periodic_callbacks.get("memory_monitor")
    if monitor is not None and not isinstance(monitor.callback, MemoryMonitor):
        ours = MemoryMonitor(worker, arena, monitor.callback)
        WORKER_MEMORY_MONITOR.install(monitor, ours)
    _choose_handler(arena if settings.allocate else None)


def install_for_nanny(nanny: Nanny) -> None:
    """Have a nanny terminate its worker for what the worker holds only; again costs nothing."""
    monitor = nanny.periodic_callbacks.get("memory_monitor")
    if monitor is not None and not isinstance(monitor.callback, NannyMonitor):
        NANNY_MEMORY_MONITOR.install(monitor, NannyMonitor(nanny, monitor.callback))


class MemoryMonitor:
    """What a worker does from time to time, with a look at the free blocks before it.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    arena : Arena
        The arena of its process.
    original : callable
        What it does by itself; its result is awaited if it can be.
    """

    def __init__(
        self, worker: Worker, arena: Arena, original: Callable[[], Awaitable[object] | None]
    ) -> None:
        self._worker = worker
        self._arena = arena
        self._original = original
        #: The least that was free since then: it was not needed all that time.
        self._idle_bytes = 0
        self._since_s = monotonic()

    async def __call__(self) -> None:
        """Give free blocks back where memory is short, or they are idle; then do what Dask does."""
        spill_bytes = _spill_bytes(self._worker)
        if spill_bytes is not None:
            self.trim(spill_bytes - self._worker.monitor.get_process_memory(), monotonic())
        monitored = self._original()
        if monitored is not None:
            await monitored

    def trim(self, spare_bytes: int, now_s: float) -> None:
        """Give free blocks back.

        Parameters
        ----------
        spare_bytes : int
            Memory that may be kept for reuse, if positive.
        now_s : float
            Time on a clock that does not go back, in seconds.
        """
        cached_bytes = self._arena.statistics()["cached_bytes"]
        self._idle_bytes = min(self._idle_bytes, cached_bytes)
        keep_bytes = max(0, spare_bytes)
        if now_s - self._since_s >= _IDLE_S:
            keep_bytes = min(keep_bytes, cached_bytes - self._idle_bytes)
            self._since_s, self._idle_bytes = now_s, keep_bytes
        if cached_bytes > keep_bytes:
            self._arena.trim(keep_bytes)


class NannyMonitor:
    """What a nanny does from time to time, unless its worker holds less than it seems.

    Parameters
    ----------
    nanny : distributed.Nanny
        The nanny.
    original : callable
        What it does by itself.
    """

    def __init__(self, nanny: Nanny, original: Callable[[], object]) -> None:
        self._nanny = nanny
        self._original = original

    def __call__(self) -> None:
        """Do what Dask does, which is to end the worker if it has too much memory."""
        manager, pid = self._nanny.memory_manager, self._nanny.pid
        if manager is not None and manager.memory_limit and pid is not None:
            most = manager.memory_limit * manager.memory_terminate_fraction
            try:
                (resident,) = _status_bytes(pid, b"VmRSS:")
                # Counting what is borrowed takes long: only where it decides.
                if resident > most >= resident - _borrowed_bytes(pid):
                    return
            except OSError:
                # The process has ended meanwhile.
                return
        self._original()


def allocate_in_arena() -> None:
    """Let arrays be born in the arena in the current context, if workers of this process do so."""
    if _handler is not None:
        _native.set_default_numpy_handler(_handler)


def arena_actor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `_run_actor` whose arrays lie in the arena."""

    def _run_actor(
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        execution_state: dict[str, Any],
        key: Any,
        active_threads: dict[int, Any],
        active_threads_lock: Any,
    ) -> Any:
        # Dask runs methods of actors without a copy of the worker's context.
        allocate_in_arena()
        return original(
            func, args, kwargs, execution_state, key, active_threads, active_threads_lock
        )

    return _run_actor


def process_memory_bytes(arena: Arena) -> int:
    """Measure the memory of this process, without what it borrows or keeps for reuse.

    Parameters
    ----------
    arena : Arena
        The arena of the process.
    """
    resident, shared = _status_bytes("self", b"VmRSS:", b"RssShmem:")
    found = arena.statistics()
    used = found["live_bytes"] + found["orphaned_bytes"] + found["abandoned_bytes"]
    # A block has its whole size here, though it may have fewer pages.
    ours = min(found["resident_bytes"], used)
    # A page of a copy-on-write block may be mapped twice. Not all pages that are borrowed or
    # mapped twice have been touched, so this may be too little by shared memory of other libraries.
    twice = found["copy_on_write_bytes"]
    others = max(0, shared - found["resident_bytes"] - twice - _native.borrowed_bytes())
    return resident - shared + ours + others


def _choose_handler(arena: Arena | None) -> None:
    global _handler
    if arena is None:
        _handler = None
        return
    try:
        if _handler is None or _native.arena_of_numpy_handler(_handler) is not arena:
            _handler = _native.numpy_handler(arena)
    except ImportError as error:
        logger.debug("Arrays stay in private memory: %s", error)
        return
    allocate_in_arena()


def _bounds(worker: Worker) -> dict[str, int]:
    """Choose bounds of the arena, where there are none in the configuration."""
    spill_bytes = _spill_bytes(worker)
    if spill_bytes is None:
        return {}
    return {
        # Free blocks give way within it, even while the worker is too busy to look.
        "bytes_max": spill_bytes,
        # Enough for the arrays of some tasks to come and go. More would be taken from what others
        # on the host may need.
        "cached_bytes_max": (worker.memory_manager.memory_limit or 0) // 4,
    }


def _spill_bytes(worker: Worker) -> int | None:
    """Memory above which Dask does something about it; None if it never does."""
    manager = worker.memory_manager
    fractions = (manager.memory_spill_fraction, manager.memory_pause_fraction)
    shares = [share for share in fractions if share is not False]
    if not manager.memory_limit:
        return None
    return int(manager.memory_limit * min(shares, default=1))


def _status_bytes(pid: int | str, *names: bytes) -> list[int]:
    with open(f"/proc/{pid}/status", "rb") as status:
        words = status.read().split()
    # A zombie has no such lines.
    return [1024 * int(words[words.index(name) + 1]) if name in words else 0 for name in names]


def _borrowed_bytes(pid: int) -> int:
    """Count the pages of others' arenas that a process has mapped, and not made its own."""
    pages = 0
    is_borrowed = False
    with open(f"/proc/{pid}/smaps", "rb") as mappings:
        for line in mappings:
            words = line.split()
            if not words[0].endswith(b":"):
                # Where, permissions, offset, device, inode, name: its own arena is mapped shared.
                is_borrowed = words[1].endswith(b"p") and words[-2] == _MAPPING
            elif is_borrowed and words[0] == b"Rss:":
                pages += int(words[1])
            elif is_borrowed and words[0] == b"Anonymous:":
                pages -= int(words[1])
    return 1024 * pages
