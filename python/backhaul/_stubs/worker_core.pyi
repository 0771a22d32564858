"""The worker's state in Rust."""

from collections.abc import Callable
from typing import Any, final

@final
class WorkerCore:
    """The state of a worker in Rust: events in, instructions and attributes out; internal.

    The caller makes sure that one thread calls it at a time. Each event gives a list of tuples:
    what the worker is to do, by name, the id of the event, and what belongs to it.

    Parameters
    ----------
    address : str
        Of the worker.
    data : mutable mapping
        Its results by key.
    threads : dict
        By key, the threads that ran tasks.
    callables : dict of str to callable
        ``time``, ``monotonic``, ``random``, ``key_split``, ``is_remote``, ``sizeof``, ``error_of``,
        ``forgotten``.
    limits : dict of str to float
        ``threads``, ``transfers``, ``throttle_bytes``, ``incoming_bytes``, ``message_bytes``,
        ``default_bytes``.
    places : tuple of int or None
        Most entries of the log, and of that of stimuli.

    Raises
    ------
    ValueError
        If a callable or a limit is missing.
    RuntimeError
        From any method: while an event is handled, and where the state machine of Dask raises an
        error of its own. Where that asserts something, it is ``AssertionError``.
    """

    def __new__(
        cls,
        *,
        address: str,
        data: Any,
        threads: dict[Any, int],
        callables: dict[str, Callable[..., Any]],
        limits: dict[str, float],
        places: tuple[int | None, int | None],
    ) -> WorkerCore: ...
    def compute(self, message: dict[str, Any]) -> list[tuple[Any, ...]] | None:
        """Take on a task, as ``ComputeTaskEvent`` has it; what is to be run is taken out of it.

        None, and nothing is done, if it asks for more than a thread.
        """

    def live_through(
        self, message: dict[str, Any], done: tuple[Any, ...]
    ) -> tuple[bool | None, list[tuple[Any, ...]]] | None:
        """Take on a task that has ended well, and whose end the scheduler knows.

        False if it was not to be run immediately, so that its end is still to be reported; None if
        it runs, and Python has taken over before its end. Nothing at all as `compute`. ``done`` is
        as in `succeeded`.
        """

    def succeeded(
        self, key: Any, run_id: int, done: tuple[Any, ...]
    ) -> list[tuple[Any, ...]] | None:
        """End a run well: value, bytes, class or None, start and stop in s, id of the event.

        None, and nothing is done but that the value may be stored, if it is Python's to do.
        """

    def failed(
        self,
        event: Any,
        key: Any,
        run_id: int,
        error: tuple[Any, ...],
        times: tuple[float, float] | None,
    ) -> list[tuple[Any, ...]]:
        """End a run with an error: exception, traceback, and their texts."""

    def rescheduled(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """End a run that wants to be run elsewhere."""

    def seceded(self, event: Any, key: Any, seconds: Any) -> list[tuple[Any, ...]]:
        """Note that a run has left the thread pool."""

    def free(self, keys: Any, stimulus_id: str) -> list[tuple[Any, ...]]:
        """Release tasks that the scheduler needs no more."""

    def gathered(
        self, event: Any, peer: str, total_bytes: int, data: Any
    ) -> list[tuple[Any, ...]] | None:
        """End a transfer that brought results by key, perhaps not all; None as `succeeded`."""

    def not_gathered(
        self,
        event: Any,
        peer: str,
        total_bytes: int,
        why: str,
        error: tuple[Any, ...] | None = None,
    ) -> list[tuple[Any, ...]]:
        """End a transfer that brought nothing: ``busy``, ``gone``, or with an error."""

    def peer_left(self, event: Any, peer: str) -> list[tuple[Any, ...]]:
        """Forget what a worker has."""

    def retry(self, event: Any, peer: str) -> list[tuple[Any, ...]]:
        """Ask a worker again that was busy."""

    def steal(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """Give up a task that has not begun."""

    def cancel(self, event: Any, key: Any) -> list[tuple[Any, ...]]:
        """Give up a task that has not begun, and say nothing."""

    def set_running(self, event: Any, running: bool) -> list[tuple[Any, ...]]:
        """Begin tasks, or begin none."""

    def remove_replicas(self, event: Any, keys: Any) -> list[tuple[Any, ...]]:
        """Release copies of results."""

    def acquire_replicas(
        self, event: Any, nbytes: dict[Any, int], who_has: dict[Any, Any]
    ) -> list[tuple[Any, ...]] | None:
        """Fetch copies of results; None, and nothing is done, if it is Python's to do."""

    def refresh_who_has(self, event: Any, who_has: dict[Any, Any]) -> list[tuple[Any, ...]]:
        """Hear who has results."""

    def scattered(self, event: Any, data: Any) -> list[tuple[Any, ...]] | None:
        """Keep values that a client has sent; None as `succeeded`."""

    def find_missing(self, stimulus_id: str) -> list[tuple[Any, ...]]:
        """Ask who has what is missing."""

    def knows(self, key: Any) -> bool:
        """Tell whether there is a task of a key."""

    def __len__(self) -> int: ...
    def number(self, name: str) -> int:
        """Give a number that Dask's state machine has under a name."""

    def may_run_at_once(self) -> bool:
        """Tell whether a task that came now would not wait behind others."""

    def first_ready(self, most: int) -> list[Any]:
        """Give the keys of the tasks that get a thread next, in order."""

    def latest_needed(self, keys: list[Any]) -> int | None:
        """Choose the result that tasks here need latest.

        Parameters
        ----------
        keys : list
            Of results.

        Returns
        -------
        int or None
            The index of the first one that no task here needs; else of the one whose first task has
            the greatest priority number; None if there are no keys.
        """

    def write_counts(
        self, current: dict[tuple[str, str], int], elapsed: dict[tuple[str, str], float]
    ) -> float | None:
        """Write how many tasks are in each state, and for how many seconds; returns the time.

        Parameters
        ----------
        current : dict of tuple of str and str to int
            Tasks by prefix and state; everything in it is replaced.
        elapsed : dict of tuple of str and str to float
            Seconds by prefix and state, which has those that were counted before Rust had the
            state. Only groups that have changed since the last call are written.
        """

    def view_of(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """Give what was made to show a task, made once by ``make(key)``; None without the task."""

    def set_view(self, key: Any, view: Any) -> None:
        """Say what shows a task."""

    def task_attribute(self, key: Any, name: str) -> Any:
        """Give what a task has under a name.

        Raises
        ------
        KeyError
            If there is no such task.
        AttributeError
            If there is no such name.
        """

    def add_time(self, key: Any, times: dict[str, Any]) -> None:
        """Note what took a task's time, as in ``TaskState.startstops``."""

    def add_line(self, line: tuple[Any, ...]) -> None:
        """Write a line into the log."""

    def take_out(self) -> dict[str, Any]:
        """Give all that there is, for another state machine to go on with, and empty the logs."""

    def put_in(self, state: dict[str, Any]) -> None:
        """Go on with what another state machine had; there is nothing here yet.

        Raises
        ------
        KeyError
            If something is not said, or a task is named that is not said.
        ValueError
            If a task is in a state that there is not here.
        """
