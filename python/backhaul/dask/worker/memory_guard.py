"""Relief of a worker that has reached the memory at which its nanny would end it.

A nanny of Dask ends a worker above ``distributed.worker.memory.terminate``. All results of the
worker are lost, and a task that alone is too large ends one worker after another, until the job
fails with an error that has no word of memory. Here the worker acts first, at the same memory:

- of several running tasks it breaks the one off that began last, which the scheduler assigns again,
  as Dask does after the end of a worker; the others go on with the memory that this releases, and
  later ones wait until they fit (`backhaul.dask.worker.memory_admission`);
- a single task that would not fit into an empty worker either fails with `TaskTooLarge`, which says
  what was measured;
- otherwise, and if the code of the task cannot be interrupted, the worker's results move to its
  peers (`backhaul.dask.worker.retirement`), and the nanny ends the worker as before. A task that is
  too large is reported to the scheduler as failed before that, so that it ends no second worker.

A broken off task has no result, whatever its code does with the exception.

Threads: one for each worker with a nanny, which waits in `MemoryWatch.wait_above`, and acts while
the process uses too much. It holds no lock while it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import Any, Final, cast

from dask.utils import format_bytes
from distributed import Worker

import dask
from backhaul import TaskTooLarge, _native
from backhaul.dask.comm.native_context import memory_watch
from backhaul.dask.compat.names import Reschedule, error_message, time, to_serialize
from backhaul.dask.config.settings import switched_on
from backhaul.dask.worker.execution import Execution
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import event_loop_of, local_queue_of
from backhaul.dask.worker.memory import ENDED_STATUSES, GUARD_ACTS, GUARD_IS_DONE, GUARD_MOVES
from backhaul.dask.worker.memory_admission import MemoryAdmission, Run
from backhaul.dask.worker.retirement import close, move_results
from backhaul.dask.worker.spill_buffer import leave_room
from backhaul.dask.worker.spill_file import ahead_bytes

__all__ = ["MemoryGuard", "install_for_worker"]

logger = logging.getLogger(__name__)

#: Longest wait for the watch, after which the guard looks which tasks run
_WAIT_S: Final = 0.1
#: Time between two looks at a task that was interrupted
_LOOK_S: Final = 0.01
#: Time that an interrupted task has to end
_PATIENCE_S: Final = 1.2
#: Time for which a task is watched of which it is not certain that it is too large
_DOUBT_S: Final = 0.5
#: Time that the memory of a task has to be released, once the task has ended
_RELEASE_S: Final = 0.5
#: Longest time for the results to move to other workers
_MOVE_S: Final = 5.0
#: Time for a message to the scheduler to leave
_FAREWELL_S: Final = 0.1
#: Age at which the largest memory limit of the cluster is asked for again
_LIMITS_AGE_MAX_S: Final = 60.0
#: Longest wait for the scheduler's answer to that
_ANSWER_S: Final = 0.3
#: Share of the memory that is too much at which the scheduler is asked
_NEAR: Final = 0.8
#: Share of the memory that is too much up to which tasks are admitted
_ADMITTED: Final = 0.95
#: Time for which the lowest memory counts as that without the running tasks
_LOWEST_S: Final = 10.0
#: Inputs that an error names
_INPUTS_NAMED_MAX: Final = 5

#: Workers of this process that have a guard
_guarded: weakref.WeakSet[Worker] = weakref.WeakSet()


class _BrokenOff(BaseException):
    """Interrupts the code of a task; no code of a task catches it by its name."""


@dataclass(frozen=True, slots=True)
class _Need:
    """Memory that one task needs, in bytes."""

    #: Private memory that the process has taken since the task began
    taken_bytes: int
    #: Results that the task reads, and the largest of them
    input_bytes: int
    inputs: tuple[str, ...]
    #: Memory of the process when the worker started
    idle_bytes: int

    @property
    def whole_bytes(self) -> int:
        return self.taken_bytes + self.input_bytes + self.idle_bytes


class _Lowest:
    """The lowest number of about the last `_LOWEST_S` to twice that time."""

    def __init__(self) -> None:
        self._since_s = -inf
        self._now = self._before = inf

    def add(self, number: float) -> None:
        """Note a number."""
        if monotonic() - self._since_s > _LOWEST_S:
            self._since_s = monotonic()
            self._before, self._now = self._now, number
        self._now = min(self._now, number)

    @property
    def value(self) -> int:
        """The lowest one; `add` must have been called."""
        return int(min(self._now, self._before))


class MemoryGuard:
    """Keeps one worker below the memory at which its nanny ends it.

    Parameters
    ----------
    worker : distributed.Worker
        A worker with a nanny.
    limit_bytes : int
        Its memory limit.
    share : float
        Share of the limit above which the nanny ends the worker.
    """

    def __init__(self, worker: Worker, limit_bytes: int, share: float) -> None:
        self._worker = weakref.ref(worker)
        self._limit_bytes = limit_bytes
        self._share = share
        self._most_bytes = int(limit_bytes * share)
        spill_share = worker.memory_manager.memory_spill_fraction
        self._spill_bytes = limit_bytes * spill_share if spill_share else None
        #: Memory that is no result: now, when the worker started, and the least since the begin of
        #: each running task
        self._unmanaged_bytes: int | None = None
        self._idle_bytes = 0
        self._before: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        #: Memory without the running tasks: the least of the last seconds
        self._lowest = _Lowest()
        #: The largest limit of the cluster's workers, and when the scheduler was asked
        self._largest_bytes: int | None = None
        self._asked_s = -_LIMITS_AGE_MAX_S
        self._answer: Future[None] | None = None
        self._admission: MemoryAdmission | None = None
        if switched_on("memory-admission"):
            most_bytes = int(self._most_bytes * _ADMITTED)
            self._admission = MemoryAdmission(self, most_bytes, self._admit_from_now_on)

    def start(self, worker: Worker, watch: _native.MemoryWatch) -> None:
        """Start the thread of the guard, before the worker runs tasks.

        Raises
        ------
        RuntimeError
            If the system has no thread left.
        """
        # Now: on a busy machine the thread may begin when tasks run.
        self._note(worker, watch)
        threading.Thread(target=self._run, name="backhaul-memory-guard", daemon=True).start()

    def _note(self, worker: Worker, watch: _native.MemoryWatch) -> None:
        """Note the memory that the process uses, and which tasks run."""
        last_bytes, now_bytes = self._unmanaged_bytes, _unmanaged_bytes(worker, watch)
        if last_bytes is None:
            last_bytes = self._idle_bytes = now_bytes
        self._unmanaged_bytes = now_bytes
        # A task that is new here began after the last look. Least: a task before it may have had
        # memory at that look.
        before = self._before
        self._before = weakref.WeakKeyDictionary(
            {each: min(before.get(each, last_bytes), now_bytes) for each in _native.running_calls()}
        )
        self._lowest.add(now_bytes)
        if self._spill_bytes:
            data = data_of(worker)
            leave_room(data, now_bytes + ahead_bytes(data), self._spill_bytes)
        if self._admission is not None and (running := self._running(worker)):
            self._admission.learn(running, now_bytes - self._lowest.value)

    # For `MemoryAdmission`

    def running(self) -> list[Execution]:
        """List the tasks of the worker that have a thread of the pool."""
        worker = self._worker()
        return [] if worker is None else self._running(worker)

    def floor_bytes(self) -> int:
        """Return the memory without what the running tasks have taken, in bytes."""
        worker = self._worker()
        return self._lowest.value + (0 if worker is None else _results_bytes(worker))

    def taken_bytes(self, run: Run) -> int:
        """Return what was taken since a task began, by all tasks, in bytes."""
        now_bytes = self._unmanaged_bytes or 0
        return max(0, now_bytes - self._before.get(run, now_bytes))

    def _admit_from_now_on(self) -> None:
        worker = self._worker()
        local_queue = None if worker is None else local_queue_of(worker)
        if local_queue is not None:
            local_queue.admission = self._admission

    def _run(self) -> None:
        while (worker := self._worker()) is not None and worker.status not in ENDED_STATUSES:
            watch = memory_watch()
            if watch is None:
                return
            watch.set_stage(GUARD_ACTS)
            self._note(worker, watch)
            if self._is_limit_unknown() and watch.wait_above(int(self._most_bytes * _NEAR), 0.0):
                self._ask(worker)
            wait_bytes = self._most_bytes
            if self._is_limit_unknown():
                wait_bytes = int(wait_bytes * _NEAR)
            # No reference to the worker while the thread waits.
            del worker
            counted_bytes = watch.wait_above(wait_bytes, _WAIT_S)
            if counted_bytes is not None and counted_bytes > self._most_bytes:
                self._relieve(watch)

    def _relieve(self, watch: _native.MemoryWatch) -> None:
        """Break tasks off until the process uses less; without success, leave it to the nanny."""
        deadline_s = monotonic() + _DOUBT_S
        while self._counted_bytes(watch) > self._most_bytes:
            worker = self._worker()
            running = [] if worker is None else self._running(worker)
            if worker is None or not running:
                break
            if len(running) > 1:
                self._note_excess(worker, running, watch)
                error: BaseException | None = self._reassigned(worker, running)
            else:
                error = self._too_large(worker, running[0], watch)
            if error is None and monotonic() < deadline_s:
                # It may take more, and then be too large for certain.
                sleep(_LOOK_S)
                continue
            if error is None:
                break
            if not self._break_off(watch, running[-1], error):
                if isinstance(error, TaskTooLarge):
                    self._report(worker, running[-1], error)
                break
            # This thread keeps nothing of the task.
            del running, error
            self._wait_for_release(watch)
        else:
            return
        moved = self._move_results(watch)
        watch.set_stage(GUARD_IS_DONE)
        while self._counted_bytes(watch) > self._most_bytes and self._worker() is not None:
            sleep(_LOOK_S)
        if moved and (worker := self._worker()) is not None:
            close(worker)

    def _move_results(self, watch: _native.MemoryWatch) -> bool:
        """Wait until the results are on other workers, or for some time; tell if that has begun."""
        worker = self._worker()
        moved = None if worker is None else move_results(worker)
        # No reference to the worker while the thread waits.
        del worker
        if moved is None:
            return False
        watch.set_stage(GUARD_MOVES)
        deadline_s = monotonic() + _MOVE_S
        while not moved.done() and monotonic() < deadline_s:
            sleep(_LOOK_S)
        return True

    def _note_excess(
        self, worker: Worker, running: Sequence[Run], watch: _native.MemoryWatch
    ) -> None:
        if self._admission is not None:
            taken_bytes = _unmanaged_bytes(worker, watch) - self._lowest.value
            self._admission.exceeded(running, taken_bytes)

    def _running(self, worker: Worker) -> list[Execution]:
        """List the tasks that have a thread of the pool, the one that began last at the end.

        A task that has left the pool mostly waits for others.
        """
        calls = _native.running_calls()
        found = [each for each in calls if isinstance(each, Execution) and each.is_of(worker)]
        return [each for each in found if not each.has_seceded()]

    def _wait_for_release(self, watch: _native.MemoryWatch) -> None:
        """Wait until a task that ended has released its memory, or for some time."""
        gc.collect()
        deadline_s = monotonic() + _RELEASE_S
        while self._counted_bytes(watch) > self._most_bytes and monotonic() < deadline_s:
            sleep(_LOOK_S)

    def _reassigned(self, worker: Worker, running: list[Execution]) -> BaseException:
        """Return the exception by which the youngest of several tasks is assigned again."""
        logger.warning(
            "Task %r is broken off and will be assigned again: with it, %d tasks run on worker %s, "
            "which uses more than %s",
            running[-1].key,
            len(running),
            worker.address,
            format_bytes(self._most_bytes),
        )
        return Reschedule()

    def _too_large(
        self, worker: Worker, execution: Execution, watch: _native.MemoryWatch
    ) -> TaskTooLarge | None:
        """Return the error of the only task, or None if an empty worker may be enough for it."""
        need = self._need(worker, execution, watch)
        if need.whole_bytes <= self._largest_allowed(worker):
            return None
        text = (
            f"task {execution.key!r} needs more memory than a worker may use: it has taken "
            f"{format_bytes(need.taken_bytes)}, its inputs have {format_bytes(need.input_bytes)}"
            f"{_named(need.inputs)}, and a worker without results has "
            f"{format_bytes(need.idle_bytes)}; the limit of worker {worker.address} is "
            f"{format_bytes(self._limit_bytes)}, of which {self._share:.0%} may be used. "
            "Smaller chunks or partitions, fewer threads or a larger memory_limit help"
        )
        logger.warning("A task fails to save its worker: %s", text)
        return TaskTooLarge(text)

    def _need(self, worker: Worker, execution: Execution, watch: _native.MemoryWatch) -> _Need:
        now_bytes = _unmanaged_bytes(worker, watch)
        before_bytes = self._before.get(execution, self._unmanaged_bytes or now_bytes)
        inputs: list[tuple[Any, int | None]] = []
        # The task may have been forgotten in the meantime.
        with contextlib.suppress(Exception):
            inputs = execution.input_sizes()
        sizes = sorted(((nbytes or 0, str(key)) for key, nbytes in inputs), reverse=True)
        return _Need(
            taken_bytes=max(0, now_bytes - before_bytes),
            input_bytes=sum(nbytes for nbytes, _ in sizes),
            inputs=tuple(f"{key}: {format_bytes(nbytes)}" for nbytes, key in sizes),
            idle_bytes=self._idle_bytes,
        )

    def _break_off(
        self, watch: _native.MemoryWatch, execution: Execution, error: BaseException
    ) -> bool:
        """Interrupt a task; return whether it ended, or the process uses less."""
        execution.break_off(error, _BrokenOff)
        deadline_s = monotonic() + _PATIENCE_S
        while monotonic() < deadline_s:
            is_running = any(each is execution for each in _native.running_calls())
            if not is_running or self._counted_bytes(watch) <= self._most_bytes:
                return True
            sleep(_LOOK_S)
        return False

    def _report(self, worker: Worker, execution: Execution, error: TaskTooLarge) -> None:
        """Report a task as failed whose code runs on, because the nanny will end the worker."""
        run_id = execution.started_run_id
        if run_id is None:
            return
        found = error_message(error)
        message = {
            "op": "task-erred",
            "status": "error",
            "key": execution.key,
            "run_id": run_id,
            "exception": to_serialize(error),
            "traceback": None,
            "exception_text": found["exception_text"],
            "traceback_text": "",
            "thread": None,
            "startstops": [],
            "stimulus_id": f"task-too-large-{time()}",
        }
        with contextlib.suppress(RuntimeError):
            event_loop_of(worker).call_soon_threadsafe(worker.batched_send, message)
            sleep(_FAREWELL_S)

    def _counted_bytes(self, watch: _native.MemoryWatch) -> int:
        counted_bytes, _ = watch.look()
        return counted_bytes

    # The largest worker

    def _largest_allowed(self, worker: Worker) -> float:
        """Return the most memory that a task may use on any worker, in bytes.

        Without an answer of the scheduler it is infinite: a larger worker might run the task.
        """
        if self._is_limit_unknown():
            self._ask(worker)
        with contextlib.suppress(Exception):
            if self._answer is not None:
                self._answer.result(_ANSWER_S)
        return float("inf") if self._largest_bytes is None else self._largest_bytes * self._share

    def _is_limit_unknown(self) -> bool:
        return monotonic() - self._asked_s > _LIMITS_AGE_MAX_S

    def _ask(self, worker: Worker) -> None:
        self._asked_s = monotonic()
        with contextlib.suppress(RuntimeError):
            self._answer = asyncio.run_coroutine_threadsafe(
                self._find_largest(worker), event_loop_of(worker)
            )

    async def _find_largest(self, worker: Worker) -> None:
        identity = await worker.scheduler.identity()
        limits = [each["memory_limit"] or 0 for each in identity["workers"].values()]
        # No limit is the largest one.
        self._largest_bytes = None if 0 in limits else max(limits, default=None)


def install_for_worker(worker: Worker) -> None:
    """Start the guard of a worker that has a nanny; again costs nothing."""
    share = dask.config.get("distributed.worker.memory.terminate")
    limit_bytes = worker.memory_manager.memory_limit
    # No nanny, no end of the worker.
    if worker in _guarded or not worker.nanny or not share or not limit_bytes:
        return
    watch = memory_watch()
    if watch is None:
        return
    guard = MemoryGuard(worker, limit_bytes, cast("float", share))
    try:
        guard.start(worker, watch)
    except RuntimeError as error:
        logger.warning("Tasks that use too much memory are not broken off: %s", error)
        return
    _guarded.add(worker)


def _unmanaged_bytes(worker: Worker, watch: _native.MemoryWatch) -> int:
    """Return the memory of the process without the results in memory, by Dask's measure of these.

    Borrowed results, which count at their owner, do not count here.
    """
    found = watch.account()
    borrowed_bytes = found["borrowed_bytes"] - found["borrowed_orphaned_bytes"]
    return found["counted_bytes"] + borrowed_bytes - _results_bytes(worker)


def _results_bytes(worker: Worker) -> int:
    """Return the results in memory, by Dask's measure, in bytes."""
    fast = getattr(data_of(worker), "fast", None)
    return int(getattr(fast, "total_weight", 0)) + ahead_bytes(data_of(worker))


def _named(inputs: tuple[str, ...]) -> str:
    if not inputs:
        return ""
    more = len(inputs) - _INPUTS_NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f" ({', '.join(inputs[:_INPUTS_NAMED_MAX])}{rest})"
