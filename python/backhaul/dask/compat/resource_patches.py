"""Patches on a scheduler and its workers so that tasks get resources with identity.

Of the list in `backhaul.dask.compat.process_patches` the part for
`backhaul.dask.resource_pools.worker_state` and `backhaul.dask.resource_pools.scheduler_slots`.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.patching import InstancePatch, of

__all__ = [
    "ACQUIRE_RESOURCES",
    "ADD_RESOURCES",
    "ANNOTATIONS_APPLIED",
    "BESIDE_EXECUTOR",
    "CONSTRAINED_TASKS",
    "EXECUTE",
    "IS_ROOTISH",
    "IS_UNOCCUPIED",
    "LONG_RUNNING",
    "NON_ROOT_DECISION",
    "READY_TASKS",
    "REJOIN_LOCK",
    "RELEASE_RESOURCES",
    "REMOVE_RESOURCES",
    "RESOURCE_PATCHES",
    "SET_RESOURCES",
    "SET_RESOURCES_HANDLER",
    "STARTUP_INFORMATION",
    "STEAL_RATIO",
    "WORKER_STATE_CLASS",
    "WORKER_STATUS",
    "WORKER_STATUS_HANDLER",
]

_SLOTS_WITHOUT = "tasks wait for resources as upstream has them wait"

#: Which ready task of a worker starts next
WORKER_STATE_CLASS: Final = InstancePatch(
    shown="WorkerState.__class__",
    without=_SLOTS_WITHOUT,
    attribute="__class__",
    read=(
        *of(
            "WorkerStateMachine",
            "_ensure_computing _next_ready_task _acquire_resources _release_resources "
            "_purge_state _transition_waiting_ready _transition_waiting_constrained "
            "_transition_executing_long_running _transition_cancelled_or_resumed_long_running "
            "_execute_done_common _handle_compute_task _handle_secede",
        ),
        "HeapSet",
    ),
)

#: The tasks of a worker that wait for resources, and those that wait for a thread
CONSTRAINED_TASKS: Final = InstancePatch(
    shown="WorkerState.constrained",
    without=_SLOTS_WITHOUT,
    attribute="constrained",
    read=("HeapSet",),
)
READY_TASKS: Final = InstancePatch(
    shown="WorkerState.ready",
    without=_SLOTS_WITHOUT,
    attribute="ready",
    read=("HeapSet",),
)

#: One pool of threads more: for tasks that take less than one
BESIDE_EXECUTOR: Final = InstancePatch(
    shown="Worker.executors['backhaul-beside']",
    without=_SLOTS_WITHOUT,
    item="backhaul-beside",
    read=(
        "ThreadPoolExecutor",
        "Worker.execute",
    ),
)

#: The lock that threads take first that rejoin: tasks take a lease again
REJOIN_LOCK: Final = InstancePatch(
    shown="ThreadPoolExecutor._rejoin_lock",
    without="tasks that rejoin hold nothing",
    attribute="_rejoin_lock",
    read=(
        "ThreadPoolExecutor",
        "rejoin",
        "pool_worker",
    ),
)

#: How a worker begins a task, where `backhaul.dask.worker.execution` does not
EXECUTE: Final = InstancePatch(
    shown="Worker.execute",
    without="tasks do not know which units are theirs",
    attribute="execute",
    read=("Worker.execute",),
)

#: A worker's message when it joins: its ids, besides Dask's amounts
STARTUP_INFORMATION: Final = InstancePatch(
    shown="Worker.startup_information['backhaul-resources']",
    without=_SLOTS_WITHOUT,
    item="backhaul-resources",
    read=("Worker.get_startup_information",),
)

#: Another amount of a resource: tasks that waited for it begin
SET_RESOURCES: Final = InstancePatch(
    shown="Worker.set_resources",
    without="tasks that wait for it begin when something else happens",
    attribute="set_resources",
    read=(
        "Worker.set_resources",
        "WorkerStateMachine._handle_unpause",
    ),
)

#: Requests of tasks, once their annotations are known
ANNOTATIONS_APPLIED: Final = InstancePatch(
    shown="Scheduler._apply_annotations",
    without=_SLOTS_WITHOUT,
    attribute="_apply_annotations",
    read=(
        "Scheduler._apply_annotations",
        "Scheduler._create_taskstate_from_graph",
    ),
)

#: Resources of a worker: units in use stay in use
ADD_RESOURCES: Final = InstancePatch(
    shown="Scheduler.add_resources",
    without="what is in use is forgotten when a worker has more",
    attribute="add_resources",
    read=("Scheduler.add_resources",),
)
SET_RESOURCES_HANDLER: Final = InstancePatch(
    shown="Scheduler.handlers['set_resources']",
    without="what is in use is forgotten when a worker has more",
    item="set_resources",
    read=("Scheduler.add_resources",),
)
REMOVE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.remove_resources",
    without=_SLOTS_WITHOUT,
    attribute="remove_resources",
    read=("Scheduler.remove_resources",),
)

#: The worker of a task that is no root, or asks for something
NON_ROOT_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without=_SLOTS_WITHOUT,
    attribute="decide_worker_non_rootish",
    read=of(
        "SchedulerState",
        "decide_worker_non_rootish valid_workers "
        "bulk_schedule_unrunnable_after_adding_worker _transition_waiting_processing "
        "_transition_no_worker_processing _transition_waiting_no_worker",
    ),
)
IS_ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without=_SLOTS_WITHOUT,
    attribute="is_rootish",
    read=("SchedulerState.is_rootish",),
)

#: Whether a worker has idle threads: what takes none is left out
IS_UNOCCUPIED: Final = InstancePatch(
    shown="Scheduler.is_unoccupied",
    without=_SLOTS_WITHOUT,
    attribute="is_unoccupied",
    read=(
        "SchedulerState.is_unoccupied",
        "SchedulerState.check_idle_saturated",
    ),
)

#: Units in use at a worker
ACQUIRE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.acquire_resources",
    without=_SLOTS_WITHOUT,
    attribute="acquire_resources",
    read=(
        "SchedulerState.acquire_resources",
        "SchedulerState._add_to_processing",
        *of(
            "WorkerState",
            "__init__ add_to_processing remove_from_processing add_to_long_running",
        ),
    ),
)
RELEASE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.release_resources",
    without=_SLOTS_WITHOUT,
    attribute="release_resources",
    read=(
        "SchedulerState.release_resources",
        "SchedulerState._exit_processing_common",
    ),
)
LONG_RUNNING: Final = InstancePatch(
    shown="Scheduler.stream_handlers['long-running']",
    without=_SLOTS_WITHOUT,
    item="long-running",
    read=("Scheduler.handle_long_running",),
)

#: A worker that pauses or goes on: tasks may wait that can go elsewhere meanwhile
WORKER_STATUS: Final = InstancePatch(
    shown="Scheduler.handle_worker_status_change",
    without="tasks that may run elsewhere while their worker pauses go once another one ends",
    attribute="handle_worker_status_change",
    read=("Scheduler.handle_worker_status_change",),
)
WORKER_STATUS_HANDLER: Final = InstancePatch(
    shown="Scheduler.stream_handlers['worker-status-change']",
    without="tasks that may run elsewhere while their worker pauses go once another one ends",
    item="worker-status-change",
    read=("Scheduler.handle_worker_status_change",),
)

#: Which tasks may be stolen
STEAL_RATIO: Final = InstancePatch(
    shown="WorkStealing.steal_time_ratio",
    without="tasks with resources are stolen",
    attribute="steal_time_ratio",
    read=(
        "WorkStealing.steal_time_ratio",
        "WorkStealing.put_key_in_stealable",
    ),
)

#: All that is replaced for resources
RESOURCE_PATCHES: Final = (
    WORKER_STATE_CLASS,
    CONSTRAINED_TASKS,
    READY_TASKS,
    BESIDE_EXECUTOR,
    REJOIN_LOCK,
    EXECUTE,
    STARTUP_INFORMATION,
    SET_RESOURCES,
    ANNOTATIONS_APPLIED,
    ADD_RESOURCES,
    SET_RESOURCES_HANDLER,
    REMOVE_RESOURCES,
    NON_ROOT_DECISION,
    IS_ROOTISH,
    IS_UNOCCUPIED,
    ACQUIRE_RESOURCES,
    RELEASE_RESOURCES,
    LONG_RUNNING,
    WORKER_STATUS,
    WORKER_STATUS_HANDLER,
    STEAL_RATIO,
)
