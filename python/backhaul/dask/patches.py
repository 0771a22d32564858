"""Everything of Dask's that is replaced, whether for the whole process or on single objects.

Most of Backhaul reaches Dask through its entry points. What costs microseconds per task does not
have one: there a function of ours takes the place of one of Dask's, which it calls for whatever it
does not handle. `PATCHES` lists those that a whole process shares; the constants below list what is
replaced on one scheduler, worker, nanny, stream or thread pool, by whom it names. Nothing else in
this package assigns to anything of Dask's; ``tests/dask/test_patched_names.py`` reads the sources
for that. When they are installed, `backhaul.dask.activation` says; how, and when it is refused,
`backhaul.dask.patching`.
"""

from __future__ import annotations

from typing import Final

import dask.order
import distributed.nanny
import distributed.stealing
import distributed.utils
import distributed.worker
from distributed import Scheduler

from backhaul.dask.patching import InstancePatch, Patch
from backhaul.dask.private import (
    AsyncProcess,
    BaseWorker,
    BatchedSend,
    Client,
    DelayedMetricsLedger,
    Future,
    FutureState,
    HeapSet,
    Nanny,
    NannyMemoryManager,
    SchedulerState,
    Server,
    SpillBuffer,
    StateMachineEvent,
    SystemMonitor,
    TaskFinishedMsg,
    TaskPrefix,
    TaskState,
    ThreadPoolExecutor,
    Worker,
    WorkerMemoryManager,
    WorkerProcess,
    WorkerState,
    WorkerStateMachine,
    log_errors,
    run_actor,
    run_task,
    run_task_simple,
    task_slots_available,
    wait_for,
    wait_for_all,
)

__all__ = [
    "ACQUIRE_RESOURCES",
    "ADD_RESOURCES",
    "ANNOTATIONS_APPLIED",
    "ASYNC_PROCESS_CLASS",
    "BESIDE_EXECUTOR",
    "COMM_COST",
    "CONSTRAINED_TASKS",
    "DASHBOARD_PAGES",
    "EXECUTE",
    "EXECUTOR_QUEUE",
    "INSTANCE_PATCHES",
    "IS_ROOTISH",
    "IS_UNOCCUPIED",
    "LAZY_SERIALIZERS",
    "LONG_RUNNING",
    "NANNY_MEMORY_MONITOR",
    "NON_ROOT_DECISION",
    "PATCHES",
    "QUEUED_TASK_DECISION",
    "QUEUE_SLOTS",
    "READY_TASKS",
    "RELEASE_RESOURCES",
    "REMOVE_RESOURCES",
    "ROOTISH",
    "SCHEDULER_HEARTBEAT",
    "SET_RESOURCES",
    "SET_RESOURCES_HANDLER",
    "STARTUP_INFORMATION",
    "STEAL_RATIO",
    "STEAL_RESPONSE",
    "STREAM_CLASS",
    "TASK_DECISION",
    "TASK_FINISHED",
    "WORKER_MEMORY",
    "WORKER_MEMORY_MONITOR",
    "WORKER_METRIC",
    "WORKER_OBJECTIVE",
    "WORKER_PROCESS_CLASS",
    "WORKER_STATE_CLASS",
]

#: What is replaced for the whole process, in the order in which it is installed
PATCHES: tuple[Patch, ...] = (
    Patch(
        switch="hot-path.batching",
        owner=BatchedSend,
        name="start",
        replace="batching.adaptive_start",
        read={BatchedSend: "6b8b9c6179e7"},
    ),
    Patch(
        switch="hot-path.batching",
        owner=Server,
        name="handle_stream",
        replace="streams.draining_handle_stream",
        read={
            Server.handle_stream: "72ba087c9df7",
            Worker._handle_remote_stimulus: "cb8790fe82a6",
            Worker.handle_stimulus: "623c704ef088",
            WorkerStateMachine.handle_stimulus: "eacb3baa767e",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=Worker,
        name="_start_async_instruction",
        replace="execution.direct_start",
        read={
            Worker.execute: "981e9c472e6a",
            BaseWorker._start_async_instruction: "24de6e1ef8a2",
            BaseWorker._finish_async_instruction: "1f40fa28fc06",
            BaseWorker._finalize_metrics: "f736e6f8ef51",
            DelayedMetricsLedger: "f6bb5bb68eaa",
            ThreadPoolExecutor: "ea2d0c64c2c5",
            run_task: "879cc11a993c",
            run_task_simple: "072a00fb1d13",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=WorkerStateMachine,
        name="_handle_event",
        replace="fast_paths.direct_handle_event",
        read={WorkerStateMachine.handle_stimulus: "eacb3baa767e"},
    ),
    Patch(
        switch="hot-path.execution",
        owner=WorkerStateMachine,
        name="_get_task_finished_msg",
        replace="fast_paths.quick_finished_message",
        read={
            WorkerStateMachine._get_task_finished_msg: "38db9750edf3",
            TaskFinishedMsg: "232e1fa070b3",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner=SpillBuffer,
        name="__getitem__",
        replace="fast_paths.quick_getitem",
        read={SpillBuffer: "4c66a9e8386b"},
    ),
    Patch(
        switch="hot-path.execution",
        owner=StateMachineEvent,
        name="__copy__",
        replace="fast_paths.add_copy",
        read={StateMachineEvent: "b2e4fc28d8a7"},
    ),
    Patch(
        switch="hot-path.futures",
        owner=FutureState,
        name="wait",
        replace="waiting.untimed_wait",
        read={FutureState: "a3cf7ecc4e8d", wait_for: "f9c57ed5f23e"},
    ),
    Patch(
        switch="hot-path.futures",
        owner=FutureState,
        name="_get_event",
        replace="waiting.shared_event",
        read={FutureState: "a3cf7ecc4e8d"},
    ),
    # In its module, where the scheduler looks it up at each call.
    Patch(
        switch="hot-path.order",
        owner=dask.order,
        name="order",
        replace="order.native_order",
        read={dask.order: "632001b800fc"},
    ),
    Patch(
        switch="arena.allocate",
        owner=distributed.worker,
        name="_run_actor",
        replace="memory.arena_actor",
        read={run_actor: "9088419020a7"},
    ),
    # In its module, where the client looks it up; modules that imported the name keep Dask's own.
    Patch(
        switch="hot-path.futures",
        owner=distributed.utils,
        name="All",
        replace="waiting.light_all",
        read={wait_for_all: "4a12c1f80983", Client._gather: "e5e8b8868464"},
    ),
    Patch(
        switch="hot-path.futures",
        owner=Client,
        name="_send_to_scheduler",
        replace="outbox.collected_send",
        read={
            Client._send_to_scheduler: "650edb8d752b",
            Client._send_to_scheduler_safe: "6ca335890717",
        },
    ),
    Patch(
        switch="hot-path.futures",
        owner=Future,
        name="release",
        replace="outbox.collected_release",
        read={
            Future.release: "46a65cb22fca",
            Future.__del__: "bffba933b84f",
            Future._verify_initialized: "8cfcb0e99a39",
            Future._bind_late: "36cf95d12009",
            Client._dec_ref: "f7c892d68ed0",
            Client._release_key: "2d790ca7d72e",
        },
    ),
    # Where a scheduler keeps account of what each worker still needs
    Patch(
        switch="placement.enabled",
        owner=WorkerState,
        name="_inc_needs_replica",
        replace="placement.counted_need",
        read={WorkerState: "7b84667ecb2d"},
    ),
    Patch(
        switch="placement.enabled",
        owner=WorkerState,
        name="_dec_needs_replica",
        replace="placement.dropped_need",
        read={WorkerState: "7b84667ecb2d"},
    ),
    Patch(
        switch="placement.enabled",
        owner=WorkerState,
        name="add_replica",
        replace="placement.met_need",
        read={WorkerState: "7b84667ecb2d"},
    ),
    # From whom a worker fetches first
    Patch(
        switch="placement.enabled",
        owner=WorkerStateMachine,
        name="_select_workers_for_gather",
        replace="sources.nearest_first",
        read={
            WorkerStateMachine._select_workers_for_gather: "e24f58140a7c",
            WorkerStateMachine._ensure_communicating: "b18511a30f05",
            WorkerStateMachine._select_keys_for_gather: "8ce869b693d9",
            HeapSet: "c711cb774f6b",
        },
    ),
)

# On single objects

#: The handler of ``task-finished``: `backhaul.dask.in_flight` looks at the worker after Dask has
TASK_FINISHED: Final = InstancePatch(
    shown="Scheduler.stream_handlers['task-finished']",
    without="workers are not kept filled",
    item="task-finished",
    read={
        Scheduler.handle_task_finished: "f2459ffb4e7e",
        Scheduler.stimulus_queue_slots_maybe_opened: "2aa9c5a70172",
        Scheduler.transitions: "edd9af11e5f3",
        SchedulerState._transitions: "223e6d801674",
        Scheduler.send_all: "8c228e56a8c2",
        HeapSet: "c711cb774f6b",
        WorkerState: "7b84667ecb2d",
        TaskState: "a478e3a2064b",
        TaskFinishedMsg: "232e1fa070b3",
    },
)

#: The choice of a worker for a queued task: ours while a worker is filled
QUEUED_TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_rootish_queuing_enabled",
    without="workers are not kept filled",
    attribute="decide_worker_rootish_queuing_enabled",
    read={
        SchedulerState.decide_worker_rootish_queuing_enabled: "7280849e5a73",
        SchedulerState._transition_queued_processing: "582686aa38d4",
    },
)

#: The choice of a worker for a task with inputs: `backhaul.dask.placement` makes it
TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without="tasks are placed by one bandwidth",
    attribute="decide_worker_non_rootish",
    read={
        SchedulerState.decide_worker_non_rootish: "1aa228f24ad3",
        SchedulerState._get_prefix_duration: "c83d2014ed24",
        WorkerState: "7b84667ecb2d",
        TaskState: "a478e3a2064b",
        TaskPrefix: "bd658544d449",
    },
)

#: What it costs to run a task on a worker, where upstream still chooses: actors, restrictions
WORKER_OBJECTIVE: Final = InstancePatch(
    shown="Scheduler.worker_objective",
    without="tasks are placed by one bandwidth",
    attribute="worker_objective",
    read={
        SchedulerState.worker_objective: "86f78b3327dd",
        SchedulerState._calc_occupancy: "c33a7e8955e0",
    },
)

#: How long the inputs of a task take to come to a worker, for work stealing
COMM_COST: Final = InstancePatch(
    shown="Scheduler.get_comm_cost",
    without="tasks are stolen by one bandwidth",
    attribute="get_comm_cost",
    read={
        SchedulerState.get_comm_cost: "9512e209bdcd",
        distributed.stealing: "99143d44cb54",
    },
)

#: Whether a task is a root: `backhaul.dask.roots` notes which one was asked about
ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without="roots go to whoever is free",
    attribute="is_rootish",
    read={
        SchedulerState.is_rootish: "8ea0f7489699",
        SchedulerState._transition_waiting_processing: "c7f0cf0e0bd3",
    },
)

#: Which queued tasks go out when threads are free
QUEUE_SLOTS: Final = InstancePatch(
    shown="Scheduler.stimulus_queue_slots_maybe_opened",
    without="roots go to whoever is free",
    attribute="stimulus_queue_slots_maybe_opened",
    read={
        Scheduler.stimulus_queue_slots_maybe_opened: "2aa9c5a70172",
        SchedulerState._transition_queued_processing: "582686aa38d4",
        task_slots_available: "22021da7cd1e",
        HeapSet: "c711cb774f6b",
    },
)

#: Answers to the requests of `backhaul.dask.steal_back`, which uses the messages of work stealing
STEAL_RESPONSE: Final = InstancePatch(
    shown="Scheduler.stream_handlers['steal-response']",
    without="workers are not kept filled",
    item="steal-response",
    read={
        distributed.stealing: "99143d44cb54",
        WorkerStateMachine._handle_steal_request: "ccd69569dfc4",
    },
)

#: The handler of heartbeats: `backhaul.dask.account` takes the report out of them
SCHEDULER_HEARTBEAT: Final = InstancePatch(
    shown="Scheduler.handlers['heartbeat_worker']",
    without="no account of transfers is kept",
    item="heartbeat_worker",
    read={Scheduler.heartbeat_worker: "a4c0156b01a3"},
)

#: One metric more for the heartbeats of a worker: the one of `backhaul.dask.reports`
WORKER_METRIC: Final = InstancePatch(
    shown="Worker.metrics['backhaul-transfers']",
    without="the worker does not report its transfers",
    item="backhaul-transfers",
    read={Worker.get_metrics: "da3c2e202322"},
)

#: How much memory a worker has: without what it borrows, see `backhaul.dask.memory`
WORKER_MEMORY: Final = InstancePatch(
    shown="SystemMonitor.get_process_memory",
    without="memory that is borrowed counts at the worker that borrows it, too",
    attribute="get_process_memory",
    read={SystemMonitor.get_process_memory: "26814941647b"},
)

#: What a worker does from time to time about its memory: it gives free blocks back before
WORKER_MEMORY_MONITOR: Final = InstancePatch(
    shown="Worker.periodic_callbacks['memory_monitor'].callback",
    without="free blocks are not given back when memory is short",
    attribute="callback",
    read={WorkerMemoryManager.__init__: "83a0e60114d5", log_errors: "3e2526feca6f"},
)

#: The same of a nanny: it counts what its worker borrows before it ends it
NANNY_MEMORY_MONITOR: Final = InstancePatch(
    shown="Nanny.periodic_callbacks['memory_monitor'].callback",
    without="a nanny ends its worker for memory that it borrows, too",
    attribute="callback",
    read={NannyMemoryManager: "51361236b37f"},
)

#: Streams over our comms send without timers; put there by the patch of `BatchedSend.start`
STREAM_CLASS: Final = InstancePatch(
    shown="BatchedSend.__class__",
    without="messages wait for timers",
    attribute="__class__",
    read={BatchedSend: "6b8b9c6179e7"},
)

#: The queue of a worker's thread pool, in C; see `backhaul.dask.execution`
EXECUTOR_QUEUE: Final = InstancePatch(
    shown="ThreadPoolExecutor._work_queue",
    without="tasks pass a slower queue",
    attribute="_work_queue",
    read={ThreadPoolExecutor: "ea2d0c64c2c5"},
)

#: A nanny's view of its worker process, and the process that it starts: they pin the worker. Dask
#: offers `worker_class` for what runs inside the process only, which is too late for that.
WORKER_PROCESS_CLASS: Final = InstancePatch(
    shown="Nanny.process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read={
        Nanny.instantiate: "7ab41bd91330",
        WorkerProcess: ("081408171cfe", "a649c41f0265"),
    },
)
ASYNC_PROCESS_CLASS: Final = InstancePatch(
    shown="AsyncProcess._process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read={AsyncProcess: "6de012ffa30a"},
)

#: The navigation of a scheduler's dashboard: one page more, of `backhaul.dask.dashboard`
DASHBOARD_PAGES: Final = InstancePatch(
    shown="template_variables(scheduler)['pages']",
    without="the page of transfers is not in the navigation",
    item=slice(None),
    # By name: it needs Bokeh.
    read={"distributed.dashboard.scheduler": "d15b73ada655"},
)

# Resources: `backhaul.dask.slotted_worker` and `backhaul.dask.scheduler_slots`

_SLOTS_WITHOUT = "tasks wait for resources as upstream has them wait"

#: Which ready task of a worker starts next
WORKER_STATE_CLASS: Final = InstancePatch(
    shown="WorkerState.__class__",
    without=_SLOTS_WITHOUT,
    attribute="__class__",
    read={
        WorkerStateMachine._ensure_computing: "664c3d170a5a",
        WorkerStateMachine._next_ready_task: "c6e4cce31e04",
        WorkerStateMachine._acquire_resources: "7462b2794ffa",
        WorkerStateMachine._release_resources: "53e7a9994238",
        WorkerStateMachine._purge_state: "aa565afdbaa9",
        WorkerStateMachine._transition_waiting_ready: "29c380c4195a",
        WorkerStateMachine._transition_waiting_constrained: "0a29f8b270f7",
        WorkerStateMachine._transition_executing_long_running: "4777ce7a296d",
        WorkerStateMachine._transition_cancelled_or_resumed_long_running: "2a8921e164ad",
        WorkerStateMachine._execute_done_common: "c12998ac1878",
        WorkerStateMachine._handle_compute_task: "341fd97e4ff3",
        HeapSet: "c711cb774f6b",
    },
)

#: The tasks of a worker that wait for resources, and those that wait for a thread
CONSTRAINED_TASKS: Final = InstancePatch(
    shown="WorkerState.constrained",
    without=_SLOTS_WITHOUT,
    attribute="constrained",
    read={HeapSet: "c711cb774f6b"},
)
READY_TASKS: Final = InstancePatch(
    shown="WorkerState.ready",
    without=_SLOTS_WITHOUT,
    attribute="ready",
    read={HeapSet: "c711cb774f6b"},
)

#: One pool of threads more: for tasks that take less than one
BESIDE_EXECUTOR: Final = InstancePatch(
    shown="Worker.executors['backhaul-beside']",
    without=_SLOTS_WITHOUT,
    item="backhaul-beside",
    read={ThreadPoolExecutor: "ea2d0c64c2c5", Worker.execute: "981e9c472e6a"},
)

#: How a worker begins a task, where `backhaul.dask.execution` does not
EXECUTE: Final = InstancePatch(
    shown="Worker.execute",
    without="tasks do not know which units are theirs",
    attribute="execute",
    read={Worker.execute: "981e9c472e6a"},
)

#: What a worker tells its scheduler when it joins: the ids that it has, besides Dask's amounts
STARTUP_INFORMATION: Final = InstancePatch(
    shown="Worker.startup_information['backhaul-resources']",
    without=_SLOTS_WITHOUT,
    item="backhaul-resources",
    read={Worker.get_startup_information: "335e3ae6299b"},
)

#: Another amount of a resource: tasks that waited for it begin
SET_RESOURCES: Final = InstancePatch(
    shown="Worker.set_resources",
    without="tasks that wait for it begin when something else happens",
    attribute="set_resources",
    read={Worker.set_resources: "798d76510e68", WorkerStateMachine._handle_unpause: "7815ca729639"},
)

#: What tasks ask for, once their annotations are known
ANNOTATIONS_APPLIED: Final = InstancePatch(
    shown="Scheduler._apply_annotations",
    without=_SLOTS_WITHOUT,
    attribute="_apply_annotations",
    read={
        Scheduler._apply_annotations: "cd894b8826f3",
        Scheduler._create_taskstate_from_graph: "280fa75deeb6",
    },
)

#: What a worker has: what is in use there stays in use
ADD_RESOURCES: Final = InstancePatch(
    shown="Scheduler.add_resources",
    without="what is in use is forgotten when a worker has more",
    attribute="add_resources",
    read={Scheduler.add_resources: "d9c560ab9812"},
)
SET_RESOURCES_HANDLER: Final = InstancePatch(
    shown="Scheduler.handlers['set_resources']",
    without="what is in use is forgotten when a worker has more",
    item="set_resources",
    read={Scheduler.add_resources: "d9c560ab9812"},
)
REMOVE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.remove_resources",
    without=_SLOTS_WITHOUT,
    attribute="remove_resources",
    read={Scheduler.remove_resources: "b8d7843db4b2"},
)

#: The worker of a task that is no root, or asks for something
NON_ROOT_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without=_SLOTS_WITHOUT,
    attribute="decide_worker_non_rootish",
    read={
        SchedulerState.decide_worker_non_rootish: "1aa228f24ad3",
        SchedulerState.valid_workers: "0e4c054c820b",
        SchedulerState.bulk_schedule_unrunnable_after_adding_worker: "2205653be0e0",
        SchedulerState._transition_waiting_processing: "c7f0cf0e0bd3",
        SchedulerState._transition_no_worker_processing: "797beb47064b",
        SchedulerState._transition_waiting_no_worker: "9706ccda7ae1",
    },
)
IS_ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without=_SLOTS_WITHOUT,
    attribute="is_rootish",
    read={SchedulerState.is_rootish: "8ea0f7489699"},
)

#: Whether a worker has idle threads: what takes none is left out
IS_UNOCCUPIED: Final = InstancePatch(
    shown="Scheduler.is_unoccupied",
    without=_SLOTS_WITHOUT,
    attribute="is_unoccupied",
    read={
        SchedulerState.is_unoccupied: "ea2cd1f34138",
        SchedulerState.check_idle_saturated: "95e04f2ca593",
    },
)

#: What is spoken for at a worker
ACQUIRE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.acquire_resources",
    without=_SLOTS_WITHOUT,
    attribute="acquire_resources",
    read={
        SchedulerState.acquire_resources: "4858602cda3c",
        SchedulerState._add_to_processing: "122c70fee451",
        WorkerState: "7b84667ecb2d",
    },
)
RELEASE_RESOURCES: Final = InstancePatch(
    shown="Scheduler.release_resources",
    without=_SLOTS_WITHOUT,
    attribute="release_resources",
    read={
        SchedulerState.release_resources: "c20d73ee4576",
        SchedulerState._exit_processing_common: "14949649f5dd",
    },
)
LONG_RUNNING: Final = InstancePatch(
    shown="Scheduler.stream_handlers['long-running']",
    without=_SLOTS_WITHOUT,
    item="long-running",
    read={Scheduler.handle_long_running: "8277cb6ecb8a"},
)

#: Which tasks may be stolen
STEAL_RATIO: Final = InstancePatch(
    shown="WorkStealing.steal_time_ratio",
    without="tasks with resources are stolen",
    attribute="steal_time_ratio",
    read={distributed.stealing: "99143d44cb54"},
)

#: Libraries whose serializers of the family ``dask``, registered by Dask when the library is first
#: met, are wrapped by `backhaul.dask.device_arrays`, through the same registry
LAZY_SERIALIZERS: Final = ("torch", "torchvision")

#: What is replaced on single objects
INSTANCE_PATCHES: Final = (
    TASK_FINISHED,
    QUEUED_TASK_DECISION,
    TASK_DECISION,
    WORKER_OBJECTIVE,
    COMM_COST,
    ROOTISH,
    QUEUE_SLOTS,
    STEAL_RESPONSE,
    SCHEDULER_HEARTBEAT,
    WORKER_METRIC,
    WORKER_MEMORY,
    WORKER_MEMORY_MONITOR,
    NANNY_MEMORY_MONITOR,
    STREAM_CLASS,
    EXECUTOR_QUEUE,
    WORKER_PROCESS_CLASS,
    ASYNC_PROCESS_CLASS,
    DASHBOARD_PAGES,
    WORKER_STATE_CLASS,
    CONSTRAINED_TASKS,
    READY_TASKS,
    BESIDE_EXECUTOR,
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
    STEAL_RATIO,
)
