"""Keeps each worker filled with a little work, as long as that work is short and light.

The scheduler holds root tasks back in a queue and gives a worker 1.1 times as many as it has
threads, so each short task waits for a round trip. `install` lets it send more, in gulps: whenever
a worker is down to half of what it was given, it is filled up to what `saturation` allows. All
that upstream's queue does stays as it is, and comes first; what is sent here comes on top.

A guess that turns out to be wrong is mended: see `recall`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Scheduler

from backhaul.dask.config import work_in_hand_limits
from backhaul.dask.facts import queue_difference
from backhaul.dask.private import TaskGroup, TaskState, WorkerState
from backhaul.dask.recall import Recall
from backhaul.dask.saturation import (
    Expectation,
    Hand,
    Limits,
    excess_tasks,
    floor_tasks,
    room_tasks,
)

__all__ = ["UPSTREAM_SATURATION", "WorkInHand", "install", "uninstall"]

logger = logging.getLogger(__name__)

#: The default of ``distributed.scheduler.worker-saturation``. Another value was chosen by someone.
UPSTREAM_SATURATION = 1.1

#: Groups whose finished tasks are counted; when there are more, all counts start again.
GROUPS_MAX = 10_000

_STREAM_OP = "task-finished"
_DECIDE = "decide_worker_rootish_queuing_enabled"

_warned = False


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
    if _installed(scheduler) is not None:
        return True
    limits = work_in_hand_limits()
    if limits is None or scheduler.WORKER_SATURATION != UPSTREAM_SATURATION:
        return False
    difference = queue_difference(scheduler)
    if difference is not None:
        _warn_once(difference)
        return False
    WorkInHand(scheduler, limits).attach()
    return True


def uninstall(scheduler: Scheduler) -> None:
    """Leave the scheduler as upstream made it; does nothing if we are not installed.

    Tasks that have been sent stay where they are.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The one that was given to `install`.
    """
    installed = _installed(scheduler)
    if installed is not None:
        installed.detach()


class WorkInHand:
    """Watches tasks finish on one scheduler, and sends out more of them.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    limits : Limits
        What a worker may have in hand.

    Notes
    -----
    Two things are replaced on the instance: the handler of ``task-finished``, which calls
    upstream's before it looks at the worker, and the choice of a worker for a queued task, which
    is upstream's unless a gulp is being sent. ``idle_task_count`` keeps upstream's meaning, and
    with it all that upstream asserts about the queue.
    """

    def __init__(self, scheduler: Scheduler, limits: Limits) -> None:
        self.scheduler = scheduler
        self.limits = limits
        #: By name of the prefix
        self.expectations: dict[str, Expectation] = {}
        #: Tasks that have finished, by name of the group
        self.confirmed: dict[str, int] = {}
        #: A worker is filled again when it has no more tasks in hand than this; by address
        self.low_tasks: dict[str, int] = {}
        self.recall = Recall(scheduler)
        self._target: WorkerState | None = None
        self._upstream_finished: Callable[..., None] = scheduler.handle_task_finished
        self._upstream_decide: Callable[[], WorkerState | None] = (
            scheduler.decide_worker_rootish_queuing_enabled
        )

    def attach(self) -> None:
        """Take our place on the scheduler."""
        self._upstream_finished = self.scheduler.stream_handlers[_STREAM_OP]
        self.scheduler.stream_handlers[_STREAM_OP] = self.handle_task_finished
        setattr(self.scheduler, _DECIDE, self.decide_worker)
        self.recall.attach()

    def detach(self) -> None:
        """Give it up again."""
        handlers = self.scheduler.stream_handlers
        if handlers[_STREAM_OP] == self.handle_task_finished:
            handlers[_STREAM_OP] = self._upstream_finished
        delattr(self.scheduler, _DECIDE)
        self.recall.detach()

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
        surprised = self._observe(ts, message)
        self._upstream_finished(key=key, worker=worker, stimulus_id=stimulus_id, **message)
        if surprised:
            self._take_back(ts.prefix.name)
        tasks = len(ws.processing) - len(ws.long_running)
        if tasks <= self.low_tasks.get(worker, tasks) and scheduler.queued:
            self.fill(ws, stimulus_id)

    def fill(self, ws: WorkerState, stimulus_id: str) -> int:
        """Send a worker as many tasks from the front of the queue as it has room for.

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
        queued = scheduler.queued
        sent = 0
        client_msgs: dict[str, list[Any]] = {}
        worker_msgs: dict[str, list[Any]] = {}
        try:
            while queued and ws in scheduler.running:
                group = queued.peek().group
                room = self._room(ws, group)
                if not room:
                    break
                while room and queued and (ts := queued.peek()).group is group:
                    self._target = ws
                    recommendations: Any = {ts.key: "processing"}
                    scheduler._transitions(recommendations, client_msgs, worker_msgs, stimulus_id)
                    room -= 1
                    sent += 1
                if not room:
                    break
        finally:
            self._target = None
            # As `Scheduler.transitions` after each: here one message for all of them.
            scheduler.send_all(client_msgs, worker_msgs)
        in_hand = len(ws.processing) - len(ws.long_running)
        if len(self.low_tasks) > 2 * len(scheduler.workers):
            self.low_tasks = {
                worker: low for worker, low in self.low_tasks.items() if worker in scheduler.workers
            }
        self.low_tasks[ws.address] = max(in_hand // 2, self._floor_tasks(ws))
        return sent

    def hand(self, ws: WorkerState) -> Hand | None:
        """Sum up what a worker has in hand; None if it is not known what that will take."""
        used_bytes = max(ws.metrics.get("memory", 0), ws.nbytes)
        hand = Hand(
            threads=max(1, ws.nthreads),
            budget_bytes=self.limits.budget_bytes(
                memory_limit_bytes=ws.memory_limit, memory_used_bytes=used_bytes
            ),
        )
        for prefix, tasks in ws.task_prefix_count.items():
            expectation = self.expectations.get(prefix)
            if expectation is None:
                return None
            hand.add(tasks, expectation)
        return hand

    def _observe(self, ts: TaskState, message: dict[str, Any]) -> bool:
        """Learn from a task, and return whether what we thought of it was wrong."""
        seconds = 0.0
        for startstop in message["startstops"]:
            if startstop["action"] == "compute":
                seconds += startstop["stop"] - startstop["start"]
        group = ts.group.name
        confirmed = self.confirmed.get(group)
        if confirmed is None:
            confirmed = 0
            if len(self.confirmed) >= GROUPS_MAX:
                self.confirmed.clear()
        self.confirmed[group] = confirmed + 1
        nbytes = message["nbytes"] or 0
        expectation = self.expectations.get(ts.prefix.name)
        if expectation is None:
            self.expectations[ts.prefix.name] = Expectation(seconds, nbytes)
            return False
        return expectation.observe(seconds, nbytes)

    def _room(self, ws: WorkerState, group: TaskGroup) -> int:
        """Room for tasks of the group at the front of the queue."""
        confirmed = self.confirmed.get(group.name, 0)
        expectation = self.expectations.get(group.prefix.name)
        # A heartbeat tells of a task that has been running for far longer than it should:
        # upstream then forgets the duration.
        if expectation is None or not confirmed or group.prefix.duration_average < 0:
            return 0
        hand = self.hand(ws)
        if hand is None:
            return 0
        expectation.act()
        return room_tasks(
            self.limits,
            hand,
            expectation,
            floor_tasks=self._floor_tasks(ws),
            confirmed=confirmed,
            queued=len(self.scheduler.queued),
            threads_all=self.scheduler.total_nthreads,
        )

    def _take_back(self, prefix: str) -> None:
        """Take tasks of one kind back from every worker that has too many."""
        expectation = self.expectations[prefix]
        expectation.act()
        for ws in self.scheduler.workers.values():
            floor = self._floor_tasks(ws)
            if ws.task_prefix_count.get(prefix, 0) <= floor or (hand := self.hand(ws)) is None:
                continue
            excess = excess_tasks(self.limits, hand, expectation, floor_tasks=floor)
            if excess:
                self.recall.ask(ws, prefix, excess)

    def _floor_tasks(self, ws: WorkerState) -> int:
        return floor_tasks(ws.nthreads, self.scheduler.WORKER_SATURATION)


def _installed(scheduler: Scheduler) -> WorkInHand | None:
    method = vars(scheduler).get(_DECIDE)
    owner = getattr(method, "__self__", None)
    return owner if isinstance(owner, WorkInHand) else None


def _warn_once(difference: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "workers are not kept filled: this release of distributed has %s", difference
        )
