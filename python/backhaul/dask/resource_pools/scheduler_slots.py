"""Where a scheduler sends tasks that ask for resources, and how many at a time.

Dask looks at what workers have, never at what is in use, and sends every such task immediately
(dask/distributed#6467). `ResourcePlaces` decides here: a worker gets as many tasks as it can run,
and as many again to go on with; the rest stays in the state ``no-worker`` until there is room.
Tasks without a thread do not count against the threads of a worker either: such a task is one of
its ``long_running`` from the beginning.

Nothing but the annotations of new tasks is read before a task asks for a resource.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from distributed import Scheduler, Status

from backhaul._native import ResourcePlaces, RoomState
from backhaul.dask.compat.arrivals import by_arrival
from backhaul.dask.compat.names import TaskState, WorkerState
from backhaul.dask.compat.resource_patches import SCHEDULER_SLOTS
from backhaul.dask.config.settings import beside_tasks_max
from backhaul.dask.resource_pools.request_index import (
    RequestClass,
    RequestIndex,
    ResourceSpec,
    forget_refused,
)
from backhaul.dask.resource_pools.requests import ANNOTATION, CPU, Needs, anyone_asks, needs_of
from backhaul.dask.resource_pools.worker_inventory import place_worker
from backhaul.dask.serialize.pickled_task import PickledTask

__all__ = ["SchedulerSlots", "install", "slots_of"]

logger = logging.getLogger(__name__)


def install(scheduler: Scheduler) -> bool:
    """Make a scheduler heed requests of tasks, and tell whether it does now; idempotent."""
    if slots_of(scheduler) is not None:
        return True
    beside_max = beside_tasks_max()
    if beside_max is None:
        return False
    # All but the one of work stealing, which may be switched off
    if not SCHEDULER_SLOTS.fits_on(scheduler, *SCHEDULER_SLOTS.slots[:-1]):
        return False
    SchedulerSlots(scheduler, beside_max=beside_max).attach()
    return True


def slots_of(scheduler: Scheduler) -> SchedulerSlots | None:
    """Find the slots of a scheduler; None if it has none."""
    method = vars(scheduler).get("_apply_annotations")
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, SchedulerSlots) else None


class SchedulerSlots:
    """Requests of one scheduler's tasks, and the workers that can meet them.

    At most `beside_max` concurrent tasks of a worker take less than a thread.
    """

    def __init__(self, scheduler: Scheduler, *, beside_max: int) -> None:
        self.scheduler: Any = scheduler
        self.beside_max = beside_max
        self.places = ResourcePlaces()
        self.asked = RequestIndex(self.places)
        #: Whether a task has asked for a resource yet
        self.is_active = False
        #: Tasks that were sent to a worker, by their `id`: two of one key are equal
        self.booked: dict[int, TaskState] = {}
        #: Tasks that there is no room for, by their `id`; some may not wait any more
        self.waiting: dict[int, TaskState] = {}
        self.numbers: dict[WorkerState, int] = {}
        self.by_number: dict[int, WorkerState] = {}
        self._next_number = 0
        self._warned: set[int] = set()
        self.drains = False
        #: Whether tasks wait that asked for threads by what is a resource of a worker by now
        self.reads_again = False
        self._upstream_apply = scheduler._apply_annotations
        self._upstream_add: Any = scheduler.add_resources
        self._upstream_remove: Any = scheduler.remove_resources
        self._upstream_decide: Any = scheduler.decide_worker_non_rootish
        self._upstream_is_rootish: Any = scheduler.is_rootish
        self._upstream_is_unoccupied: Any = scheduler.is_unoccupied
        self._upstream_acquire: Any = scheduler.acquire_resources
        self._upstream_release: Any = scheduler.release_resources
        self._upstream_long_running: Any = scheduler.stream_handlers["long-running"]

    def attach(self) -> None:
        """Take the place of what is asked at each graph, and of what zeroes what is in use."""
        SCHEDULER_SLOTS.install(
            self.scheduler,
            {
                "_apply_annotations": self.apply_annotations,
                "add_resources": self.add_resources,
                "handlers[set_resources]": self.add_resources,
            },
        )

    # Requests of tasks

    def apply_annotations(
        self,
        tasks: Iterable[TaskState],
        annotations_by_type: dict[str, Any],
        global_annotations: dict[str, Any] | None = None,
    ) -> Any:
        """Read annotations as upstream does, and then what functions ask for.

        The client gets the `ConfigError` of a request that is not possible.
        """
        tasks = list(tasks)
        with_annotations = self._upstream_apply(
            tasks=tasks,
            annotations_by_type=annotations_by_type,
            global_annotations=global_annotations,
        )
        looks = anyone_asks()
        if not looks and not with_annotations:
            return with_annotations
        try:
            for ts in tasks:
                # Its client has looked into one that is kept: it asks for nothing.
                is_looked_at = looks and type(ts.run_spec) is not PickledTask
                found = needs_of(ts.run_spec) if is_looked_at else None
                if found is not None or ts.resource_restrictions:
                    self._note(ts, found)
        except Exception:
            forget_refused(self.scheduler, tasks)
            raise
        return with_annotations

    def wanted(
        self, annotations: Mapping[str, Any], amounts: Mapping[str, float], found: Needs | None
    ) -> ResourceSpec | None:
        """Say what a task asks for that `backhaul.dask.scheduler.core` takes; as `RequestIndex`."""
        return self.asked.wanted(annotations, amounts, found, declares_cpu=self.declares_cpu)

    def is_outdated(self, ts: TaskState) -> bool:
        """Tell whether a task must be read again before it is sent, see `_read_again`."""
        is_sent = ts.state in ("processing", "memory", "erred")
        return self.declares_cpu and not is_sent and self.asked.asks_for_threads(ts)

    @property
    def declares_cpu(self) -> bool:
        """Return whether a worker has ``CPU`` as a resource of Dask's, which it then is."""
        return bool(self.scheduler.resources.get(CPU))

    def _note(self, ts: TaskState, found: Needs | None) -> None:
        if self.asked.note(ts, found, declares_cpu=self.declares_cpu):
            self.activate()

    def is_rootish(self, ts: TaskState) -> bool:
        """Tell whether a task may wait in the queue; one that takes no thread need not."""
        if ts.annotations and ANNOTATION in ts.annotations:
            return False
        return bool(self._upstream_is_rootish(ts))

    # Resources of workers

    def add_resources(self, worker: str, resources: dict[str, float] | None = None) -> str:
        """Note what a worker has; what is in use stays in use."""
        ws = self.scheduler.workers[worker]
        used = dict(ws.used_resources)
        declared_cpu = self.declares_cpu
        answer: str = self._upstream_add(worker=worker, resources=resources)
        for name, amount in used.items():
            ws.used_resources[name] = amount
        self.reads_again |= self.declares_cpu and not declared_cpu
        if self.is_active:
            self._set_worker(ws)
            self.drain_soon()
        return answer

    def remove_resources(self, worker: str) -> None:
        """Forget what a worker has that is leaving."""
        ws = self.scheduler.workers[worker]
        tasks = [id(ts) for ts in ws.processing]
        for task in tasks:
            self.booked.pop(task, None)
        number = self.numbers.pop(ws, None)
        if number is not None:
            del self.by_number[number]
            self.places.remove_worker(number, tasks)
        # Another one is kept, and what may run elsewhere while it cannot run here goes there.
        self._drain_what_waits()
        self._upstream_remove(worker)

    def change_status(self, status: Any, worker: Any, stimulus_id: str) -> None:
        """Note that a worker pauses or goes on: what may run elsewhere while it cannot here goes.

        Its class has what does so: another one while a core has the state.
        """
        scheduler = self.scheduler
        running = len(scheduler.running)
        if self.numbers:
            ws = scheduler.workers.get(worker) if isinstance(worker, str) else worker
            number = self.numbers.get(ws)
            if number is not None:
                # Before Dask's part, because that sends tasks to a worker that goes on.
                status = Status[status] if isinstance(status, str) else status
                self.places.set_running(number, status == Status.running)
        type(scheduler).handle_worker_status_change(scheduler, status, worker, stimulus_id)
        if len(scheduler.running) != running:
            self._drain_what_waits()

    def acquire(self, ts: TaskState, ws: WorkerState) -> None:
        """Note that a task was sent to a worker."""
        self._upstream_acquire(ts, ws)
        asked = self.asked.by(ts)
        if asked is None:
            return
        number = self.number_of(ws)
        counts = asked.is_beside and ts not in ws.long_running
        self.places.book(id(ts), asked.signature, number, ts.priority, counts)
        self.booked[id(ts)] = ts
        if counts:
            ws.add_to_long_running(ts)

    def release(self, ts: TaskState, ws: WorkerState) -> None:
        """Note that a task has left a worker, or has given back what it held there."""
        if self.booked.pop(id(ts), None) is None:
            return
        self._upstream_release(ts, ws)
        self.places.release(id(ts), self.numbers.get(ws))
        self._drain_what_waits()

    def handle_long_running(
        self, key: Any, worker: str, run_id: int, stimulus_id: str, **message: Any
    ) -> None:
        """Handle the message that a task has seceded: its worker has its resources back."""
        scheduler = self.scheduler
        ts, ws = scheduler.tasks.get(key), scheduler.workers.get(worker)
        if ts is None or ws is None or ts.processing_on is not ws or ts.run_id != run_id:
            self._upstream_long_running(
                key=key, worker=worker, run_id=run_id, stimulus_id=stimulus_id, **message
            )
            return
        if ts not in ws.long_running:
            self._upstream_long_running(
                key=key, worker=worker, run_id=run_id, stimulus_id=stimulus_id, **message
            )
        self.release(ts, ws)

    def is_unoccupied(self, ws: WorkerState, occupancy: float, nprocessing: int) -> bool:
        """Tell whether a worker has idle threads, whatever runs beside them."""
        number = self.numbers.get(ws)
        beside = 0 if number is None else self.places.beside(number)
        return bool(self._upstream_is_unoccupied(ws, occupancy, nprocessing - beside))

    # Where tasks go

    def decide_worker(self, ts: TaskState) -> WorkerState | None:
        """Choose a worker for a task that is no root, or asks for something."""
        self._read_again(ts)
        asked = self.asked.by(ts)
        if asked is None or ts.actor:
            found: WorkerState | None = self._upstream_decide(ts)
            return found
        if not self.scheduler.running:
            return None
        if len(self.numbers) != len(self.scheduler.workers):
            self.meet_workers()
        if ts.worker_restrictions or ts.host_restrictions:
            running = self.scheduler.running
            allowed = self.scheduler.valid_workers(ts) or ()
            if not allowed and ts.loose_restrictions:
                allowed = running
            candidates: Iterable[WorkerState] = [ws for ws in allowed if ws in running]
        else:
            candidates = self._candidates(ts, asked)
        number = self._choose(ts, asked, candidates)
        if number is not None:
            return self.by_number[number]
        self.waiting[id(ts)] = ts
        reason = self.places.wait(*_in_line(ts, asked))
        if reason is not None:
            self.warn_unmet(ts.key, asked, reason)
        return None

    def _read_again(self, ts: TaskState) -> None:
        """Read the meaning of ``CPU`` for a task again, where that is a resource of a worker."""
        if self.declares_cpu and self.asked.asks_for_threads(ts):
            self.places.leave_line(id(ts))
            self.asked.read_again(ts)

    @property
    def _keeps(self) -> bool:
        """Return whether tasks wait here for room.

        With a timeout for tasks that no worker can run, Dask would fail those that wait: in the
        same state, and for as long as others run.
        """
        return self.scheduler.no_workers_timeout is None

    def _candidates(self, ts: TaskState, asked: RequestClass) -> Iterable[WorkerState]:
        """List the workers that hold inputs, and the least loaded one."""
        running = self.scheduler.running
        found = dict.fromkeys(
            ws for dts in ts.dependencies for ws in dts.who_has or () if ws in running
        )
        least_loaded = self.places.least_loaded(asked.signature)
        if least_loaded is not None:
            found[self.by_number[least_loaded]] = None
        return found

    def _choose(
        self, ts: TaskState, asked: RequestClass, candidates: Iterable[WorkerState]
    ) -> int | None:
        """Choose, of those with room, the one where the task can begin first."""
        scheduler = self.scheduler
        if not ts.dependencies:
            transfers_s = [(self.number_of(ws), 0.0) for ws in candidates]
            return self.places.choose(asked.signature, transfers_s, 0.0, self._keeps)
        transfers_s = [(self.number_of(ws), scheduler.get_comm_cost(ts, ws)) for ws in candidates]
        duration_s = scheduler._get_prefix_duration(ts.prefix)
        return self.places.choose(asked.signature, transfers_s, duration_s, self._keeps)

    def warn_unmet(self, key: Any, asked: RequestClass, reason: str) -> None:
        """Say that no worker can meet what a task asks for; once for each request."""
        if asked.signature in self._warned:
            return
        self._warned.add(asked.signature)
        logger.warning(
            "Task %r asks for %r, which no worker can ever meet: %s. It waits for a worker that "
            "can.",
            key,
            asked.needs,
            reason,
        )

    def drain_soon(self) -> None:
        """Send what waits, once all that happens now has been handled."""
        if not self.drains:
            self.drains = True
            self.scheduler.loop.asyncio_loop.call_soon(self.drain)

    def _drain_what_waits(self) -> None:
        if self.places.has_lines:
            self.drain_soon()

    def drain(self) -> None:
        """Send as many of the tasks that wait as workers have room for, the first ones first."""
        self.drains = False
        if self.reads_again:
            self.reads_again = False
            waiting = [ts for ts in self.scheduler.unrunnable if self.asked.asks_for_threads(ts)]
            again = {ts.key: "processing" for ts in waiting}
            self.scheduler.transitions(again, stimulus_id="resources-are-threads-no-more")
        self.places.drain(self._waits, self._may_go, self._send)

    def _waits(self, task: int) -> bool:
        """Tell whether a task still waits; forgets one that does not."""
        # None if its restrictions have changed, and it left another line than this one.
        ts = self.waiting.get(task)
        waits = ts is not None and ts.state == "no-worker"
        if not waits:
            # It was sent, just now or when a worker joined, or no client wants it any more.
            self.waiting.pop(task, None)
        return waits

    def _send(self, task: int) -> bool:
        ts = self.waiting[task]
        self.scheduler.transitions({ts.key: "processing"}, stimulus_id=f"resources-free-{ts.key}")
        return self._waits(task)

    def _may_go(self, task: int) -> bool:
        """Tell whether a task bound to some workers may find room; cheaper than to look for it."""
        ts = self.waiting[task]
        asked = self.asked.by(ts)
        if asked is None or ts.loose_restrictions or not self._keeps:
            return True
        if not ts.worker_restrictions and not ts.host_restrictions:
            return True
        running = self.scheduler.running
        return any(
            ws in running and self.places.has_room(asked.signature, self.number_of(ws))
            for ws in _named_workers(self.scheduler, ts)
        )

    # Workers by number

    def activate(self, *, books: bool = True) -> None:
        """Take the place of whatever decides, from the first task on that asks for something.

        `books` says whether the tasks that workers have hold what they ask for.
        """
        if self.is_active:
            return
        self.is_active = True
        scheduler = self.scheduler
        # `backhaul.dask.placement.link_placement` may have taken their places meanwhile.
        self._upstream_decide = scheduler.decide_worker_non_rootish
        self._upstream_is_rootish = scheduler.is_rootish
        ours: dict[str, Any] = {
            "remove_resources": self.remove_resources,
            "decide_worker_non_rootish": self.decide_worker,
            "is_rootish": self.is_rootish,
            "is_unoccupied": self.is_unoccupied,
            "acquire_resources": self.acquire,
            "release_resources": self.release,
            "stream_handlers[long-running]": self.handle_long_running,
            "handle_worker_status_change": self.change_status,
            "stream_handlers[worker-status-change]": self.change_status,
        }
        stealing = scheduler.extensions.get("stealing")
        if stealing is not None:
            ratio = stealing.steal_time_ratio

            def steal_time_ratio(ts: TaskState) -> Any:
                # Tasks that wait here go where there is room, before they could be stolen.
                asked = self.asked.by(ts)
                is_kept = asked is not None and (self._keeps or asked.is_beside)
                return (None, None) if is_kept else ratio(ts)

            ours["extensions[stealing].steal_time_ratio"] = steal_time_ratio
        SCHEDULER_SLOTS.install(scheduler, ours)
        self.meet_workers()
        for ws in scheduler.workers.values() if books else ():
            for ts in ws.processing:
                self.book(ts, ws)

    def book(self, ts: TaskState, ws: WorkerState, *, counts: bool = False) -> None:
        """Note that a worker has a task; counts one that takes less than a thread."""
        asked = self.asked.by(ts)
        if asked is not None:
            counts = counts and asked.is_beside
            self.places.inherit_booking(id(ts), asked.signature, self.number_of(ws), counts)
            self.booked[id(ts)] = ts

    # While `backhaul.dask.scheduler.core` has the state

    def clear(self) -> None:
        """Clear all that depends on tasks and workers: from now on a core decides."""
        self.places.clear()
        for members in (self.booked, self.waiting, self.numbers, self.by_number):
            members.clear()
        self.reads_again = False

    def state(self, key_text: Callable[[Any], str]) -> RoomState:
        """Return which tasks hold what they ask for and which wait, by their keys as texts."""
        tasks = self.scheduler.tasks
        booked = [ts for ts in self.booked.values() if tasks.get(ts.key) is ts]
        booked.sort(key=lambda ts: ts.run_id)
        waiting = {
            number: key_text(ts.key)
            for number, ts in self.waiting.items()
            if ts.state == "no-worker" and tasks.get(ts.key) is ts
        }
        return self.places.state(
            [key_text(ts.key) for ts in booked],
            waiting,
            {number: ws.address for number, ws in self.by_number.items()},
            drains=self.drains,
        )

    def resume(self, state: RoomState, task_of: Callable[[str], TaskState]) -> None:
        """Decide again, with the tasks and the state of a core; nothing is booked or waits here."""
        self.activate(books=False)
        self.meet_workers()
        for text in state.booked:
            ts = task_of(text)
            if ts.processing_on is not None:
                self.book(ts, ts.processing_on, counts=True)
        for text in state.waiting:
            ts = task_of(text)
            asked = self.asked.by(ts)
            if asked is not None:
                self.waiting[id(ts)] = ts
                self.places.join_line(*_in_line(ts, asked))
        self.places.inherit(state, {ws.address: number for ws, number in self.numbers.items()})
        self.reads_again = self.declares_cpu
        if state.drains or self.reads_again:
            self.drain_soon()

    # Workers by number

    def meet_workers(self) -> None:
        """Give each new worker a number, in the order in which they joined."""
        for ws in by_arrival(self.scheduler):
            if ws not in self.numbers:
                self._set_worker(ws)

    def number_of(self, ws: WorkerState) -> int:
        """Return the number of a worker in the places."""
        number = self.numbers.get(ws)
        return self._set_worker(ws) if number is None else number

    def _set_worker(self, ws: WorkerState) -> int:
        number = self.numbers.get(ws)
        if number is None:
            number = self._next_number
            self._next_number += 1
            self.numbers[ws] = number
            self.by_number[number] = ws
        place_worker(self.places, number, ws, self.beside_max)
        self.places.set_running(number, ws.status == Status.running)
        return number


def _in_line(ts: TaskState, asked: RequestClass) -> tuple[Any, ...]:
    """Return the arguments of `ResourcePlaces.wait`: a task, its request and where it may run."""
    workers, hosts = list(ts.worker_restrictions or ()), list(ts.host_restrictions or ())
    return id(ts), asked.signature, workers, hosts, bool(ts.loose_restrictions), ts.priority


def _named_workers(scheduler: Any, ts: TaskState) -> Iterator[WorkerState]:
    """Go through the workers that restrictions of a task name, by address or by host."""
    addresses = list(ts.worker_restrictions or ())
    for host in ts.host_restrictions or ():
        info = scheduler.host_info.get(scheduler.coerce_hostname(host), {})
        addresses += info.get("addresses", ())
    for address in addresses:
        ws = scheduler.workers.get(address)
        if ws is not None:
            yield ws
