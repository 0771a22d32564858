"""What is replaced on a scheduler and its workers so that tasks get resources with identity.

Of the list in `backhaul.dask.patches` the part for `backhaul.dask.slotted_worker` and
`backhaul.dask.scheduler_slots`.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.patching import InstancePatch

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
    read={
        "WorkerStateMachine._ensure_computing": "664c3d170a5a",
        "WorkerStateMachine._next_ready_task": "c6e4cce31e04",
        "WorkerStateMachine._acquire_resources": "7462b2794ffa",
        "WorkerStateMachine._release_resources": "53e7a9994238",
        "WorkerStateMachine._purge_state": "aa565afdbaa9",
        "WorkerStateMachine._transition_waiting_ready": "29c380c4195a",
        "WorkerStateMachine._transition_waiting_constrained": "0a29f8b270f7",
        "WorkerStateMachine._transition_executing_long_running": "4777ce7a296d",
        "WorkerStateMachine._transition_cancelled_or_resumed_long_running": "2a8921e164ad",
        "WorkerStateMachine._execute_done_common": "c12998ac1878",
        "WorkerStateMachine._handle_compute_task": "341fd97e4ff3",
        "WorkerStateMachine._handle_secede": "565850e7b333",
        "HeapSet": "c711cb774f6b",
    },
)

#: The tasks of a worker that wait for resources, and those that wait for a thread
CONSTRAINED_TASKS: Final = InstancePatch(
    shown="WorkerState.constrained",
    without=_SLOTS_WITHOUT,
    attribute="constrained",
    read={"HeapSet": "c711cb774f6b"},
)
READY_TASKS: Final = InstancePatch(
    shown="WorkerState.ready",
    without=_SLOTS_WITHOUT,
    attribute="ready",
    read={"HeapSet": "c711cb774f6b"},
)

#: One pool of threads more: for tasks that take less than one
BESIDE_EXECUTOR: Final = InstancePatch(
    shown="Worker.executors['backhaul-beside']",
    without=_SLOTS_WITHOUT,
    item="backhaul-beside",
    read={"ThreadPoolExecutor": "ea2d0c64c2c5", "Worker.execute": "981e9c472e6a"},
)

#: The lock that threads take first that rejoin: tasks take a lease again
REJOIN_LOCK: Final = InstancePatch(
    shown="ThreadPoolExecutor._rejoin_lock",
    without="tasks that rejoin hold nothing",
    attribute="_rejoin_lock",
    read={
        "ThreadPoolExecutor": "ea2d0c64c2c5",
        "rejoin": "31e9d18bc083",
        "pool_worker": "f2ce8d32fd23",
    },
)

#: How a worker begins a task, where `backhaul.dask.execution` does not
EXECUTE: Final = InstancePatch(
    shown="Worker.execute",
    without="tasks do not know which units are theirs",
    attribute="execute",
    read={"Worker.execute": "981e9c472e6a"},
)

#: What a worker tells its scheduler when it joins: the ids that it has, besides Dask's amounts
STARTUP_INFORMATION: Final = InstancePatch(
    shown="Worker.startup_information['backhaul-resources']",
    without=_SLOTS_WITHOUT,
    item="backhaul-resources",
    read={"Worker.get_startup_information": "335e3ae6299b"},
)

#: Another amount of a resource: tasks that waited for it begin
SET_RESOURCES: Final = InstancePatch(
    shown="Worker.set_resources",
    without="tasks that wait for it begin when something else happens",
    attribute="set_resources",
    read={
        "Worker.set_resources": "798d76510e68",
        "WorkerStateMachine._handle_unpause": "7815ca729639",
    },
)

#: What tasks ask for, once their annotations are known
ANNOTATIONS_APPLIED: Final = InstancePatch(
    shown="Scheduler._apply_annotations",
    without=_SLOTS_WITHOUT,
    attribute="_apply_annotations",
    read={
        "Scheduler._apply_annotations": "cd894b8826f3",
        "Scheduler._create_taskstate_from_graph": "280fa75deeb6",
    },
)

#: What a worker has: what is in use there stays in use
ADD_RESOURCES: Final = InstancePatch(
    shown="Scheduler.add_resources",
    without="what is in use is forgotten when a worker has more",
    attribute="add_resources",
    read={"Scheduler.add_resources": "d9c560ab9812"},
)
SET_RESOURCES_HANDLER: Final = InstancePatch(
    shown="Scheduler.handlers['set_resources']",
    without="what is in use is forgotten when a worker has more",
    item="set_resources",
    read={"Scheduler.add_resources": "d9c560ab9812"},
)
REMOVE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.remove_resources",
    without=_SLOTS_WITHOUT,
    attribute="remove_resources",
    read={"Scheduler.remove_resources": "b8d7843db4b2"},
)

#: The worker of a task that is no root, or asks for something
NON_ROOT_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without=_SLOTS_WITHOUT,
    attribute="decide_worker_non_rootish",
    read={
        "SchedulerState.decide_worker_non_rootish": "1aa228f24ad3",
        "SchedulerState.valid_workers": "0e4c054c820b",
        "SchedulerState.bulk_schedule_unrunnable_after_adding_worker": "2205653be0e0",
        "SchedulerState._transition_waiting_processing": "c7f0cf0e0bd3",
        "SchedulerState._transition_no_worker_processing": "797beb47064b",
        "SchedulerState._transition_waiting_no_worker": "9706ccda7ae1",
    },
)
IS_ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without=_SLOTS_WITHOUT,
    attribute="is_rootish",
    read={"SchedulerState.is_rootish": "8ea0f7489699"},
)

#: Whether a worker has idle threads: what takes none is left out
IS_UNOCCUPIED: Final = InstancePatch(
    shown="Scheduler.is_unoccupied",
    without=_SLOTS_WITHOUT,
    attribute="is_unoccupied",
    read={
        "SchedulerState.is_unoccupied": "ea2cd1f34138",
        "SchedulerState.check_idle_saturated": "95e04f2ca593",
    },
)

#: What is spoken for at a worker
ACQUIRE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.acquire_resources",
    without=_SLOTS_WITHOUT,
    attribute="acquire_resources",
    read={
        "SchedulerState.acquire_resources": "4858602cda3c",
        "SchedulerState._add_to_processing": "122c70fee451",
        "WorkerState": "7b84667ecb2d",
    },
)
RELEASE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.release_resources",
    without=_SLOTS_WITHOUT,
    attribute="release_resources",
    read={
        "SchedulerState.release_resources": "c20d73ee4576",
        "SchedulerState._exit_processing_common": "14949649f5dd",
    },
)
LONG_RUNNING: Final = InstancePatch(
    shown="Scheduler.stream_handlers['long-running']",
    without=_SLOTS_WITHOUT,
    item="long-running",
    read={"Scheduler.handle_long_running": "8277cb6ecb8a"},
)

#: A worker that pauses or goes on: tasks may wait that can go elsewhere meanwhile
WORKER_STATUS: Final = InstancePatch(
    shown="Scheduler.handle_worker_status_change",
    without="tasks that may run elsewhere while their worker pauses go once another one ends",
    attribute="handle_worker_status_change",
    read={"Scheduler.handle_worker_status_change": "206e18419a5c"},
)
WORKER_STATUS_HANDLER: Final = InstancePatch(
    shown="Scheduler.stream_handlers['worker-status-change']",
    without="tasks that may run elsewhere while their worker pauses go once another one ends",
    item="worker-status-change",
    read={"Scheduler.handle_worker_status_change": "206e18419a5c"},
)

#: Which tasks may be stolen
STEAL_RATIO: Final = InstancePatch(
    shown="WorkStealing.steal_time_ratio",
    without="tasks with resources are stolen",
    attribute="steal_time_ratio",
    read={"distributed.stealing": "99143d44cb54"},
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
