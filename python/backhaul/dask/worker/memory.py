"""Memory accounting of workers: NumPy arrays in the arena, process memory, and the nanny's limit.

Another worker may request any array that a task makes with NumPy: the arena lends an array without
a copy, and reuses its memory without page faults once the array is freed. NumPy's allocator belongs
to the context (`backhaul.numpy_memory`). `install` chooses it in the context that starts the
worker, from which Dask and asyncio copy the contexts of the event loop and of tasks; a task on our
own path chooses it again. A thread that a task starts has NumPy's own allocator.

Dask spills, pauses and terminates by the resident memory of a process. With an arena that is too
much: the worker that made a borrowed array has the pages, too, and free blocks can be given back.
The process memory of a worker is here

- private memory and mapped files;
- the blocks of its arena that are in use;
- borrowed memory that its owner has freed;
- other shared memory.

So a borrowed array counts at its maker as long as the maker has it, and at the borrowers from then
on. Free blocks count nowhere: `backhaul._native.MemoryWatch` gives them back as soon as the process
would exceed the first threshold at which Dask acts, whatever the event loop and the tasks do. The
nanny reads the number that the watch reports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic, monotonic_ns
from typing import Any, Final

from distributed import Nanny, Status, Worker

from backhaul import Arena, _native
from backhaul.dask.comm.native_context import bound_memory, memory_watch, shared_arena
from backhaul.dask.compat.instance_patches import NANNY_MEMORY_MONITOR, WORKER_MEMORY
from backhaul.dask.config.settings import Settings

__all__ = [
    "ENDED_STATUSES",
    "NannyMonitor",
    "allocate_in_arena",
    "arena_actor",
    "install",
    "install_for_nanny",
    "process_memory_bytes",
    "uncounted_bytes",
]

logger = logging.getLogger(__name__)

#: States of a worker that runs no more tasks
ENDED_STATUSES: Final = frozenset({Status.closing, Status.closed, Status.failed})

#: NumPy's handler of this process's workers.
_handler: object = None

#: Workers of this process, of which some may have closed.
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()

#: The kernel's names of the memory of an arena (``crates/shm/src/arena/memory.rs``) and of the
#: report of a watch (``crates/fabric/src/memory_watch.rs``).
_MAPPING = b"/memfd:backhaul-arena"
_REPORT = "/memfd:backhaul-memory"

#: Time of the look in nanoseconds, resident bytes, how many of these do not count, and what a guard
#: of the worker does (`backhaul.dask.worker.memory_guard`).
_REPORT_FORMAT = struct.Struct("@4Q")

#: A guard breaks tasks off before the nanny has to end the worker; it has done what it can; the
#: results move to other workers.
GUARD_ACTS: Final = 1
GUARD_IS_DONE: Final = 2
GUARD_MOVES: Final = 3

#: Longest time that a nanny leaves a worker to its guard, by what the guard does, and most memory,
#: by the worker's limit
_GUARD_TIMES_MAX_S: Final = {GUARD_ACTS: 2.0, GUARD_MOVES: 8.0}
_GUARD_SHARE_MAX: Final = 1.5

#: The nanny ignores an older report, because free blocks may have come into use since.
_REPORT_AGE_MAX_NS = 2_000_000_000


def install(worker: Worker) -> None:
    """Prepare the memory of a worker; again costs little.

    Must be called in the context that starts the worker. An allocator of NumPy's that a program has
    chosen there stays.
    """
    settings = Settings.current()
    arena = shared_arena(settings, _bounds(worker))
    if arena is None:
        return
    if "get_process_memory" not in vars(worker.monitor):
        _workers.add(worker)
        bound_memory(settings, _spill_bytes_min())
        if memory_watch() is not None:
            WORKER_MEMORY.install(worker.monitor, {"get_process_memory": _worker_memory_bytes})
    _choose_handler(arena if settings.allocate else None)


def install_for_nanny(nanny: Nanny) -> None:
    """Make a nanny terminate its worker for counted memory only; again costs nothing."""
    monitor = nanny.periodic_callbacks.get("memory_monitor")
    if monitor is not None and not isinstance(monitor.callback, NannyMonitor):
        (slot,) = NANNY_MEMORY_MONITOR.slots
        NANNY_MEMORY_MONITOR.install(nanny, {slot: NannyMonitor(nanny, monitor.callback)})


class NannyMonitor:
    """Memory monitor of a nanny, which goes by the memory that the worker counts.

    Parameters
    ----------
    nanny : distributed.Nanny
        The nanny.
    original : callable
        Dask's memory monitor.
    """

    def __init__(self, nanny: Nanny, original: Callable[[], object]) -> None:
        self._nanny = nanny
        self._original = original
        #: When the worker was first found to use too much
        self._exceeded_s: float | None = None

    def __call__(self) -> None:
        """Call Dask's monitor, unless the worker's memory does not count, or its guard acts."""
        manager, pid = self._nanny.memory_manager, self._nanny.pid
        if manager is not None and manager.memory_limit and pid is not None:
            most = manager.memory_limit * manager.memory_terminate_fraction
            try:
                (resident,) = _status_bytes(pid, b"VmRSS:")
                # The numbers take long to find: only where they decide.
                if resident > most:
                    uncounted, stage = _uncounted(pid)
                    if most >= resident - uncounted:
                        self._exceeded_s = None
                        return
                    if self._waits(stage, resident / manager.memory_limit):
                        return
                else:
                    self._exceeded_s = None
            except OSError:
                # The process has ended meanwhile.
                return
        self._original()

    def _waits(self, stage: int, share: float) -> bool:
        """Tell whether a guard has time left for a worker that uses this share of its limit."""
        now_s = monotonic()
        if self._exceeded_s is None:
            self._exceeded_s = now_s
        time_s = now_s - self._exceeded_s
        return share < _GUARD_SHARE_MAX and time_s < _GUARD_TIMES_MAX_S.get(stage, 0.0)


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


def process_memory_bytes(watch: _native.MemoryWatch) -> int:
    """Measure the memory of this process, and give free blocks back where memory is short.

    Parameters
    ----------
    watch : MemoryWatch
        The watch of the process.
    """
    counted_bytes, _ = watch.look()
    return counted_bytes


def uncounted_bytes(pid: int) -> int:
    """Read how much of the resident memory of a worker process does not count.

    Parameters
    ----------
    pid : int
        The process.

    Raises
    ------
    OSError
        If there is no such process.
    """
    return _uncounted(pid)[0]


def _uncounted(pid: int) -> tuple[int, int]:
    """Read how much does not count, as `uncounted_bytes`, and what the guard does."""
    looked_ns, _, uncounted, stage = max(_reports(pid), default=(0, 0, 0, 0))
    if monotonic_ns() - looked_ns < _REPORT_AGE_MAX_NS:
        return uncounted, stage
    return _doubled_or_borrowed_bytes(pid), 0


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
    """Choose bounds of the arena, for where the configuration has none."""
    spill_bytes = _spill_bytes(worker)
    if spill_bytes is None:
        return {}
    return {
        "bytes_max": spill_bytes,
        # The watch keeps less, by demand. This holds between two of its looks.
        "cached_bytes_max": (worker.memory_manager.memory_limit or 0) // 4,
    }


def _worker_memory_bytes() -> int:
    # Not of one watch: Dask keeps some workers that have closed.
    watch = memory_watch()
    return process_memory_bytes(watch) if watch else _status_bytes("self", b"VmRSS:")[0]


def _spill_bytes_min() -> int | None:
    """Find the least `_spill_bytes` of this process's workers; None if they have none."""
    bounds = (
        _spill_bytes(worker) for worker in list(_workers) if worker.status not in ENDED_STATUSES
    )
    return min((nbytes for nbytes in bounds if nbytes is not None), default=None)


def _spill_bytes(worker: Worker) -> int | None:
    """Memory above which Dask does something about it; None if it never does."""
    manager = worker.memory_manager
    shares = (manager.memory_spill_fraction, manager.memory_pause_fraction)
    least = min((share for share in shares if share is not False), default=1)
    return int(manager.memory_limit * least) if manager.memory_limit else None


def free_bytes(worker: Worker) -> float:
    """Return the memory that the process may take beside results, in bytes; negative if none.

    That is up to the middle between ``memory.spill``, where Dask keeps a worker that spills, and
    ``memory.pause``.
    """
    manager = worker.memory_manager
    shares = (manager.memory_spill_fraction, manager.memory_pause_fraction)
    found = [share for share in shares if share is not False]
    if not manager.memory_limit or not found:
        return inf
    most_bytes = manager.memory_limit * sum(found) / len(found)
    return most_bytes - worker.monitor.get_process_memory()


def _status_bytes(pid: int | str, *names: bytes) -> list[int]:
    with open(f"/proc/{pid}/status", "rb") as status:
        words = status.read().split()
    # A zombie has no such lines.
    return [1024 * int(words[words.index(name) + 1]) if name in words else 0 for name in names]


def _reports(pid: int) -> list[tuple[int, int, int, int]]:
    """Read the reports of the watches of a process."""
    reports = []
    for path, name in _open_files(pid):
        if name.startswith(_REPORT):
            try:
                with open(path, "rb") as report:
                    reports.append(_REPORT_FORMAT.unpack(report.read(_REPORT_FORMAT.size)))
            except (OSError, struct.error):
                # Closed since it was listed, or not written yet.
                continue
    return reports


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the path of each open descriptor of a process, and the name of its file."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        path = f"{folder}/{number}"
        with contextlib.suppress(OSError):
            yield path, os.readlink(path)


def _doubled_or_borrowed_bytes(pid: int) -> int:
    """Count the resident bytes of arenas that are not a process's own, or that it maps once more.

    A segment that is mapped shared is one of the process's own arena; its copy-on-write blocks are
    mapped privately, too. A page that the process has copied is its own.
    """
    mapped: dict[int, int] = {}
    own = set()
    inode = 0
    with open(f"/proc/{pid}/smaps", "rb") as mappings:
        for line in mappings:
            words = line.split()
            if not words[0].endswith(b":"):
                # Where, permissions, offset, device, inode, name.
                inode = int(words[4]) if words[5:6] == [_MAPPING] else 0
                if words[1].endswith(b"s"):
                    own.add(inode)
            elif inode and words[0] == b"Rss:":
                mapped[inode] = mapped.get(inode, 0) + 1024 * int(words[1])
            elif inode and words[0] == b"Anonymous:":
                mapped[inode] -= 1024 * int(words[1])
    kept = _stored_bytes(pid)
    return sum(
        max(0, nbytes - kept.get(inode, 0)) if inode in own else nbytes
        for inode, nbytes in mapped.items()
    )


def _stored_bytes(pid: int) -> dict[int, int]:
    """Read how many bytes of pages the segments of arenas have that a process keeps open."""
    stored = {}
    for path, name in _open_files(pid):
        if name.encode().startswith(_MAPPING):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                # In units of 512 bytes, whatever the size of a block: stat(2).
                stored[status.st_ino] = 512 * status.st_blocks
    return stored
