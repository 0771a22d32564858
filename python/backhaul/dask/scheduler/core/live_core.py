"""Adoption of a running scheduler's state by the core, and its escape to Dask's objects.

A scheduler without a user's plugin for transitions or graphs gives its state to the core with the
next graph of plain tasks, or with results that a client puts on workers: the core imports existing
tasks, results and futures (`adopt`). The core then handles the frequent events: graphs, finished
tasks, requests of clients (`clients`), replicas, heartbeats, gathered results (`handlers`). For any
other operation, of Dask or of a program, `LiveCore.escape` first exports the whole state to Dask's
objects (`guarded_classes`). After a pause, which bounds the share of time that these conversions
take, the core adopts the state again: with the next graph, or without one while workers have tasks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from distributed import Scheduler

from backhaul._native import SchedulerCore, TaskCalls, TaskGraph
from backhaul.dask.compat.instance_patches import GRAPH_STATE, PLACED_RESULTS
from backhaul.dask.compat.names import (
    ShuffleSchedulerPlugin,
    key_split_group,
    monotonic,
    time,
)
from backhaul.dask.config.settings import switched_on
from backhaul.dask.placement.link_placement import LinkPlacement
from backhaul.dask.resource_pools.request_index import forget_refused
from backhaul.dask.scheduler import inline_results, run_record
from backhaul.dask.scheduler import window as window_module
from backhaul.dask.scheduler.core.adopted_tasks import SHUFFLE_PREFIX
from backhaul.dask.scheduler.core.adoption_pause import AdoptionPause
from backhaul.dask.scheduler.core.clients import ClientInterests
from backhaul.dask.scheduler.core.eligibility import refusal, settings_of
from backhaul.dask.scheduler.core.engine_streams import EngineStreams
from backhaul.dask.scheduler.core.export_state import no_collection, register_stealable, write_into
from backhaul.dask.scheduler.core.failures import Raised
from backhaul.dask.scheduler.core.graph_import import is_plain
from backhaul.dask.scheduler.core.guarded_classes import Guards
from backhaul.dask.scheduler.core.handler_overrides import watch
from backhaul.dask.scheduler.core.handlers import Handlers
from backhaul.dask.scheduler.core.import_state import adopt, empty
from backhaul.dask.scheduler.core.key_text import KeyTexts
from backhaul.dask.scheduler.core.loop_thread import LoopThread
from backhaul.dask.scheduler.core.messages import send_messages
from backhaul.dask.scheduler.core.payloads import LivePayloads, TakenPayloads, past_transitions
from backhaul.dask.scheduler.core.placement import end_placing, place_by_links, placement_of
from backhaul.dask.scheduler.core.plugin_bridge import Watchers
from backhaul.dask.scheduler.core.replicas import snapshots
from backhaul.dask.scheduler.core.resources import (
    ResourceAdmission,
    begin_admission,
    carried_threads,
)
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

#: Keys for which Dask's `key_split_group` raises
EMPTY_KEYS: Final = ("", ())

#: Number of transitions that are logged with a defect
_TRANSITIONS_TOLD = 20

#: Shortest time before the engine tries again to handle the streams, in seconds
ENGINE_RETRY_S = 0.5


def install(scheduler: Scheduler) -> bool:
    """Let a scheduler give its state to a core, and tell whether it may now; idempotent."""
    if installed(scheduler) is not None:
        return True
    watched = watch(scheduler)
    live = LiveCore(scheduler)
    # Before the first adoption, so that references to `Scheduler.tasks` see the core's tasks later.
    tasks_of(live)
    (slot,) = GRAPH_STATE.slots
    replaced = GRAPH_STATE.install(scheduler, {slot: live.create})
    if replaced:
        live.upstream_create = replaced[slot].original
        PLACED_RESULTS.install(scheduler, dict.fromkeys(PLACED_RESULTS.slots, live.update_data))
        if watched is not None:
            watched.core = live
    return bool(replaced)


def installed(scheduler: Scheduler) -> LiveCore | None:
    """Return the `LiveCore` of a scheduler; None if it has none."""
    method = vars(scheduler).get(GRAPH_STATE.slots[0])
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, LiveCore) else None


class LiveCore:
    """The core of one scheduler, with the objects that connect the two.

    The core has the state of the scheduler while `is_active`, and these attributes are only there
    then.
    """

    #: The thread that uses the core
    loop_thread: LoopThread
    core: SchedulerCore
    #: Texts of keys
    texts: KeyTexts
    #: Run spec and id of the span of tasks, by text
    specs: dict[str, tuple[Any, str | None]]
    #: Annotations of tasks, by their payloads in the core
    annotations: dict[bytes, dict[str, Any]]
    #: Exceptions of tasks
    raised: Raised
    spans: Spans
    #: Views of tasks
    tasks: TaskViews
    #: Plugins that are notified
    watchers: Watchers
    membership: Membership
    #: Interests of clients
    interests: ClientInterests
    #: Tasks that no worker can run
    timeouts: Timeouts
    #: Tasks that request resources
    admission: ResourceAdmission
    stealing: Stealing
    window: CoreWindow | None
    #: Inline results
    results: inline_results.ResultCarrier | None

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self.is_active = False
        self.adoptions = 0
        #: Number of escapes by reason
        self.escapes: dict[str, int] = {}
        self._change_s = 0.0
        self.pause = AdoptionPause(scheduler, self.adopt)
        self._engine_due_s = 0.0
        #: Messages that the engine handled without Python, by operation, until the last escape
        self.handled: dict[str, int] = {}
        #: Not None while the engine handles streams
        self.streams: EngineStreams | None = None
        self._placement: LinkPlacement | None = None
        #: Snapshots of replicated tasks, while the memory manager runs
        self.replicas: set[Any] | None = None
        #: Dask's methods that make tasks of a graph, and of results that a client put on workers
        self.upstream_create: Callable[..., Any] = scheduler._create_taskstate_from_graph
        self.upstream_update_data: Callable[..., None] = scheduler.update_data

    def adopt(self) -> bool:
        """Give the state to a core if possible; return whether the core has it."""
        if self.is_active:
            return True
        scheduler = self.scheduler
        began_s = monotonic()
        if began_s < self.pause.until_s or refusal(scheduler) is not None:
            return False
        self.loop_thread = LoopThread()
        self.texts = KeyTexts()
        self.specs = {}
        self.annotations = {}
        self.raised = Raised()
        # The core has all times on the clock of `time`; Dask has some on that of `monotonic`.
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
                begin_admission(self.core, scheduler, self.texts.text)
        except EscapeError as error:
            logger.debug("The scheduler's state stays with Dask: %s", error)
        except Exception:  # A program may have changed the state in any way
            logger.warning("The core could not take over the scheduler's state", exc_info=True)
        else:
            return self._go_on_from(began_s)
        self._drop_core()
        self.pause.after(monotonic() - began_s)
        return False

    def _go_on_from(self, began_s: float) -> bool:
        """Replace Dask's state machine; return the state to it if that fails."""
        try:
            with contextlib.ExitStack() as undo:
                self._take_place(undo)
                undo.pop_all()
        except Exception:
            logger.warning("The scheduler goes on with Dask's own state", exc_info=True)
            self._drop_core()
            self.pause.after_failure()
            return False
        self._begin_engine()
        self._change_s = monotonic() - began_s
        return True

    def _take_place(self, undo: contextlib.ExitStack) -> None:
        scheduler = self.scheduler
        if (keeper := run_record.installed(scheduler)) is not None:
            keeper.record_from(self.core, KeyTexts().key)
        self.admission = ResourceAdmission(self)
        self._placement = place_by_links(self.core, scheduler)
        self.core.log_transitions(False)
        self.core.note_forgotten(True)
        self._guards = Guards(self)
        self.tasks = self._guards.task_views
        undo.callback(self._write_back)
        undo.callback(self._guards.release)
        self.membership = Membership(self, self._guards)
        self.interests = ClientInterests(self, self._guards)
        self.timeouts = Timeouts(self, self._monotonic_offset_s)
        self.spans = Spans(self, self._guards)
        for key, ts in scheduler.tasks.items():
            self.tasks.take(self.texts.text(key), ts)
        empty(scheduler)
        empty_stealing(scheduler)
        self.admission.leave()
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
        """Export the state to Dask's objects unchanged, after an adoption that failed."""
        scheduler = self.scheduler
        empty(scheduler)
        empty_stealing(scheduler)
        self._write(departed={})
        self.admission.leave()
        self.admission.release()

    def _write(self, departed: dict[str, Any]) -> None:
        """Export the whole state of the core to Dask's objects."""
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
        """Drop the core, and the Python objects behind its texts and bytes."""
        for name in ("core", "specs", "texts", "raised", "annotations"):
            vars(self).pop(name, None)

    def _has_core(self) -> bool:
        """Return whether a core has the state; tries to adopt it first."""
        if not self.is_active:
            return self.adopt()
        if self.streams is None and monotonic() >= self._engine_due_s:
            # A stream that the engine could not handle may have been replaced by one that it can.
            self.send()
            self._begin_engine()
        return True

    def _begin_engine(self) -> None:
        """Start to handle streams on the engine's thread, if it can handle all of them."""
        self._engine_due_s = monotonic() + ENGINE_RETRY_S
        # The engine cannot send keys that msgpack cannot encode uniquely.
        if switched_on("hot-path.scheduler-engine") and not self.texts.has_odd:
            streams = EngineStreams(self)
            if streams.begin():
                self.streams = streams

    def escape(self, reason: str) -> None:
        """Export the state to Dask's objects; a core adopts the state again after a pause.

        If another thread than the event loop's calls this, the event loop does the work, and the
        caller waits. The reason, an attribute or an event, is counted in `escapes`.

        Raises
        ------
        EscapeError
            If the event loop does not do the work for another thread.
        """
        if not self.is_active:
            return
        if not self.loop_thread.is_current():
            self.loop_thread.run(lambda: self.escape(reason))
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
        # Dask called this method for these workers while the core had the others.
        for ws in self.membership.unknown_workers():
            scheduler.check_idle_saturated(ws)
        scheduler.transition_log.extend(past_transitions(self))
        self.spans.write()
        if self.stealing.extension is None:
            register_stealable(scheduler)
        end_placing(self.core, self._placement)
        self.admission.release()
        if scheduler.validate:
            scheduler.validate_state()
        self._drop_core()
        self.pause.after(self._change_s + monotonic() - began_s)
        self.pause.adopt_later()

    def learn_links(self) -> None:
        """Update the costs of links, before they are used to place a graph."""
        if self._placement is not None:
            self._placement.learn()

    def look(self) -> None:
        """Keep the state constant until the reader returns to the event loop, as in Dask."""
        if self.streams is not None:
            self.streams.look()

    def watch(self) -> None:
        """Update the notified plugins; escape if the placement plugin was changed."""
        if self.is_active and placement_of(self.scheduler) is not self._placement:
            self.escape("placement is switched")
        if self.is_active:
            self.watchers.watch()

    def leave_engine(self) -> None:
        """Stop the engine; Python handles all messages from now on."""
        streams, self.streams = self.streams, None
        if streams is not None:
            streams.end()

    def fill_by(self, window: CoreWindow) -> None:
        """Let another window fill the workers from now on."""
        self.window = window

    def note_handled(self, counts: dict[str, int]) -> None:
        """Add the counts of messages of an engine that stops."""
        for operation, count in counts.items():
            self.handled[operation] = self.handled.get(operation, 0) + count

    def engine_counts(self) -> dict[str, int]:
        """Count the messages that the engine has handled since `install`, by operation."""
        counts = dict(self.handled)
        if self.streams is not None:
            for operation, count in self.streams.counts().items():
                counts[operation] = counts.get(operation, 0) + count
        return counts

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Pause the engine, so that only the caller uses the core."""
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
        """Import a graph; replaces `distributed.Scheduler._create_taskstate_from_graph`."""
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
            # A leftover task would prevent all later adoptions.
            forget_refused(self.scheduler, list(tasks.values())[known:])
            raise

    def update_data(
        self, *, who_has: dict[Any, list[str]], nbytes: dict[Any, int], client: str | None = None
    ) -> None:
        """Import results that a client put on workers; replaces `Scheduler.update_data`."""
        takes = bool(who_has) and self._has_core()
        if not takes or not self.interests.place(who_has, nbytes, client):
            self.upstream_update_data(who_has=who_has, nbytes=nbytes, client=client)

    def take_calls(self, calls: TaskCalls, **update: Any) -> dict[str, float] | None:
        """Import many calls of a function, without options, in their compact form.

        `update` are further arguments of `distributed.Scheduler._create_taskstate_from_graph`,
        whose return value this returns; None if the caller has to call that method, with tasks.
        """
        groups = calls.groups()
        if groups is None or not self._has_core():
            return None
        core = self.core
        observed = {name: (name, key) for name, key in groups}
        return self._handlers.whole(calls, core.knows_needs, core.handle_calls, observed, update)

    def take_graph(self, graph: TaskGraph, **update: Any) -> dict[str, float] | None:
        """Import a graph, without options, in its compact form; as `take_calls`."""
        groups = graph.groups()
        if groups is None or not self._has_core():
            return None
        core = self.core

        def take(*args: Any, **kwargs: Any) -> tuple[int, int]:
            # Not before this call, because earlier tasks may have been forgotten only now.
            if not graph.are_texts():
                self.texts.expect_packed(True)
            return core.handle_task_graph(*args, **kwargs)

        observed = {name: (prefix, codec.unpack(key)) for name, prefix, key in groups}
        return self._handlers.whole(graph, core.knows_needs_of_graph, take, observed, update)

    # Calls of the core, and its messages

    def has_task(self, key: object) -> bool:
        """Tell whether there is a task of this key."""
        text = self.texts.known(key)
        return text is not None and self.core.has_task(text)

    def who_has(self, keys: Iterable[Any]) -> dict[Any, list[str]]:
        """Return the addresses of the workers that hold results; none if there is no task."""
        found = {}
        for key in keys:
            text = self.texts.known(key)
            found[key] = self.core.holders_of(text) if text is not None else []
        return found

    @contextlib.contextmanager
    def replicas_shown(self) -> Iterator[None]:
        """Show the memory manager a snapshot of the results with several replicas."""
        self.replicas = snapshots(self)
        try:
            yield
        finally:
            self.replicas = None

    def remove_replicas(self, worker: str, keys: Iterable[Any], stimulus_id: str) -> None:
        """Let a worker release replicas."""
        texts = [self.texts.text(key) for key in keys]
        self.call(self.core.handle_remove_replicas, stimulus_id, time(), worker, texts)
        self.send()

    def call(self, handle: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the core; escape if it raises, then raise the same error."""
        with self.whole_or_dasks():
            return handle(*args, **kwargs)

    @contextlib.contextmanager
    def whole_or_dasks(self) -> Iterator[None]:
        """Escape if the block raises, because the core may have handled half of an event."""
        try:
            yield
        except BaseException as error:
            # A panic in Rust is no `Exception`.
            if self.is_active:
                self.give_up(repr(error), f"{type(error).__name__} in the core")
            raise

    def give_up(self, failure: str, reason: str) -> None:
        """Escape because of a defect, and log the last transitions."""
        past = past_transitions(self)[-_TRANSITIONS_TOLD:] if self.is_active else []
        told = [f"{one.key!r} {one.start} -> {one.finish} ({one.stimulus_id})" for one in past]
        logger.warning(
            "The scheduler goes on with Dask's own state: %s; the last transitions: %s",
            failure,
            "; ".join(told) or "none",
        )
        self.escape(reason)

    def send(self) -> None:
        """Send the messages of the core, and release the data of forgotten tasks."""
        if self.streams is not None:
            self.streams.flush()
        else:
            self.send_messages(self.core.take_messages())
        self.forget_gone()

    def send_messages(self, messages: list[tuple[str, str | None, dict[str, Any]]]) -> None:
        """Send messages of the core as Dask sends them."""
        send_messages(self, messages)

    def forget_gone(self) -> None:
        """Release the Python objects of tasks and groups that the core has forgotten."""
        core = self.core
        metadata = self._guards.metadata()
        for text in core.take_forgotten():
            if metadata:
                metadata.pop(self.texts.key(text), None)
            self.tasks.forget(text)
            self.tasks.metadata.pop(text, None)
            if text.startswith(SHUFFLE_PREFIX):
                self._tell_shuffles(text)
            # A new task may have the key of the forgotten one.
            if core.has_task(text):
                continue
            self.specs.pop(text, None)
            self.texts.forget(text)
        if self.streams is not None:
            self.streams.catch_up()
        else:
            for last in core.take_gone_groups():
                self.spans.gone(last)
        self.admission.tell_unmet()
        self.watchers.tell()
        # After all notifications about the last task
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
