"""A task that a thread of a worker has begun before the event loop heard of it.

It is an `Execution` as any other, but for what the state machine has not made yet: what the task is
comes from the scheduler's message, and belongs to the state machine's task once that exists.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from distributed import Status

from backhaul.dask.comm.already_sent import ToldStimulus
from backhaul.dask.compat.names import Worker, time
from backhaul.dask.serialize.inline_values import pickled_if_plain
from backhaul.dask.worker.execution import Execution
from backhaul.dask.worker.finished_message import described_class
from backhaul.dask.worker.inline_results import asked_bytes
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.local_queue import Line
from backhaul.dask.worker.metrics import Sums, add_up, recorder, seconds_in
from backhaul.dask.worker.state_lock import YIELD_S

__all__ = ["Announced", "Ending", "Foretold", "catching_up_variable"]

#: The foretold task that this thread runs
_running = threading.local()

#: How often a task that waits for the event loop looks whether there is one still
_LOOK_S: Final = 0.2


class Ending(NamedTuple):
    """How a task ended that a thread has run by itself."""

    value: object
    nbytes: int
    kind: type | None
    start_s: float
    stop_s: float
    stimulus_id: str
    thread: int
    #: When the thread took it
    started_s: float | None


class Announced:
    """What the scheduler's message says of a task, until the state machine has one."""

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


class Foretold(Execution):
    """One task that a thread begins by itself.

    Parameters
    ----------
    worker : distributed.Worker
        Whose task it is.
    announced : Announced
        The task.
    line : Line
        Of the pool.
    call_loop : callable
        Has the event loop take what has arrived, now.
    """

    __slots__ = ("_call_loop", "_on_named", "_stimulus_id", "is_disowned", "is_heard", "run_id")

    def __init__(
        self,
        worker: Worker,
        announced: Announced,
        line: Line,
        call_loop: Callable[[], None],
    ) -> None:
        super().__init__(worker, announced, line)
        self.run_id = announced.run_id
        self._call_loop = call_loop
        #: The id with which the scheduler was told of its end
        self._stimulus_id: ToldStimulus | None = None
        self._on_named: threading.Event | None = None
        self.is_disowned = False
        self.is_heard = False

    def take_given(self, data: dict[Any, Any], context: contextvars.Context) -> None:
        """Take inputs that are known to be here; to be run in the context that is given."""
        self._take_given(data)
        self._context = context

    def adopt(self, task_state: Any) -> None:
        """Belong to what the state machine has made of it; called by the event loop."""
        task_state.start_time = self.task_state.start_time
        self.task_state = task_state
        if self._context is not None:
            self._context.run(self._count_as_read, task_state)

    def _count_as_read(self, task_state: Any) -> None:
        """Read the inputs, in the context of the task, where that is counted."""
        if type(data_of(self._worker)) is not dict:
            # One that is not there was when it was read.
            with contextlib.suppress(KeyError):
                self._inputs()

    def disown(self) -> None:
        """Belong to nothing: the event loop has heard of it, and wants none."""
        self.is_disowned = True
        if self._on_named is not None:
            self._on_named.set()

    def value(self) -> tuple[Any, ...]:
        """Give what it came to, alone; nothing while it runs, or if it raised."""
        # As one, for a thread that looks while another one ends it.
        outcome, error, broken = self._outcome, self._error, self._broken
        if self._ended_s and error is None and broken is None and outcome is not None:
            return (outcome[0],)
        return ()

    def is_over(self) -> bool:
        """Tell whether it has ended and the scheduler knows."""
        return self._is_over

    def ending(self) -> Ending | None:
        """Say how it ended; None if it is under way, or has not ended well."""
        if not self._is_over or self._stimulus_id is None or self.cancelled():
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
        """Be done with it: the state machine goes through it later; called by the event loop.

        Parameters
        ----------
        prefix : str
            Of its key.
        span_id : str or None
            Span that its metrics belong to.
        inputs : iterable of key
            What it has read.
        """
        worker = self._worker
        self._is_named = True
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
        """Be done with it, as `settle`; called by any thread.

        Parameters
        ----------
        sums : Sums
            Have what was measured, until the event loop adds it to the worker's metrics.
        prefix : str
            Of its key.
        span_id : str or None
            Span that its metrics belong to.
        inputs : iterable of key
            What it has read.
        """
        self._is_named = True
        metrics = self._metrics
        if inputs:
            sums.count_reads(data_of(self._worker), inputs, metrics)
        # That it waited since it ended is nobody's time.
        ended_s = self._ended_s
        measured_s = seconds_in(metrics, self._metrics_before)
        executor_s = max(0.0, ended_s - self._submitted_s - measured_s)
        sums.add(prefix, span_id, metrics, executor_s, ended_s - self._started_s)

    def _count_as_looked_up(self, inputs: Any) -> None:
        # One that is not there was when it was read.
        with contextlib.suppress(KeyError):
            self._looked_up(inputs)

    def is_over_ahead(self) -> bool:
        """Note that it has ended, if the event loop has not heard of it."""
        if self._is_named:
            return False
        self._is_over = True
        if not self._data:
            # Up to ten milliseconds' tasks wait for the event loop, and the garbage collector looks
            # at all that they hold.
            self._context = self._measured = None  # type: ignore[assignment]
        return True

    def _whole_context(self) -> contextvars.Context:
        """Give the context of the task, made anew if it was dropped; called by the event loop."""
        if self._context is None:
            assert self._line is not None
            self._measured = recorder(self._metrics)
            context = self._line.context.copy()
            context.run(self.take_given, {}, context)
        return self._context

    def finish(self) -> None:
        """Tell the state machine, or do so when it has named it; called by the event loop."""
        self._whole_context()
        super().finish()

    def name(self, span_id: str | None) -> None:
        # A thread may be about to note that it is over.
        with self._line_lock():
            super().name(span_id)
        if self._on_named is not None:
            self._on_named.set()

    def run(self) -> None:
        """Run the task, and those that come next; called by a thread of the pool."""
        execution: Any = self
        assert self._line is not None
        between = self._line.between
        try:
            while execution is not None:
                # Some of those that come next may be the event loop's.
                _running.task = execution if type(execution) is Foretold else None
                execution = execution._run_and_report()
                _running.task = None
                if execution is not None:
                    between()
        finally:
            _running.task = None

    def tell_ahead(self, *, is_last: bool) -> bool:
        if self._is_named:
            return False
        message = self._finished_message()
        if message is None:
            self._call_loop()
            return False
        worker = self._worker
        stream: Any = worker.batched_stream
        # Whoever has the stream may look at the state, and wait for this thread.
        has_stream = stream.lock.acquire(timeout=YIELD_S)
        try:
            if not has_stream or not stream.send_in_thread(message, is_last=is_last):
                # Behind what it has to do: it has the stream, which may be closing or replaced.
                self.get_loop().call_soon_threadsafe(_send, worker, message)
                if has_stream:
                    stream.flush_in_thread()
        finally:
            if has_stream:
                stream.lock.release()
        return True

    def catch_up(self) -> None:
        """Have the event loop hear of it, and wait; called by the task itself."""
        with self._line_lock():
            if self._is_named or self.is_disowned:
                return
            named = self._on_named = threading.Event()
        self._call_loop()
        while not named.wait(_LOOK_S):
            if self.get_loop().is_closed() or self._worker.status in _ENDED:
                return

    def _line_lock(self) -> Any:
        assert self._line is not None
        return self._line.lock

    def _finished_message(self) -> dict[str, Any] | None:
        """Make the message that it has finished; None if that is the event loop's to say."""
        if self._error is not None or self._broken is not None or self.cancelled():
            return None
        value, nbytes, kind = self._outcome
        described = described_class(kind)
        if described is None:
            return None
        start_s, stop_s = self._times
        self._stimulus_id = stimulus_id = ToldStimulus(f"task-finished-{time()}")
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
            # It has ended well.
            event.stimulus_id = self._stimulus_id
        return event


#: A worker that handles no messages any more
_ENDED: Final = frozenset({Status.closing, Status.closed, Status.failed, Status.stopped})


def _send(worker: Worker, message: dict[str, Any]) -> None:
    worker.batched_send(message)


class _CatchingUp:
    """The context variable of a task's worker: whoever asks for it finds the task executing."""

    def __init__(self, variable: contextvars.ContextVar[Worker]) -> None:
        self.variable = variable
        self.set = variable.set
        self.reset = variable.reset
        self.name = variable.name

    def get(self, *default: Any) -> Any:
        task: Foretold | None = getattr(_running, "task", None)
        if task is not None:
            task.catch_up()
        return self.variable.get(*default)


def catching_up_variable(original: Any) -> Any:
    """Make the variable of `distributed.get_worker` one that has the event loop catch up."""
    return _CatchingUp(original)
