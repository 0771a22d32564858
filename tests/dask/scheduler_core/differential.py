"""One stream of events for upstream's scheduler and ours, compared after each.

Transitions, messages, stealing's log and refusals of both are compared after each event.
All of their state is compared now and then, as that takes most of the time, and after each event
once anything has differed: see `run_closely`.

Imported once `pinned.pin` has been called; see ``__main__.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from backhaul._native import SchedulerCore
from backhaul.dask.scheduler.core import export_state, obstacle
from backhaul.dask.scheduler.core.stealing import begin_stealing
from backhaul.errors import EscapeError

from .asking import AskingUpstream, asked_of
from .attributes import (
    attributes_of,
    difference,
    message_of,
    our_attributes,
    our_message,
    our_stealing,
    outlived,
    stealing_of,
    without,
)
from .conversion import convert, flaws
from .events import Event
from .ours import Ours
from .placed import OurLinks, our_placing, place, placing_of, policy_of
from .stream import Stream
from .upstream import EndlessError, Upstream

#: Seeds that once failed.
KEPT = Path(__file__).with_name("kept_seeds.txt")
#: State is compared after one event of so many, at random, unless after every one.
LOOKS_ONE_IN = 16


#: Tasks at once of a worker that take less than a thread
BESIDE_MAX = 3


class Pair:
    """Both schedulers, with the settings that a seed gives.

    Parameters
    ----------
    seed : int
        Seed of settings and looks.
    every : bool
        Whether state is compared after every event. Otherwise it is after some, at random, and
        around conversions, and the caller asks for the last time.
    asks : bool
        Whether tasks ask for resources, and our slots heed that.
    places : bool
        Whether tasks are placed by what links cost.
    """

    def __init__(
        self, seed: int, every: bool = True, asks: bool = False, places: bool = False
    ) -> None:
        self.every = every
        self.looks = random.Random(f"looks of {seed}")
        saturation = [1.1, 1.1, 1.0, 2.5, float("inf")][seed % 5]
        failures = [3, 0, 1][seed % 3]
        self.settings = {
            "distributed.scheduler.worker-saturation": saturation,
            "distributed.scheduler.allowed-failures": failures,
            # Without, tasks that ask for resources wait for room at the scheduler.
            "distributed.scheduler.no-workers-timeout": None if asks and seed % 4 else "30s",
            "distributed.scheduler.default-task-durations": {"map": "20ms"},
            "distributed.comm.backhaul.resources.beside": BESIDE_MAX,
        }
        self.upstream = (AskingUpstream if asks else Upstream)(self.settings)
        self.core_settings = {
            "worker_saturation": saturation,
            "allowed_failures": failures,
            "no_workers_timeout_s": None if asks and seed % 4 else 30.0,
            "beside_tasks_max": BESIDE_MAX if asks else None,
            "known_durations_s": [("map", 0.02)],
        }
        links = OurLinks() if places else None
        self.ours = Ours(SchedulerCore(**self.core_settings), self.split, asks, links)
        begin_stealing(self.ours.core, self.upstream.state)
        if links is not None:
            place(self.upstream.state)
            links.begin(self.ours.core)
        #: The scheduler that the core was converted to, if it was
        self.converted: Upstream | None = None
        self.joins: dict[str, dict[str, Any]] = {}
        self.now_s = 100.0
        self.counted: Counter[str] = Counter()

    def split(self, value: list[str]) -> tuple[list[str] | None, list[str] | None]:
        """Tell hosts from addresses, as ``_apply_annotations`` does."""
        hosts, workers = [], []
        for name in value:
            try:
                workers.append(self.upstream.state.coerce_address(name))
            except ValueError:
                hosts.append(name)
        return list(dict.fromkeys(hosts)) or None, list(dict.fromkeys(workers)) or None

    def apply(self, event: Event) -> tuple[str | None, bool]:
        """Apply an event to both; return the difference then, and whether the core is half done."""
        if event.name == "convert":
            return self.convert(), False
        if event.name == "adopt":
            return self.adopt(), False
        self.now_s += event.after_s
        known = set(self.upstream.state.workers)
        refused = self.upstream.apply(event, self.now_s)
        # One that is refused in the middle is there nevertheless.
        if event.name == "worker_added" and self.upstream.state.workers.keys() - known:
            # In the order of the latest arrivals
            self.joins.pop(event.arguments["address"], None)
            self.joins[event.arguments["address"]] = event.arguments
        if self.converted:
            ours_refused = self.converted.apply(event, self.now_s)
            refusal = self.converted.refusal
        else:
            ours_refused = self.ours.apply(event, self.now_s, self.upstream.culled)
            refusal = self.ours.refusal
        self.counted["events"] += 1
        self.counted[event.name] += 1
        if refused != ours_refused:
            why = f"upstream: {self.upstream.refusal!r}, ours: {refusal!r}"
            return f"refused by one alone; {why}", refused
        if refused:
            self.counted[f"refused {event.name}: {type(self.upstream.refusal).__name__}"] += 1
        half_done = refused and not self._is_harmless(event, refusal)
        if half_done:
            self.upstream.half_done = True
            if self.converted:
                self.converted.half_done = True
        return self.compare(refused), half_done and not self.converted

    def _is_harmless(self, event: Event, refusal: BaseException | None) -> bool:
        if self.converted:
            return (event.name, type(refusal)) in HARMLESS_TO_UPSTREAM
        return HARMLESS.search(str(refusal)) is not None

    def close(self) -> None:
        self.upstream.close()
        if self.converted:
            self.converted.close()

    def convert(self) -> str | None:
        """Go on with upstream's machine in the place of the core; say what differs from then on."""
        if self.converted:
            return None
        # Differences before the conversion are not its fault.
        found = self.compare_state()
        if found:
            return found
        self.counted["conversions"] += 1
        if isinstance(self.upstream, AskingUpstream):
            self.upstream.forget_gone()
        self.converted = convert(self.ours, self.settings, self.joins, self.upstream.clock)
        self.converted.half_done = self.upstream.half_done
        return self.compare(False, looks=True) or flaws(self.upstream, self.converted)

    def adopt(self) -> str | None:
        """Go on with a new core in the place of upstream's machine."""
        converted = self.converted
        if converted is None or self.upstream.half_done or obstacle(converted.state):
            return None
        tasks = converted.state.tasks
        if self.ours.links is not None and tasks:
            # A core does not take over promises and plans.
            return None
        found = self.compare_state()
        if found:
            return found
        counted = Counter(ts.state for ts in tasks.values())
        if isinstance(self.upstream, AskingUpstream):
            self.upstream.forget_gone()
        try:
            core = converted.adopt(self.core_settings)
        except EscapeError:
            self.counted["adoptions refused"] += 1
            return None
        self.counted["adoptions"] += 1
        self.counted.update(f"adopted {state}" for state in counted.elements())
        links = OurLinks.of(converted.state) if self.ours.links is not None else None
        self.ours = Ours(core, self.split, self.ours.asks, links)
        self.ours.clients = list(converted.state.client_comms)
        converted.close()
        self.converted = None
        return self.compare(False, looks=True)

    def compare(self, refused: bool, looks: bool = False) -> str | None:
        """Say what differs in what both have said, and in their state if that is looked at."""
        found = self._compare_said(refused)
        # Drawn after every event, so that it hangs on the seed alone.
        if self.looks.randrange(LOOKS_ONE_IN) == 0 or self.every:
            looks = True
        return found or (self.compare_state() if looks else None)

    def _compare_said(self, refused: bool) -> str | None:
        placement = policy_of(self.upstream.state)
        if placement is not None:
            self.counted["hints"] += len(placement.roots.hints)
            self.counted["promises"] += placement.mirror.promises()
        upstream_log = self.upstream.take_transitions()
        ours: Any = self.converted or self.ours.core
        log = ours.take_transitions()
        self.counted["transitions"] += len(log)
        self.counted.update(f"{start} to {finish}" for _, start, finish in log)
        if log != upstream_log:
            pairs = zip(upstream_log, log, strict=False)
            at = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
            at = min(len(upstream_log), len(log)) if at is None else at
            theirs, ours = upstream_log[at : at + 3], log[at : at + 3]
            return f"transition {at}: upstream has {theirs}, ours {ours}"
        sent = _sent(self.upstream, message_of)
        if self.converted:
            ours_sent = _sent(self.converted, message_of)
        else:
            ours_sent = _sent(self.ours, partial(our_message, upstream=self.upstream.state))
        self.counted["messages"] += sum(map(len, sent.values()))
        # Upstream has not sent the messages that led to a refusal, the core has.
        if sent != ours_sent and not refused:
            return difference(sent, ours_sent, "messages")
        steals = self.upstream.take_steal_log()
        self.counted.update(f"steal: {one[0]}" for one in steals)
        ours_steals = (self.converted or self.ours).take_steal_log()
        if steals != ours_steals and not refused:
            return f"steals: upstream logs {steals}, ours {ours_steals}"
        return None

    def compare_state(self) -> str | None:
        """Say what differs in all that the core has."""
        self.counted["looks"] += 1
        attributes = attributes_of(self.upstream.state)
        gone = outlived(self.upstream)
        attributes["stealing"] = without(stealing_of(self.upstream), gone)
        attributes["placing"] = placing_of(self.upstream.state)
        attributes["asked"] = asked_of(self.upstream)
        if self.converted:
            dump = attributes_of(self.converted.state)
            dump["stealing"] = without(stealing_of(self.converted), gone)
            dump["placing"] = placing_of(self.converted.state)
            dump["asked"] = asked_of(self.converted)
        else:
            dump = our_attributes(self.ours.core.dump(), self.upstream.state)
            dump["stealing"] = without(our_stealing(self.ours.core), gone)
            dump["placing"] = our_placing(self.ours.core)
            dump["asked"] = self.ours.core.room()
        self.counted["attributes"] += len(attributes) + sum(
            len(one)
            for kind in ("tasks", "workers", "task_groups", "task_prefixes")
            for one in attributes[kind].values()
        )
        return difference(attributes, dump) if attributes != dump else None


#: The core is converted to upstream's machine.
CONVERT = Event("convert", "", {})
#: A new core takes over from that.
ADOPT = Event("adopt", "", {})


def _sent(side: Any, form: Any) -> dict[tuple[str, str], list[dict[str, Any]]]:
    taken = side.take_messages().items()
    return {receiver: [form(message) for message in messages] for receiver, messages in taken}


def run(
    seed: int,
    length: int,
    counted: Counter[str],
    converts: bool = False,
    asks: bool = False,
    every: bool = True,
    places: bool = False,
) -> tuple[list[Event], str | None]:
    """Run a stream; return its events, and what differed after the last.

    State is compared after ``every`` event, or after some of them and the last. With ``converts``
    the core is converted before a random one of them, or as soon as one is refused in the middle,
    which ends the stream otherwise. In about half of these streams a new core takes over some
    events later, which may be converted in turn, and so on; in a fifth of them all tasks are
    released before.
    """
    pair = Pair(seed, every, asks, places)
    source = random.Random(-seed - 1)
    convert_at = source.randrange(length) if converts else length
    adopt_at = source.randrange(convert_at, 2 * length)
    again_at = source.randrange(adopt_at, 3 * length)
    adopt_again_at = source.randrange(again_at, again_at + length)
    is_released = source.randrange(5) == 0
    stream = Stream(seed, asks, places)
    events: list[Event] = []
    found = None
    try:
        for event in stream.first():
            events.append(event)
            found, _ = pair.apply(event)
            if found:
                return events, found
        half_done = False
        for place in range(length):
            steps: list[Iterable[Event]] = []
            if half_done or place in (convert_at, again_at):
                steps.append([CONVERT])
            if place in (adopt_at, adopt_again_at) and not pair.upstream.half_done:
                # An event that was left half done may have left tasks that never go.
                if is_released:
                    steps.append(stream.releases(pair.upstream.state))
                steps.append([ADOPT])
            for event in chain(*steps):
                events.append(event)
                found, _ = pair.apply(event)
                if found:
                    return events, found
            if pair.upstream.half_done and pair.upstream.has_broken_queue():
                counted["ended by a broken queue"] += 1
                break
            event = stream.next(pair.upstream.state)
            events.append(event)
            found, half_done = pair.apply(event)
            if found:
                return events, found
            if half_done and not converts:
                # Upstream stopped in the middle: what it left is equal, but no state to go on from.
                counted["ended by a refusal"] += 1
                break
        if not every:
            found = pair.compare_state()
    except EndlessError as error:
        # Ours would not end either, and nothing could stop it: it is not asked.
        counted[f"ended by an endless {error}"] += 1
    finally:
        counted.update(pair.counted)
        pair.close()
    return events, found


def run_closely(
    seed: int,
    length: int,
    counted: Counter[str],
    converts: bool = False,
    asks: bool = False,
    places: bool = False,
) -> tuple[list[Event], str | None]:
    """Run a stream as `run` does, looking at state now and then.

    One that fails is run again with looks after every event: so the event is named after which
    something differed first.
    """
    events, found = run(seed, length, counted, converts, asks, False, places)
    if found is None:
        return events, None
    closely = run(seed, length, Counter(), converts, asks, places=places)
    # No look may change anything; if one did, what was seen without is what there is.
    return closely if closely[1] else (events, f"{found}; not so with looks after every event")


def replay(seed: int, events: list[Event], asks: bool = False, places: bool = False) -> str | None:
    """Run events that were made before; return what differs."""
    pair = Pair(seed, asks=asks, places=places)
    half_done = False
    try:
        for event in events:
            if half_done and event is not CONVERT:
                break
            found, half_done = pair.apply(event)
            if found:
                return found
    except EndlessError:
        return None
    finally:
        pair.close()
    return None


def shrink(seed: int, events: list[Event], asks: bool = False, places: bool = False) -> list[Event]:
    """Leave out events as long as the same kind of thing differs."""
    kind = kind_of(replay(seed, events, asks, places))
    # Nothing to go by if it differs no more
    step = len(events) // 2 if kind else 0
    while step:
        place = 0
        while place < len(events):
            shorter = events[:place] + events[place + step :]
            if kind_of(replay(seed, shorter, asks, places)) == kind:
                events = shorter
            else:
                place += step
        step //= 2
    return events


def kind_of(found: str | None) -> str:
    return "" if found is None else re.split("[^a-z]", found.lstrip("/"), maxsplit=1)[0]


#: Refusals that leave nothing half done, by what ours says.
HARMLESS = re.compile(
    "^'?(no worker at|no client|no task|a worker is known)|was finished by|no client wants"
)

#: Refusals that streams contain, by upstream's exceptions.
HARMLESS_TO_UPSTREAM = {("task_finished", RuntimeError), ("cancel", AssertionError)}


async def main(arguments: list[str]) -> int:
    """Run streams, and say what differs; return the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--length", type=int, default=120, help="events of each at most")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument(
        "--every",
        action="store_true",
        help=f"compare all state after every event, not one in {LOOKS_ONE_IN} and the last",
    )
    parser.add_argument("--kept", action="store_true", help="those that once failed instead")
    parser.add_argument(
        "--convert", action="store_true", help="to upstream's machine at a random event of each"
    )
    parser.add_argument("--ask", action="store_true", help="for resources, which are heeded")
    parser.add_argument("--place", action="store_true", help="by what links cost")
    parser.add_argument("--forget", help="leave out events of this name for ours: must be noticed")
    parser.add_argument(
        "--shift",
        action="store_true",
        help="tell ours that tasks ran a second later, which no message shows: must be noticed",
    )
    parser.add_argument("--lose", help="leave out this part of conversions: must be noticed")
    parser.add_argument("--no-shrink", action="store_true", help="report what fails as it is")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if options.forget:
        _forget(options.forget)
    if options.shift:
        _shift()
    if options.lose:
        setattr(export_state._Writer, options.lose, lambda *arguments: None)
    seeds: Any = range(options.first, options.first + options.seeds)
    if options.kept:
        seeds = [int(line) for line in KEPT.read_text().split()]
    # Between streams, so that nothing in one of them hangs on when that is.
    gc.collect()
    gc.freeze()
    gc.disable()
    counted: Counter[str] = Counter()
    failed = []
    began = time.monotonic()
    for seed in seeds:
        if options.seconds and time.monotonic() - began > options.seconds:
            break
        counted["seeds"] += 1
        # The loop holds a scheduler until it has called what its constructor left there.
        await asyncio.sleep(0)
        gc.collect()
        runs = run if options.every else run_closely
        asked = {"converts": options.convert, "asks": options.ask, "places": options.place}
        events, found = runs(seed, options.length, counted, **asked)
        if found:
            failed.append(seed)
            print(f"seed {seed}, event {len(events)}: {found}", flush=True)
            if not options.no_shrink:
                short = shrink(seed, events, options.ask, options.place)
                for event in short:
                    print(f"    {event.name} {event.arguments}")
                print(f"    {replay(seed, short, options.ask, options.place)}", flush=True)
            if len(failed) >= 10:
                break
    took_s = time.monotonic() - began
    print(f"{dict(counted)} in {took_s:.0f} s; failed: {failed}")
    return 1 if failed else 0


def _forget(name: str) -> None:
    handled = Ours._apply

    def apply(self: Ours, event: Event, now_s: float, culled: dict[str, list[str]]) -> None:
        if event.name != name:
            handled(self, event, now_s, culled)

    Ours._apply = apply  # type: ignore[method-assign]


def _shift() -> None:
    handled = Ours._apply

    def apply(self: Ours, event: Event, now_s: float, culled: dict[str, list[str]]) -> None:
        if event.name == "task_finished":
            # Groups say when the first of their tasks began and the last ended: durations stay.
            runs = [(what, a + 1.0, b + 1.0) for what, a, b in event.arguments["startstops"]]
            event = replace(event, arguments={**event.arguments, "startstops": runs})
        handled(self, event, now_s, culled)

    Ours._apply = apply  # type: ignore[method-assign]
