"""Upstream's scheduler without I/O: a real ``Scheduler``, not started, driven by its own handlers.

Its parts that reach out are replaced: streams record their messages, clocks are set, and threads
that read and order graphs are left out. So are its web server, its directory and its monitor of
the process: a socket, a file and an entry of ``sys.path`` for each stream would stay until the end.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Set
from itertools import count
from typing import Any

import distributed.core as core_module
import distributed.scheduler as module
import distributed.stealing as stealing_module
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from distributed.core import Status
from distributed.protocol import deserialize
from distributed.scheduler import ClientState, Scheduler, TaskState, WorkerState

import dask
from backhaul._native import SchedulerCore
from backhaul.dask.scheduler.core import adopt
from backhaul.dask.scheduler.core.placement import place_by_links, placement_of
from backhaul.dask.scheduler.core.resources import carried_threads
from backhaul.dask.scheduler.core.stealing import begin_stealing

from .events import Event, Graph
from .placed import tell_links

__all__ = ["Clock", "EndlessError", "TakenPayloads", "Upstream", "exception_name", "node"]

#: Whether an event was refused
Refused = bool

_CULL = module._cull
#: No stream comes to a tenth of it, unless one of its events never ends.
TRANSITIONS_MAX = 100_000
REFUSALS = (AssertionError, KeyError, RuntimeError, TypeError, ValueError)
#: In the place of the exception of a graph that was refused.
REFUSED = b"refused"


class EndlessError(Exception):
    """Upstream goes through the same transitions again and again."""


class Clock:
    """The time, for all of upstream's scheduler."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Monitor:
    """Stands in for the monitor of the process."""

    def update(self) -> None:
        pass


vars(core_module)["SystemMonitor"] = _Monitor
Scheduler.start_http_server = lambda *arguments, **options: None  # type: ignore[method-assign]


class Stream:
    """Records messages to one worker or client."""

    def __init__(self, interval: object = None, loop: object = None) -> None:
        self.sent: list[dict[str, Any]] = []

    def start(self, comm: object) -> None:
        pass

    def abort(self) -> None:
        pass

    def send(self, *messages: dict[str, Any]) -> None:
        self.sent.extend(messages)


class _Never:
    """Awaited by a scheduler that waits for the next message of a worker."""

    def __await__(self) -> Any:
        yield


class Comm:
    """The connection of a worker that says nothing: its messages are called as handlers."""

    name = peer_address = ""
    ended = False

    async def write(self, message: object) -> None:
        pass

    async def read(self) -> None:
        await _Never()

    async def close(self) -> None:
        self.ended = True

    def closed(self) -> bool:
        return self.ended


class _Expression:
    """A graph that arrived without having been serialized."""

    def __init__(self, graph: dict[str, Any]) -> None:
        self.header = graph
        self.frames = ()


async def _inline(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine until it ends or waits for what does not come."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    return coroutine


class TakenPayloads:
    """Bytes that the harness gives a core for Python's objects."""

    def run_spec(self, text: str, task: Any) -> bytes:
        spec = task.run_spec
        return pickle.dumps((spec.key, tuple(spec.dependencies), spec.data_producer))

    def annotations(self, annotations: dict[str, Any]) -> bytes:
        return pickle.dumps(annotations)

    def failure(self, raised: Any) -> bytes:
        if isinstance(raised, bytes):
            return raised
        return pickle.dumps(deserialize(raised.header, raised.frames))


class Upstream:
    """One scheduler, and what it has sent."""

    def __init__(
        self, settings: dict[str, Any], clock: Clock | None = None, validate: bool = False
    ) -> None:
        self.clock = clock or Clock()
        self.replaced: dict[str, Any] = {
            "time": self.clock,
            "monotonic": self.clock,
            "BatchedSend": Stream,
            "offload": _inline,
            # Its name would be a digest of all that is in it.
            "deserialize": lambda header, frames: LLGExpr(header, _determ_token="unread"),
            "_cull": self._cull,
            "error_message": self._error_message,
        }
        self.run_ids: Any = count()
        self._take_turn()
        versions: Any = module.version_module
        versions.get_versions = dict
        versions.error_message = lambda *args, **kwargs: {}
        logging.disable(logging.CRITICAL)
        # For good: prefixes read them when they are made.
        dask.config.set({**settings, "distributed.scheduler.http.routes": []})
        self.state: Any = Scheduler(
            dashboard=False,
            extensions={},
            host="127.0.0.1",
            port=0,
            validate=validate,
            needs_workdir=False,
            transition_counter_max=TRANSITIONS_MAX,
        )
        # All that one event may come to: by default the last thousand.
        self.state.transition_log = deque(maxlen=TRANSITIONS_MAX)
        self.state.plugins.clear()
        self.stealing: Any = stealing_module.WorkStealing(self.state)
        self.state.extensions["stealing"] = self.stealing
        #: Its log
        self.steal_log: list[Any] = []
        vars(self.stealing)["log"] = self.steal_log.append
        # A timer that forgets events an hour later
        background: Any = self.state._ongoing_background_tasks
        background.call_later = lambda *args, **kwargs: None
        #: The latest graph as upstream goes through it: tasks in order, and what each depends on.
        self.culled: dict[str, list[str]] = {}
        self.refusal: BaseException | None = None
        #: Whether an event was refused that had changed something before
        self.half_done = False
        self.streams: list[tuple[str, str, Stream]] = []
        self.waiting: list[Any] = []

    def _take_turn(self) -> None:
        """Make the objects that all schedulers of a process share be this one's."""
        for name, replacement in self.replaced.items():
            setattr(module, name, replacement)
        vars(stealing_module)["time"] = self.clock
        run_ids: Any = TaskState
        run_ids._run_id_iterator = self.run_ids

    def adopt(self, settings: dict[str, Any]) -> SchedulerCore:
        """Make a core that goes on from it."""
        self._take_turn()
        try:
            core = adopt(
                self.state, settings, TakenPayloads(), threads_of=carried_threads(self.state)
            )
            begin_stealing(core, self.state)
        finally:
            # Looking for the next number makes a new iterator.
            self.keep_run_ids()
        place_by_links(core, self.state)
        return core

    def keep_run_ids(self) -> None:
        """Take the numbers of runs that all schedulers share now for this one's."""
        run_ids: Any = TaskState
        self.run_ids = run_ids._run_id_iterator

    def close(self) -> None:
        self.state.status = Status.closed
        placement = placement_of(self.state)
        if placement is not None:
            # It would get tasks of other schedulers, and stay.
            placement.detach()
        for coroutine in self.waiting:
            coroutine.close()

    def _cull(self, graph: Any, keys: Any) -> Any:
        culled: Any = _CULL(graph, keys)
        self.culled = {key: list(node.dependencies) for key, node in culled.items()}
        return culled

    def _error_message(self, error: BaseException) -> Any:
        # Only the end of `update_graph` calls it, which tells the client and raises nothing.
        self.refusal = error
        return {"exception": REFUSED, "traceback": None}

    def apply(self, event: Event, now_s: float) -> Refused:
        """Handle an event; return whether it was refused.

        Raises
        ------
        EndlessError
            If upstream would never be done with it.
        """
        self.clock.now = now_s
        self.refusal = None
        self._take_turn()
        try:
            getattr(self, f"_{event.name}")(event.stimulus, **event.arguments)
        except Exception as error:
            # Once one was refused in the middle, others may meet what it left half done.
            if not self.half_done and not isinstance(error, REFUSALS):
                raise
            self.refusal = error
        if self.state.transition_counter >= TRANSITIONS_MAX:
            raise EndlessError(event.name)
        return self.refusal is not None

    def has_broken_queue(self) -> bool:
        """Tell whether the queue's heap has entries that cannot be compared.

        The consequences depend on where they lie in it.
        """
        return len({key is None for key, _, _ in self.state.queued._heap}) > 1

    def take_messages(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Messages by kind and name of their receiver, in the order in which they were sent."""
        taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for kind, name, stream in self.streams:
            if stream.sent:
                sent = [one for one in stream.sent if one.get("exception") is not REFUSED]
                stream.sent = []
                if sent:
                    taken.setdefault((kind, name), []).extend(sent)
        return taken

    def take_transitions(self) -> list[tuple[str, str, str]]:
        log = self.state.transition_log
        taken = [(one.key, one.start, one.finish) for one in log]
        log.clear()
        return taken

    def take_steal_log(self) -> list[Any]:
        taken = self.steal_log[:]
        self.steal_log.clear()
        return taken

    def _links(self, stimulus: str, **told: Any) -> None:
        placement = placement_of(self.state)
        assert placement is not None
        tell_links(placement.mirror, **told)

    def _balance(self, stimulus: str) -> None:
        self.stealing.balance()

    def _steal_response(self, stimulus: str, key: str, state: str | None) -> None:
        self.stealing.move_task_confirm(key=key, state=state, stimulus_id=stimulus, worker="w")

    def _worker_added(self, stimulus: str, **joins: Any) -> None:
        metrics = {
            "bandwidth": {
                "total": joins["bandwidth_bytes_per_s"],
                "workers": {},
                "types": {},
            },
            "memory": 0,
            "spilled_bytes": {"memory": 0, "disk": 0},
            "digests_total_since_heartbeat": {},
        }
        address = joins["address"]
        coroutine = self.state.add_worker(
            Comm(),
            address=address,
            status=joins["status"],
            server_id=f"{address} {self.clock.now}",
            nthreads=joins["nthreads"],
            name=joins["name"],
            resolve_address=False,
            now=0.0,
            resources=joins["resources"],
            memory_limit=joins["memory_limit"],
            metrics=metrics,
            services={},
            local_directory="",
            versions={},
            nanny="",
            extra={},
            stimulus_id=stimulus,
        )
        before = self.state.workers.get(address)
        try:
            waiting = _run(coroutine)
        finally:
            # A worker that is refused in the middle of the event is there nevertheless, and gets
            # tasks.
            added = self.state.workers.get(address) not in (None, before)
            if added:
                self.streams.append(("worker", address, self.state.stream_comms[address]))
        if not added:
            raise ValueError("taken")
        self.waiting.append(waiting)

    def _worker_removed(self, stimulus: str, address: str, expected: bool, close: bool) -> None:
        # It reads the clock before its tasks become unrunnable, which is a moment later.
        moments = iter([math.nextafter(self.clock.now, -math.inf)])
        vars(module)["monotonic"] = lambda: next(moments, self.clock.now)
        ended = _run(
            self.state.remove_worker(address, stimulus_id=stimulus, expected=expected, close=close)
        )
        if ended == "already-removed":
            raise KeyError(address)

    def _worker_status(self, stimulus: str, address: str, status: str) -> None:
        self.state.handle_worker_status_change(status, address, stimulus)

    def _heartbeat(
        self,
        stimulus: str,
        address: str,
        bandwidth_bytes_per_s: float,
        executing: list[tuple[str, float]],
    ) -> None:
        metrics = {
            "bandwidth": {"total": bandwidth_bytes_per_s, "workers": {}, "types": {}},
            "memory": 0,
            "spilled_bytes": {"memory": 0, "disk": 0},
            "digests_total_since_heartbeat": {},
        }
        answer = self.state.heartbeat_worker(
            address=address, resolve_address=False, metrics=metrics, executing=dict(executing)
        )
        if answer["status"] == "missing":
            raise KeyError(address)

    def _resources(self, stimulus: str, address: str, resources: dict[str, float]) -> None:
        self.state.add_resources(address, resources)

    def _no_workers_check(self, stimulus: str) -> None:
        self.state._check_no_workers()

    def _client_added(self, stimulus: str, client: str) -> None:
        stream = Stream()
        self.state.clients[client] = ClientState(client, versions={})
        self.state.client_comms[client] = stream
        self.streams.append(("client", client, stream))

    def _client_removed(self, stimulus: str, client: str) -> None:
        self.state.remove_client(client, stimulus)
        self.state.client_comms.pop(client, None)

    def _client_desires_keys(self, stimulus: str, desired: list[str], client: str) -> None:
        self.state.client_desires_keys(desired, client)

    def _client_releases_keys(self, stimulus: str, released: list[str], client: str) -> None:
        self.state.client_releases_keys(released, client, stimulus)

    def _cancel(
        self,
        stimulus: str,
        cancelled: list[str],
        client: str,
        force: bool,
        reason: str,
        msg: str,
    ) -> None:
        self.state.stimulus_cancel(cancelled, client, force, reason, msg)

    def _retry(self, stimulus: str, retried: list[str]) -> None:
        self.state.stimulus_retry(retried)

    def _report_key(self, stimulus: str, reported: str, client: str | None) -> None:
        self.state.report_on_key(reported, client=client)

    def _graph(self, stimulus: str, graph: Graph) -> None:
        nodes = {
            key: node(key, task.dependencies, task.data_producer)
            for key, task in graph.tasks.items()
        }
        annotations = {
            name: {key: task.annotations[name] for key, task in graph.tasks.items()}.get
            for name in graph.annotated
        }
        _run(
            self.state.update_graph(
                client=graph.client,
                expr_ser=_Expression(nodes),
                keys=vars(module)["set"](graph.wanted),
                span_metadata={"collections": []},
                internal_priority={key: task.order for key, task in graph.tasks.items()},
                submitting_task=graph.submitting_task,
                user_priority=graph.user_priority,
                actors=graph.actors or None,
                fifo_timeout=graph.fifo_timeout_s,
                annotations=annotations or None,
                stimulus_id=stimulus,
            )
        )

    def _task_finished(self, stimulus: str, startstops: list[Any], **message: Any) -> None:
        self.state.handle_task_finished(
            stimulus_id=stimulus,
            metadata={},
            thread=0,
            startstops=[
                {"action": action, "start": start, "stop": stop}
                for action, start, stop in startstops
            ],
            status="OK",
            **message,
        )

    def _task_erred(self, stimulus: str, **message: Any) -> None:
        self.state.handle_task_erred(stimulus_id=stimulus, **message)

    def _reschedule(self, stimulus: str, key: str, worker: str | None) -> None:
        self.state._reschedule(key, worker, stimulus_id=stimulus)

    def _long_running(
        self, stimulus: str, key: str, worker: str, run_id: int, compute_s: float | None
    ) -> None:
        self.state.handle_long_running(key, worker, run_id, compute_s, stimulus)

    def _add_keys(self, stimulus: str, address: str, added: list[str]) -> None:
        self.state.add_keys(address, added, stimulus)

    def _release_worker_data(self, stimulus: str, key: str, address: str) -> None:
        self.state.release_worker_data(key, address, stimulus)

    def _request_refresh_who_has(self, stimulus: str, asked: list[str], address: str) -> None:
        self.state.handle_request_refresh_who_has(asked, address, stimulus)

    def _acquire_replicas(self, stimulus: str, address: str, acquired: list[str]) -> None:
        self.state.request_acquire_replicas(address, acquired, stimulus_id=stimulus)

    def _remove_replicas(self, stimulus: str, address: str, removed: list[str]) -> None:
        self.state.request_remove_replicas(address, removed, stimulus_id=stimulus)

    def _update_data(self, stimulus: str, placed: list[Any], client: str | None) -> None:
        self.state.update_data(
            who_has={key: workers for key, _, workers in placed},
            nbytes={key: nbytes for key, nbytes, _ in placed if nbytes is not None},
            client=client,
        )

    def _restrictions(self, stimulus: str, key: str, addresses: list[str] | None) -> None:
        self.state.set_restrictions({key: addresses})


def node(key: str, dependencies: Iterable[str], data_producer: bool) -> Any:
    """Make what a graph has for a task."""
    inputs = [TaskRef(name) for name in dependencies]
    return Task(key, _nothing, *inputs, _data_producer=data_producer)


def _nothing(*inputs: object) -> None:
    """Stand for what tasks would run."""


def exception_name(exception: Any) -> Any:
    """Say what an exception is: what a task raised, or the scheduler's own with all it is of."""
    if exception is None or (isinstance(exception, bytes) and exception.startswith(b"raised")):
        return exception
    if isinstance(exception, bytes):
        found = pickle.loads(exception)
    else:
        found = deserialize(exception.header, exception.frames)
    of = [_plain(one) for one in found.args]
    return type(found).__name__, of


def _plain(one: Any) -> Any:
    if isinstance(one, WorkerState):
        return one.address
    return sorted(one) if isinstance(one, Set) else one
