"""In-flight window of each worker: queued tasks that are sent before they are needed.

The scheduler holds root tasks back in a queue and gives a worker 1.1 times as many as it has
threads, so each short task waits for a round trip. `install` lets the scheduler send more, several
in one step: whenever a worker is down to half of what it was sent, it is filled up to the limit of
the policy, which is in Rust (`backhaul._native.WindowPolicy`). Upstream's queue stays as it is, and
comes first; these tasks come on top.

Tasks that were sent because of a wrong expectation are stolen back: see `window_recall`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from backhaul._native import WindowPolicy, WorkerLoad
from backhaul.dask.compat.instance_patches import WINDOW
from backhaul.dask.compat.names import TaskGroup, TaskState, WorkerState
from backhaul.dask.compat.patching import Replacement
from backhaul.dask.config.settings import WindowLimits, work_in_hand_limits
from backhaul.dask.scheduler.window_recall import StealBack

__all__ = [
    "UPSTREAM_SATURATION",
    "InFlightWindow",
    "compute_seconds",
    "install",
    "installed",
    "uninstall",
]

#: The default of ``distributed.scheduler.worker-saturation``. Another value was chosen by someone.
UPSTREAM_SATURATION = 1.1


def install(scheduler: Scheduler) -> bool:
    """Keep the workers of a scheduler filled; tell whether that is in force now.

    Does nothing if ``distributed.comm.backhaul.work-in-hand.enabled`` is false, if
    ``distributed.scheduler.worker-saturation`` has been set to something other than its default,
    or, with a warning in the log, if the scheduler does not look like one we know.
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
    """
    window = installed(scheduler)
    if window is not None:
        window.detach()


class InFlightWindow:
    """Watches tasks finish on one scheduler, and sends out more of them.

    Two things are replaced on the instance: the handler of ``task-finished``, which calls
    upstream's before it looks at the worker, and the choice of a worker for a queued task, which is
    upstream's unless a worker is being filled. ``idle_task_count`` keeps upstream's meaning, and
    with it all that upstream asserts about the queue.

    Attributes
    ----------
    policy : backhaul._native.WindowPolicy
        The expectations, and the limit of each worker that follows.
    """

    def __init__(self, scheduler: Scheduler, limits: WindowLimits) -> None:
        self.scheduler = scheduler
        self.limits = limits
        self.policy = WindowPolicy(
            seconds=limits.seconds,
            tasks_per_thread=limits.tasks_per_thread,
            memory_share=limits.memory_share,
            memory_budget_bytes=limits.memory_budget_bytes,
            saturation=scheduler.WORKER_SATURATION,
        )
        self.steal_back = StealBack(scheduler)
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
        return self._upstream_decide() if target is None else target

    def handle_task_finished(self, key: Any, worker: str, stimulus_id: str, **message: Any) -> None:
        """Handle the message; takes the place of `distributed.Scheduler.handle_task_finished`."""
        scheduler = self.scheduler
        ts = scheduler.tasks.get(key)
        ws = scheduler.workers.get(worker)
        if ts is None or ws is None or ts.processing_on is not ws:
            self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)
            return
        surprised = self.policy.observe(
            str(ts.group.name), ts.prefix.name, compute_seconds(message), message["nbytes"] or 0
        )
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)
        if surprised:
            self.give_back(ts.prefix.name)
        tasks = len(ws.processing) - len(ws.long_running)
        if scheduler.queued and self.policy.is_low(worker, tasks):
            self.fill(ws, stimulus_id)

    def fill(self, ws: WorkerState, stimulus_id: str) -> int:
        """Send a worker as many tasks from the front of its queue as it has room for."""
        scheduler = self.scheduler
        sent = 0
        client_msgs: dict[str, list[Any]] = {}
        worker_msgs: dict[str, list[Any]] = {}
        try:
            while ws in scheduler.running and (ts := self._front()) is not None:
                group = ts.group
                room = self._room(ws, group)
                if not room:
                    break
                while room and ts is not None and ts.group is group:
                    self._target = ws
                    recommendations: Any = {ts.key: "processing"}
                    scheduler._transitions(recommendations, client_msgs, worker_msgs, stimulus_id)
                    room -= 1
                    sent += 1
                    ts = self._front()
                if not room:
                    break
        finally:
            self._target = None
            # As `Scheduler.transitions` after each: here one message for all of them.
            scheduler.send_all(client_msgs, worker_msgs)
        tasks = len(ws.processing) - len(ws.long_running)
        self.policy.note_filled(ws.address, tasks, ws.nthreads)
        return sent

    def _front(self) -> TaskState | None:
        queued = self.scheduler.queued
        return queued.peek() if queued else None

    def _room(self, ws: WorkerState, group: TaskGroup) -> int:
        """Return the room for tasks of the group at the front of the queue."""
        return self.policy.room(
            str(group.name),
            group.prefix.name,
            _load(ws),
            duration_s=group.prefix.duration_average,
            queued=len(self.scheduler.queued),
            threads_all=self.scheduler.total_nthreads,
        )

    def give_back(self, prefix: str) -> None:
        """Steal tasks of one kind back from every worker that has too many."""
        workers = [ws for ws in self.scheduler.workers.values() if prefix in ws.task_prefix_count]
        excess = self.policy.excess(prefix, list(map(_load, workers)))
        for ws, tasks in zip(workers, excess, strict=True):
            if tasks:
                self.steal_back.ask(ws, prefix, tasks)


def _load(ws: WorkerState) -> WorkerLoad:
    """Return what a worker has room for, and the tasks in flight to it."""
    return WorkerLoad(
        threads=ws.nthreads,
        memory_limit=ws.memory_limit,
        used_bytes=max(ws.metrics.get("memory", 0), ws.nbytes),
        tasks=ws.task_prefix_count,
    )


def compute_seconds(message: dict[str, Any]) -> float:
    """Return how long a task ran by its worker's report, in seconds."""
    return sum(
        (one["stop"] - one["start"] for one in message["startstops"] if one["action"] == "compute"),
        0.0,
    )


def installed(scheduler: Scheduler) -> InFlightWindow | None:
    """Return the window that keeps the workers of a scheduler filled; None if there is none."""
    method = vars(scheduler).get("decide_worker_rootish_queuing_enabled")
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, InFlightWindow) else None
