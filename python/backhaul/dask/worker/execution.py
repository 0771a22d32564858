"""Execution of a worker's tasks without an asyncio task, a future and five contexts for each.

`distributed.Worker.execute` is a coroutine that awaits a future of a thread pool: per task that is
an asyncio task, two futures chained across threads, and a dozen generators that measure time, to
run one function in one thread and to notify the state machine. Here a task is one object in the
queue of the same thread pool; its thread runs the function and calls the event loop, which notifies
the state machine. A program observes the same as in Dask: threads, thread state, context variables,
events, metrics, logs.

All other tasks take Dask's path, such as coroutines, methods of actors, and tasks for other
executors.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Collection
from time import perf_counter, thread_time
from traceback import clear_frames
from typing import Any, NoReturn, TypeVar

from backhaul._native import call_interruptibly, interrupt_call
from backhaul.dask.comm.batched_stream import AdaptiveBatchedSend
from backhaul.dask.compat.names import (
    ExecuteFailureEvent,
    Reschedule,
    RescheduleEvent,
    ThreadPoolExecutor,
    Worker,
    context_meter,
    error_message,
    run_task,
    run_task_simple,
    sizeof,
    thread_state,
    time,
    worker_variable,
)
from backhaul.dask.resource_pools.leases import (
    context_without_lease,
    current_lease,
    lay_down,
    take_up,
)
from backhaul.dask.resource_pools.worker_state import lease_of
from backhaul.dask.worker.core.guarded_state import ready_count
from backhaul.dask.worker.core.task_view import inputs_of
from backhaul.dask.worker.event_makers import execute_success_event
from backhaul.dask.worker.item_state import ENDED, READY, REPORTED, STARTED, TAKEN, ItemState
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import LocalQueue, event_loop_of
from backhaul.dask.worker.memory import ENDED_STATUSES, allocate_in_arena
from backhaul.dask.worker.metrics import publish, recorder, seconds_in

__all__ = ["Execution"]

#: Dask's own log, for what Dask would log there.
logger = logging.getLogger("distributed.worker")

#: Tasks that the current call of `Execution._finish` in this thread has started.
_current = threading.local()

#: Key under which Dask's worker collects metrics during one of its instructions.
_METRICS_KEY = "async-instruction"

#: With more ready tasks than this for each thread, reports wait to be sent in one batch: the worker
#: has enough work until the scheduler gets them.
_READY_ENOUGH = 3
_PATIENCE_S = 0.002


_Method = TypeVar("_Method", bound=Callable[..., None])


def _shown_as(theirs: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Show a method in stacks as the function of Dask that it replaces.

    Dask finds the beginning of a task by the file: the profile of a worker and the traceback of an
    exception start with the first frame that is not in ``distributed/worker.py``.
    """

    def move(ours: _Method) -> _Method:
        code = theirs.__code__
        ours.__code__ = ours.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )
        return ours

    return move


class Execution(asyncio.Future[None]):
    """One task in the thread pool; an item of its queue.

    The object is a future, because the worker waits for, or cancels, the futures of all running
    instructions.
    """

    __slots__ = (
        "_broken",
        "_broken_off",
        "_context",
        "_data",
        "_ended_s",
        "_error",
        "_key",
        "_local_queue",
        "_measured",
        "_metrics",
        "_metrics_before",
        "_outcome",
        "_run_id",
        "_run_spec",
        "_span_id",
        "_started_s",
        "_submitted_s",
        "_thread",
        "_times",
        "_worker",
        "is_deferred",
        "state",
        "task_state",
    )

    def __init__(self, worker: Worker, task_state: Any, local_queue: LocalQueue | None) -> None:
        super().__init__(
            loop=event_loop_of(worker) if local_queue is None else local_queue.event_loop
        )
        self._worker = worker
        self._local_queue = local_queue
        self.task_state = task_state
        self._key = task_state.key
        self._run_spec = task_state.run_spec
        self.state = READY
        #: When the task ended, and whether its report may wait for others
        self._ended_s = 0.0
        self.is_deferred = False
        #: When the instruction began: time that no other metric accounts for is "other".
        self._started_s = perf_counter()
        self._metrics: list[tuple[Any, float, str]] = []
        self._measured = recorder(self._metrics)
        #: Exception of the task.
        self._error: BaseException | None = None
        #: Exception of the code around the task, or the task's `SystemExit` or `KeyboardInterrupt`.
        self._broken: BaseException | None = None
        #: Outcome of a task that another thread interrupts: `backhaul.dask.worker.memory_guard`
        self._broken_off: BaseException | None = None
        self._outcome: Any = None

    @property
    def key(self) -> Any:
        """The key of the task."""
        return self._key

    @property
    def started_run_id(self) -> int | None:
        """The scheduler's number of this run; None before the state machine has started it."""
        return self._run_id if self.state is STARTED else None

    def break_off(self, outcome: BaseException, interrupt: type[BaseException]) -> None:
        """Interrupt the code of the task, which ends with an outcome whatever the code does.

        Called by another thread.

        Parameters
        ----------
        outcome : BaseException
            Exception of the task for the state machine.
        interrupt : type
            Exception that is raised in the code.
        """
        self._broken_off = outcome
        interrupt_call(self, interrupt)

    def has_seceded(self) -> bool:
        """Tell whether the task has left the thread pool, as `distributed.secede` does."""
        return getattr(self.task_state, "state", None) == "long-running"

    def input_sizes(self) -> list[tuple[Any, int | None]]:
        """Return keys and bytes of the results that the task reads."""
        return inputs_of(self.task_state)

    def is_given_up(self) -> bool:
        """Tell whether nothing waits for the task any more, because the worker closes."""
        return self.cancelled() or self._worker.status in ENDED_STATUSES

    def is_of(self, worker: Worker) -> bool:
        """Tell whether the task is one of a worker's."""
        return self._worker is worker

    def take_data(self) -> bool:
        """Look up the dependencies; False if one of them is missing."""
        callbacks = context_meter._callbacks
        token = callbacks.set({**callbacks.get(), _METRICS_KEY: self._measured})
        try:
            self._data = self._inputs()
            #: A copy of the context of the event that caused the instruction, as an asyncio task
            #: has, but without the lease of a task whose end was that event.
            self._context = (
                context_without_lease()
                if current_lease.get() and lease_of(self._worker.state, self._key) is None
                else contextvars.copy_context()
            )
        except Exception:
            # Dask's own code gets the same error, and reports it.
            return False
        finally:
            callbacks.reset(token)
        return True

    def _take_given(self, data: dict[Any, Any]) -> None:
        """Set inputs that the caller has looked up; runs in the context of the task."""
        callbacks = context_meter._callbacks
        callbacks.set({**callbacks.get(), _METRICS_KEY: self._measured})
        self._data = data

    def _inputs(self) -> dict[Any, Any]:
        task_state = self.task_state
        keys = [key for key, _ in inputs_of(task_state)]
        if not keys:
            return {}
        start = time()
        found = self._looked_up(keys)
        stop = time()
        # Threshold and record as in Worker.execute.
        if stop - start > 0.005:
            task_state.startstops.append({"action": "disk-read", "start": start, "stop": stop})
        return found

    def _looked_up(self, keys: Collection[Any]) -> dict[Any, Any]:
        """Read results of the worker."""
        data = data_of(self._worker)
        return {key: data[key] for key in keys}

    def claim(self) -> None:
        """Begin the task in this thread, before the event loop has started it."""
        self._enter(TAKEN)
        # The time until now is the wait for a thread, which other tasks do not count either.
        self._started_s = perf_counter()
        self._begin()

    def _enter(self, state: ItemState) -> None:
        assert state in self.state.following, f"{self.state} is followed by {state}"
        self.state = state

    def _begin(self) -> None:
        self.task_state.start_time = time()
        self._metrics_before = len(self._metrics)
        self._submitted_s = perf_counter()

    def name(self, span_id: str | None) -> None:
        """Note that the state machine has started the task; the item is its instruction now."""
        worker = self._worker
        is_over = self.state is ENDED
        self._enter(STARTED)
        self._span_id = span_id
        self._run_id = self.task_state.run_id
        worker._async_instructions.add(self)  # type: ignore[arg-type]
        worker.active_keys.add(self._key)
        if is_over and self._local_queue is not None:
            self._local_queue.end(self)

    def submit(self, executor: ThreadPoolExecutor, span_id: str | None) -> None:
        """Queue the task at the end of this turn of the event loop."""
        self.name(span_id)
        self._begin()
        # Not now, because the thread would wake up and wait for the GIL, which this one needs until
        # the end of its turn.
        started = getattr(_current, "started", None)
        if started is None:
            self.get_loop().call_soon(self._enqueue, executor, context=self._context)
        else:
            started.append((self, executor))

    def cancel(self, msg: Any = None) -> bool:
        """Ignore the end of the task, because the worker is closing."""
        if not super().cancel(msg):
            return False
        self.get_loop().call_soon(self._give_up)
        return True

    def _give_up(self) -> None:
        self._forget()
        logger.warning(f"Async instruction for execute({self._key!r}) ended with CancelledError")

    def _forget(self) -> None:
        self._worker._async_instructions.discard(self)
        self._worker.active_keys.discard(self._key)

    def _enqueue(self, executor: ThreadPoolExecutor) -> None:
        if self.cancelled():
            return
        try:
            with executor._shutdown_lock:
                if executor._shutdown:
                    raise RuntimeError("cannot schedule new futures after shutdown")
                # Starting a thread may fail, so the item is queued after that.
                executor._adjust_thread_count()
                executor._work_queue.put(self)
        except RuntimeError as error:
            self._broken = error
            # Later, to avoid recursion: the state machine may start a task that ends here as well.
            self.get_loop().call_soon(self._finish, context=self._context)

    def run(self) -> None:
        """Run the task, and then the next ones; called by a thread of the pool."""
        execution: Execution | None = self
        while execution is not None:
            execution = execution._run_and_report()

    def _run_and_report(self) -> Any:
        """Run the task; return the next one for this thread."""
        local_queue = self._local_queue
        if local_queue is not None and local_queue.admission is not None:
            local_queue.admission.enter(self)
        if self.cancelled():
            return None
        if local_queue is not None:
            local_queue.begins()
        try:
            self._context.copy().run(self._run)
        except BaseException as error:
            self._broken = error
        self._ended_s = perf_counter()
        if local_queue is not None:
            if local_queue.admission is not None:
                local_queue.admission.leave(self)
            return local_queue.ended(self, is_last=self._broken is not None)
        event_loop = self.get_loop()
        try:
            event_loop.call_soon_threadsafe(self._finish, context=self._context)
        except RuntimeError:
            # The worker is closed with its event loop, and needs no result.
            if not event_loop.is_closed():
                raise
        return None

    @_shown_as(run_task)
    def _run(self) -> None:
        worker = self._worker
        self._thread = thread = threading.get_ident()
        with worker.active_threads_lock:
            worker.active_threads[thread] = self._key
        thread_state.start_time = time()
        thread_state.execution_state = worker.execution_state
        thread_state.key = self._key
        worker_variable.set(worker)
        allocate_in_arena()
        if (lease := current_lease.get()) is not None:
            take_up(lease)
        try:
            self._call()
        finally:
            if lease is not None:
                lay_down(lease)
            del thread_state.start_time, thread_state.execution_state, thread_state.key
            with worker.active_threads_lock:
                del worker.active_threads[thread]

    @_shown_as(run_task_simple)
    def _call(self) -> None:
        wall_s, cpu_s = time(), thread_time()
        try:
            value = call_interruptibly(self, self._thread, self._run_spec, self._data)
            if self._broken_off is not None:
                raise self._broken_off
            self._outcome = value, sizeof(value), type(value) if value is not None else None
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if self._broken_off is None:
                self._error = error
                self._outcome = error_message(error)
            else:
                self._end_broken_off(error)
        finally:
            # Time that the task itself measured is neither CPU nor waiting time of the thread.
            metered_s = seconds_in(self._metrics, self._metrics_before)
            spent_cpu_s = max(0.0, thread_time() - cpu_s - metered_s)
            stop_s = time()
            spent_other_s = max(0.0, stop_s - wall_s - metered_s - spent_cpu_s)
            self._metrics.append(("thread-cpu", spent_cpu_s, "seconds"))
            self._metrics.append(("thread-noncpu", spent_other_s, "seconds"))
            delay_s = self._worker.scheduler_delay
            self._times = wall_s + delay_s, stop_s + delay_s

    def _end_broken_off(self, raised: BaseException) -> None:
        """Set the outcome of a task that was interrupted, and release the memory of its frames."""
        assert self._broken_off is not None
        self._error = self._broken_off.with_traceback(raised.__traceback__)
        self._outcome = error_message(self._error)
        # Their memory is what was needed.
        clear_frames(raised.__traceback__)

    def tell_ahead(self, *, is_last: bool) -> bool:
        """Report the end to the scheduler before the event loop handles it, if possible.

        Called by the thread that ran the task, with the lock of the local queue.
        """
        return False

    def finish(self) -> None:
        """Report the end to the state machine, after the start; called by the event loop."""
        if self.state is STARTED:
            self._context.run(self._finish)
        elif self.state is TAKEN:
            self._enter(ENDED)

    def _finish(self) -> None:
        """Report to the state machine; called by the event loop, in the instruction's context."""
        self._enter(REPORTED)
        if self.cancelled():
            self._drop()
            return
        self._account()
        worker = self._worker
        self._forget()
        self.set_result(None)
        if self._broken is None:
            worker.threads[self._key] = self._thread
            event = self._event()
        else:
            event = self._broken_event(self._broken)
        self._drop()
        self._pace()
        started: list[tuple[Execution, ThreadPoolExecutor]] = []
        _current.started = started
        try:
            worker.handle_stimulus(event)
        finally:
            _current.started = None
            try:
                publish(
                    worker, self.task_state, self._span_id, event, self._metrics, self._started_s
                )
            finally:
                for execution, executor in started:
                    execution._enqueue(executor)

    def _account(self) -> None:
        """Measure the overhead of the thread pool for the task."""
        now_s = perf_counter()
        if self.is_deferred:
            # The wait of the report for others belongs to no metric.
            waited_s = now_s - self._ended_s
            self._started_s += waited_s
            self._submitted_s += waited_s
        waited_s = now_s - self._submitted_s - seconds_in(self._metrics, self._metrics_before)
        self._metrics.append(("executor", max(0.0, waited_s), "seconds"))

    def _drop(self) -> None:
        """Release inputs and outcome, because the traceback of an exception refers to this item."""
        self._data = self._context = None  # type: ignore[assignment]
        self._outcome = self._error = self._broken = self._broken_off = None

    def _pace(self) -> None:
        """Let the report wait for others while the worker has enough to do."""
        stream = self._worker.batched_stream
        if type(stream) is AdaptiveBatchedSend:
            if ready_count(self._worker.state) > _READY_ENOUGH * self._worker.state.nthreads:
                stream.patience_s = _PATIENCE_S
            else:
                stream.hurry()

    def _event(self) -> Any:
        start_s, stop_s = self._times
        error = self._error
        if error is None:
            value, nbytes, kind = self._outcome
            if self._worker.digests is not None:
                self._worker.digests["task-duration"].add(max(0, stop_s - start_s))
            return execute_success_event(
                self._key, self._run_id, value, start_s, stop_s, nbytes, kind
            )
        if isinstance(error, Reschedule):
            return RescheduleEvent(key=self._key, stimulus_id=f"reschedule-{time()}")
        message = self._outcome
        if self.task_state.state in ("executing", "long-running", "resumed"):
            logger.error(
                "Compute Failed\n"
                "Key:       %s\n"
                "State:     %s\n"
                "Task:  %s\n"
                "Exception: %r\n"
                "Traceback: %r\n",
                self._key,
                self.task_state.state,
                repr(self._run_spec)[:1000],
                message["exception_text"],
                message["traceback_text"],
            )
        return ExecuteFailureEvent.from_exception(
            message,
            key=self._key,
            run_id=self._run_id,
            start=start_s,
            stop=stop_s,
            stimulus_id=f"task-erred-{time()}",
        )

    def _broken_event(self, error: BaseException) -> ExecuteFailureEvent:
        if not isinstance(error, Exception):
            logger.error(
                f"Unhandled exception in async instruction for execute({self._key!r})",
                exc_info=error,
            )
            self._drop()
            # Dask raises it twice, in the step of its task and in the callback of that. The second
            # breaks off the cancellation of what runs, in which the worker would close itself and
            # have its nanny close too, which is to restart it.
            self.get_loop().call_soon(_raise, error)
            raise error
        if self.task_state.state in ("executing", "long-running"):
            logger.error(f"Exception during execution of task {self._key!r}", exc_info=error)
        try:
            # `from_exception` reads the traceback of the exception being handled.
            raise error
        except Exception:
            return ExecuteFailureEvent.from_exception(
                error,
                key=self._key,
                run_id=self._run_id,
                stimulus_id=f"execute-unknown-error-{time()}",
            )


def _raise(error: BaseException) -> NoReturn:
    raise error
