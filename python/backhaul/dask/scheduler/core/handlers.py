"""Message handlers of a scheduler while the core has its state, in the place of Dask's.

A message that they do not support causes an escape, and Dask's handler gets it. So does every
other operation of streams and requests, except those that touch no state of tasks; this module
lists them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dask.utils import parse_timedelta

from backhaul.dask.compat.names import iscoroutinefunction, time
from backhaul.dask.scheduler.core.adopted_tasks import is_size
from backhaul.dask.scheduler.core.graph_import import Annotations, NotPlainError, parts_of
from backhaul.dask.scheduler.core.handler_overrides import REQUESTS_TAKEN, STREAMS_TAKEN
from backhaul.dask.scheduler.core.requests import Answers
from backhaul.dask.scheduler.core.submissions import note_collisions
from backhaul.dask.scheduler.core.task_payloads import spec_payload
from backhaul.dask.scheduler.core.timers import Timers

if TYPE_CHECKING:
    from backhaul._native import TaskCalls, TaskGraph
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Handlers"]

logger = logging.getLogger(__name__)

#: Operations of streams that touch no state of tasks, besides those with handlers here
STREAMS = {
    "heartbeat-client",
    "keep-alive",
    "log-event",
    "publish_flush_batched_send",
    "queue_release",
    "queue-future-release",
    # Its handler reads one task.
    "report-key",
    "subscribe-topic",
    "unsubscribe-topic",
    # Its handler is `LiveCore.update_data`.
    "update-data",
    # Its handler calls `LiveCore.create`.
    "update-graph",
    "variable_delete",
    "variable-future-received-confirm",
}

#: Prefix of Backhaul's own operations, whose handlers support a core
OURS = "backhaul-"

#: Requests likewise; some read attributes that guards answer, or that cause an escape
HANDLERS = {
    "broadcast",
    "connection_stream",
    "adaptive_target",
    "call_stack",
    "echo",
    "event_clear",
    "event_is_set",
    "event_set",
    "event_wait",
    "events",
    "feed",
    "gather",
    "get_logs",
    "get_metadata",
    "get_story",
    "get_task_prefix_states",
    "get_task_status",
    "identity",
    "log_event",
    "logs",
    "multi_lock_acquire",
    "multi_lock_release",
    "ncores",
    "ncores_running",
    "performance_report",
    "profile",
    "proxy",
    "publish_delete",
    "publish_get",
    "publish_list",
    "publish_put",
    "queue_create",
    "queue_get",
    "queue_put",
    "queue_qsize",
    "register-client",
    "register_nanny",
    "replicate",
    "retire_workers",
    "register_scheduler_plugin",
    "run_function",
    "scatter",
    "semaphore_acquire",
    "semaphore_close",
    "semaphore_refresh_leases",
    "semaphore_register",
    "semaphore_release",
    "semaphore_value",
    "set_metadata",
    "subscribe_worker_status",
    "terminate",
    # Its handler is `LiveCore.update_data`.
    "update_data",
    "variable_get",
    "variable_set",
    "versions",
    "worker_logs",
    "workers_to_close",
}


class Handlers:
    """Handlers that pass messages to a core."""

    def __init__(self, live: LiveCore) -> None:
        self._live = live
        self._restores: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace Dask's handlers on the scheduler."""
        scheduler = self._live.scheduler
        streams: dict[str, Callable[..., Any]] = {
            "add-keys": _always(self.add_keys),
            "cancel-keys": _method("stimulus_cancel", scheduler),
            "client-desires-keys": _method("client_desires_keys", scheduler),
            "client-releases-keys": _method("client_releases_keys", scheduler),
            "close-client": _method("remove_client", scheduler),
            "long-running": _always(self.handle_long_running),
            "release-worker-data": _always(self.release_worker_data),
            "steal-response": self._live.stealing.response,
            "request-refresh-who-has": _always(self.request_refresh_who_has),
            "reschedule": _always(self.reschedule),
            "task-erred": _always(self.handle_task_erred),
            "task-finished": self.handle_task_finished,
            "worker-status-change": _method("handle_worker_status_change", scheduler),
        }
        answers = Answers(self._live)
        timers = Timers(self._live)
        requests: dict[str, Callable[..., Any]] = {
            "add_keys": _always(self.add_keys),
            "check_idle": timers.check_idle,
            "has_what": _always(answers.get_has_what),
            "nbytes": _always(answers.get_nbytes),
            "processing": _always(answers.get_processing),
            "get_task_stream": answers.get_task_stream,
            "get_task_stream_index": answers.get_task_stream,
            "heartbeat_worker": self.heartbeat_worker,
            "register-worker": self._live.membership.register_worker,
            "retry": _method("stimulus_retry", scheduler),
            "unregister": _method("remove_worker", scheduler),
            "who_has": _always(answers.get_who_has),
        }
        assert streams.keys() == STREAMS_TAKEN
        assert requests.keys() == REQUESTS_TAKEN
        for place, ours, harmless in (
            (scheduler.stream_handlers, streams, STREAMS),
            (scheduler.handlers, requests, HANDLERS),
        ):
            for operation, original in list(place.items()):
                if operation in ours:
                    handle = self._unless_failed(ours[operation](original), original)
                    self._replace(place, operation, handle)
                elif operation not in harmless and not operation.startswith(OURS):
                    self._replace(place, operation, self._escaping(original, operation))
        for name, callback in scheduler.periodic_callbacks.items():
            ours_of = timers.of(name)
            if ours_of is not None:
                self._replace(vars(callback), "callback", ours_of(callback.callback))

    def uninstall(self) -> None:
        """Restore Dask's handlers."""
        for restore in reversed(self._restores):
            restore()
        self._restores.clear()

    def _replace(self, place: dict[str, Any], item: str, ours: Any) -> None:
        original = place[item]
        place[item] = ours

        def restore() -> None:
            if place.get(item) is ours:
                place[item] = original

        self._restores.append(restore)

    def _escaping(self, original: Any, operation: str) -> Any:
        # Dask checks whether a handler is a coroutine function before the call.
        if iscoroutinefunction(original):

            @functools.wraps(original)
            async def handle(*args: Any, **kwargs: Any) -> Any:
                self._live.escape(operation)
                return await original(*args, **kwargs)

        else:

            @functools.wraps(original)
            def handle(*args: Any, **kwargs: Any) -> Any:
                self._live.escape(operation)
                return original(*args, **kwargs)

        return handle

    def _unless_failed(self, ours: Any, original: Any) -> Any:
        live = self._live

        # A message that the engine left because of a defect arrives here next, and must reach
        # Dask's own state. So must a call by a reference to this handler that outlives the core.
        @functools.wraps(original)
        def handle(*args: Any, **kwargs: Any) -> Any:
            streams = live.streams
            if not live.is_active or (streams is not None and streams.has_failed()):
                return original(*args, **kwargs)
            return ours(*args, **kwargs)

        return handle

    # Graphs

    def graph(
        self, dsk: Any, keys: Any, client: str, start: float, more: dict[str, Any]
    ) -> dict[str, float] | None:
        """Import a graph of plain tasks; None if an escape has happened meanwhile."""
        with self._live.alone(), self._live.whole_or_dasks():
            return self._graph(dsk, keys, client, start, more)

    def _graph(
        self, dsk: Any, keys: Any, client: str, start: float, more: dict[str, Any]
    ) -> dict[str, float] | None:
        live = self._live
        texts = live.texts
        groups: dict[str, tuple[str, Any]] = {}
        address_of = live.scheduler.coerce_address
        try:
            parts = parts_of(
                dsk,
                keys=keys,
                ordered=more["ordered"],
                user_priority=more["user_priority"],
                texts=texts,
                groups=groups,
                annotations=Annotations(more, live.annotations, address_of, live.admission.slots),
                actors=more["actors"],
            )
            fifo_timeout_s = float(parse_timedelta(more["fifo_timeout"]))
        except NotPlainError as error:
            live.escape(str(error))
            return None
        except Exception as error:
            # The core is unchanged; Dask's code gets the bad option, too, and raises its error.
            live.escape(f"{type(error).__name__} while a graph is read")
            return None
        span_of = live.spans.observe(
            groups, more["span_metadata"], more["code"], more["global_annotations"]
        )
        if not live.is_active:
            return None
        for (key, node), task in zip(dsk.items(), parts["tasks"], strict=True):
            live.specs.setdefault(texts.text(key), (node, span_of[task[1]]))
        if texts.has_odd:
            live.leave_engine()
        live.interests.know_client(client)
        if live.streams is not None:
            live.streams.note_spans(span_of)
            parts["tasks"] = [
                (*task[:3], spec_payload(node, span_of[task[1]]), *task[4:])
                for node, task in zip(dsk.values(), parts["tasks"], strict=True)
            ]
        live.learn_links()
        submitting = more["submitting_task"]
        outcome = live.call(
            live.core.handle_graph,
            more["stimulus_id"],
            start,
            client=client,
            submitting_task=None if submitting is None else texts.text(submitting),
            fifo_timeout_s=fifo_timeout_s,
            **parts,
        )
        live.send()
        new_tasks, collisions = outcome if outcome is not None else (0, 0)
        if collisions:
            note_collisions(collisions)
        return {"tasks": len(dsk), "new_tasks": new_tasks, "key_collisions": collisions}

    def whole(
        self,
        submitted: TaskCalls | TaskGraph,
        knows_needs: Callable[[Any], bool],
        take: Callable[..., tuple[int, int]],
        groups: dict[str, tuple[str, Any]],
        update: dict[str, Any],
    ) -> dict[str, float] | None:
        """Import calls or a graph that stay bytes; None if Dask, or `graph`, has to do that.

        `knows_needs` tells whether the core has all dependencies, and `take` imports the tasks.
        `groups` has by name of each group its prefix and one of its keys; `update` are further
        arguments of `distributed.Scheduler._create_taskstate_from_graph`.
        """
        live = self._live
        try:
            fifo_timeout_s = float(parse_timedelta(update["fifo_timeout"]))
        except Exception as error:
            logger.debug("Dask's code refuses a graph: %r", error)
            return None
        with live.alone(), live.whole_or_dasks():
            # Dask cancels tasks whose dependencies are lost.
            if not knows_needs(submitted):
                return None
            span_of = live.spans.observe(groups, update["span_metadata"], update["code"])
            if not live.is_active:
                return None
            live.interests.know_client(update["client"])
            if live.streams is not None:
                live.streams.note_spans(span_of)
            live.learn_links()
            submitting = update["submitting_task"]
            new_tasks, collisions = live.call(
                take,
                update["stimulus_id"],
                update["start"],
                submitted,
                spans=list(span_of.items()),
                client=update["client"],
                submitting_task=None if submitting is None else live.texts.text(submitting),
                fifo_timeout_s=fifo_timeout_s,
            )
            live.send()
            if collisions:
                note_collisions(collisions)
            return {"tasks": len(submitted), "new_tasks": new_tasks, "key_collisions": collisions}

    # Workers

    def handle_task_finished(self, upstream: Callable[..., None]) -> Callable[..., None]:
        """Make the handler of ``task-finished``."""
        live, core = self._live, self._live.core
        results = live.results

        def handle(
            key: Any,
            worker: str,
            stimulus_id: str,
            run_id: int,
            nbytes: int | None,
            startstops: list[dict[str, Any]],
            type: bytes,
            typename: str,
            thread: int | None = None,
            value: Any = None,
            metadata: dict[str, Any] | None = None,
            **message: Any,
        ) -> None:
            is_countable = nbytes is None or is_size(nbytes)
            if metadata or not is_countable:
                live.escape("metadata of a task" if metadata else "the size of a result")
                message.update(run_id=run_id, nbytes=nbytes, startstops=startstops, type=type)
                message.update(typename=typename, metadata=metadata, thread=thread)
                if value is not None:
                    message["value"] = value
                upstream(key=key, worker=worker, stimulus_id=stimulus_id, **message)
                return
            window = live.window
            text = live.texts.text(key)
            running = core.running_task(text, worker, run_id)
            surprised = False
            if running is not None:
                group, prefix, clients = running
                if window is not None:
                    learned = {"startstops": startstops, "nbytes": nbytes}
                    surprised = window.finished(group, prefix, learned)
                if value is not None and results and not results.hand_to(clients, key, value):
                    results.not_wanted(worker)
            now_s = time()
            live.call(
                core.handle_task_finished,
                stimulus_id,
                now_s,
                key=text,
                worker=worker,
                run_id=run_id,
                nbytes=nbytes or 0,
                type=type,
                typename=typename,
                startstops=[(one["action"], one["start"], one["stop"]) for one in startstops],
                thread=thread,
            )
            if window is not None and running is not None and core.has_any("queued"):
                window.refill(worker, stimulus_id, now_s)
            live.send()
            if running is None:
                self._forget_strays((text,))
            elif surprised and window is not None and window.has_too_many(running[1]):
                window.give_back(running[1])

        return handle

    def handle_task_erred(
        self,
        key: Any,
        worker: str,
        stimulus_id: str,
        run_id: int,
        exception: Any,
        traceback: Any,
        exception_text: str,
        traceback_text: str,
        **message: Any,
    ) -> None:
        """Handle ``task-erred``."""
        live, core = self._live, self._live.core
        keep = live.raised.keep
        now_s = time()
        text = live.texts.text(key)
        watches = live.watchers.is_watching() and core.running_task(text, worker, run_id)
        live.call(
            core.handle_task_erred,
            stimulus_id,
            now_s,
            key=text,
            worker=worker,
            run_id=run_id,
            exception=keep(exception),
            traceback=None if traceback is None else keep(traceback),
            exception_text=exception_text,
            traceback_text=traceback_text,
        )
        if watches and core.state_of(text) == "erred":
            run = {"cause": key, "worker": worker, "stimulus_id": stimulus_id, **message}
            run.update(exception=exception, traceback=traceback)
            run.update(exception_text=exception_text, traceback_text=traceback_text)
            live.watchers.tell_erred(text, run)
        window = live.window
        is_here = worker in live.membership.known
        if window is not None and is_here and core.has_any("queued"):
            window.refill(worker, stimulus_id, now_s)
        live.send()

    def handle_long_running(
        self, key: Any, worker: str, run_id: int, compute_duration: float | None, stimulus_id: str
    ) -> None:
        """Handle ``long-running``."""
        live = self._live
        text = live.texts.known(key)
        if text is not None:
            handler = live.core.handle_long_running
            live.call(handler, stimulus_id, time(), text, worker, run_id, compute_duration)
            live.send()

    def release_worker_data(self, key: Any, worker: str, stimulus_id: str) -> None:
        """Handle ``release-worker-data``."""
        live = self._live
        text = live.texts.known(key)
        if text is not None:
            live.call(live.core.handle_release_worker_data, stimulus_id, time(), text, worker)
            live.send()

    def request_refresh_who_has(self, keys: Iterable[Any], worker: str, stimulus_id: str) -> None:
        """Handle ``request-refresh-who-has``."""
        live = self._live
        texts = [live.texts.text(key) for key in keys]
        if worker in live.membership.known:
            handler = live.core.handle_request_refresh_who_has
            live.call(handler, stimulus_id, time(), texts, worker)
            live.send()
        self._forget_strays(texts)

    def reschedule(self, key: Any, worker: str | None = None, *, stimulus_id: str) -> None:
        """Handle ``reschedule``."""
        live = self._live
        text = live.texts.known(key)
        if text is None or not live.core.has_task(text):
            logger.debug("A task that is not known is to run again: %r", key)
            return
        live.call(live.core.handle_reschedule, stimulus_id, time(), text, worker)
        live.send()

    def add_keys(
        self, worker: str, keys: Iterable[Any] = (), stimulus_id: str | None = None
    ) -> str:
        """Handle ``add-keys``, of a stream or as a request."""
        live = self._live
        if worker not in live.membership.known:
            return "not found"
        now_s = time()
        stimulus_id = stimulus_id or f"redundant-replicas-{now_s}"
        texts = [live.texts.text(key) for key in keys]
        live.call(live.core.handle_add_keys, stimulus_id, now_s, worker, texts)
        live.send()
        self._forget_strays(texts)
        return "OK"

    def heartbeat_worker(self, upstream: Callable[..., Any]) -> Callable[..., Any]:
        """Make the handler of a worker's heartbeats."""

        @functools.wraps(upstream)
        def handle(
            *, address: str, metrics: dict[str, Any], executing: Any = None, **message: Any
        ) -> Any:
            live = self._live
            if message.get("resources"):
                live.escape("resources of a worker")
            elif address in live.membership.known:
                ran = [
                    (text, seconds)
                    for key, seconds in (executing or {}).items()
                    if (text := live.texts.known(key)) is not None
                ]
                bandwidth = float(metrics["bandwidth"]["total"])
                live.call(live.core.handle_heartbeat, address, bandwidth, ran)
                if live.streams is not None:
                    live.streams.note_memory(address, metrics)
                executing = None
            return upstream(address=address, metrics=metrics, executing=executing, **message)

        return handle

    def _forget_strays(self, texts: Iterable[str]) -> None:
        """Release texts that belong to no task."""
        live = self._live
        for text in texts:
            if not live.core.has_task(text):
                live.texts.forget(text)


def _always(handle: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function that makes a handler, whatever the one that it replaces."""
    return lambda upstream: handle


def _method(name: str, scheduler: Any) -> Callable[[Any], Any]:
    """Return a function that makes a handler, which calls the scheduler's method at that time."""
    # Dask checks the return value of a request's handler, so this need not be a coroutine.
    return _always(lambda *args, **kwargs: getattr(scheduler, name)(*args, **kwargs))
