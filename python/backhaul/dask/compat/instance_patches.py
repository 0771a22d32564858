"""Patches on single objects of Dask's: a scheduler, a worker, a nanny, a stream, a pool.

Of the list in `backhaul.dask.compat.process_patches` the part that a whole process does not share.
Patches for resources are in `backhaul.dask.compat.resource_patches`, and counted here.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.exchange_patches import EXCHANGE_PATCHES, EXCHANGE_REQUIREMENTS
from backhaul.dask.compat.operations import (
    GRAPH,
    MAP,
    RESULT,
    RESULT_REQUESTS,
    RUNS,
    SMALL_RESULTS,
    SUBMIT,
    TRANSFERS,
)
from backhaul.dask.compat.patching import InstancePatch, Requirement, of
from backhaul.dask.compat.resource_patches import OVERFLOW_POOL, RESOURCE_PATCHES

__all__ = [
    "CLIENT_REQUESTS",
    "CLIENT_RESULTS",
    "CLIENT_SUBMISSIONS",
    "DASHBOARD_PAGES",
    "DATA_REQUESTS",
    "DESIRED_KEYS",
    "ENGINE_STREAMS",
    "EVICTION",
    "GRAPH_STATE",
    "INSTANCE_PATCHES",
    "NANNY_MEMORY_MONITOR",
    "PINNED_PROCESS",
    "PLACED_RESULTS",
    "REQUIREMENTS",
    "SCHEDULER_ACCOUNT",
    "SCHEDULER_RESULTS",
    "SERVER_STREAMS",
    "SHARED_STREAM",
    "STORE_FILE",
    "STORE_LOCK",
    "STREAM_CLASS",
    "SUBMISSIONS",
    "WATCHED_HANDLERS",
    "WINDOW",
    "WORKER_CORE",
    "WORKER_MEMORY",
    "WORKER_METRIC",
    "WORKER_RESULTS",
    "WORK_QUEUES",
]

#: In-flight window of each worker: the handlers of ended tasks and of answers to steal requests,
#: and the choice of a worker for a queued task (`backhaul.dask.scheduler.window`)
WINDOW: Final = InstancePatch(
    shown="Scheduler",
    without="workers are not kept filled",
    slots=(
        "stream_handlers[task-finished]",
        "stream_handlers[steal-response]",
        "decide_worker_rootish_queuing_enabled",
    ),
    read=(
        *of("Scheduler", "handle_task_finished stimulus_queue_slots_maybe_opened transitions"),
        *of(
            "SchedulerState",
            "_transitions decide_worker_rootish_queuing_enabled _transition_queued_processing",
        ),
        "Scheduler.send_all",
        "HeapSet.peek",
        "HeapSet.__len__",
        *of(
            "WorkerState",
            "__init__ add_to_processing remove_from_processing add_to_long_running",
        ),
        "TaskState.__init__",
        "TaskFinishedMsg",
        *of("WorkStealing", "__init__ move_task_request move_task_confirm"),
        "WorkerStateMachine._handle_steal_request",
    ),
)

#: Results that come with the message of an ended task, and clients and workers that announce that
#: they keep or send results (`backhaul.dask.scheduler.inline_results`)
SCHEDULER_RESULTS: Final = InstancePatch(
    shown="Scheduler",
    without="small results are fetched",
    slots=("stream_handlers[task-finished]", f"stream_handlers[{SMALL_RESULTS}]"),
    read=(
        *of(
            "Scheduler",
            "handle_task_finished stimulus_task_finished add_client remove_client worker_send",
        ),
        *of("SchedulerState", "_transition_processing_memory _add_to_memory"),
        "TaskState.__init__",
        "TaskFinishedMsg",
    ),
)

#: Compact messages of single tasks, of the calls of a map, and of graphs: three operations more
#: (`backhaul.dask.scheduler.submissions`)
SUBMISSIONS: Final = InstancePatch(
    shown="Scheduler",
    without="each task, map or graph is submitted as an expression",
    slots=tuple(f"stream_handlers[{operation}]" for operation in (SUBMIT, MAP, GRAPH)),
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


#: Interests in tasks that have ended: `backhaul.dask.scheduler.fire_and_forget` drops those of its
#: client
DESIRED_KEYS: Final = InstancePatch(
    shown="Scheduler",
    without="results of `fire_and_forget` may stay",
    slots=("stream_handlers[client-desires-keys]",),
    read=(
        "Scheduler.client_desires_keys",
        "Scheduler.client_releases_keys",
    ),
)

#: Streams of a scheduler or worker: all messages that have arrived are handled in one turn of the
#: event loop (`backhaul.dask.worker.event_stream`)
SERVER_STREAMS: Final = InstancePatch(
    shown="Server",
    without="each message costs a turn of the event loop",
    slots=("handle_stream",),
    read=(
        "Server.handle_stream",
        "Worker._handle_remote_stimulus",
        "Worker.handle_stimulus",
        "ComputeTaskEvent",
        "StateMachineEvent",
        "WorkerStateMachine.handle_stimulus",
    ),
)

#: Requests of its scheduler to a worker for small results: one operation more
WORKER_RESULTS: Final = InstancePatch(
    shown="Worker",
    without="small results are fetched",
    slots=(f"stream_handlers[{RESULT_REQUESTS}]",),
    read=("Worker.handle_scheduler",),
)

#: Requests of other workers, and functions that clients run on a worker, which may read its data:
#: `backhaul.dask.worker.get_data` has the event loop catch up first
DATA_REQUESTS: Final = InstancePatch(
    shown="Worker",
    without="threads do not read ahead",
    slots=("handlers[get_data]", "handlers[run]"),
    read=("get_data", "Worker.run", "run_function", "Server._handle_comm"),
)


#: Reports to a client about its keys: `backhaul.dask.client.result_cache` keeps their results, and
#: drops those that are released, or that a function which the client runs may replace; `gather`
#: takes them without the event loop
CLIENT_RESULTS: Final = InstancePatch(
    shown="Client",
    without="small results are fetched",
    slots=(
        *("_handle_report", "_release_key", "_gather_remote", "_run", "gather"),
        *(
            f"_stream_handlers[{operation}]"
            for operation in (
                *(RESULT, "key-in-memory", "lost-data", "cancelled-keys", "task-retried"),
                *("task-erred", "restart"),
            )
        ),
    ),
    read=(
        *of(
            "Client",
            "_handle_key_in_memory _handle_lost_data _handle_cancelled_keys _handle_retried_key "
            "_handle_task_erred _handle_restart _start _release_key _gather_remote _gather _run "
            "gather sync",
        ),
        "handle_report",
        "log_errors",
        "FutureState",
    ),
)

#: No expression: one pickle of a task, or of the calls of a map, without a look by the scheduler;
#: likewise for graphs whose tasks are there already, and for those of many Delayed objects, whose
#: simplified and tuned expression is made in one step
CLIENT_SUBMISSIONS: Final = InstancePatch(
    shown="Client",
    without="each task, map or graph is submitted as an expression",
    slots=("submit", "map", "_graph_to_futures", "compute"),
    read=(
        *of("Client", "submit map compute _graph_to_futures _send_to_scheduler_safe _inc_ref"),
        *of("Task", "__init__ __call__ __getstate__ __setstate__"),
        "GraphNode.dependencies",
        "parse_input",
        "dask.tokenize",
        *of("Future", "__init__ _bind_late"),
        "FutureState.__init__",
        *of("MapExpr", "keys _layer"),
        "update_graph",
        "materialize_graph",
        "cull_graph",
        "LLGExpr",
        "dask.base:collections_to_expr",
        "get_collections_metadata",
        *of(
            "Expr",
            "__new__ _reconstruct dependencies rewrite simplify_once simplify lower_once "
            "lower_completely optimize fuse finalize_compute __dask_graph__ _simplify_down "
            "_simplify_up _lower _tune_down _tune_up",
        ),
        "ExprSequence",
        "FinalizeCompute",
        "HLGExpr",
        "HLGExprGroup",
        "HLGExprSequence",
        "HLGFinalizeCompute",
        "optimize_until",
        "dask.highlevelgraph:HighLevelGraph",
        *of(
            "dask.delayed:Delayed",
            "__init__ __dask_graph__ __dask_keys__ __dask_postcompute__",
        ),
    ),
)

#: Requests of a client: news of its stream may come ahead of the answer to a request that causes
#: it (`backhaul.dask.client.request_order`), and Backhaul is among the versions
CLIENT_REQUESTS: Final = InstancePatch(
    shown="Client",
    without="results of a short task that is retried, or of a dataset that is removed, may be lost",
    slots=("_retry", "_get_dataset", "get_versions"),
    read=(
        *of(
            "Client",
            "_retry _get_dataset _inform_scheduler_of_futures get_versions _get_versions",
        ),
        *of("FutureState", "__init__ retry"),
        "Scheduler.stimulus_retry",
        *of("distributed.publish:PublishExtension", "put get delete"),
    ),
)


#: Where a graph becomes tasks: `backhaul.dask.scheduler.core` keeps these in Rust, and takes the
#: part of all that is read here, as a harness compares it for each release
GRAPH_STATE: Final = InstancePatch(
    shown="Scheduler",
    without="its state is kept in Python",
    slots=("_create_taskstate_from_graph",),
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

#: The choice of the result that it spills: `backhaul.dask.worker.eviction`
EVICTION: Final = InstancePatch(
    shown="Worker.data",
    without="the result that was used least recently is spilled, and no blocks of an exchange are",
    slots=("fast.evict", "evict"),
    read=("SpillBuffer.evict", "zict:Buffer", "zict:LRU", "InsertionSortedSet"),
)

#: The files of the results that it spills: `backhaul.dask.worker.spill_file`
STORE_FILE: Final = InstancePatch(
    shown="Worker.data.slow",
    without="each spilled result has a file",
    slots=("data",),
    read=("SpillSlow", "SpillBuffer", "zict:Buffer", "zict:Cache"),
)

#: The locks of that store
STORE_LOCK: Final = InstancePatch(
    shown="Worker.data",
    without="its state is kept in Python",
    slots=("lock",),
    read=("zict:Buffer", "zict:LRU", "zict:Cache"),
)

#: The state machine of a worker, which `backhaul.dask.worker.core` keeps in Rust: the whole class,
#: because the core has each of its functions, and the classes of its tasks and events
WORKER_CORE: Final = InstancePatch(
    shown="Worker.state",
    without="its state is kept in Python",
    slots=("__class__",),
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
    shown="Scheduler",
    without="results that are scattered are Dask's to keep",
    slots=("update_data", "handlers[update_data]", "stream_handlers[update-data]"),
    read=(
        "update_data",
        "log_errors",
        *of("Scheduler", "scatter replicate gather_on_worker"),
        "SchedulerState.new_task",
        "SchedulerState.add_replica",
        "Scheduler.client_desires_keys",
    ),
)

#: Where handlers of streams are, which `backhaul.dask.scheduler.core.handler_overrides` watches
WATCHED_HANDLERS: Final = InstancePatch(
    shown="Scheduler",
    without="handlers of streams that a program replaces are passed over",
    slots=("stream_handlers",),
    read=("Server.__init__",),
)

#: Messages between the scheduler and its peers, while the engine handles them for
#: `backhaul.dask.scheduler.core.engine_streams`
ENGINE_STREAMS: Final = Requirement(
    shown="Scheduler.send_all",
    without="hot messages are handled in Python",
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

#: The handler of heartbeats, from which `backhaul.dask.observe.account` takes the report; the
#: handler of ended tasks, and one request more, for the record of runs
#: (`backhaul.dask.scheduler.run_record`)
SCHEDULER_ACCOUNT: Final = InstancePatch(
    shown="Scheduler",
    without="no account of transfers and runs is kept",
    slots=(
        "handlers[heartbeat_worker]",
        "stream_handlers[task-finished]",
        f"handlers[{RUNS}]",
    ),
    read=("Scheduler.heartbeat_worker", "Scheduler.handle_task_finished"),
)

#: One metric more for the heartbeats of a worker: the one of `backhaul.dask.observe.heartbeat`
WORKER_METRIC: Final = InstancePatch(
    shown="Worker",
    without="the worker does not report its transfers",
    slots=(f"metrics[{TRANSFERS}]",),
    read=("Worker.get_metrics",),
)

#: The process memory of a worker, see `backhaul.dask.worker.memory`
WORKER_MEMORY: Final = InstancePatch(
    shown="SystemMonitor",
    without="memory that is borrowed or free counts, too",
    slots=("get_process_memory",),
    read=("SystemMonitor.get_process_memory",),
)

#: The memory monitor of a nanny: it goes by the memory that the worker counts
NANNY_MEMORY_MONITOR: Final = InstancePatch(
    shown="Nanny",
    without="a nanny ends its worker for memory that is borrowed or free, too",
    slots=("periodic_callbacks[memory_monitor].callback",),
    read=("NannyMemoryManager",),
)

#: Streams over our comms send without timers; put there by the patch of `BatchedSend.start`
STREAM_CLASS: Final = InstancePatch(
    shown="BatchedSend",
    without="messages wait for timers",
    slots=("__class__",),
    read=of("BatchedSend", "__init__ start closed _background_send send close abort"),
)

#: Streams of a client or worker by which its threads may send, too: a subclass of that class
SHARED_STREAM: Final = Requirement(
    shown="BatchedSend.__class__",
    without="the event loop of a client sends all that its threads submit",
    read=(
        *of("BatchedSend", "__init__ start closed _background_send send close abort"),
        *of(
            "Client",
            "_ensure_connected _send_to_scheduler _send_to_scheduler_safe _heartbeat _gather "
            "_dec_ref _release_key",
        ),
    ),
)

#: The queues of a worker's thread pools, in C (`backhaul.dask.worker.work_queue`), and its events,
#: before which it handles the reports of threads that take tasks from `worker.local_queue`
WORK_QUEUES: Final = InstancePatch(
    shown="Worker",
    without="each task passes the event loop",
    slots=(
        "handle_stimulus",
        "executors[default]._work_queue",
        f"executors[{OVERFLOW_POOL}]._work_queue",
    ),
    # The order in which tasks are named, and by what
    read=(
        "Worker.handle_stimulus",
        "BaseWorker.handle_stimulus",
        *of(
            "WorkerStateMachine",
            "handle_stimulus _ensure_computing _next_ready_task _execute_done_common "
            "_transition_ready_executing _transition_waiting_ready _transition_to_memory",
        ),
        "HeapSet",
        "ThreadPoolExecutor",
        "pool_worker",
    ),
)

#: A nanny's view of its worker process, and the process that it starts: they pin the worker. Dask
#: offers `worker_class` for what runs inside the process only, which is too late for that.
PINNED_PROCESS: Final = InstancePatch(
    shown="WorkerProcess",
    without="its worker is not pinned",
    slots=("__class__", "process._process.__class__"),
    read=(
        "Nanny.instantiate",
        *of("WorkerProcess", "__init__ start"),
        *of("AsyncProcess", "__init__ _start_threads _watch_message_queue start"),
    ),
)


#: The navigation of a scheduler's dashboard: one page more, of `backhaul.dask.observe.dashboard`
DASHBOARD_PAGES: Final = InstancePatch(
    shown="template_variables(scheduler)",
    without="the page of transfers is not in the navigation",
    slots=("[pages][:]",),
    # By name: it needs Bokeh.
    read=("distributed.dashboard.scheduler",),
)

#: All that is replaced on single objects
INSTANCE_PATCHES: Final = (
    WINDOW,
    SCHEDULER_RESULTS,
    SUBMISSIONS,
    DESIRED_KEYS,
    SERVER_STREAMS,
    WORKER_RESULTS,
    DATA_REQUESTS,
    CLIENT_RESULTS,
    CLIENT_SUBMISSIONS,
    CLIENT_REQUESTS,
    GRAPH_STATE,
    EVICTION,
    STORE_FILE,
    STORE_LOCK,
    WORKER_CORE,
    PLACED_RESULTS,
    WATCHED_HANDLERS,
    SCHEDULER_ACCOUNT,
    WORKER_METRIC,
    WORKER_MEMORY,
    NANNY_MEMORY_MONITOR,
    STREAM_CLASS,
    WORK_QUEUES,
    PINNED_PROCESS,
    DASHBOARD_PAGES,
    *EXCHANGE_PATCHES,
    *RESOURCE_PATCHES,
)

#: Sources that features rely upon without a replacement
REQUIREMENTS: Final = (ENGINE_STREAMS, SHARED_STREAM, *EXCHANGE_REQUIREMENTS)
