"""What a worker's state machine makes of tasks that ended some time ago.

The steps are those of `backhaul.dask.worker.completed_tasks` and
`backhaul.dask.worker.plain_events`, done late. What was kept meanwhile
(`backhaul.dask.worker.backlog`) is put aside for that long: data, which is there or gone, and
whatever counts. Entries of the logs get the times at which they would have been made.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from backhaul.dask.compat.names import FreeKeysEvent, TaskCounter, WorkerStateMachine, time
from backhaul.dask.worker.completed_tasks import pass_through
from backhaul.dask.worker.plain_events import (
    compute_task_event,
    execute_success_event,
    free_keys,
)

__all__ = ["Ending", "Freed", "Lived", "go_through"]


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


class Lived:
    """A task that has come and ended.

    Parameters
    ----------
    message : dict
        The scheduler's.
    ending : Ending
        How it ended.
    generation : int
        Of the state machine when it came.
    dependencies : sequence of Lived
        Those of its inputs that are noted as well.

    Attributes
    ----------
    number : int
        Its place among what is noted.
    events : int
        How many events were noted with it.
    dependents : int
        How many tasks that need it are noted, and known to the state machine.
    noted_dependents : int
        How many are noted.
    freed : Freed or None
        How the scheduler has let go of it.
    """

    __slots__ = (
        "dependencies",
        "dependents",
        "ending",
        "events",
        "freed",
        "generation",
        "handled_s",
        "key",
        "message",
        "noted_dependents",
        "number",
        "prefix",
    )

    prefix: str

    def __init__(
        self,
        message: dict[str, Any],
        ending: Ending,
        generation: int,
        dependencies: Sequence[Lived],
    ) -> None:
        self.key = message["key"]
        self.message = message
        # The worker's data has the value; what is freed is to be gone.
        self.ending = Ending(None, *ending[1:])
        self.generation = generation
        self.dependencies = dependencies
        self.dependents = self.noted_dependents = 0
        self.freed: Freed | None = None
        self.number = self.events = 0
        self.handled_s = time()

    def go_through(self, state: WorkerStateMachine) -> None:
        """Have a state machine go through it."""
        ending = self.ending
        state.generation = self.generation
        event = compute_task_event(**self.message)
        done = execute_success_event(
            self.key,
            event.run_id,
            None,
            ending.start_s,
            ending.stop_s,
            ending.nbytes,
            ending.kind,
            ending.stimulus_id,
        )
        dependencies = [state.tasks[key] for key in event.nbytes]
        pass_through(state, event, done, ending.started_s, dependencies)
        state.tasks[self.key].type = type(None) if ending.kind is None else ending.kind


class Freed:
    """Results that the scheduler has let go of.

    Parameters
    ----------
    keys : list of key
        Of their tasks.
    stimulus_id : str
        Of the message.
    lived : list of Lived
        Their tasks, as far as they are noted.
    known : int
        How many are the state machine's.

    Attributes
    ----------
    number : int
        Its place among what is noted.
    left : int
        How many of the tasks the state machine would know still.
    """

    __slots__ = ("handled_s", "keys", "left", "lived", "number", "stimulus_id")

    def __init__(self, keys: Any, stimulus_id: str, lived: list[Lived], known: int) -> None:
        self.keys = keys
        self.stimulus_id = stimulus_id
        self.lived = lived
        self.left = len(lived) + known
        self.number = 0
        self.handled_s = time()

    def go_through(self, state: WorkerStateMachine) -> None:
        """Have a state machine go through it. What it tells the scheduler has been told."""
        event: Any = FreeKeysEvent(keys=self.keys, stimulus_id=self.stimulus_id)
        state.stimulus_log.append(event)
        free_keys(state, event)


class _Uncounted(Counter[tuple[str, Any]]):
    """Counts of tasks, which have been counted: enough of each, and never others."""

    def __getitem__(self, _: Any) -> int:
        return 2

    def get(self, _: Any, __: Any = None) -> Any:
        return 2

    def __setitem__(self, _: Any, __: int) -> None:
        """Nothing is counted again."""


def go_through(state: WorkerStateMachine, noted: Iterable[Lived | Freed]) -> None:
    """Have a state machine go through what happened before now.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Its counters and data have all of it.
    noted : iterable of Lived or Freed
        In order.
    """
    kept = {name: getattr(state, name) for name in _KEPT}
    first_in = state.ready._inc
    log, stimulus_log = state.log, state.stimulus_log
    entries: deque[Any] = deque()
    events: deque[Any] = deque()
    state.task_counter = uncounted = TaskCounter()
    uncounted._current_count = _Uncounted()
    state.data = {}
    state.log = entries
    state.stimulus_log = events
    try:
        for each in noted:
            each.go_through(state)
            handled_s = each.handled_s
            for event in events:
                event.handled = handled_s
            stimulus_log.extend(events)
            log.extend((*entry[:-1], handled_s) for entry in entries)
            events.clear()
            entries.clear()
    finally:
        for name, value in kept.items():
            setattr(state, name, value)
        state.ready._inc = first_in
        state.log = log
        state.stimulus_log = stimulus_log


#: What is as it should be already
_KEPT = ("task_counter", "data", "generation", "transition_counter", "executed_count", "nbytes")
