"""Execution of a worker's tasks without an asyncio task, a future and five contexts for each.

`distributed.Worker.execute` is a coroutine that awaits a future of a thread pool: per task that is
an asyncio task, two futures chained across threads, and a dozen generators that measure time. All
of it is there to run one function in one thread and tell the state machine. Here a task is one
object in the queue of the same thread pool; its thread runs the function and calls the event loop,
which tells the state machine. What can be observed is kept: the same threads, thread state, context
variables, events, metrics, logs.

What is not an ordinary task, a coroutine, an actor's method, another executor, a span, goes the way
it always went.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
from time import perf_counter, thread_time
from typing import Any

from backhaul.dask.batching import AdaptiveBatchedSend
from backhaul.dask.private import (
    WORKER_ANY_RUNNING,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    Reschedule,
    RescheduleEvent,
    ThreadPoolExecutor,
    Worker,
    context_meter,
    error_message,
    key_split,
    sizeof,
    thread_state,
    time,
    worker_variable,
)

__all__ = ["start_execution"]

#: Dask's own log, for what Dask would log there.
logger = logging.getLogger("distributed.worker")

#: Under this key Dask's worker collects what is measured during one of its instructions.
_METRICS_KEY = "async-instruction"

#: With more tasks than this ready for each thread, nobody is kept idle if the scheduler hears of a
#: finished one a little later, and several reports go in one batch.
_READY_ENOUGH = 3
_PATIENCE_S = 0.002


def start_execution(worker: Worker, key: Any, *, span_id: str | None, stimulus_id: str) -> bool:
    """Start to execute a task that the state machine has just put into the state *executing*.

    Parameters
    ----------
    worker : distributed.Worker
        Its event loop is running.
    key : key
        Of a task in ``worker.state.tasks``.
    span_id : str or None
        Span that the metrics belong to.
    stimulus_id : str
        What caused it.

    Returns
    -------
    bool
        False if this task is not for us; nothing was done.
    """
    task_state = worker.state.tasks[key]
    executor = worker.executors.get("default")
    if (
        type(executor) is not ThreadPoolExecutor
        or worker.status not in WORKER_ANY_RUNNING
        or task_state.annotations is None
        or "executor" in task_state.annotations
        or "span" in task_state.annotations
        or worker.state.actors
        or task_state.run_spec is None
        or task_state.run_spec.is_coro
    ):
        return False
    _quicken(executor)
    execution = _Execution(worker, task_state, span_id)
    if not execution.take_data():
        return False
    return execution.submit(executor)


class _Execution:
    """One task on its way through the thread pool; an item of its queue."""

    __slots__ = (
        "_context",
        "_data",
        "_error",
        "_exited",
        "_future",
        "_key",
        "_metrics",
        "_result",
        "_run_id",
        "_run_spec",
        "_span_id",
        "_started_s",
        "_state",
        "_submitted_s",
        "_thread",
        "_times",
        "_worker",
    )

    def __init__(self, worker: Worker, task_state: Any, span_id: str | None) -> None:
        self._worker = worker
        self._state = task_state
        self._key = task_state.key
        self._run_id = task_state.run_id
        self._run_spec = task_state.run_spec
        self._span_id = span_id
        #: When the instruction began: what no other metric explains is "other".
        self._started_s = perf_counter()
        self._metrics: list[tuple[Any, float, str]] = []
        self._error: BaseException | None = None
        #: `SystemExit` or `KeyboardInterrupt` of the task.
        self._exited: BaseException | None = None
        self._result: Any = None

    def take_data(self) -> bool:
        """Look up the dependencies; False if one of them is not there."""
        dependencies = self._state.dependencies
        if not dependencies:
            self._data = {}
            return True
        start = time()
        data = self._worker.data
        token = self._meter()
        try:
            self._data = {dependency.key: data[dependency.key] for dependency in dependencies}
        except Exception:
            # Dask's own way finds it again, and says what there is to say.
            return False
        finally:
            context_meter._callbacks.reset(token)
        stop = time()
        # Threshold and record of Worker.execute.
        if stop - start > 0.005:
            self._state.startstops.append({"action": "disk-read", "start": start, "stop": stop})
        return True

    def submit(self, executor: ThreadPoolExecutor) -> bool:
        """Queue it; False if the pool is closed."""
        worker = self._worker
        self._context = contextvars.copy_context()
        # Stands for the instruction where the worker waits for, or cancels, all that are under way.
        self._future = _event_loop(worker).create_future()
        if executor._shutdown:
            return False
        worker._async_instructions.add(self._future)  # type: ignore[arg-type]
        worker.active_keys.add(self._key)
        self._state.start_time = time()
        self._submitted_s = perf_counter()
        # Not at once: the thread would wake up to wait for the interpreter, which this one needs
        # until the end of its turn.
        _event_loop(worker).call_soon(self._enqueue, executor)
        return True

    def _enqueue(self, executor: ThreadPoolExecutor) -> None:
        if self._future.cancelled():
            # The worker is closing; nobody waits for this one.
            self._worker.active_keys.discard(self._key)
            return
        with executor._shutdown_lock:
            executor._work_queue.put(self)
            executor._adjust_thread_count()

    def run(self) -> None:
        """Run the task; called by a thread of the pool."""
        try:
            self._context.run(self._run)
        except BaseException as error:
            self._exited = error
        _event_loop(self._worker).call_soon_threadsafe(self._finish)

    def _run(self) -> None:
        worker = self._worker
        self._thread = thread = threading.get_ident()
        with worker.active_threads_lock:
            worker.active_threads[thread] = self._key
        thread_state.start_time = time()
        thread_state.execution_state = worker.execution_state
        thread_state.key = self._key
        worker_variable.set(worker)
        context_meter._callbacks.set({_METRICS_KEY: self._measured})
        try:
            self._call()
        finally:
            del thread_state.start_time, thread_state.execution_state, thread_state.key
            with worker.active_threads_lock:
                del worker.active_threads[thread]

    def _call(self) -> None:
        wall_s, cpu_s = time(), thread_time()
        try:
            value = self._run_spec(self._data)
            self._result = value, sizeof(value), type(value) if value is not None else None
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._error = error
            self._result = error_message(error)
        finally:
            # What the task itself measured counts for neither.
            metered_s = self._metered_s()
            spent_cpu_s = max(0.0, thread_time() - cpu_s - metered_s)
            stop_s = time()
            spent_other_s = max(0.0, stop_s - wall_s - metered_s - spent_cpu_s)
            self._metrics.append(("thread-cpu", spent_cpu_s, "seconds"))
            self._metrics.append(("thread-noncpu", spent_other_s, "seconds"))
            delay_s = self._worker.scheduler_delay
            self._times = wall_s + delay_s, stop_s + delay_s

    def _finish(self) -> None:
        """Tell the state machine; called by the event loop."""
        worker = self._worker
        worker._async_instructions.discard(self._future)
        worker.active_keys.discard(self._key)
        # The next task may hold this context: let go of what belongs to this one.
        self._data = self._context = None  # type: ignore[assignment]
        if self._future.cancelled():
            # The worker is closing and has stopped listening.
            logger.warning(
                f"Async instruction for execute({self._key!r}) ended with CancelledError"
            )
            return
        if self._exited is not None:
            logger.error(
                f"Unhandled exception in async instruction for execute({self._key!r})",
                exc_info=self._exited,
            )
            raise self._exited
        waited_s = perf_counter() - self._submitted_s - self._metered_s()
        self._metrics.append(("executor", max(0.0, waited_s), "seconds"))
        worker.threads[self._key] = self._thread
        event = self._event()
        self._pace()
        token = self._meter()
        try:
            worker.handle_stimulus(event)
        finally:
            context_meter._callbacks.reset(token)
        self._publish(event)

    def _pace(self) -> None:
        """Let the report wait for others while the worker has enough to do."""
        stream = self._worker.batched_stream
        if type(stream) is AdaptiveBatchedSend:
            if len(self._worker.state.ready) > _READY_ENOUGH * self._worker.state.nthreads:
                stream.patience_s = _PATIENCE_S
            else:
                stream.hurry()

    def _event(self) -> Any:
        start_s, stop_s = self._times
        error = self._error
        if error is None:
            value, nbytes, kind = self._result
            self._result = None
            if self._worker.digests is not None:
                self._worker.digests["task-duration"].add(max(0, stop_s - start_s))
            return ExecuteSuccessEvent(
                key=self._key,
                run_id=self._run_id,
                value=value,
                start=start_s,
                stop=stop_s,
                nbytes=nbytes,
                type=kind,
                stimulus_id=f"task-finished-{time()}",
            )
        if isinstance(error, Reschedule):
            return RescheduleEvent(key=self._key, stimulus_id=f"reschedule-{time()}")
        message = self._result
        if self._state.state in ("executing", "long-running", "resumed"):
            logger.error(
                "Compute Failed\n"
                "Key:       %s\n"
                "State:     %s\n"
                "Task:  %s\n"
                "Exception: %r\n"
                "Traceback: %r\n",
                self._key,
                self._state.state,
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

    def _meter(self) -> contextvars.Token[Any]:
        """Begin to collect what is measured in this context, as ``DelayedMetricsLedger.record``."""
        callbacks = context_meter._callbacks
        return callbacks.set({**callbacks.get(), _METRICS_KEY: self._measured})

    def _measured(self, label: Any, value: float, unit: str) -> None:
        self._metrics.append((label, value, unit))

    def _metered_s(self) -> float:
        return sum(value for _, value, unit in self._metrics if unit == "seconds")

    def _publish(self, event: Any) -> None:
        """Add what was measured to the worker's metrics, as ``BaseWorker._finalize_metrics``."""
        coarse: str | None = None
        if isinstance(event, ExecuteSuccessEvent):
            state = self._worker.state.tasks.get(self._key)
            if state is None or state.state != "memory":
                coarse = "cancelled"
        elif isinstance(event, ExecuteFailureEvent):
            coarse = "failed"
        else:
            coarse = "cancelled"
        spent_s = perf_counter() - self._started_s
        prefix = key_split(self._key)
        digest = self._worker.digest_metric
        for label, value, unit in self._metrics:
            if coarse is None or unit != "seconds":
                digest(("execute", self._span_id, prefix, label, unit), value)
            if coarse is None and unit == "seconds":
                spent_s -= value
        name = "execute", self._span_id, prefix, coarse or "other", "seconds"
        digest(name, max(0.0, spent_s))


def _event_loop(worker: Worker) -> asyncio.AbstractEventLoop:
    event_loop: asyncio.AbstractEventLoop = worker.loop.asyncio_loop  # type: ignore[attr-defined]
    return event_loop


class _WorkQueue(queue.SimpleQueue[Any]):
    """A queue written in C, with the one thing that `Worker.close` asks of Python's."""

    @property
    def queue(self) -> _WorkQueue:
        return self

    def clear(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.get_nowait()


def _quicken(executor: ThreadPoolExecutor) -> None:
    """Give a thread pool that has no thread yet a queue written in C."""
    if not executor._threads:
        with executor._shutdown_lock:
            if not executor._shutdown and executor._work_queue.empty():
                executor._work_queue = _WorkQueue()  # type: ignore[assignment]
