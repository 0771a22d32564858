"""Patches on single objects of Dask's: a scheduler, a worker, a nanny, a stream, a pool.

Of the list in `backhaul.dask.compat.process_patches` the part that a whole process does not share.
Patches for resources are in `backhaul.dask.compat.resource_patches`, and counted here.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.exchange_patches import EXCHANGE_PATCHES
from backhaul.dask.compat.operations import GRAPH, MAP, SMALL_RESULTS, SUBMIT
from backhaul.dask.compat.patching import InstancePatch, of
from backhaul.dask.compat.resource_patches import RESOURCE_PATCHES

__all__ = [
    "ASYNC_PROCESS_CLASS",
    "CLIENT_RESULTS",
    "COMM_COST",
    "DASHBOARD_PAGES",
    "DESIRED_KEYS",
    "ENGINE_STREAMS",
    "EXECUTOR_QUEUE",
    "GET_DATA",
    "GRAPH_STATE",
    "INSTANCE_PATCHES",
    "LINK_NEWS",
    "MAPPED_CALLS",
    "NANNY_MEMORY_MONITOR",
    "PLACED_BY_MESSAGE",
    "PLACED_BY_REQUEST",
    "PLACED_RESULTS",
    "QUEUED_TASK_DECISION",
    "QUEUE_SLOTS",
    "RESULTS_FINISHED",
    "RESULT_REQUESTS",
    "ROOTISH",
    "RUN",
    "SCHEDULER_HEARTBEAT",
    "SHARED_STREAM",
    "SMALL_RESULTS_TELLERS",
    "STEAL_RESPONSE",
    "STORE_CLASS",
    "STORE_LOCK",
    "STREAM_CLASS",
    "SUBMISSIONS",
    "SUBMITTED_GRAPHS",
    "TASK_DECISION",
    "TASK_FINISHED",
    "WATCHED_HANDLERS",
    "WORKER_CORE",
    "WORKER_MEMORY",
    "WORKER_METRIC",
    "WORKER_OBJECTIVE",
    "WORKER_PROCESS_CLASS",
]

#: The handler of ``task-finished``: `backhaul.dask.scheduler.window` looks at the worker after Dask
#: has
TASK_FINISHED: Final = InstancePatch(
    shown="Scheduler.stream_handlers['task-finished']",
    without="workers are not kept filled",
    item="task-finished",
    read=(
        *of("Scheduler", "handle_task_finished stimulus_queue_slots_maybe_opened transitions"),
        "SchedulerState._transitions",
        "Scheduler.send_all",
        "HeapSet.peek",
        "HeapSet.__len__",
        *of(
            "WorkerState",
            "__init__ add_to_processing remove_from_processing add_to_long_running",
        ),
        "TaskState.__init__",
        "TaskFinishedMsg",
    ),
)

#: The same handler, for results that come with the message:
#: `backhaul.dask.scheduler.inline_results`
RESULTS_FINISHED: Final = InstancePatch(
    shown="Scheduler.stream_handlers['task-finished']",
    without="small results are fetched",
    item="task-finished",
    read=(
        "Scheduler.handle_task_finished",
        "Scheduler.stimulus_task_finished",
        "SchedulerState._transition_processing_memory",
        "SchedulerState._add_to_memory",
        "TaskState.__init__",
        "TaskFinishedMsg",
    ),
)

#: Clients that keep results, and workers that send them: one operation more
SMALL_RESULTS_TELLERS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-small-results']",
    without="small results are fetched",
    item=SMALL_RESULTS,
    read=of("Scheduler", "add_client remove_client worker_send"),
)

#: Tasks that clients submit one by one: one operation more, of
#: `backhaul.dask.scheduler.submissions`
SUBMISSIONS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-submit']",
    without="each task is submitted as an expression",
    item=SUBMIT,
    read=(
        "update_graph",
        *of(
            "Scheduler",
            "_create_taskstate_from_graph _find_lost_dependencies _generate_taskstates",
        ),
        "SchedulerState._task_to_msg",
        *of("Task", "__init__ __call__ __getstate__ __setstate__"),
        "GraphNode.dependencies",
    ),
)

#: Calls that clients submit together, likewise
MAPPED_CALLS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-map']",
    without="each map is submitted as an expression",
    item=MAP,
    read=SUBMISSIONS.read,
)

#: Graphs that clients submit, likewise
SUBMITTED_GRAPHS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-graph']",
    without="each graph is submitted as an expression",
    item=GRAPH,
    read=SUBMISSIONS.read,
)

#: Wishes for tasks that have ended: `backhaul.dask.scheduler.fire_and_forget` drops those of its
#: client
DESIRED_KEYS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['client-desires-keys']",
    without="results of `fire_and_forget` may stay",
    item="client-desires-keys",
    read=(
        "Scheduler.client_desires_keys",
        "Scheduler.client_releases_keys",
    ),
)

#: Requests of its scheduler to a worker: one operation more
RESULT_REQUESTS: Final = InstancePatch(
    shown="Worker.stream_handlers['backhaul-result-requests']",
    without="small results are fetched",
    item="backhaul-result-requests",
    read=("Worker.handle_scheduler",),
)

#: Requests of other workers: `backhaul.dask.worker.get_data` has the event loop catch up first
GET_DATA: Final = InstancePatch(
    shown="Worker.handlers['get_data']",
    without="threads do not read ahead",
    item="get_data",
    read=(
        "get_data",
        "Server._handle_comm",
    ),
)

#: Functions that clients run on a worker, which may read its data: `backhaul.dask.worker.get_data`
RUN: Final = InstancePatch(
    shown="Worker.handlers['run']",
    without="threads do not read ahead",
    item="run",
    read=(
        "Worker.run",
        "run_function",
        "Server._handle_comm",
    ),
)

#: Reports to a client about its keys, by operation: `backhaul.dask.client.result_cache` keeps their
#: results
CLIENT_RESULTS: Final = {
    operation: InstancePatch(
        shown=f"Client._stream_handlers[{operation!r}]",
        without="small results are fetched",
        item=operation,
        read=(function,),
    )
    for operation, function in (
        ("backhaul-result", "Client._handle_key_in_memory"),
        ("key-in-memory", "Client._handle_key_in_memory"),
        ("lost-data", "Client._handle_lost_data"),
        ("cancelled-keys", "Client._handle_cancelled_keys"),
        ("task-retried", "Client._handle_retried_key"),
        ("task-erred", "Client._handle_task_erred"),
        ("restart", "Client._handle_restart"),
    )
}

#: Where a graph becomes tasks: `backhaul.dask.scheduler.core` keeps these in Rust, and takes the
#: part of all that is read here, as a harness compares it for each release
GRAPH_STATE: Final = InstancePatch(
    shown="Scheduler._create_taskstate_from_graph",
    without="its state is kept in Python",
    attribute="_create_taskstate_from_graph",
    read=(
        "SchedulerState",
        "Scheduler._create_taskstate_from_graph",
        "Scheduler._generate_taskstates",
        "Scheduler._find_lost_dependencies",
        "Scheduler._set_priorities",
        "Scheduler.stimulus_queue_slots_maybe_opened",
        "Scheduler.stimulus_task_finished",
        "Scheduler.handle_task_finished",
        "Scheduler.client_desires_keys",
        "Scheduler.client_releases_keys",
        "Scheduler.stimulus_cancel",
        "Scheduler.stimulus_retry",
        "Scheduler.remove_client",
        "distributed.publish:PublishExtension",
        "distributed.queues:QueueExtension",
        "distributed.variable:VariableExtension",
        "Scheduler.release_worker_data",
        "Scheduler.add_keys",
        "Scheduler.handle_long_running",
        "Scheduler.heartbeat_worker",
        "add_worker",
        "remove_worker",
        "Scheduler.handle_worker",
        "Scheduler.handle_worker_status_change",
        "Scheduler.handle_request_refresh_who_has",
        "retire_workers",
        "RetireWorker",
        "Scheduler._apply_annotations",
        "Scheduler._reschedule",
        "Scheduler.transitions",
        "Scheduler.report",
        "Scheduler.report_on_key",
        "Scheduler.send_all",
        "Scheduler.get_who_has",
        "Scheduler.get_has_what",
        "Scheduler.get_processing",
        "Scheduler.get_task_stream",
        "Scheduler.get_task_stream_index",
        "Scheduler.add_plugin",
        "Scheduler.remove_plugin",
        # Their reads, because these plugins get transitions late
        "distributed.diagnostics.task_stream:TaskStreamPlugin.transition",
        "distributed.diagnostics.progress:Progress.setup",
        "distributed.diagnostics.progress:Progress.transition",
        "distributed.diagnostics.progress:MultiProgress.setup",
        "distributed.diagnostics.progress:MultiProgress.transition",
        "Scheduler.check_idle",
        "Scheduler._check_no_workers",
        "Scheduler._check_unrunnable_task_timeouts",
        "Scheduler._check_queued_task_timeouts",
        "Scheduler._fail_tasks_after_no_workers_timeout",
        "Scheduler._refresh_no_workers_since",
        "NoValidWorkerError",
        "NoWorkerError",
        "TaskState",
        "WorkerState",
        "ClientState",
        "TaskGroup",
        "TaskPrefix",
        "Computation",
        "WorkStealing",
        "distributed.stealing:InFlightInfo",
        "SpansSchedulerExtension",
    ),
)

#: The store of a worker's results: `backhaul.dask.worker.spill_buffer`
STORE_CLASS: Final = InstancePatch(
    shown="Worker.data.__class__",
    without="small results take longer",
    attribute="__class__",
    read=(
        "SpillBuffer",
        "zict:Buffer",
        "zict:LRU",
        "zict:Cache",
        "InsertionSortedSet",
    ),
)

#: The locks of that store
STORE_LOCK: Final = InstancePatch(
    shown="Worker.data.lock",
    without="its state is kept in Python",
    attribute="lock",
    read=("zict:Buffer", "zict:LRU", "zict:Cache"),
)

#: The state machine of a worker, which `backhaul.dask.worker.core` keeps in Rust: the whole class,
#: because the core has each of its functions, and the classes of its tasks and events
WORKER_CORE: Final = InstancePatch(
    shown="Worker.state.__class__",
    without="its state is kept in Python",
    attribute="__class__",
    read=(
        "WorkerStateMachine",
        "WorkerTaskState",
        "TaskCounter",
        "HeapSet",
        "BaseWorker.handle_stimulus",
        "Worker.batched_send",
        "StateMachineEvent",
        "TaskFinishedMsg",
        "ReleaseWorkerDataMsg",
        *map(
            "distributed.worker_state_machine:{}".format,
            (
                *("ComputeTaskEvent", "ExecuteSuccessEvent", "ExecuteFailureEvent"),
                *("RescheduleEvent", "SecedeEvent", "FreeKeysEvent", "GatherDepSuccessEvent"),
                *("GatherDepBusyEvent", "GatherDepNetworkFailureEvent", "GatherDepFailureEvent"),
                *("RetryBusyWorkerEvent", "FindMissingEvent", "RefreshWhoHasEvent"),
                *("RemoveReplicasEvent", "AcquireReplicasEvent", "UpdateDataEvent"),
                *("PauseEvent", "UnpauseEvent", "StealRequestEvent", "CancelComputeEvent"),
                "RemoveWorkerEvent",
            ),
        ),
    ),
)

#: Where results that a client puts on workers become tasks, which the same keeps likewise: by
#: itself, as a request and as a message
PLACED_RESULTS: Final = InstancePatch(
    shown="Scheduler.update_data",
    without="results that are scattered are Dask's to keep",
    attribute="update_data",
    read=(
        "update_data",
        "log_errors",
        *of("Scheduler", "scatter replicate gather_on_worker"),
        "SchedulerState.new_task",
        "SchedulerState.add_replica",
        "Scheduler.client_desires_keys",
    ),
)
PLACED_BY_REQUEST: Final = InstancePatch(
    shown="Scheduler.handlers['update_data']",
    without=PLACED_RESULTS.without,
    item="update_data",
    read=PLACED_RESULTS.read,
)
PLACED_BY_MESSAGE: Final = InstancePatch(
    shown="Scheduler.stream_handlers['update-data']",
    without=PLACED_RESULTS.without,
    item="update-data",
    read=PLACED_RESULTS.read,
)

#: Where handlers of streams are, which `backhaul.dask.scheduler.core.handler_overrides` watches
WATCHED_HANDLERS: Final = InstancePatch(
    shown="Scheduler.stream_handlers",
    without="handlers of streams that a program replaces are passed over",
    attribute="stream_handlers",
    read=("Server.__init__",),
)

#: Messages between the scheduler and its peers, while the engine handles them for
#: `backhaul.dask.scheduler.core.engine_streams`; only inspected
ENGINE_STREAMS: Final = InstancePatch(
    shown="Scheduler.send_all",
    without="hot messages are handled in Python",
    attribute="send_all",
    read=(
        "SchedulerState._task_to_msg",
        *of(
            "Scheduler",
            "send_all report handle_worker add_client handle_task_finished "
            "client_releases_keys release_worker_data",
        ),
        "Client._release_key",
        "Client._handle_key_in_memory",
        "ComputeTaskEvent",
        "TaskFinishedMsg",
        "ReleaseWorkerDataMsg",
    ),
)

#: The choice of a worker for a queued task: ours while a worker is filled
QUEUED_TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_rootish_queuing_enabled",
    without="workers are not kept filled",
    attribute="decide_worker_rootish_queuing_enabled",
    read=(
        "SchedulerState.decide_worker_rootish_queuing_enabled",
        "SchedulerState._transition_queued_processing",
    ),
)

#: The choice of a worker for a task with inputs: `backhaul.dask.placement.link_placement` makes it
TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without="tasks are placed by one bandwidth",
    attribute="decide_worker_non_rootish",
    read=(
        "SchedulerState.decide_worker_non_rootish",
        "SchedulerState._get_prefix_duration",
        *of(
            "WorkerState",
            "__init__ add_to_processing remove_from_processing add_to_long_running",
        ),
        "TaskState.__init__",
        "TaskState.get_nbytes",
        "TaskPrefix.__init__",
        "TaskPrefix.add_duration",
    ),
)

#: Cost of a task on a worker, where upstream still chooses: actors, restrictions
WORKER_OBJECTIVE: Final = InstancePatch(
    shown="Scheduler.worker_objective",
    without="tasks are placed by one bandwidth",
    attribute="worker_objective",
    read=(
        "SchedulerState.worker_objective",
        "SchedulerState._calc_occupancy",
    ),
)

#: How long the inputs of a task take to come to a worker, for work stealing
COMM_COST: Final = InstancePatch(
    shown="Scheduler.get_comm_cost",
    without="tasks are stolen by one bandwidth",
    attribute="get_comm_cost",
    read=(
        "SchedulerState.get_comm_cost",
        "WorkStealing.steal_time_ratio",
    ),
)

#: Whether a task is a root: `backhaul.dask.placement.root_plan` notes which one was asked about
ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without="roots go to whoever is free",
    attribute="is_rootish",
    read=(
        "SchedulerState.is_rootish",
        "SchedulerState._transition_waiting_processing",
    ),
)

#: Which queued tasks go out when threads are free
QUEUE_SLOTS: Final = InstancePatch(
    shown="Scheduler.stimulus_queue_slots_maybe_opened",
    without="roots go to whoever is free",
    attribute="stimulus_queue_slots_maybe_opened",
    read=(
        "Scheduler.stimulus_queue_slots_maybe_opened",
        "SchedulerState._transition_queued_processing",
        "task_slots_available",
        "HeapSet.peek",
        "HeapSet.__len__",
    ),
)

#: Answers to the requests of `backhaul.dask.scheduler.window_recall`, which uses the messages of
#: work stealing
STEAL_RESPONSE: Final = InstancePatch(
    shown="Scheduler.stream_handlers['steal-response']",
    without="workers are not kept filled",
    item="steal-response",
    read=(
        *of("WorkStealing", "__init__ move_task_request move_task_confirm"),
        "WorkerStateMachine._handle_steal_request",
    ),
)

#: The handler of heartbeats: `backhaul.dask.observe.account` takes the report out of them
SCHEDULER_HEARTBEAT: Final = InstancePatch(
    shown="Scheduler.handlers['heartbeat_worker']",
    without="no account of transfers is kept",
    item="heartbeat_worker",
    read=("Scheduler.heartbeat_worker",),
)

#: One metric more for the heartbeats of a worker: the one of `backhaul.dask.observe.heartbeat`
WORKER_METRIC: Final = InstancePatch(
    shown="Worker.metrics['backhaul-transfers']",
    without="the worker does not report its transfers",
    item="backhaul-transfers",
    read=("Worker.get_metrics",),
)

#: Messages to a worker about its links: `backhaul.dask.placement.fetch_order` listens
LINK_NEWS: Final = InstancePatch(
    shown="Worker.stream_handlers['backhaul-links']",
    without="the worker fetches as upstream does",
    item="backhaul-links",
    read=("Worker.handle_scheduler",),
)

#: The process memory of a worker, see `backhaul.dask.worker.memory`
WORKER_MEMORY: Final = InstancePatch(
    shown="SystemMonitor.get_process_memory",
    without="memory that is borrowed or free counts, too",
    attribute="get_process_memory",
    read=("SystemMonitor.get_process_memory",),
)

#: The memory monitor of a nanny: it goes by the memory that the worker counts
NANNY_MEMORY_MONITOR: Final = InstancePatch(
    shown="Nanny.periodic_callbacks['memory_monitor'].callback",
    without="a nanny ends its worker for memory that is borrowed or free, too",
    attribute="callback",
    read=("NannyMemoryManager",),
)

#: Streams over our comms send without timers; put there by the patch of `BatchedSend.start`
STREAM_CLASS: Final = InstancePatch(
    shown="BatchedSend.__class__",
    without="messages wait for timers",
    attribute="__class__",
    read=of("BatchedSend", "__init__ start closed _background_send send close abort"),
)

#: The same of a client, by which its threads may send, too
SHARED_STREAM: Final = InstancePatch(
    shown="BatchedSend.__class__",
    without="the event loop of a client sends all that its threads submit",
    attribute="__class__",
    read=(
        *of("BatchedSend", "__init__ start closed _background_send send close abort"),
        *of(
            "Client",
            "_ensure_connected _send_to_scheduler _send_to_scheduler_safe _heartbeat _gather "
            "_dec_ref _release_key",
        ),
    ),
)

#: The queue of a worker's thread pool, in C; see `backhaul.dask.worker.execution`
EXECUTOR_QUEUE: Final = InstancePatch(
    shown="ThreadPoolExecutor._work_queue",
    without="tasks pass a slower queue",
    attribute="_work_queue",
    read=("ThreadPoolExecutor",),
)

#: A nanny's view of its worker process, and the process that it starts: they pin the worker. Dask
#: offers `worker_class` for what runs inside the process only, which is too late for that.
WORKER_PROCESS_CLASS: Final = InstancePatch(
    shown="Nanny.process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read=(
        "Nanny.instantiate",
        "WorkerProcess.__init__",
        "WorkerProcess.start",
    ),
)
ASYNC_PROCESS_CLASS: Final = InstancePatch(
    shown="AsyncProcess._process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read=of("AsyncProcess", "__init__ _start_threads _watch_message_queue start"),
)

#: The navigation of a scheduler's dashboard: one page more, of `backhaul.dask.observe.dashboard`
DASHBOARD_PAGES: Final = InstancePatch(
    shown="template_variables(scheduler)['pages']",
    without="the page of transfers is not in the navigation",
    item=slice(None),
    # By name: it needs Bokeh.
    read=("distributed.dashboard.scheduler",),
)

#: All that is replaced on single objects
INSTANCE_PATCHES: Final = (
    GRAPH_STATE,
    STORE_CLASS,
    STORE_LOCK,
    WORKER_CORE,
    PLACED_RESULTS,
    PLACED_BY_REQUEST,
    PLACED_BY_MESSAGE,
    WATCHED_HANDLERS,
    ENGINE_STREAMS,
    TASK_FINISHED,
    RESULTS_FINISHED,
    SMALL_RESULTS_TELLERS,
    RESULT_REQUESTS,
    GET_DATA,
    RUN,
    SUBMISSIONS,
    MAPPED_CALLS,
    SUBMITTED_GRAPHS,
    DESIRED_KEYS,
    *CLIENT_RESULTS.values(),
    QUEUED_TASK_DECISION,
    TASK_DECISION,
    WORKER_OBJECTIVE,
    COMM_COST,
    ROOTISH,
    QUEUE_SLOTS,
    STEAL_RESPONSE,
    SCHEDULER_HEARTBEAT,
    WORKER_METRIC,
    LINK_NEWS,
    WORKER_MEMORY,
    NANNY_MEMORY_MONITOR,
    STREAM_CLASS,
    SHARED_STREAM,
    EXECUTOR_QUEUE,
    WORKER_PROCESS_CLASS,
    ASYNC_PROCESS_CLASS,
    DASHBOARD_PAGES,
    *EXCHANGE_PATCHES,
    *RESOURCE_PATCHES,
)
