"""Patches on a scheduler and its workers so that tasks get resources with identity.

Of the list in `backhaul.dask.compat.process_patches` the part for
`backhaul.dask.resource_pools.worker_state` and `backhaul.dask.resource_pools.scheduler_slots`.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.operations import RESOURCES
from backhaul.dask.compat.patching import InstancePatch, of

__all__ = [
    "OVERFLOW_POOL",
    "RESOURCE_PATCHES",
    "SCHEDULER_SLOTS",
    "WORKER_SLOTS",
    "WORKER_STATE",
]

_SLOTS_WITHOUT = "tasks wait for resources as upstream has them wait"

#: Name of the executor of a worker for tasks that take less than a thread
OVERFLOW_POOL: Final = "backhaul-beside"

#: Which ready task of a worker starts next: the state machine, its tasks that wait for resources,
#: and those that wait for a thread
WORKER_STATE: Final = InstancePatch(
    shown="WorkerState",
    without=_SLOTS_WITHOUT,
    slots=("__class__", "constrained", "ready"),
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

#: The pool for tasks that take less than a thread; the lock that threads take first that rejoin,
#: because tasks take a lease again; how a worker begins a task, where
#: `backhaul.dask.worker.execution` does not; its ids in the message when it joins; and another
#: amount of a resource, for which tasks wait
WORKER_SLOTS: Final = InstancePatch(
    shown="Worker",
    without=_SLOTS_WITHOUT,
    slots=(
        f"executors[{OVERFLOW_POOL}]",
        "executors[default]._rejoin_lock",
        "execute",
        f"startup_information[{RESOURCES}]",
        "set_resources",
    ),
    read=(
        "ThreadPoolExecutor",
        "rejoin",
        "pool_worker",
        *of("Worker", "execute get_startup_information set_resources"),
        "WorkerStateMachine._handle_unpause",
    ),
)

#: Requests of tasks, once their annotations are known; resources of a worker, where units in use
#: stay in use; the worker of a task that is no root, or asks for something; whether a worker has
#: idle threads, where what takes none is left out; units in use; a worker that pauses or goes on,
#: because tasks may wait that can go elsewhere meanwhile; and which tasks may be stolen
SCHEDULER_SLOTS: Final = InstancePatch(
    shown="Scheduler",
    without=_SLOTS_WITHOUT,
    slots=(
        "_apply_annotations",
        "add_resources",
        "handlers[set_resources]",
        "remove_resources",
        "decide_worker_non_rootish",
        "is_rootish",
        "is_unoccupied",
        "acquire_resources",
        "release_resources",
        "stream_handlers[long-running]",
        "handle_worker_status_change",
        "stream_handlers[worker-status-change]",
        "extensions[stealing].steal_time_ratio",
    ),
    read=(
        *of(
            "Scheduler",
            "_apply_annotations _create_taskstate_from_graph add_resources remove_resources "
            "handle_long_running handle_worker_status_change",
        ),
        *of(
            "SchedulerState",
            "decide_worker_non_rootish valid_workers "
            "bulk_schedule_unrunnable_after_adding_worker _transition_waiting_processing "
            "_transition_no_worker_processing _transition_waiting_no_worker is_rootish "
            "is_unoccupied check_idle_saturated acquire_resources _add_to_processing "
            "release_resources _exit_processing_common",
        ),
        *of(
            "WorkerState",
            "__init__ add_to_processing remove_from_processing add_to_long_running",
        ),
        *of("WorkStealing", "steal_time_ratio put_key_in_stealable"),
    ),
)

#: All that is replaced for resources
RESOURCE_PATCHES: Final = (WORKER_STATE, WORKER_SLOTS, SCHEDULER_SLOTS)
