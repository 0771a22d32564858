"""A running scheduler that keeps its state in the core.

A scheduler without a user's plugin for transitions or graphs gives its state to the core with the
next graph of plain tasks, or with results that a client puts on workers: existing tasks, results
and futures go with it (`adopt`). The core then handles what happens to tasks all the time:
graphs, finished tasks, what clients want (`clients`), replicas, heartbeats, results that are
asked for (`handlers`). Anything else, done by Dask or by a program, finds Dask's own state:
`LiveCore.escape` writes it, whole, before it is touched (`guarded_classes`). After a pause that
bounds the time that goes into these changes the core takes over again, with the next graph, or
without one while tasks are on their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from distributed import Scheduler

from backhaul._native import SchedulerCore, TaskCalls, TaskGraph
from backhaul.dask.compat.instance_patches import (
    GRAPH_STATE,
    PLACED_BY_MESSAGE,
    PLACED_BY_REQUEST,
    PLACED_RESULTS,
)
from backhaul.dask.compat.names import (
    ShuffleSchedulerPlugin,
    Status,
    key_split_group,
    monotonic,
    time,
)
from backhaul.dask.config.settings import switched_on
from backhaul.dask.placement.link_placement import LinkPlacement
from backhaul.dask.resource_pools.request_index import forget_refused
from backhaul.dask.scheduler import inline_results
from backhaul.dask.scheduler import window as window_module
from backhaul.dask.scheduler.core.adopted_tasks import SHUFFLE_PREFIX
from backhaul.dask.scheduler.core.clients import Wishes
from backhaul.dask.scheduler.core.eligibility import refusal, settings_of
from backhaul.dask.scheduler.core.engine_streams import EngineStreams
from backhaul.dask.scheduler.core.export_state import no_collection, offer_to_thieves, write_into
from backhaul.dask.scheduler.core.failures import Raised
from backhaul.dask.scheduler.core.graph_import import is_plain
from backhaul.dask.scheduler.core.guarded_classes import Guards
from backhaul.dask.scheduler.core.handler_overrides import watch
from backhaul.dask.scheduler.core.handlers import Handlers
from backhaul.dask.scheduler.core.import_state import adopt, empty
from backhaul.dask.scheduler.core.key_text import KeyTexts
from backhaul.dask.scheduler.core.loop_thread import Home
from backhaul.dask.scheduler.core.messages import send_messages
from backhaul.dask.scheduler.core.payloads import LivePayloads, TakenPayloads, past_transitions
from backhaul.dask.scheduler.core.placement import place_by_links, placement_of, write_placing
from backhaul.dask.scheduler.core.plugin_bridge import Watchers
from backhaul.dask.scheduler.core.replicas import snapshots
from backhaul.dask.scheduler.core.resources import Room, carried_threads
from backhaul.dask.scheduler.core.spans import Spans
from backhaul.dask.scheduler.core.stealing import (
    Stealing,
    begin_stealing,
    empty_stealing,
    write_stealing,
)
from backhaul.dask.scheduler.core.task_views import TaskViews, tasks_of
from backhaul.dask.scheduler.core.unrunnable import Timeouts
from backhaul.dask.scheduler.core.window import CoreWindow
from backhaul.dask.scheduler.core.workers import Membership
from backhaul.dask.serialize.codec import codec
from backhaul.errors import EscapeError

__all__ = ["LiveCore", "install", "installed"]

logger = logging.getLogger(__name__)

#: Keys of which Dask finds no group
EMPTY_KEYS: Final = ("", ())

#: How many transitions are logged with a defect
_TRANSITIONS_TOLD = 20

#: How long the state stays Dask's after an escape, for each second that this and the adoption
#: before took: so no more than a twentieth of the time goes into changes, whoever looks how often
PAUSE_PER_CHANGE = 19.0

#: How long the state stays Dask's at least before it goes to a core without a new graph, in seconds
COME_BACK_S = 0.5

#: How long the state stays Dask's after a core could not take its place, in seconds
PAUSE_AFTER_FAILURE_S = 60.0

#: How long the engine leaves streams to Python at least that it could not handle, in seconds
ENGINE_RETRY_S = 0.5


def install(scheduler: Scheduler) -> bool:
    """Have a scheduler give its state to a core whenever it may; again costs nothing.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Before or after it has started.

    Returns
    -------
    bool
        Whether it does now.
    """
    if installed(scheduler) is not None:
        return True
    watched = watch(scheduler)
    live = LiveCore(scheduler)
    # Now, so that who keeps them has those that a core will have.
    tasks_of(live)
    replaced = GRAPH_STATE.install(scheduler, live.create)
    if replaced is not None:
        live.upstream_create = replaced.original
        PLACED_RESULTS.install(scheduler, live.update_data)
        PLACED_BY_REQUEST.install(scheduler.handlers, live.update_data)
        PLACED_BY_MESSAGE.install(scheduler.stream_handlers, live.update_data)
        if watched is not None:
            watched.on_change = functools.partial(
                live.escape, "a handler of streams that is replaced"
            )
    return replaced is not None


def installed(scheduler: Scheduler) -> LiveCore | None:
    """Get what keeps the state of a scheduler in a core; None if nothing does."""
    method = vars(scheduler).get(str(GRAPH_STATE.attribute))
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, LiveCore) else None


class LiveCore:
    """The core of one scheduler, and what stands between the two.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Whose state it has while `is_active`.

    Attributes
    ----------
    adoptions : int
        How often the state went to a core.
    escapes : dict of str to int
        How often it came back, by what was touched, or what happened.
    upstream_create, upstream_update_data : callable
        What makes tasks of a graph otherwise, and of results that a client put on workers.
    handled : dict of str to int
        Messages that the engine handled without Python, by operation, until the last escape.
    streams : EngineStreams or None
        While the engine handles streams.
    home, core, texts, specs, raised, tasks, spans, watchers, window, results : object
        While it is active: the thread that works on it; the core; the texts of keys; what to run
        and the id of the span, by text; what tasks raised; the tasks that somebody looks at; the
        spans; plugins that watch; the in-flight window and the small results, or None.
    membership, wishes, timeouts, stealing, room, annotations : object
        Likewise: which workers there are; what clients want; tasks that no worker can run; how
        workers take tasks from each other; tasks that ask for resources; annotations of tasks, by
        what the core has of them.
    """

    home: Home
    core: SchedulerCore
    texts: KeyTexts
    specs: dict[str, tuple[Any, str | None]]
    annotations: dict[bytes, dict[str, Any]]
    raised: Raised
    spans: Spans
    tasks: TaskViews
    watchers: Watchers
    membership: Membership
    wishes: Wishes
    timeouts: Timeouts
    room: Room
    stealing: Stealing
    window: CoreWindow | None
    results: inline_results.ResultCarrier | None

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self.is_active = False
        self.adoptions = 0
        self.escapes: dict[str, int] = {}
        self._change_s = 0.0
        self._pause_until_s = 0.0
        self._engine_due_s = 0.0
        self._comes_back: asyncio.TimerHandle | None = None
        self.handled: dict[str, int] = {}
        self.streams: EngineStreams | None = None
        self._placement: LinkPlacement | None = None
        #: What the memory manager looks at, while it does
        self.replicas: set[Any] | None = None
        self.upstream_create: Callable[..., Any] = scheduler._create_taskstate_from_graph
        self.upstream_update_data: Callable[..., None] = scheduler.update_data

    def adopt(self) -> bool:
        """Give the state to a core if nothing is in the way; return whether the core has it."""
        scheduler = self.scheduler
        began_s = monotonic()
        if began_s < self._pause_until_s or refusal(scheduler) is not None:
            return False
        self.home = Home()
        self.texts = KeyTexts()
        self.specs = {}
        self.annotations = {}
        self.raised = Raised()
        # All times that the core is given are of `time`, upstream has some of `monotonic`.
        self._monotonic_offset_s = monotonic() - time()
        try:
            with no_collection():
                self.core = adopt(
                    scheduler,
                    settings_of(scheduler),
                    TakenPayloads(self),
                    key_text=self.texts.text,
                    threads_of=carried_threads(scheduler),
                    monotonic_offset_s=self._monotonic_offset_s,
                )
                begin_stealing(self.core, scheduler, self.texts.text)
        except EscapeError as error:
            logger.debug("The scheduler's state stays with Dask: %s", error)
        except Exception:  # A state that a program has made of it
            logger.warning("The core could not take over the scheduler's state", exc_info=True)
        else:
            return self._go_on_from(began_s)
        self._drop_core()
        self._pause_after(monotonic() - began_s)
        return False

    def _go_on_from(self, began_s: float) -> bool:
        """Take the place of Dask's state machine; give all back to it if that fails."""
        try:
            with contextlib.ExitStack() as undo:
                self._take_place(undo)
                undo.pop_all()
        except Exception:
            logger.warning("The scheduler goes on with Dask's own state", exc_info=True)
            self._drop_core()
            self._pause_until_s = monotonic() + PAUSE_AFTER_FAILURE_S
            return False
        self._begin_engine()
        self._change_s = monotonic() - began_s
        return True

    def _take_place(self, undo: contextlib.ExitStack) -> None:
        scheduler = self.scheduler
        self.room = Room(self)
        self._placement = place_by_links(self.core, scheduler)
        self.core.log_transitions(False)
        self.core.note_forgotten(True)
        self._guards = Guards(self)
        self.tasks = self._guards.task_views
        undo.callback(self._write_back)
        undo.callback(self._guards.release)
        self.membership = Membership(self, self._guards)
        self.wishes = Wishes(self, self._guards)
        self.timeouts = Timeouts(self, self._monotonic_offset_s)
        self.spans = Spans(self, self._guards)
        for key, ts in scheduler.tasks.items():
            self.tasks.take(self.texts.text(key), ts)
        empty(scheduler)
        empty_stealing(scheduler)
        self.watchers = Watchers(self)
        undo.callback(self.watchers.release)
        self.watchers.watch()
        self.stealing = Stealing(self)
        window = window_module.installed(scheduler)
        self.window = CoreWindow(self, window) if window is not None else None
        self.results = inline_results.installed(scheduler)
        self._handlers = Handlers(self)
        undo.callback(self._handlers.uninstall)
        self._handlers.install()
        self._guards.guard()
        self.stealing.guard(self._guards)
        self.is_active = True
        self.adoptions += 1

    def _write_back(self) -> None:
        """Write the state back into Dask's objects, as it was taken over."""
        scheduler = self.scheduler
        empty(scheduler)
        empty_stealing(scheduler)
        self._write(departed={})

    def _write(self, departed: dict[str, Any]) -> None:
        """Write all that the core has into Dask's objects."""
        scheduler, views = self.scheduler, self._guards.views
        self.tasks.collect_metadata()
        write_into(
            self.core,
            scheduler,
            LivePayloads(self),
            groups=views.groups,
            prefixes=views.prefixes,
            tasks=self.tasks.known,
            departed=departed,
            monotonic_offset_s=self._monotonic_offset_s,
        )
        self.tasks.write_metadata(scheduler.tasks)
        write_stealing(self.core, scheduler, self.texts.key, departed)

    def _drop_core(self) -> None:
        """Drop the core, and Python's objects for what it had as texts and bytes."""
        for name in ("core", "specs", "texts", "raised", "annotations"):
            vars(self).pop(name, None)

    def _has_core(self) -> bool:
        """Return whether a core has the state, or takes it over now."""
        if not self.is_active:
            return self.adopt()
        if self.streams is None and monotonic() >= self._engine_due_s:
            # A stream that was not ours when the state came may be ours again.
            self.send()
            self._begin_engine()
        return True

    def _begin_engine(self) -> None:
        """Start to handle streams on the engine's thread, if it can handle all of them."""
        self._engine_due_s = monotonic() + ENGINE_RETRY_S
        # Keys without a form of their own cannot be sent without Python.
        if switched_on("hot-path.scheduler-engine") and not self.texts.has_odd:
            streams = EngineStreams(self)
            if streams.begin():
                self.streams = streams

    def escape(self, reason: str) -> None:
        """Write the state into Dask's objects; a core takes over again after a pause.

        Another thread than that of the event loop waits until that one has done so.

        Parameters
        ----------
        reason : str
            What was touched, or happened; for `escapes`.

        Raises
        ------
        EscapeError
            If the event loop does not do so for another thread.
        """
        if not self.is_active:
            return
        if not self.home.is_here():
            self.home.do(lambda: self.escape(reason))
            return
        logger.debug("The scheduler's state leaves the core: %s", reason)
        began_s = monotonic()
        self.escapes[reason] = self.escapes.get(reason, 0) + 1
        self.leave_engine()
        self.send()
        self.is_active = False
        self.watchers.release()
        self._guards.release()
        self._handlers.uninstall()
        scheduler = self.scheduler
        self._write(self.membership.departed)
        # Dask has asked for them when the core had the others.
        for ws in self.membership.strangers():
            scheduler.check_idle_saturated(ws)
        scheduler.transition_log.extend(past_transitions(self))
        self.spans.write()
        if self.stealing.extension is None:
            offer_to_thieves(scheduler)
        write_placing(self.core, scheduler, self.texts.key)
        self.room.release()
        if scheduler.validate:
            scheduler.validate_state()
        self._drop_core()
        self._pause_after(self._change_s + monotonic() - began_s)
        self._come_back_later()

    def _come_back_later(self) -> None:
        """Give the state to a core again after the pause, if there is still something to do."""
        # Without an event loop nothing comes that a core would handle.
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            pause_s = max(COME_BACK_S, self._pause_until_s - monotonic())
            if self._comes_back is not None:
                self._comes_back.cancel()
            self._comes_back = loop.call_later(pause_s, self._come_back)

    def _come_back(self) -> None:
        scheduler = self.scheduler
        if self.is_active or scheduler.status is not Status.running:
            return
        # Otherwise the next graph finds the way.
        is_busy = scheduler.queued or any(ws.processing for ws in scheduler.workers.values())
        if is_busy and not self.adopt():
            self._come_back_later()

    def _pause_after(self, change_s: float) -> None:
        """Leave the state to Dask for long enough that changes take a small share of the time."""
        self._pause_until_s = monotonic() + PAUSE_PER_CHANGE * change_s

    def learn_links(self) -> None:
        """See what is known of links by now, before a graph is placed by that."""
        if self._placement is not None:
            self._placement.learn()

    def look(self) -> None:
        """Keep the state as it is until who looks at it returns to the event loop, as Dask does."""
        if self.streams is not None:
            self.streams.look()

    def watch(self) -> None:
        """See which plugins hear what happens, and whether tasks are placed as they were."""
        if self.is_active and placement_of(self.scheduler) is not self._placement:
            self.escape("placement is switched")
        if self.is_active:
            self.watchers.watch()

    def leave_engine(self) -> None:
        """Have the engine out of the core; Python handles all messages."""
        streams, self.streams = self.streams, None
        if streams is not None:
            streams.end()

    def fill_by(self, window: CoreWindow) -> None:
        """Have another window fill the workers from now on."""
        self.window = window

    def note_handled(self, counts: dict[str, int]) -> None:
        """Count what the engine has handled, as it leaves."""
        for operation, count in counts.items():
            self.handled[operation] = self.handled.get(operation, 0) + count

    def engine_counts(self) -> dict[str, int]:
        """Count the messages that the engine has handled, by operation, of all times."""
        counts = dict(self.handled)
        if self.streams is not None:
            for operation, count in self.streams.counts().items():
                counts[operation] = counts.get(operation, 0) + count
        return counts

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the engine from the core meanwhile."""
        streams = self.streams
        if streams is not None:
            streams.pause(True)
            self.forget_gone()
        try:
            yield
        finally:
            if streams is not None:
                streams.pause(False)

    def written(self, owner: type, name: str, value: Any) -> None:
        """Set an attribute of the scheduler that is in the core."""
        self.escape(f"{owner.__name__}.{name} = …")
        setattr(self.scheduler, name, value)

    def create(self, *, dsk: Any, keys: Any, client: str, start: float, **more: Any) -> Any:
        """Take a graph; in the place of `distributed.Scheduler._create_taskstate_from_graph`."""
        if not is_plain(dsk, more):
            self.escape("a graph that is not plain")
        elif self._has_core():
            for key in EMPTY_KEYS:
                if key in dsk:
                    # Raises, as Dask would for its group; no state is touched before.
                    key_split_group(key)
            taken = self._handlers.graph(dsk, keys, client, start, more)
            if taken is not None:
                return taken
        tasks = self.scheduler.tasks
        known = len(tasks)
        try:
            return self.upstream_create(dsk=dsk, keys=keys, client=client, start=start, **more)
        except Exception:
            # A task that stays would keep the state from the core for good.
            forget_refused(self.scheduler, list(tasks.values())[known:])
            raise

    def update_data(
        self, *, who_has: dict[Any, list[str]], nbytes: dict[Any, int], client: str | None = None
    ) -> None:
        """Take results that a client put on workers; in the place of `Scheduler.update_data`."""
        takes = bool(who_has) and self._has_core()
        if not takes or not self.wishes.place(who_has, nbytes, client):
            self.upstream_update_data(who_has=who_has, nbytes=nbytes, client=client)

    def take_calls(self, calls: TaskCalls, **update: Any) -> dict[str, float] | None:
        """Take many calls of a function, of which nothing is asked besides, as they are.

        Parameters
        ----------
        calls : TaskCalls
            The calls.
        **update
            What `distributed.Scheduler._create_taskstate_from_graph` is told of all of them.

        Returns
        -------
        dict or None
            What that returns; None if they are for it to take, as tasks.
        """
        groups = calls.groups()
        if groups is None or not self._has_core():
            return None
        core = self.core
        observed = {name: (name, key) for name, key in groups}
        return self._handlers.whole(calls, core.knows_needs, core.handle_calls, observed, update)

    def take_graph(self, graph: TaskGraph, **update: Any) -> dict[str, float] | None:
        """Take a graph of which nothing is asked besides, likewise."""
        groups = graph.groups()
        if groups is None or not self._has_core():
            return None
        core = self.core

        def take(*args: Any, **kwargs: Any) -> tuple[int, int]:
            # Not before, as what was there may only now be forgotten.
            if not graph.are_texts():
                self.texts.expect_packed(True)
            return core.handle_task_graph(*args, **kwargs)

        observed = {name: (prefix, codec.unpack(key)) for name, prefix, key in groups}
        return self._handlers.whole(graph, core.knows_needs_of_graph, take, observed, update)

    # What the core is told, and what it says

    def has_task(self, key: object) -> bool:
        """Tell whether there is a task of this key."""
        text = self.texts.known(key)
        return text is not None and self.core.has_task(text)

    def who_has(self, keys: Iterable[Any]) -> dict[Any, list[str]]:
        """Tell the addresses of those who hold results; nobody where there is no task."""
        found = {}
        for key in keys:
            text = self.texts.known(key)
            found[key] = self.core.holders_of(text) if text is not None else []
        return found

    @contextlib.contextmanager
    def replicas_shown(self) -> Iterator[None]:
        """Show the memory manager what several workers hold, as it is now."""
        self.replicas = snapshots(self)
        try:
            yield
        finally:
            self.replicas = None

    def remove_replicas(self, worker: str, keys: Iterable[Any], stimulus_id: str) -> None:
        """Have a worker let go of copies."""
        texts = [self.texts.text(key) for key in keys]
        self.call(self.core.handle_remove_replicas, stimulus_id, time(), worker, texts)
        self.send()

    def call(self, handle: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Have the core handle something; what it refuses is an error of Dask's, half way."""
        with self.whole_or_dasks():
            return handle(*args, **kwargs)

    @contextlib.contextmanager
    def whole_or_dasks(self) -> Iterator[None]:
        """Give the state to Dask if what is done here fails half way."""
        try:
            yield
        except BaseException as error:
            # A panic in Rust is no `Exception`.
            if self.is_active:
                self.give_up(repr(error), f"{type(error).__name__} in the core")
            raise

    def give_up(self, failure: str, reason: str) -> None:
        """Escape because of a defect, and say what happened last."""
        past = past_transitions(self)[-_TRANSITIONS_TOLD:] if self.is_active else []
        told = [f"{one.key!r} {one.start} -> {one.finish} ({one.stimulus_id})" for one in past]
        logger.warning(
            "The scheduler goes on with Dask's own state: %s; the last transitions: %s",
            failure,
            "; ".join(told) or "none",
        )
        self.escape(reason)

    def send(self) -> None:
        """Send what the core has to say, and let go of what it has forgotten."""
        if self.streams is not None:
            self.streams.flush()
        else:
            self.send_messages(self.core.take_messages())
        self.forget_gone()

    def send_messages(self, messages: list[tuple[str, str | None, dict[str, Any]]]) -> None:
        """Send messages of the core as Dask sends them."""
        send_messages(self, messages)

    def forget_gone(self) -> None:
        """Let go of what the core has forgotten."""
        core = self.core
        metadata = self._guards.metadata()
        for text in core.take_forgotten():
            if metadata:
                metadata.pop(self.texts.key(text), None)
            self.tasks.forget(text)
            self.tasks.metadata.pop(text, None)
            if text.startswith(SHUFFLE_PREFIX):
                self._tell_shuffles(text)
            # The engine may have forgotten it before there was another.
            if core.has_task(text):
                continue
            self.specs.pop(text, None)
            self.texts.forget(text)
        if self.streams is not None:
            self.streams.catch_up()
        else:
            for last in core.take_gone_groups():
                self.spans.gone(last)
        self.room.tell_unmet()
        self.watchers.tell()
        # Not before what was left to say of it is said
        if self.is_active and not core.task_count():
            self.raised.clear()
            self.annotations.clear()
            self.membership.departed.clear()
            self.texts.expect_packed(False)

    def _tell_shuffles(self, text: str) -> None:
        """Tell the plugin for shuffles that a task of an ended shuffle is forgotten."""
        plugin = self.scheduler.plugins.get("shuffle")
        if isinstance(plugin, ShuffleSchedulerPlugin):
            stimulus_id = f"shuffle-forgotten-{time()}"
            plugin.transition(text, "released", "forgotten", stimulus_id=stimulus_id)
