"""The in-flight window of each worker: queued tasks that are sent before they are needed.

The scheduler holds root tasks back in a queue and gives a worker 1.1 times as many as it has
threads, so each short task waits for a round trip. `install` lets it send more, several at once:
whenever a worker is down to half of what it was sent, it is filled up to what `saturation` allows.
All that upstream's queue does stays as it is, and comes first; what is sent here comes on top.

Tasks that were sent on a wrong guess are stolen back: see `window_recall`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from backhaul.dask.compat.instance_patches import WINDOW
from backhaul.dask.compat.names import TaskGroup, TaskState, WorkerState
from backhaul.dask.compat.patching import Replacement
from backhaul.dask.config.settings import WindowLimits, work_in_hand_limits
from backhaul.dask.scheduler.saturation import (
    Expectation,
    InFlight,
    excess_tasks,
    floor_tasks,
    room_tasks,
)
from backhaul.dask.scheduler.window_recall import StealBack

if TYPE_CHECKING:
    from backhaul.dask.placement.root_plan import RootPlan

__all__ = ["UPSTREAM_SATURATION", "InFlightWindow", "install", "installed", "uninstall"]

#: The default of ``distributed.scheduler.worker-saturation``. Another value was chosen by someone.
UPSTREAM_SATURATION = 1.1

#: Groups whose finished tasks are counted; when there are more, all counts start again.
GROUPS_MAX = 10_000


def install(scheduler: Scheduler) -> bool:
    """Keep the workers of a scheduler filled.

    Does nothing if ``distributed.comm.backhaul.work-in-hand.enabled`` is false, if
    ``distributed.scheduler.worker-saturation`` has been set to something other than its default,
    or, with a warning in the log, if the scheduler does not look like one we know.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        Before or after it has started.

    Returns
    -------
    bool
        Whether it is in force now.

    Raises
    ------
    ValueError
        If the configuration cannot be understood.
    """
    if installed(scheduler) is not None:
        return True
    limits = work_in_hand_limits()
    if limits is None or scheduler.WORKER_SATURATION != UPSTREAM_SATURATION:
        return False
    if not WINDOW.fits_on(scheduler):
        return False
    InFlightWindow(scheduler, limits).attach()
    return True


def uninstall(scheduler: Scheduler) -> None:
    """Leave the scheduler as upstream made it; does nothing if we are not installed.

    Tasks that have been sent stay where they are.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The one that was given to `install`.
    """
    window = installed(scheduler)
    if window is not None:
        window.detach()


class InFlightWindow:
    """Watches tasks finish on one scheduler, and sends out more of them.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    limits : WindowLimits
        How far the window of a worker opens.

    Notes
    -----
    Two things are replaced on the instance: the handler of ``task-finished``, which calls
    upstream's before it looks at the worker, and the choice of a worker for a queued task, which
    is upstream's unless a worker is being filled. ``idle_task_count`` keeps upstream's meaning, and
    with it all that upstream asserts about the queue.
    """

    def __init__(self, scheduler: Scheduler, limits: WindowLimits) -> None:
        self.scheduler = scheduler
        self.limits = limits
        #: By name of the prefix
        self.expectations: dict[str, Expectation] = {}
        #: Tasks that have finished, by name of the group
        self.confirmed: dict[str, int] = {}
        #: A worker is filled again when it has no more tasks in flight than this; by address
        self.low_tasks: dict[str, int] = {}
        self.steal_back = StealBack(scheduler)
        #: Who is to run which queued task, if that is planned
        self.roots: RootPlan | None = None
        self._target: WorkerState | None = None
        self._upstream_finished: Callable[..., None] = scheduler.handle_task_finished
        self._upstream_decide: Callable[[], WorkerState | None] = (
            scheduler.decide_worker_rootish_queuing_enabled
        )
        self._replaced: list[Replacement] = []

    def attach(self) -> None:
        """Take our place on the scheduler."""
        finished = "stream_handlers[task-finished]"
        ours = {
            finished: self.handle_task_finished,
            "decide_worker_rootish_queuing_enabled": self.decide_worker,
        }
        replaced = WINDOW.install(self.scheduler, ours)
        self._upstream_finished = replaced[finished].original
        self._replaced = list(replaced.values())
        self.steal_back.attach()

    def detach(self) -> None:
        """Give it up again."""
        for replacement in self._replaced:
            replacement.take_back()
        self.steal_back.detach()

    def decide_worker(self) -> WorkerState | None:
        """Choose a worker for a task that leaves the queue."""
        target, self._target = self._target, None
        if target is not None:
            return target
        return self._upstream_decide() if self.roots is None else self.roots.decide_worker()

    @property
    def upstream_decide(self) -> Callable[[], WorkerState | None]:
        """What upstream chooses a worker for a queued task by."""
        return self._upstream_decide

    def handle_task_finished(self, key: Any, worker: str, stimulus_id: str, **message: Any) -> None:
        """Handle the message; takes the place of `distributed.Scheduler.handle_task_finished`."""
        scheduler = self.scheduler
        ts = scheduler.tasks.get(key)
        ws = scheduler.workers.get(worker)
        if ts is None or ws is None or ts.processing_on is not ws:
            self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)
            return
        surprised = self.observe(ts.group.name, ts.prefix.name, message)
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)
        if surprised:
            self.give_back(ts.prefix.name)
        tasks = len(ws.processing) - len(ws.long_running)
        if tasks <= self.low_tasks.get(worker, tasks) and scheduler.queued:
            self.fill(ws, stimulus_id)

    def fill(self, ws: WorkerState, stimulus_id: str) -> int:
        """Send a worker as many tasks from the front of its queue as it has room for.

        Parameters
        ----------
        ws : distributed.scheduler.WorkerState
            The worker.
        stimulus_id : str
            What led to this.

        Returns
        -------
        int
            Number of tasks sent.
        """
        scheduler = self.scheduler
        sent = 0
        client_msgs: dict[str, list[Any]] = {}
        worker_msgs: dict[str, list[Any]] = {}
        try:
            while ws in scheduler.running and (ts := self._front(ws)) is not None:
                group = ts.group
                room = self._room(ws, group)
                if not room:
                    break
                while room and ts is not None and ts.group is group:
                    self._target = ws
                    if self.roots is not None:
                        self.roots.give(ts)
                    recommendations: Any = {ts.key: "processing"}
                    scheduler._transitions(recommendations, client_msgs, worker_msgs, stimulus_id)
                    room -= 1
                    sent += 1
                    ts = self._front(ws)
                if not room:
                    break
        finally:
            self._target = None
            # As `Scheduler.transitions` after each: here one message for all of them.
            scheduler.send_all(client_msgs, worker_msgs)
        tasks = len(ws.processing) - len(ws.long_running)
        self.note_filled(ws.address, max(tasks // 2, self._floor_tasks(ws)))
        return sent

    def learn_anew(self, expectations: dict[str, Expectation], confirmed: dict[str, int]) -> None:
        """Take over what was learned where others have filled the workers meanwhile."""
        self.expectations = expectations
        self.confirmed = confirmed

    def note_filled(self, worker: str, low_tasks: int) -> None:
        """Note how few tasks a worker may have in flight before it is filled again."""
        workers = self.scheduler.workers
        if len(self.low_tasks) > 2 * len(workers):
            self.low_tasks = {
                worker: low for worker, low in self.low_tasks.items() if worker in workers
            }
        self.low_tasks[worker] = low_tasks

    def nothing_in_flight(self, ws: WorkerState) -> InFlight:
        """Say what a worker has room for, before what is in flight is counted."""
        used_bytes = max(ws.metrics.get("memory", 0), ws.nbytes)
        return InFlight(
            threads=max(1, ws.nthreads),
            budget_bytes=self.limits.budget_bytes(
                memory_limit_bytes=ws.memory_limit, memory_used_bytes=used_bytes
            ),
        )

    def in_flight(self, ws: WorkerState) -> InFlight | None:
        """Sum up what is in flight to a worker; None if it is not known what that will take."""
        in_flight = self.nothing_in_flight(ws)
        for prefix, tasks in ws.task_prefix_count.items():
            expectation = self.expectations.get(prefix)
            if expectation is None:
                return None
            in_flight.add(tasks, expectation)
        return in_flight

    def _front(self, ws: WorkerState) -> TaskState | None:
        """Look at the queued task that a worker is to be sent next, before it is idle."""
        if self.roots is not None:
            return self.roots.front_for(ws, of_others=False)
        queued = self.scheduler.queued
        return queued.peek() if queued else None

    def observe(self, group: str, prefix: str, message: dict[str, Any]) -> bool:
        """Learn from a task that ended, and return whether what we thought of it was wrong."""
        seconds = 0.0
        for startstop in message["startstops"]:
            if startstop["action"] == "compute":
                seconds += startstop["stop"] - startstop["start"]
        confirmed = self.confirmed.get(group)
        if confirmed is None:
            confirmed = 0
            if len(self.confirmed) >= GROUPS_MAX:
                self.confirmed.clear()
        self.confirmed[group] = confirmed + 1
        nbytes = message["nbytes"] or 0
        expectation = self.expectations.get(prefix)
        if expectation is None:
            self.expectations[prefix] = Expectation(seconds, nbytes)
            return False
        return expectation.observe(seconds, nbytes)

    def _room(self, ws: WorkerState, group: TaskGroup) -> int:
        """Room for tasks of the group at the front of the queue."""
        confirmed = self.confirmed.get(group.name, 0)
        expectation = self.expectations.get(group.prefix.name)
        # A negative average: upstream has forgotten it, as a task has been running for far
        # longer than that.
        if expectation is None or not confirmed or group.prefix.duration_average < 0:
            return 0
        in_flight = self.in_flight(ws)
        if in_flight is None:
            return 0
        expectation.act()
        return room_tasks(
            self.limits,
            in_flight,
            expectation,
            floor_tasks=self._floor_tasks(ws),
            confirmed=confirmed,
            queued=len(self.scheduler.queued),
            threads_all=self.scheduler.total_nthreads,
        )

    def give_back(self, prefix: str) -> None:
        """Steal tasks of one kind back from every worker that has too many."""
        expectation = self.expectations[prefix]
        expectation.act()
        for ws in self.scheduler.workers.values():
            floor = self._floor_tasks(ws)
            if ws.task_prefix_count.get(prefix, 0) <= floor:
                continue
            in_flight = self.in_flight(ws)
            if in_flight is None:
                continue
            excess = excess_tasks(self.limits, in_flight, expectation, floor_tasks=floor)
            if excess:
                self.steal_back.ask(ws, prefix, excess)

    def _floor_tasks(self, ws: WorkerState) -> int:
        return floor_tasks(ws.nthreads, self.scheduler.WORKER_SATURATION)


def installed(scheduler: Scheduler) -> InFlightWindow | None:
    """Get what keeps the workers of a scheduler filled; None if nothing does."""
    method = vars(scheduler).get("decide_worker_rootish_queuing_enabled")
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, InFlightWindow) else None
