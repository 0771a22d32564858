"""Early execution: a thread of a worker runs a task before the event loop has its message.

The task is an `Execution` without a task of the state machine. Its attributes come from the
scheduler's message, and belong to the state machine's task once that exists.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from backhaul._locks import is_owned
from backhaul.dask.comm.already_sent import SentStimulusId
from backhaul.dask.compat.names import Worker, time
from backhaul.dask.serialize.inline_values import pickled_if_plain
from backhaul.dask.worker.execution import Execution
from backhaul.dask.worker.finished_message import described_class
from backhaul.dask.worker.inline_results import asked_bytes
from backhaul.dask.worker.item_state import ABANDONED, ENDED, REPORTED, STARTED, TAKEN
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import LocalQueue
from backhaul.dask.worker.metrics import Sums, add_up, recorder, seconds_in

__all__ = ["EarlyExecution", "Ending", "PendingTask", "catching_up_variable"]

#: The early task that this thread runs
_running = threading.local()


class Ending(NamedTuple):
    """The outcome of an early task that has succeeded."""

    value: object
    nbytes: int
    kind: type | None
    start_s: float
    stop_s: float
    stimulus_id: str
    thread: int
    #: Time at which the thread took the task
    started_s: float | None


class PendingTask:
    """The attributes of a task in the scheduler's message, until the state machine has the task."""

    __slots__ = (
        "annotations",
        "dependencies",
        "dependents",
        "key",
        "run_id",
        "run_spec",
        "start_time",
        "state",
    )

    def __init__(self, message: dict[str, Any]) -> None:
        self.key = message["key"]
        self.run_id = message["run_id"]
        self.run_spec = message["run_spec"]
        self.annotations = message["annotations"]
        self.dependencies = self.dependents = ()
        self.state = "executing"
        self.start_time = 0.0


class EarlyExecution(Execution):
    """One early task.

    Parameters
    ----------
    worker : distributed.Worker
        The worker of the task.
    announced : PendingTask
        The task.
    local_queue : LocalQueue
        The local queue of the pool.
    call_loop : callable
        Lets the event loop handle the arrived messages immediately.
    """

    __slots__ = ("_call_loop", "_on_named", "_stimulus_id", "is_announced", "run_id")

    def __init__(
        self,
        worker: Worker,
        announced: PendingTask,
        local_queue: LocalQueue,
        call_loop: Callable[[], None],
    ) -> None:
        super().__init__(worker, announced, local_queue)
        self.run_id = announced.run_id
        self._call_loop = call_loop
        #: Stimulus id of the report to the scheduler
        self._stimulus_id: SentStimulusId | None = None
        self._on_named: threading.Event | None = None
        self.is_announced = False

    def take_given(self, data: dict[Any, Any], context: contextvars.Context) -> None:
        """Set inputs that are in memory; runs in the given context."""
        self._take_given(data)
        self._context = context

    def adopt(self, task_state: Any) -> None:
        """Join the task to the state machine's task; called by the event loop."""
        task_state.start_time = self.task_state.start_time
        self.task_state = task_state
        if self._context is not None:
            self._context.run(self._count_as_read, task_state)

    def _count_as_read(self, task_state: Any) -> None:
        """Read the inputs again in the context of the task, for a store that counts reads."""
        if type(data_of(self._worker)) is not dict:
            # An input may have been freed since the task read it.
            with contextlib.suppress(KeyError):
                self._inputs()

    def disown(self) -> None:
        """Abandon the task, because the state machine does not want it; its end is ignored."""
        self._enter(ABANDONED)
        self.wake()

    def wake(self) -> None:
        """Wake the thread if the task waits for its start."""
        if self._on_named is not None:
            self._on_named.set()

    def value(self) -> tuple[Any, ...]:
        """Return the result alone; empty while the task runs, or if it raised."""
        # Read in one step, because another thread may end the task meanwhile.
        outcome, error, broken = self._outcome, self._error, self._broken
        if self._ended_s and error is None and broken is None and outcome is not None:
            return (outcome[0],)
        return ()

    def ending(self) -> Ending | None:
        """Return the outcome; None if the task is running, or has not succeeded."""
        if self.state is not ENDED or self._stimulus_id is None or self.cancelled():
            return None
        value, nbytes, kind = self._outcome
        start_s, stop_s = self._times
        return Ending(
            value,
            nbytes,
            kind,
            start_s,
            stop_s,
            self._stimulus_id,
            self._thread,
            self.task_state.start_time,
        )

    def settle(self, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Finish the item after the report to a state in Rust; called by the event loop.

        Parameters
        ----------
        prefix : str
            Prefix of its key.
        span_id : str or None
            Span that its metrics belong to.
        inputs : iterable of key
            Keys of the results that it has read.
        """
        worker = self._worker
        self._enter(REPORTED)
        if inputs and type(data_of(worker)) is not dict:
            self._whole_context().run(self._count_as_looked_up, inputs)
        if worker.digests is not None:
            start_s, stop_s = self._times
            worker.digests["task-duration"].add(max(0, stop_s - start_s))
        self._account()
        self.set_result(None)
        self._drop()
        add_up(worker, prefix, span_id, None, self._metrics, self._started_s)

    def settle_in(self, sums: Sums, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Finish the item as `settle` does; called by any thread.

        Parameters
        ----------
        sums : Sums
            Keeps the metrics until the event loop adds them to the worker's.
        prefix : str
            Prefix of its key.
        span_id : str or None
            Span that its metrics belong to.
        inputs : iterable of key
            Keys of the results that it has read.
        """
        self._enter(REPORTED)
        metrics = self._metrics
        if inputs:
            sums.count_reads(data_of(self._worker), inputs, metrics)
        # The wait since the end of the task belongs to no metric.
        ended_s = self._ended_s
        measured_s = seconds_in(metrics, self._metrics_before)
        executor_s = max(0.0, ended_s - self._submitted_s - measured_s)
        sums.add(prefix, span_id, metrics, executor_s, ended_s - self._started_s)

    def _count_as_looked_up(self, inputs: Any) -> None:
        # An input may have been freed since the task read it.
        with contextlib.suppress(KeyError):
            self._looked_up(inputs)

    def _end(self) -> None:
        """Note that the task has ended, and that the scheduler knows that."""
        if self.state is TAKEN:
            self._enter(ENDED)
        if not self._data:
            # The tasks of ten milliseconds may wait for the event loop, and the garbage collector
            # traverses all objects that they hold.
            self._context = self._measured = None  # type: ignore[assignment]

    def _whole_context(self) -> contextvars.Context:
        """Return the context of the task, made again if it was dropped; for the event loop."""
        if self._context is None:
            assert self._local_queue is not None
            self._measured = recorder(self._metrics)
            context = self._local_queue.context.copy()
            context.run(self.take_given, {}, context)
        return self._context

    def finish(self) -> None:
        """Report the end to the state machine, after the start; called by the event loop."""
        self._whole_context()
        super().finish()

    def name(self, span_id: str | None) -> None:
        # The thread that runs the task may be about to note its end.
        with self._line_lock():
            super().name(span_id)
        self.wake()

    def run(self) -> None:
        """Run the task, and then the next ones; called by a thread of the pool."""
        execution: Any = self
        assert self._local_queue is not None
        go_on = self._local_queue.early.go_on
        try:
            while execution is not None:
                # The event loop may have started some of the next tasks.
                _running.task = execution if type(execution) is EarlyExecution else None
                execution = execution._run_and_report()
                _running.task = None
                if execution is not None:
                    go_on()
        finally:
            _running.task = None

    def tell_ahead(self, *, is_last: bool) -> bool:
        if self.state is STARTED:
            return False
        message = self._finished_message()
        if message is None:
            self._call_loop()
            return False
        worker = self._worker
        stream: Any = worker.batched_stream
        if not stream.post_in_thread(message, is_last=is_last):
            # The event loop sends the message; its stream may be closing or replaced.
            self.get_loop().call_soon_threadsafe(_send, worker, message)
        self._end()
        return True

    def catch_up(self) -> None:
        """Wait until the event loop has started this task; called by the task itself.

        `name`, `disown` and `LocalQueue.close` wake the thread. A finalizer that runs while this
        thread has the lock does not wait, because the event loop waits for the lock.
        """
        local_queue = self._local_queue
        assert local_queue is not None
        if is_owned(local_queue.lock):
            return
        with local_queue.lock:
            if self.state is not TAKEN or local_queue.is_closed:
                return
            named = self._on_named = threading.Event()
        self._call_loop()
        named.wait()

    def _line_lock(self) -> Any:
        assert self._local_queue is not None
        return self._local_queue.lock

    def _finished_message(self) -> dict[str, Any] | None:
        """Make the ``task-finished`` message; None if the event loop has to report the end."""
        if self._error is not None or self._broken is not None or self.cancelled():
            return None
        value, nbytes, kind = self._outcome
        described = described_class(kind)
        if described is None:
            return None
        start_s, stop_s = self._times
        self._stimulus_id = stimulus_id = SentStimulusId(f"task-finished-{time()}")
        stimulus_id.key = self._key
        message = {
            "op": "task-finished",
            "status": "OK",
            "key": self._key,
            "run_id": self.run_id,
            "nbytes": nbytes,
            "type": described[0],
            "typename": described[1],
            "metadata": {},
            "thread": self._thread,
            "startstops": [{"action": "compute", "start": start_s, "stop": stop_s}],
            "stimulus_id": str(stimulus_id),
        }
        bytes_max = asked_bytes(self._worker.state, nbytes)
        if bytes_max is not None:
            pickled = pickled_if_plain(value, bytes_max)
            if pickled is not None:
                message["value"] = pickled
        return message

    def _event(self) -> Any:
        event = super()._event()
        if self._stimulus_id is not None:
            # The success was reported with this id.
            event.stimulus_id = self._stimulus_id
        return event


def _send(worker: Worker, message: dict[str, Any]) -> None:
    worker.batched_send(message)


class _CatchingUp:
    """The context variable of a task's worker; a read waits until the task is executing."""

    def __init__(self, variable: contextvars.ContextVar[Worker]) -> None:
        self.variable = variable
        self.set = variable.set
        self.reset = variable.reset
        self.name = variable.name

    def get(self, *default: Any) -> Any:
        task: EarlyExecution | None = getattr(_running, "task", None)
        if task is not None:
            task.catch_up()
        return self.variable.get(*default)


def catching_up_variable(original: Any) -> Any:
    """Make a variable for `distributed.get_worker` that lets the event loop catch up."""
    return _CatchingUp(original)
