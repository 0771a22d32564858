"""Tasks that have ended and that a worker's state machine has yet to go through.

A thread has run a plain task and told the scheduler before the event loop heard of it
(`backhaul.dask.worker.early_execution`). What the state machine would make of that, a state of the
task, entries of logs, copies of events, is certain, and as a rule nobody looks at it before the
scheduler frees the task again. So the event loop notes that it has ended, and no more.
`Backlog.work_off` has the state machine go through all of it, in order and with the times of then,
before anybody sees: while there is a backlog the state machine is of a class that does so when it
is asked for its tasks or its logs, or told something. What others count by, data, metrics, the
counters, is kept at once. docs/design/backlog.md says what is noted, and when not.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from distributed import Status

from backhaul.dask.compat.names import (
    FindMissingEvent,
    Worker,
    WorkerStateMachine,
    key_split,
)
from backhaul.dask.resource_pools.worker_state import SlottedWorkerState
from backhaul.dask.worker.backlog_replay import Ending, Freed, Lived, go_through
from backhaul.dask.worker.instructions import send
from backhaul.dask.worker.lazy_collections import KeptTasks, TasksBehind, known_task
from backhaul.dask.worker.local_queue import Line
from backhaul.dask.worker.plain_events import is_plain, nobody_looks_on
from backhaul.dask.worker.plain_steps import threads_suffice
from backhaul.dask.worker.task_counts import Change, count_changes, count_executed

__all__ = ["Backlog", "backlog_for"]

#: Most of what is noted: whoever looks waits for all of it, some 25 us for each
_NOTED_MAX: Final = 4000
#: How much is worked off then, at a time
_WORKED_OFF: Final = 64

#: What of a state machine is behind: the others are kept, or have no part in a plain task
_BEHIND: Final = ("tasks", "log", "stimulus_log")

_SLOTS: Final[dict[str, Any]] = {name: WorkerStateMachine.__dict__[name] for name in _BEHIND}


class Ended(Protocol):
    """A task that a thread has run by itself."""

    def ending(self) -> Ending | None:
        """Say how it ended; None if it is under way, or has not ended well."""

    def settle(self, prefix: str, span_id: str | None, inputs: Any) -> None:
        """Be done with it, but for the state machine; it has read so many inputs, by their keys."""


class Backlog:
    """What a state machine has yet to go through.

    Parameters
    ----------
    state : distributed.worker_state_machine.WorkerState
        Of Dask's class, or ours with slots. Its tasks are `KeptTasks`.
    lock : threading.RLock
        Held by whoever changes this.
    tell : callable
        Is given what the scheduler is to hear, as messages.
    is_running : callable
        Tells whether the worker starts tasks.
    """

    def __init__(
        self,
        state: WorkerStateMachine,
        lock: threading.RLock,
        tell: Callable[[list[dict[str, Any]]], None],
        is_running: Callable[[], bool],
    ) -> None:
        self._state: Any = state
        self._lock = lock
        self._tell = tell
        self._is_running = is_running
        self._kind: Any = type(state)
        self._behind = _behind_class(self._kind, self)
        #: Who has kept these looks at them, too
        tasks: Any = state.tasks
        tasks.work_off = self.work_off
        self._tasks: KeptTasks = tasks
        #: By number, in the order in which they came
        self._noted: dict[int, Lived | Freed] = {}
        self._count = 0
        self._lived: dict[Any, Lived] = {}
        #: Tasks of the state machine that are freed as far as it is known here, and those that some
        #: that are noted need
        self._known_freed: set[Any] = set()
        self._needed: set[Any] = set()
        #: What may be forgotten once it is out of the logs, and how much was in them when it might
        self._closed: deque[tuple[int, int, Freed]] = deque()
        #: How many events were noted, each an entry of one log. The other has one for each that is
        #: noted, and one for each transition.
        self._events = 0
        self._events_max = _places(state.stimulus_log)
        self._entries_max = _places(state.log)

    # Called by the event loop

    def note_end(self, item: Ended, message: dict[str, Any]) -> bool:
        """Note that a task has come and has ended, if that is all that there is to it.

        Parameters
        ----------
        item : Ended
            What a thread has made of it.
        message : dict
            The scheduler's, without ``op``: the fields of a `ComputeTaskEvent`.

        Returns
        -------
        bool
            False if the state machine has to be told; nothing was done.
        """
        with self._lock:
            ending = item.ending()
            if ending is None or not self._may_note(message):
                return False
            dependencies = self._dependencies(message)
            if dependencies is None:
                return False
            key = message["key"]
            try:
                self._state.data[key] = ending.value
            except Exception:
                # Where it cannot be stored, Dask makes an error of that, trying again.
                return False
            lived = Lived(message, ending, self._state.generation, dependencies)
            self._keep_up(lived)
            for dependency in dependencies:
                dependency.dependents += 1
                dependency.noted_dependents += 1
            if len(dependencies) < len(message["nbytes"]):
                self._needed.update(each for each in message["nbytes"] if each not in self._lived)
            self._lived[key] = lived
            self._events += 2
            lived.events = self._events
            lived.number = self._add(lived)
            item.settle(lived.prefix, message["span_id"], message["who_has"])
            self._shorten()
            return True

    def has_noted(self) -> bool:
        """Tell whether there is anything that the state machine has yet to go through."""
        return bool(self._noted)

    def bytes_of(self, key: Any) -> int:
        """Say how large a result is that is in the worker's data; nothing is worked off.

        Raises
        ------
        KeyError
            If nobody knows of such a task.
        """
        with self._lock:
            lived = self._lived.get(key)
            if lived is not None and lived.freed is None:
                return lived.ending.nbytes or 0
            task_state = known_task(self._state, key)
            if task_state is None:
                raise KeyError(key)
            return task_state.nbytes or 0

    def note_free(self, message: dict[str, Any]) -> bool:
        """Note that the scheduler needs some results no more, if all that are here are plain.

        Some of them may have been noted, some be the state machine's.

        Parameters
        ----------
        message : dict
            The scheduler's, without ``op``: the fields of a `FreeKeysEvent`.

        Returns
        -------
        bool
            False if the state machine has to be told; nothing was done.
        """
        keys = message["keys"]
        with self._lock:
            lived = self._lived
            if not lived or not self._may_note_more():
                return False
            if len(set(keys)) != len(keys):
                return False
            found: list[Lived] = []
            known: dict[Any, Any] = {}
            for key in keys:
                each = lived.get(key)
                if each is not None:
                    if each.freed is not None:
                        return False
                    found.append(each)
                    continue
                task_state = known_task(self._state, key)
                if task_state is not None:
                    if not self._may_free(task_state):
                        return False
                    known[key] = task_state
            stimulus_id = message["stimulus_id"]
            freed = Freed(keys, stimulus_id, found, len(known))
            freed.number = self._add(freed)
            self._events += 1
            closed = len(self._closed)
            # The last first, as Dask works off what it is recommended.
            changes: list[Change] = []
            told: list[dict[str, Any]] = []
            for key in reversed(keys):
                each = lived.get(key)
                if each is not None:
                    each.freed = freed
                    self._free(each, changes)
                elif key in known:
                    self._free_known(known[key], changes)
                else:
                    continue
                told.append({"key": key, "op": "release-worker-data", "stimulus_id": stimulus_id})
            if changes:
                count_changes(self._state.task_counter, changes)
                self._tell(told)
            self._close_from(closed)
            self._shorten()
            return True

    def _may_free(self, task_state: Any) -> bool:
        """Tell whether a task of the state machine's goes from memory and is forgotten, no more."""
        key = task_state.key
        slots = getattr(self._state.constrained, "slots", None)
        return (
            task_state.state == "memory"
            and key not in self._known_freed
            and key not in self._needed
            and not task_state.dependents
            and not task_state.waiters
            # Nor is anything else forgotten with it.
            and all(each.state == "memory" for each in task_state.dependencies)
            and not task_state.who_has
            and not task_state.resource_restrictions
            and (slots is None or key not in slots.made_on)
        )

    def _free_known(self, task_state: Any, changes: list[Change]) -> None:
        """Let go of a result of the state machine's, which forgets the task later."""
        state = self._state
        key, data = task_state.key, state.data
        self._known_freed.add(key)
        if key in data:
            del data[key]
        state.threads.pop(key, None)
        state.nbytes -= task_state.nbytes
        state.transition_counter += 2
        changes.append((task_state.prefix, "memory", None))

    def _may_note(self, message: dict[str, Any]) -> bool:
        key = message["key"]
        return (
            self._may_note_more()
            and key not in self._lived
            and known_task(self._state, key) is None
            and not message["actor"]
            and not message["annotations"]
            and not message["resource_restrictions"]
        )

    def _may_note_more(self) -> bool:
        """Tell whether a plain task that came now would be executed at once, and nobody looks."""
        state = self._state
        kind = type(state)
        if kind is not self._behind:
            if kind is not self._kind or not is_plain(state) or not threads_suffice(state):
                return False
        elif not nobody_looks_on(state) or state.constrained._data:
            return False
        return (
            state.running
            and self._is_running()
            and not state.ready._data
            and len(state.executing) < state.nthreads
            and not state.data_needed
            and not state.task_counter._new_tasks
            and not state.actors
        )

    def _dependencies(self, message: dict[str, Any]) -> Sequence[Lived] | None:
        """Give what of a task's inputs is noted here.

        None if one is not in memory here, or other workers have it that the state machine does not
        know of.
        """
        who_has = message["who_has"]
        if not who_has and not message["nbytes"]:
            return ()
        if len(who_has) != len(message["nbytes"]):
            return None
        found: list[Lived] = []
        state, address = self._state, self._state.address
        for key in message["nbytes"]:
            holders = who_has.get(key, ())
            lived = self._lived.get(key)
            if lived is not None:
                if lived.freed is not None or list(holders) != [address]:
                    return None
                found.append(lived)
                continue
            task_state = known_task(state, key)
            if (
                task_state is None
                or task_state.state != "memory"
                or key in self._known_freed
                or not task_state.priority
                or {*holders, address} != {*task_state.who_has, address}
            ):
                return None
        return found

    def _keep_up(self, lived: Lived) -> None:
        """Count a task that has ended, as the state machine would."""
        state = self._state
        state.generation -= 1
        state.ready._inc += 1
        state.transition_counter += 4
        state.executed_count += 1
        state.nbytes += lived.ending.nbytes
        lived.prefix = prefix = key_split(lived.key)
        count_executed(state.task_counter, prefix, "memory")
        state.threads[lived.key] = lived.ending.thread

    def _free(self, lived: Lived, changes: list[Change]) -> None:
        """Let go of a result, and of tasks that nobody knows any more."""
        state = self._state
        key = lived.key
        data = state.data
        if key in data:
            del data[key]
        state.threads.pop(key, None)
        state.nbytes -= lived.ending.nbytes
        state.transition_counter += 1
        if lived.dependents:
            changes.append((lived.prefix, "memory", "released"))
        else:
            changes.append((lived.prefix, "memory", None))
            self._forget(lived, changes)

    def _forget(self, lived: Lived, changes: list[Change]) -> None:
        state, freed = self._state, lived.freed
        assert freed is not None
        state.transition_counter += 1
        freed.left -= 1
        if not freed.left:
            # What else comes of this message goes in the logs as well.
            self._closed.append((0, 0, freed))
        for dependency in lived.dependencies:
            dependency.dependents -= 1
            if dependency.freed is not None and not dependency.dependents:
                changes.append((dependency.prefix, "released", None))
                self._forget(dependency, changes)

    def _add(self, noted: Lived | Freed) -> int:
        if not self._noted:
            self._become(self._behind, TasksBehind)
        self._count = number = self._count + 1
        self._noted[number] = noted
        return number

    def _shorten(self) -> None:
        """Forget what nobody can see any more; work off what would take long if somebody looked."""
        noted, closed = self._noted, self._closed
        while closed:
            events, entries, freed = closed[0]
            if self._events - events < self._events_max:
                break
            if self._entries() - entries < self._entries_max:
                break
            closed.popleft()
            if not all(each.number in noted for each in freed.lived):
                # The state machine has gone through some of it, and has to go through the rest.
                continue
            if any(each.noted_dependents for each in freed.lived):
                closed.append((self._events, self._entries(), freed))
                continue
            del noted[freed.number]
            for each in freed.lived:
                self._leave_out(each)
        if len(noted) > _NOTED_MAX:
            self.work_off(_WORKED_OFF)
        elif not noted:
            self._forget_all()
            self._become(self._kind, KeptTasks)

    def _leave_out_what_is_over(self) -> None:
        """Forget tasks that are freed and that the logs have no place for any more.

        That they are freed may be in the log of events still, and is gone through without them.
        """
        noted = self._noted
        events_min = self._events - self._events_max
        entries_min = self._entries() - self._entries_max
        found: list[Lived] = []
        for _, entries, freed in self._closed:
            if entries <= entries_min:
                found += (
                    each
                    for each in freed.lived
                    if each.events <= events_min and each.number in noted
                )
        # Those that need others first, which came later
        found.sort(key=_number_of, reverse=True)
        for each in found:
            if not each.noted_dependents:
                self._leave_out(each)

    def _leave_out(self, lived: Lived) -> None:
        del self._noted[lived.number], self._lived[lived.key]
        for dependency in lived.dependencies:
            dependency.noted_dependents -= 1
        # Which refers to it: neither is to wait for the garbage collector.
        lived.freed = None

    def _entries(self) -> int:
        """Count what the log has, or would have, but for a number that stays."""
        return self._count + int(self._state.transition_counter)

    def _close_from(self, first: int) -> None:
        """Note how much is in the logs when the last of what is closed might be forgotten."""
        closed = self._closed
        at = self._events, self._entries()
        for number in range(first, len(closed)):
            closed[number] = *at, closed[number][2]

    def _forget_all(self) -> None:
        self._noted.clear()
        self._lived.clear()
        self._closed.clear()
        self._known_freed.clear()
        self._needed.clear()

    def _become(self, kind: Any, of_tasks: type[KeptTasks]) -> None:
        self._state.__class__ = kind
        self._tasks.__class__ = of_tasks

    # Called by any thread

    def work_off(self, most: int | None = None) -> None:
        """Have the state machine go through what is noted, the oldest of it first.

        Parameters
        ----------
        most : int, optional
            Of how much; all by default.
        """
        with self._lock:
            noted = self._noted
            if not noted:
                return
            state = self._state
            self._become(self._kind, KeptTasks)
            if most is None:
                self._leave_out_what_is_over()
                chosen: Sequence[Any] = tuple(noted.values())
                self._forget_all()
            else:
                numbers = [number for number, _ in zip(noted, range(most), strict=False)]
                chosen = [noted.pop(number) for number in numbers]
                for each in chosen:
                    if type(each) is Lived:
                        del self._lived[each.key]
                        if each.noted_dependents:
                            self._needed.add(each.key)
                        if each.freed is not None:
                            self._known_freed.add(each.key)
            go_through(state, chosen)
            if noted:
                self._become(self._behind, TasksBehind)


def backlog_for(worker: Worker, line: Line) -> Backlog | None:
    """Make the backlog of a worker; None if its state machine is of somebody else's class."""
    state = worker.state
    if not line.takes_whole or type(state) not in (WorkerStateMachine, SlottedWorkerState):
        return None
    # Nor if its tasks are: who has kept them could not be told.
    if type(state.tasks) is not KeptTasks:
        return None

    def is_running() -> bool:
        return worker.status is Status.running

    return Backlog(state, line.lock, partial(send, worker), is_running)


def _number_of(lived: Lived) -> int:
    return lived.number


def _places(log: deque[Any]) -> float:
    return math.inf if log.maxlen is None else log.maxlen


def _behind_class(kind: type, backlog: Backlog) -> type:
    """Make the class of one state machine while it is behind."""

    def handle_stimulus(self: Any, *stims: Any) -> Any:
        if not self.missing_dep_flight and all(type(each) is FindMissingEvent for each in stims):
            # Nothing is missing: it would do nothing, and log nothing.
            return []
        backlog.work_off()
        return self.handle_stimulus(*stims)

    members: dict[str, Any] = {
        "__slots__": (),
        "is_behind": True,
        "handle_stimulus": handle_stimulus,
    }
    for name in _BEHIND:
        members[name] = _caught_up(name, backlog)
    members["__module__"] = kind.__module__
    return type(kind.__name__, (kind,), members)


def _caught_up(name: str, backlog: Backlog) -> property:
    """Make a property that has what is noted worked off before it is looked at."""
    slot = _SLOTS[name]

    def get(self: Any) -> Any:
        backlog.work_off()
        return slot.__get__(self)

    def put(self: Any, value: Any) -> None:
        backlog.work_off()
        slot.__set__(self, value)

    return property(get, put)
