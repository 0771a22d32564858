"""Ownership of a worker's state: Rust has it while the state is plain and no program reads it.

While Rust has the state, the state machine has a guarded class with the slots of Dask's class. The
core answers some attributes; a read of any other exports the state to Python first, and the state
machine has Dask's class again. Rust imports the state when no task is under way, and no program has
read it for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from backhaul._native import WorkerCore
from backhaul.dask.compat.instance_patches import WORKER_CORE
from backhaul.dask.compat.names import (
    Worker,
    WorkerStateMachine,
    error_message,
    get_address_host,
    instructions,
    key_split,
    monotonic,
    safe_sizeof,
    time,
)
from backhaul.dask.config.settings import switched_on
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState
from backhaul.dask.worker.core import state_transfer
from backhaul.dask.worker.core.events import Told, handle, is_odd
from backhaul.dask.worker.core.guarded_state import (
    CoreLines,
    CoreLog,
    CoreTasks,
    make_guarded_class,
)
from backhaul.dask.worker.core.task_view import forgotten, new_view
from backhaul.dask.worker.lazy_collections import LazyLog, LazyTasks, data_of, known_task
from backhaul.dask.worker.spill_buffer import may_be_guarded
from backhaul.dask.worker.state_checks import is_plain, is_unobserved, threads_suffice

__all__ = ["StateOwner", "state_owner_for"]

#: How long Python keeps the state after a read, in seconds: at first, and at most after many reads
_REST_S: Final = 0.25
_REST_MAX_S: Final = 30.0

#: Most tasks in Rust: a read that exports the state waits some 30 us for each
_TASKS_MAX: Final = 100_000

#: Shortest time that Python keeps the state, relative to the time of the last import and export, so
#: that these take at most a twentieth of the time
_REST_PER_CHANGE: Final = 19.0

#: Attributes to whose objects a program may have references
_KEPT: Final = ("tasks", "log", "stimulus_log")

#: States of tasks that allow an import: no task is under way
_AT_REST: Final = frozenset({"memory", "released", "error"})


class Reporter(Protocol):
    """Reports tasks that threads have ended."""

    def report(self) -> None:
        """Report ended tasks to the state, as far as this thread may."""


class StateOwner:
    """Moves the state of one worker's state machine between Python and Rust.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Of Dask's class, or of Backhaul's class with slots. Its tasks are `LazyTasks`.
    lock : threading.RLock
        Held by any thread that calls the state machine.
    rests : bool, default True
        Whether Rust imports the state only if no task is under way and no program has read the
        state for a while.
    reporter : Reporter, optional
        Reports ended tasks before a read of the state.

    Attributes
    ----------
    core : WorkerCore or None
        The state, while Rust has it.
    lock : threading.RLock
        The parameter.
    """

    def __init__(
        self,
        state: WorkerStateMachine,
        lock: Any,
        *,
        rests: bool = True,
        reporter: Reporter | None = None,
    ) -> None:
        self._state: Any = state
        self.lock = lock
        self.core: WorkerCore | None = None
        self._rests = rests
        self._kind: Any = type(state)
        self._guarded_class = make_guarded_class(self._kind, self)
        #: Objects that a program may refer to, with the class of each while Rust has the state, and
        #: the class while Python has it
        self._kept: list[tuple[Any, type, type]] = [
            (state.tasks, CoreTasks, LazyTasks),
            (state.log, CoreLines, LazyLog),
            (state.stimulus_log, CoreLog, LazyLog),
        ]
        for kept, _, _ in self._kept:
            kept.owner = self
        self._rest_s = _REST_S
        self._change_s = 0.0
        self._not_before_s = 0.0
        self._is_giving = False
        self._reporter = reporter

    # Called with the lock

    def import_state(self) -> bool:
        """Import the state into Rust if possible; tell whether Rust has it."""
        if self.core is not None:
            return True
        began_s = monotonic()
        if not self._may_import():
            return False
        core = WorkerCore(
            address=self._state.address,
            data=self._state.data,
            threads=self._state.threads,
            callables=self._callables(),
            limits=self._limits(),
            places=(self._state.log.maxlen, self._state.stimulus_log.maxlen),
        )
        try:
            state_transfer.take_from_python(core, self._state)
        except (LookupError, OverflowError, RuntimeError, TypeError, ValueError):
            # Dask accepts references to missing objects, and sizes that are no integers.
            self._not_before_s = monotonic() + _REST_MAX_S
            return False
        self._change_s = monotonic() - began_s
        # From here on a read waits for the lock.
        self.core = core
        self._state.__class__ = self._guarded_class
        for kept, behind, _ in self._kept:
            kept.__class__ = behind
        state_transfer.let_go(core, self._state, self)
        return True

    def _may_import(self) -> bool:
        state = self._state
        if (
            type(state) is not self._kind
            # A program has replaced one of these objects.
            or any(
                getattr(state, name) is not kept
                for name, (kept, _, _) in zip(_KEPT, self._kept, strict=True)
            )
            or not is_plain(state)
            or self.is_watched()
            or not threads_suffice(state)
            or state.actors
            or state.task_counter._new_tasks
        ):
            return False
        tasks = dict.values(state.tasks)
        if not self._rests:
            return not any(ts.resource_restrictions or ts.state == "constrained" for ts in tasks)
        began_s = monotonic()
        if began_s < self._not_before_s or len(tasks) > _TASKS_MAX:
            return False
        if state.executing or state.long_running or state.in_flight_workers or state.ready:
            return False
        if all(ts.state in _AT_REST and not ts.resource_restrictions for ts in tasks):
            return True
        now_s = monotonic()
        self._not_before_s = now_s + max(_REST_S, _REST_PER_CHANGE * (now_s - began_s))
        return False

    def _callables(self) -> dict[str, Callable[..., Any]]:
        host = get_address_host(self._state.address)

        def is_remote(address: str) -> bool:
            return get_address_host(address) != host

        return {
            "time": time,
            "monotonic": monotonic,
            "random": self._state.rng.random,
            "key_split": key_split,
            "is_remote": is_remote,
            "sizeof": safe_sizeof,
            "error_of": _error_of,
            "forgotten": forgotten,
        }

    def _limits(self) -> dict[str, float]:
        state = self._state
        return {
            "threads": state.nthreads,
            "transfers": state.transfer_incoming_count_limit,
            "throttle_bytes": state.transfer_incoming_bytes_throttle_threshold,
            "incoming_bytes": state.transfer_incoming_bytes_limit,
            "message_bytes": state.transfer_message_bytes_limit,
            "default_bytes": instructions._default_data_size(),
        }

    def handle(self, events: tuple[Any, ...]) -> tuple[Told, int]:
        """Handle events in Rust up to the first that Python has to handle.

        Returns
        -------
        tuple of list of tuple and int
            The instructions for the worker, and the number of events that were handled. If events
            are left, Python has the state, to handle those.
        """
        told: Told = []
        handled_s = time()
        for number, event in enumerate(events):
            more = None if self.is_watched() else self._handled(event, handled_s)
            if more is None:
                self.export_state()
                return told, number
            told += more
            self._keep_small()
        return told, len(events)

    def apply_completed_task(
        self, message: dict[str, Any], done: tuple[Any, ...], *, is_unwatched: bool = False
    ) -> tuple[bool | None, Told] | None:
        """Handle both the arrival and the success of a task that the scheduler knows to have ended.

        Parameters
        ----------
        message : dict
            The scheduler's message, without ``op``. Rust owns it from now on.
        done : tuple
            Value, bytes, class or None, start and stop in seconds, id of the event.
        is_unwatched : bool, default False
            Whether the caller has checked that `is_watched` is false.

        Returns
        -------
        tuple of bool or None and list of tuple, or None
            Whether the task has ended; False if it waits; None if it is executing and a read during
            the store of its value has exported the state, so that Python has to handle the success.
            And the instructions for the worker. None alone, without any effect, if Python has to
            handle the task.
        """
        core = self.core
        if core is None or (not is_unwatched and self.is_watched()) or is_odd(message):
            return None
        try:
            answer = core.live_through(message, done)
            self._keep_small()
            return answer
        except (RuntimeError, AssertionError) as error:
            raise self._as_theirs(error) from None

    def free(self, keys: Any, stimulus_id: str, *, is_unwatched: bool = False) -> Told | None:
        """Handle freed results; None, without any effect, if Python has to do that."""
        core = self.core
        if core is None or (not is_unwatched and self.is_watched()):
            return None
        try:
            return core.free(keys, stimulus_id)
        except (RuntimeError, AssertionError) as error:
            raise self._as_theirs(error) from None

    def _handled(self, event: Any, handled_s: float) -> Told | None:
        core = self.core
        try:
            return None if core is None else handle(core, event, handled_s)
        except (RuntimeError, AssertionError) as error:
            raise self._as_theirs(error) from None

    def _as_theirs(self, error: Exception) -> Exception:
        """Convert an error of Rust to the one that Dask raises."""
        self.export_state()
        if isinstance(error, AssertionError) or not error.args:
            return error
        match error.args:
            case ("invalid-transition", key, start, finish):
                story = self._state.story(key)
                return instructions.InvalidTransition(key, start, finish, story)
            case ("no-task", key):
                # The ended task does not exist.
                return AssertionError(self._state.story(key))
            case ("replica-in-use", key, dependent):
                state = self._state.tasks[dependent].state
                return RuntimeError(
                    f"Cannot remove replica of {key!r} while {dependent!r} in state {state!r}."
                )
        return error

    def _keep_small(self) -> None:
        if self._rests and self.core is not None and len(self.core) > _TASKS_MAX:
            self.export_state()

    def is_watched(self) -> bool:
        """Tell whether transitions need Python.

        They do if they are validated, or if a plugin is notified of them.
        """
        return not is_unobserved(self._state)

    # Called by any thread

    def catch_up(self) -> None:
        """Report tasks that threads have ended to the state, before a read of it.

        Nothing is reported while another thread does so, or while the event loop handles earlier
        events.
        """
        if self._reporter is not None:
            self._reporter.report()

    def sync_and_export(self) -> None:
        """Catch up, then export the state to Python, because a program reads it."""
        self.catch_up()
        self.export_state()

    def export_state(self) -> None:
        """Export the state to Python; no effect if Python has it.

        Raises
        ------
        RuntimeError
            If code that an event runs reads the state during the event; nothing has changed.
        """
        with self.lock:
            core = self.core
            if core is None or self._is_giving:
                return
            self._is_giving = True
            began_s = monotonic()
            try:
                state_transfer.give_to_python(core, self._state)
                # A thread that reads meanwhile waits for the lock, and finds the whole state.
                self._state.__class__ = self._kind
                for kept, _, otherwise in self._kept:
                    kept.__class__ = otherwise
                self.core = None
            finally:
                self._is_giving = False
            if self._rests:
                now_s = monotonic()
                # After repeated reads Python keeps the state longer, to save conversions.
                looked_lately = now_s < self._not_before_s + 2 * self._rest_s
                self._rest_s = min(2 * self._rest_s, _REST_MAX_S) if looked_lately else _REST_S
                change_s = self._change_s + now_s - began_s
                self._not_before_s = now_s + max(self._rest_s, _REST_PER_CHANGE * change_s)

    def task(self, key: Any) -> Any:
        """Return a task, or a view of it; None if there is none."""
        with self.lock:
            core = self.core
            if core is None:
                return known_task(self._state, key)
            return core.view_of(key, self._view)

    def first_ready(self, most: int) -> list[Any]:
        """Return views of the next tasks for threads, in order; Rust has the state."""
        with self.lock:
            core = self.core
            return [] if core is None else [self.task(key) for key in core.first_ready(most)]

    def _view(self, key: Any) -> Any:
        return new_view(self, key)

    def bytes_of(self, key: Any) -> int:
        """Return the size of a result in bytes, as Dask reports it."""
        with self.lock:
            if self.core is None:
                task: Any = known_task(self._state, key)
                return 0 if task is None else task.nbytes or 0
            try:
                return self.core.task_attribute(key, "nbytes") or 0
            except KeyError:
                # The data still exists, but the task does not.
                return 0

    def has_missing(self) -> bool:
        """Tell whether results have to be fetched, or have no known replica."""
        with self.lock:
            core = self.core
            if core is None:
                return bool(self._state.missing_dep_flight or self._state.data_needed)
            return bool(core.number("missing_count") or core.number("has_needed"))

    def knows(self, key: Any) -> bool:
        """Tell whether there is a task of a key."""
        with self.lock:
            if self.core is None:
                return known_task(self._state, key) is not None
            return self.core.knows(key)


def state_owner_for(worker: Worker, local_queue: Any, reporter: Reporter) -> StateOwner | None:
    """Make the `StateOwner` of a worker's state; None if Python always has it.

    Parameters
    ----------
    worker : distributed.Worker
        The worker.
    local_queue : backhaul.dask.worker.local_queue.LocalQueue
        Of its default pool.
    reporter : Reporter
        Reports ended tasks.
    """
    state = worker.state
    if (
        not switched_on("hot-path.worker-core")
        or type(state) not in (WorkerStateMachine, SlottedWorkerState)
        # A program may refer to a plain dictionary or log that was there before.
        or type(state.tasks) is not LazyTasks
        or not all(type(log) is LazyLog for log in (state.log, state.stimulus_log))
        or not may_be_guarded(data_of(worker))
        or not WORKER_CORE.fits_on(state)
    ):
        return None
    return StateOwner(state, local_queue.lock, reporter=reporter)


def _error_of(error: BaseException) -> tuple[Any, ...]:
    message = error_message(error)
    return tuple(
        message[name] for name in ("exception", "traceback", "exception_text", "traceback_text")
    )
