"""Handlers of compact messages on the scheduler: single tasks, maps and graphs.

`backhaul.dask.client.submit`, `map` and `graph` send such messages to a scheduler that has
announced the handlers in the handshake of Backhaul's comms (`backhaul.dask.comm.capabilities`). The
handlers do for these tasks what `Scheduler.update_graph` does for a graph: lost dependencies, the
state that `Scheduler._create_taskstate_from_graph` makes, with computations, annotations,
priorities, spans and plugins, events, and errors of the futures. A program's own handler of
``update-graph`` gets the message that Dask's client would have sent. The handlers materialize no
expression, because there is none. A task stays pickled (`backhaul.dask.serialize.pickled_task`);
the calls of a map stay bytes while the core has the state (`backhaul.dask.scheduler.core`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from distributed import Scheduler

from backhaul._native import TaskCalls, TaskGraph
from backhaul.dask.compat.function_origin import is_dasks
from backhaul.dask.compat.instance_patches import GRAPH_STATE, SUBMISSIONS
from backhaul.dask.compat.names import ToPickle, error_message, iscoroutinefunction, offload, time
from backhaul.dask.compat.names import span_metadata as span_metadata_of_futures
from backhaul.dask.compat.operations import GRAPH, MAP, SUBMIT, UPDATE_GRAPH
from backhaul.dask.config.settings import switched_on
from backhaul.dask.scheduler.fairness import turn
from backhaul.dask.serialize.codec import codec
from backhaul.dask.serialize.pickled_task import PickledTask, keep, tasks_of
from backhaul.dask.serialize.submit_message import FIFO_TIMEOUT, update_graph_of

__all__ = ["Submissions", "install_for_scheduler"]

#: Dask's own log, for what Dask logs there
logger = logging.getLogger("distributed.scheduler")

#: Fields of a compact message that contain the tasks, without those about the tasks
_WHAT: Final = frozenset({"op", "key", "spec", "calls", "graph"})


def install_for_scheduler(scheduler: Scheduler) -> None:
    """Install the handlers of compact messages on a scheduler; idempotent."""
    if SUBMIT in scheduler.stream_handlers or not switched_on("hot-path.submit"):
        return
    if type(scheduler).update_graph is Scheduler.update_graph and SUBMISSIONS.fits():
        Submissions(scheduler).attach()


class Submissions:
    """Makes tasks of the compact messages to one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        #: The handler of graphs, once it is known to be Dask's
        self._own: Callable[..., Any] | None = None

    def attach(self) -> None:
        """Install the handlers on the scheduler."""
        handlers = (self.handle_submit, self.handle_map, self.handle_graph)
        SUBMISSIONS.install(self.scheduler, dict(zip(SUBMISSIONS.slots, handlers, strict=True)))

    async def handle_submit(
        self, client: str, key: Any = None, spec: Any = None, dependencies: Any = (), **said: Any
    ) -> None:
        """Make a task of its pickle; replaces `Scheduler.update_graph` for a single task.

        Further fields are some or all of ``actor``, ``fifo_timeout``, ``submitting_task``,
        ``annotations`` and ``code``, as in Dask's message.
        """
        await self._turn()
        task = _Task(key, spec, dependencies)
        await self._take(client, task, {"op": SUBMIT, "key": key, "spec": spec, **said})

    async def handle_map(self, client: str, calls: Any = None, **said: Any) -> None:
        """Make the tasks of the calls of one function, as ``Codec.encode_calls`` wrote them."""
        await self._read(client, calls, _Calls, {"op": MAP, "calls": calls, **said})

    async def handle_graph(self, client: str, graph: Any = None, **said: Any) -> None:
        """Make the tasks of a graph, as ``Codec.encode_graph`` wrote it.

        There may be the field ``span_metadata``, too, as in Dask's message.
        """
        await self._read(client, graph, _Graph, {"op": GRAPH, "graph": graph, **said})

    async def _read(
        self, client: str, data: Any, kind: type[_Calls | _Graph], message: dict[str, Any]
    ) -> None:
        await self._turn()
        try:
            submitted = kind(data)
        except (TypeError, ValueError) as error:
            self._give_up(message["op"].removeprefix("backhaul-"), client, error)
            return
        await self._take(client, submitted, message)

    async def _take(
        self, client: str, submitted: _Task | _Calls | _Graph, message: dict[str, Any]
    ) -> None:
        handler = self.scheduler.stream_handlers[UPDATE_GRAPH]
        if handler is not self._own:
            if not is_dasks(handler):
                await self._hand_over(handler, client, submitted, message)
                return
            self._own = handler
        said = {name: value for name, value in message.items() if name not in _WHAT}
        self._update(client, submitted, **said)

    async def _hand_over(
        self,
        handler: Callable[..., Any],
        client: str,
        submitted: _Task | _Calls | _Graph,
        message: dict[str, Any],
    ) -> None:
        """Call a program's own handler of graphs with the message that Dask's client would send."""
        try:
            # The message is not sent, so a `ToPickle` is replaced by its value.
            graph = {
                name: value.data if isinstance(value, ToPickle) else value
                for name, value in update_graph_of(message).items()
                if name != "op"
            }
        except Exception as error:
            stimulus_id = f"update-graph-{time()}"
            event = {"action": "update-graph", "stimulus_id": stimulus_id}
            self._refuse(client, submitted, event, error)
            return
        if iscoroutinefunction(handler):
            await handler(client=client, **graph)
        else:
            handler(client=client, **graph)

    def _give_up(self, what: str, client: str, error: Exception) -> None:
        # The keys of the futures are unknown: the client cancels all futures when its comm closes.
        logger.error("A %s of client %s cannot be read: %s", what, client, error)
        stream = self.scheduler.client_comms.get(client)
        if stream is not None:
            stream.abort()

    async def _turn(self) -> None:
        if self.scheduler._active_graph_updates:
            # Another graph is in the thread of `offload`; tasks that refer to it come after it.
            await offload(int)
        while not turn.has_room():
            await asyncio.sleep(0)

    def _update(
        self,
        client: str,
        submitted: _Task | _Calls | _Graph,
        actor: bool = False,
        fifo_timeout: Any = FIFO_TIMEOUT,
        submitting_task: Any = None,
        annotations: dict[str, Any] | None = None,
        code: Any = (),
        span_metadata: Any = None,
    ) -> None:
        """Do the steps of `Scheduler.update_graph`, in its order."""
        scheduler: Any = self.scheduler
        start = time()
        stimulus_id = f"update-graph-{start}"
        event: dict[str, Any] = {"action": "update-graph", "stimulus_id": stimulus_id}
        update = {
            "client": client,
            "start": start,
            "stimulus_id": stimulus_id,
            "submitting_task": submitting_task,
            "fifo_timeout": fifo_timeout,
            "code": code,
            "span_metadata": span_metadata or span_metadata_of_futures(),
        }
        scheduler._active_graph_updates += 1
        try:
            made = start
            metrics = None
            if not actor and not annotations:
                metrics = submitted.taken_whole(scheduler, update)
            if metrics is None:
                keys = submitted.names()
                graph = submitted.graph()
                made = time()
                if scheduler._find_lost_dependencies(graph, keys):
                    reason = "lost dependencies"
                    scheduler.report(
                        {"op": "cancelled-keys", "keys": keys, "reason": reason}, client=client
                    )
                    scheduler.client_releases_keys(
                        keys=keys, client=client, stimulus_id=stimulus_id
                    )
                    scheduler.log_event(["scheduler", client], {**event, "status": "cancelled"})
                    return
                metrics = scheduler._create_taskstate_from_graph(
                    dsk=graph,
                    keys=keys,
                    ordered=submitted.ordered(graph),
                    user_priority=0,
                    actors=actor,
                    annotations_by_type={},
                    global_annotations=annotations or {},
                    **update,
                )
            created = time()
            metrics.update(
                {
                    "start_timestamp_seconds": start,
                    "materialization_duration_seconds": made - start,
                    "ordering_duration_seconds": 0.0,
                    "state_initialization_duration_seconds": made - created,
                    "duration_seconds": created - start,
                }
            )
            scheduler.log_event(
                ["scheduler", client], {**event, "metrics": metrics, "status": "OK"}
            )
        except Exception as error:
            self._refuse(client, submitted, event, error)
        finally:
            scheduler._active_graph_updates -= 1
            scheduler.digest_metric("update-graph-duration", time() - start)

    def _refuse(
        self,
        client: str,
        submitted: _Task | _Calls | _Graph,
        event: dict[str, Any],
        error: Exception,
    ) -> None:
        """Report an error to the futures."""
        scheduler = self.scheduler
        scheduler.log_event(["scheduler", client], {**event, "status": "error"})
        logger.error("%s", error)
        found = error_message(error)
        for key in submitted.names():
            scheduler.report(
                {
                    "op": "task-erred",
                    "key": key,
                    "exception": found["exception"],
                    "traceback": found["traceback"],
                },
                client=client,
            )


class _Task:
    """One task that was submitted, with the keys that it refers to.

    Its pickle is not checked, so a faulty client may send any object.
    """

    def __init__(self, key: Any, spec: Any, dependencies: Any) -> None:
        self._key = key
        self._spec = spec
        self._dependencies = dependencies

    def names(self) -> set[Any]:
        """Return its key in a set."""
        return {self._key}

    def graph(self) -> dict[Any, PickledTask]:
        """Make a graph of it."""
        return {self._key: keep(self._key, self._spec, self._dependencies)}

    def ordered(self, graph: dict[Any, Any]) -> dict[Any, int]:
        """Return its place in the order."""
        return {self._key: 0}

    def taken_whole(self, scheduler: Any, update: dict[str, Any]) -> dict[str, float] | None:
        """Return None: a core imports no single task in its compact form."""
        return None


class _Calls:
    """Many calls of one function that were submitted."""

    def __init__(self, calls: Any) -> None:
        self._calls = TaskCalls(calls)

    def names(self) -> set[Any]:
        """Return the keys."""
        return set(self._calls.keys())

    def graph(self) -> dict[Any, PickledTask]:
        """Make a graph of them, with a pickle of each."""
        return {
            key: keep(key, pickled, () if needs is None else codec.unpack(needs))
            for key, pickled, needs in self._calls.tasks()
        }

    def ordered(self, graph: dict[Any, Any]) -> dict[Any, int]:
        """Return the places of the keys in the order."""
        return dict(zip(graph, range(len(graph)), strict=True))

    def taken_whole(self, scheduler: Any, update: dict[str, Any]) -> dict[str, float] | None:
        """Let a core import the calls in their compact form, if a core may have the state.

        Returns metrics for the event; None if the caller has to make tasks.
        """
        return _taken("take_calls", self._calls, scheduler, update)


class _Graph:
    """A graph that was submitted."""

    def __init__(self, graph: Any) -> None:
        self._graph = TaskGraph(graph)
        self._order: dict[Any, int] = {}

    def names(self) -> set[Any]:
        """Return the keys that the client wants."""
        keys = codec.unpack(self._graph.keys())
        return {keys[number] for number in self._graph.wanted()}

    def graph(self) -> dict[Any, Any]:
        """Make a graph of tasks."""
        tasks, self._order, _ = tasks_of(self._graph, codec.unpack(self._graph.keys()))
        return tasks

    def ordered(self, graph: dict[Any, Any]) -> dict[Any, int]:
        """Return the places in the order, after `graph` was called."""
        return self._order

    def taken_whole(self, scheduler: Any, update: dict[str, Any]) -> dict[str, float] | None:
        """Let a core import the graph in its compact form, if a core may have the state."""
        return _taken("take_graph", self._graph, scheduler, update)


def _taken(
    way: str, submitted: Any, scheduler: Any, update: dict[str, Any]
) -> dict[str, float] | None:
    method = vars(scheduler).get(GRAPH_STATE.slots[0])
    take = getattr(getattr(method, "__self__", None), way, None)
    metrics: dict[str, float] | None = None if take is None else take(submitted, **update)
    return metrics
