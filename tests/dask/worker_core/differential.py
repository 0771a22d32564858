"""One stream of events for Dask's state machine of a worker and for ours, compared after each.

Instructions, refusals and both logs are compared after each step. All of the state is compared now
and then, as that takes most of the time, and after each step once anything has differed: see
`Differential.run`.

Both are of upstream's class. Dask's goes through its own functions; before each event for ours,
what `backhaul.dask.compat.process_patches` has for the class is put into it, and taken out after.
Time stands still while an event is handled, and a task's hash is that of its key, as sets list
their members by hashes and upstream's hash is an address.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import distributed.worker_state_machine as upstream
from distributed.worker_state_machine import (
    ComputeTaskEvent,
    Execute,
    ExecuteSuccessEvent,
    TaskFinishedMsg,
    TaskState,
    WorkerState,
)

from backhaul.dask.compat.process_patches import PATCHES
from backhaul.dask.resource_pools.worker_slots import WorkerSlots
from backhaul.dask.resource_pools.worker_state import give_slots
from backhaul.dask.worker import (
    completed_tasks,
    lazy_collections,
    plain_events,
    plain_inputs,
    plain_steps,
    task_counts,
)
from backhaul.dask.worker.core import ownership

from .attributes import LOGS, difference, dump
from .stream import ADDRESS, Event, Refused, Stream, WholeTask

#: Those of what is compared
SWITCHES = ("hot-path.execution", "hot-path.transitions")

#: State is compared after one step of so many, at random, unless after every one.
LOOKS_ONE_IN = 16

#: Events that are handled together, one list after another
Batches = list[list[Event]]


class Clock:
    """Time that passes between events only."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class RefusingDict(dict[Any, object]):
    """Stores everything but what cannot be pickled, as a full worker that spills."""

    def __setitem__(self, key: Any, value: object) -> None:
        if type(value) is Refused:
            raise TypeError(f"cannot store {key}")
        super().__setitem__(key, value)


class Patches:
    """Replacements of functions of Dask, which are put there for a moment.

    Parameters
    ----------
    unread : bool
        Whether the sources of Dask may be others than those that were read.
    """

    def __init__(self, *, unread: bool) -> None:
        self._patches = [
            patch
            for patch in PATCHES
            if patch.place is WorkerState
            and patch.switch in ("hot-path.execution", "hot-path.transitions")
        ]
        assert len(self._patches) == 2, self._patches
        for patch in self._patches:
            assert unread or patch.refusal() is None, patch.refusal()
        self._both = []
        for patch in self._patches:
            replacement = patch.install()
            self._both.append((patch.place, patch.name, replacement.ours, replacement.original))
            assert replacement.take_back()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        for owner, name, ours, _ in self._both:
            setattr(owner, name, ours)
        try:
            yield
        finally:
            for owner, name, _, original in self._both:
                setattr(owner, name, original)


class Pair:
    """Both state machines, with the settings that a seed gives.

    Parameters
    ----------
    seed : int
        What settings and looks are drawn from.
    patches : Patches
        What makes ours of Dask's.
    clock : Clock
        What both have for the time.
    every : bool
        Whether state is compared after every step. Otherwise it is after some, at random, and the
        caller asks for the last time.
    """

    def __init__(self, seed: int, patches: Patches, clock: Clock, every: bool = True) -> None:
        self.every = every
        self._glances = random.Random(f"looks of {seed}")
        self.looks = 0
        self._patches = patches
        self._clock = clock
        clock.now_s = 100.0
        #: Whether tasks wait in slots, as on workers that speak over our comms
        slotted = seed % 2 == 1
        self.theirs, self.ours = (self._state(seed, slotted) for _ in range(2))
        #: How much of each log is known to be equal
        self._compared = dict.fromkeys(LOGS, 0)
        #: Tasks that ours went through in one step
        self.lived_through = 0
        lazy_collections.install(self.ours)

    @staticmethod
    def _state(seed: int, slotted: bool) -> WorkerState:
        state = WorkerState(
            nthreads=(1, 1, 2, 3)[seed // 2 % 4],
            address=ADDRESS,
            data=RefusingDict() if seed % 5 == 0 else {},
            threads={},
            resources={"R": 2},
            transfer_incoming_count_limit=(9999, 1)[seed // 3 % 2],
            validate=False,
            transfer_message_bytes_limit=50 if seed % 7 == 0 else float("inf"),
        )
        # Short ones, so that what is noted is forgotten
        places = (None, 6)[seed // 4 % 2]
        state.log, state.stimulus_log = deque(maxlen=places), deque(maxlen=places)
        if slotted:
            give_slots(state, WorkerSlots({"R": 2}, beside_max=1))
        return state

    def apply(self, batch: list[Event]) -> tuple[str | None, list[Any] | None]:
        """Have both handle events; say what differs then, and what upstream's wants to be done.

        The latter is None if both refused them.
        """
        self._clock.now_s += 0.25
        # Nothing is known of the steps that refused: no state to go on from.
        if batch[0].kind is WholeTask:
            theirs, ours = self._whole_task(batch[0])
        else:
            theirs = _handled(self.theirs.handle_stimulus, batch)
            with self._patches.installed():
                ours = _handled(self.ours.handle_stimulus, batch)
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            found = difference(_shown(theirs), _shown(ours), "refused")
        else:
            found = difference(dump(theirs), dump(ours), "instructions")
        looks = self._glances.randrange(LOOKS_ONE_IN) == 0
        for name in LOGS:
            found = found or self._new_entries(name)
        if self.every or looks:
            found = found or self.compare_state()
        return found, None if isinstance(theirs, Exception) else theirs

    def finish(self) -> str | None:
        """Say what differs in the end."""
        found = None
        for name in LOGS:
            found = found or self._new_entries(name)
        return found or self.compare_state()

    def counted(self) -> dict[str, int]:
        """Say how often something has happened that is rare."""
        return {}

    def compare_state(self) -> str | None:
        """Say what differs in the state."""
        self.looks += 1
        return difference(dump(self.theirs), dump(self.ours))

    def _whole_task(self, event: Event) -> tuple[Any, Any]:
        """Have both handle a task that ended before it was heard of, ours in one step if it can."""
        compute = Event(ComputeTaskEvent, event.fields["compute"])
        done = Event(ExecuteSuccessEvent, event.fields["done"])
        theirs = _one_by_one(self.theirs, compute, done)
        with self._patches.installed():
            try:
                ours: Any = completed_tasks.live_through(
                    self.ours, compute.make(), done.make(), None
                )
            except Exception as error:
                ours = error
            if ours is None:
                return theirs, _one_by_one(self.ours, compute, done)
        self.lived_through += 1
        if not isinstance(theirs, Exception):
            theirs = _without(theirs, event.fields["done"]["key"])
        return theirs, ours

    def _new_entries(self, name: str) -> str | None:
        """Say what differs in what a log has gained."""
        # What is full has lost some of it.
        begin = self._compared[name] if getattr(self.theirs, name).maxlen is None else 0
        theirs, ours = (
            dump(list(itertools.islice(getattr(state, name), begin, None)))
            for state in (self.theirs, self.ours)
        )
        self._compared[name] = len(getattr(self.theirs, name))
        return difference(theirs, ours, f"/{name}")


def _without(theirs: Any, key: Any) -> Any:
    """Leave out what a thread has done: it has run the task and told the scheduler."""
    if isinstance(theirs, Exception):
        return theirs
    return [
        each for each in theirs if type(each) not in (Execute, TaskFinishedMsg) or each.key != key
    ]


def _handled(handle: Callable[..., Any], batch: list[Event]) -> Any:
    try:
        return handle(*(event.make() for event in batch))
    except Exception as error:
        return error


def _one_by_one(state: WorkerState, compute: Event, done: Event) -> Any:
    """Have a state machine handle that there is a task, and its end if it is to execute it."""
    told = _handled(state.handle_stimulus, [compute])
    key = done.fields["key"]
    if isinstance(told, Exception) or not any(
        type(each) is Execute and each.key == key for each in told
    ):
        return told
    more = _handled(state.handle_stimulus, [done])
    if isinstance(more, Exception):
        return more
    return [each for each in told if type(each) is not Execute or each.key != key] + more


def _shown(outcome: Any) -> str:
    return f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "nothing"


class Differential:
    """Runs streams from seeds."""

    def __init__(self, pair: Callable[..., Pair] = Pair, *, unread: bool = False) -> None:
        self._pair = pair
        self._patches = Patches(unread=unread)
        self._clock = Clock()
        for module in (
            upstream,
            plain_events,
            plain_inputs,
            plain_steps,
            task_counts,
            completed_tasks,
            ownership,
        ):
            for name in ("time", "monotonic"):
                if hasattr(module, name):
                    setattr(module, name, self._clock)
        TaskState.__hash__ = _hash_of_key  # type: ignore[assignment,method-assign]
        self.counted: Counter[str] = Counter()

    def run(self, seed: int, length: int, every: bool = True) -> tuple[Batches, str | None]:
        """Run a stream; return its events, and what differed after the last.

        State is compared after ``every`` step. Otherwise it is after some of them and the last, and
        a stream that fails is run again with looks after every step: so the events are named after
        which something differed first.
        """
        counted: Counter[str] = Counter()
        batches, found = self._run(seed, length, every, counted)
        self.counted.update(counted)
        if found is None or every:
            return batches, found
        closely = self._run(seed, length, True, Counter())
        # No look may change anything; if one did, what was seen without is what there is.
        return closely if closely[1] else (batches, f"{found}; not so with looks after every step")

    def _run(
        self, seed: int, length: int, every: bool, counted: Counter[str]
    ) -> tuple[Batches, str | None]:
        pair = self._pair(seed, self._patches, self._clock, every)
        stream = Stream(seed, wild=seed % 4 == 0)
        batches: Batches = []
        for _ in range(length):
            batches.append(stream.next(pair.theirs))
            counted.update(event.kind.__name__ for event in batches[-1])
            found, instructions = pair.apply(batches[-1])
            if found:
                return batches, found
            if instructions is None:
                counted["ended by a refusal"] += 1
                break
            counted.update(f"told {type(each).__name__}" for each in instructions)
            stream.told(instructions)
        found = pair.finish()
        counted["steps"] += len(batches)
        counted["looks"] += pair.looks
        counted["transitions"] += pair.theirs.transition_counter
        counted["lived through"] += pair.lived_through
        counted.update(pair.counted())
        return batches, found

    def replay(self, seed: int, batches: Batches) -> str | None:
        """Run events that were made before; return what differs."""
        pair = self._pair(seed, self._patches, self._clock)
        for batch in batches:
            found, instructions = pair.apply(batch)
            if found or instructions is None:
                return found
        return pair.finish()

    def shrink(self, seed: int, batches: Batches) -> Batches:
        """Leave out what is not needed for a difference."""
        for at in reversed(range(len(batches))):
            shorter = batches[:at] + batches[at + 1 :]
            if self.replay(seed, shorter):
                batches = shorter
        return batches


def _hash_of_key(task: TaskState) -> int:
    return hash(task.key)


def _break(step: str) -> None:
    """Have ours leave something out, which must be noticed."""
    if step == "count":
        plain_steps.count_transitions = lambda *_: None  # type: ignore[attr-defined]
    else:
        start, _, finish = step.partition("-")
        written_out = plain_steps._STEPS[start, finish]

        def unlogged(state: Any, *arguments: Any, **options: Any) -> None:
            written_out(state, *arguments, **options)
            state.log.pop()

        plain_steps._STEPS[start, finish] = unlogged


def main(arguments: list[str]) -> int:
    """Run streams, and say what differs; return the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--length", type=int, default=60, help="steps of each at most")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument(
        "--every",
        action="store_true",
        help=f"compare all state after every step, not one in {LOOKS_ONE_IN} and the last",
    )
    parser.add_argument("--break", dest="broken", help="a step of ours that goes wrong")
    parser.add_argument("--core", action="store_true", help="the state of ours is in Rust")
    parser.add_argument(
        "--unread",
        action="store_true",
        help="Dask's sources may be others than those that were read",
    )
    options = parser.parse_args(arguments)
    logging.disable()
    if options.broken:
        _break(options.broken)
    if options.core:
        # That imports this.
        from .core_pair import CorePair, keep_order

        runs = Differential(CorePair, unread=options.unread)
        keep_order()
    else:
        runs = Differential(unread=options.unread)
    # Between streams, so that nothing in one of them hangs on when that is.
    gc.collect()
    gc.freeze()
    gc.disable()
    failed: list[int] = []
    began_s = time.perf_counter()
    for seed in itertools.count(options.first):
        if seed == options.first + options.seeds or len(failed) == 5:
            break
        if options.seconds and time.perf_counter() - began_s > options.seconds:
            break
        gc.collect()
        batches, found = runs.run(seed, options.length, options.every)
        runs.counted["seeds"] += 1
        if found:
            failed.append(seed)
            print(f"seed {seed}, step {len(batches)}: {found}")
            for batch in runs.shrink(seed, batches):
                print(
                    "   ", *(f"{each.kind.__name__} {each.fields}" for each in batch), sep="\n    "
                )
    print(f"{dict(runs.counted)} in {time.perf_counter() - began_s:.0f} s; failed: {failed}")
    return 1 if failed else 0
