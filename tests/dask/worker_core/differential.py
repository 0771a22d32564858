"""One stream of events for Dask's state machine of a worker and for ours, compared after each.

Our state is in Rust (`pair`). Instructions, refusals, numbers and data are compared after
each step. All of the state is compared now and then, as that takes most of the time, and after each
step once anything has differed: see `Differential.run`.

Time stands still while an event is handled, and a task's hash is that of its key, as sets list
their members by hashes and upstream's hash is an address.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import time
from collections import Counter
from typing import Any

import distributed.worker_state_machine as upstream
from distributed.worker_state_machine import TaskState

from backhaul.dask.worker import event_makers
from backhaul.dask.worker.core import ownership, state_transfer

from .pair import LOOKS_ONE_IN, Clock, Pair, Patches, keep_order
from .stream import Event, Stream

#: Events that are handled together, one list after another
Batches = list[list[Event]]


class Differential:
    """Runs streams from seeds."""

    def __init__(self, *, unread: bool = False) -> None:
        self._patches = Patches(unread=unread)
        self._clock = Clock()
        for module in (upstream, event_makers, ownership):
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
        pair = Pair(seed, self._patches, self._clock, every)
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
        counted["taken over"] += pair.taken_over
        return batches, found

    def replay(self, seed: int, batches: Batches) -> str | None:
        """Run events that were made before; return what differs."""
        pair = Pair(seed, self._patches, self._clock)
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


def _as_python_counted(core: Any, counter: Any) -> Any:
    del core
    return counter


def _break(part: str) -> None:
    """Make Backhaul's side leave something out, which must be noticed."""
    if part == "count":
        state_transfer.counted = _as_python_counted
        return
    give = state_transfer.give_to_python

    def without_last_line(core: Any, state: Any) -> None:
        give(core, state)
        log = state_transfer.own(state, "log")
        if log:
            log.pop()

    state_transfer.give_to_python = without_last_line


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
    parser.add_argument(
        "--break", dest="broken", choices=("count", "log"), help="what ours leaves out"
    )
    parser.add_argument(
        "--unread",
        action="store_true",
        help="Dask's sources may be others than those that were read",
    )
    options = parser.parse_args(arguments)
    logging.disable()
    if options.broken:
        _break(options.broken)
    runs = Differential(unread=options.unread)
    keep_order()
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
