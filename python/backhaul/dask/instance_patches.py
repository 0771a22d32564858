"""What is replaced on single objects of Dask's: a scheduler, a worker, a nanny, a stream, a pool.

Of the list in `backhaul.dask.patches` the part that a whole process does not share. What resources
replace is in `backhaul.dask.resource_patches`, and counted here.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.offers import GRAPH, MAP, SMALL_RESULTS, SUBMIT
from backhaul.dask.patching import InstancePatch
from backhaul.dask.resource_patches import RESOURCE_PATCHES

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
    "STREAM_CLASS",
    "SUBMISSIONS",
    "SUBMITTED_GRAPHS",
    "TASK_DECISION",
    "TASK_FINISHED",
    "WATCHED_HANDLERS",
    "WORKER_MEMORY",
    "WORKER_METRIC",
    "WORKER_OBJECTIVE",
    "WORKER_PROCESS_CLASS",
]

#: The handler of ``task-finished``: `backhaul.dask.in_flight` looks at the worker after Dask has
TASK_FINISHED: Final = InstancePatch(
    shown="Scheduler.stream_handlers['task-finished']",
    without="workers are not kept filled",
    item="task-finished",
    read={
        "Scheduler.handle_task_finished": "f2459ffb4e7e",
        "Scheduler.stimulus_queue_slots_maybe_opened": "2aa9c5a70172",
        "Scheduler.transitions": "edd9af11e5f3",
        "SchedulerState._transitions": "223e6d801674",
        "Scheduler.send_all": "8c228e56a8c2",
        "HeapSet": "c711cb774f6b",
        "WorkerState": "7b84667ecb2d",
        "TaskState": "a478e3a2064b",
        "TaskFinishedMsg": "232e1fa070b3",
    },
)

#: The same handler, for results that come with the message: `backhaul.dask.small_results`
RESULTS_FINISHED: Final = InstancePatch(
    shown="Scheduler.stream_handlers['task-finished']",
    without="small results are fetched",
    item="task-finished",
    read={
        "Scheduler.handle_task_finished": "f2459ffb4e7e",
        "Scheduler.stimulus_task_finished": "53555f78cc36",
        "SchedulerState._transition_processing_memory": "85c93d843473",
        "SchedulerState._add_to_memory": "40d0cc7da235",
        "TaskState": "a478e3a2064b",
        "TaskFinishedMsg": "232e1fa070b3",
    },
)

#: Clients that keep results, and workers that send them: one operation more
SMALL_RESULTS_TELLERS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-small-results']",
    without="small results are fetched",
    item=SMALL_RESULTS,
    read={
        "Scheduler.add_client": "43ffdaa14b08",
        "Scheduler.remove_client": "074ea311e34c",
        "Scheduler.worker_send": "43b9db20aad0",
    },
)

#: Tasks that clients submit one by one: one operation more, of `backhaul.dask.submissions`
SUBMISSIONS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['backhaul-submit']",
    without="each task is submitted as an expression",
    item=SUBMIT,
    read={
        "update_graph": "042ec25aa66b",
        "Scheduler._create_taskstate_from_graph": "280fa75deeb6",
        "Scheduler._find_lost_dependencies": "0d78ba184402",
        "Scheduler._generate_taskstates": "e77932a6b8d4",
        "SchedulerState._task_to_msg": "13eb3b7e9c31",
        "GraphNode": "4928dcd1f6ea",
        "Task": "ab586b5a0fd9",
    },
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

#: Wishes for tasks that have ended: `backhaul.dask.fire_and_forget` drops those of its client
DESIRED_KEYS: Final = InstancePatch(
    shown="Scheduler.stream_handlers['client-desires-keys']",
    without="results of `fire_and_forget` may stay",
    item="client-desires-keys",
    read={
        "Scheduler.client_desires_keys": "754aedc8e1ad",
        "Scheduler.client_releases_keys": "a6fce90e9b42",
    },
)

#: What a worker is asked for by its scheduler: one operation more
RESULT_REQUESTS: Final = InstancePatch(
    shown="Worker.stream_handlers['backhaul-result-requests']",
    without="small results are fetched",
    item="backhaul-result-requests",
    read={"Worker.handle_scheduler": "de01a9fc9cf6"},
)

#: What other workers ask for: `backhaul.dask.asked_data` has the event loop catch up first
GET_DATA: Final = InstancePatch(
    shown="Worker.handlers['get_data']",
    without="threads do not read ahead",
    item="get_data",
    read={"get_data": "71e40397bd12", "Server._handle_comm": "919c1291fbed"},
)

#: What clients have run on a worker, which may look at its data: `backhaul.dask.asked_data`
RUN: Final = InstancePatch(
    shown="Worker.handlers['run']",
    without="threads do not read ahead",
    item="run",
    read={
        "Worker.run": "7a86e719812e",
        "run_function": "70393e08681c",
        "Server._handle_comm": "919c1291fbed",
    },
)

#: What a client hears of its keys, by operation: `backhaul.dask.held_results` keeps their results
CLIENT_RESULTS: Final = {
    operation: InstancePatch(
        shown=f"Client._stream_handlers[{operation!r}]",
        without="small results are fetched",
        item=operation,
        read={function: digest},
    )
    for operation, function, digest in (
        ("backhaul-result", "Client._handle_key_in_memory", "11081f4e9941"),
        ("key-in-memory", "Client._handle_key_in_memory", "11081f4e9941"),
        ("lost-data", "Client._handle_lost_data", "6c6babd8fd78"),
        ("cancelled-keys", "Client._handle_cancelled_keys", "f60ed4e111a3"),
        ("task-retried", "Client._handle_retried_key", "c80cefc29607"),
        ("task-erred", "Client._handle_task_erred", "ab6e288467a0"),
        ("restart", "Client._handle_restart", "90293f9f7ed7"),
    )
}

#: Where a graph becomes tasks: `backhaul.dask.scheduler_core` keeps these in Rust, and takes the
#: part of all that is read here, as a harness compares it for each release
GRAPH_STATE: Final = InstancePatch(
    shown="Scheduler._create_taskstate_from_graph",
    without="its state is kept in Python",
    attribute="_create_taskstate_from_graph",
    read={
        "SchedulerState": "7c5a09e727ce",
        "Scheduler._create_taskstate_from_graph": "280fa75deeb6",
        "Scheduler._generate_taskstates": "e77932a6b8d4",
        "Scheduler._find_lost_dependencies": "0d78ba184402",
        "Scheduler._set_priorities": "f3ca68c6b910",
        "Scheduler.stimulus_queue_slots_maybe_opened": "2aa9c5a70172",
        "Scheduler.stimulus_task_finished": "53555f78cc36",
        "Scheduler.handle_task_finished": "f2459ffb4e7e",
        "Scheduler.client_desires_keys": "754aedc8e1ad",
        "Scheduler.client_releases_keys": "a6fce90e9b42",
        "Scheduler.stimulus_cancel": "d5aedfc831a5",
        "Scheduler.stimulus_retry": "088af7602a87",
        "Scheduler.remove_client": "074ea311e34c",
        "distributed.publish": "d917d751a482",
        "distributed.queues": "440d0832d9b0",
        "distributed.variable": "bc0629ebf3dd",
        "Scheduler.release_worker_data": "7aea3584592a",
        "Scheduler.add_keys": "ce7ea276be82",
        "Scheduler.handle_long_running": "8277cb6ecb8a",
        "Scheduler.heartbeat_worker": "a4c0156b01a3",
        "add_worker": "57f6af6e5d6c",
        "remove_worker": "4ce0b53de299",
        "Scheduler.handle_worker": "366977a9613d",
        "Scheduler.handle_worker_status_change": "206e18419a5c",
        "Scheduler.handle_request_refresh_who_has": "1aa4e8e77e9b",
        "retire_workers": "2810d9fe3c73",
        "RetireWorker": "92682c79e240",
        "Scheduler._apply_annotations": "cd894b8826f3",
        "Scheduler._reschedule": "6e4e6842da3d",
        "Scheduler.transitions": "edd9af11e5f3",
        "Scheduler.report": "931fd0794eb3",
        "Scheduler.report_on_key": "9f24d4e3edfe",
        "Scheduler.send_all": "8c228e56a8c2",
        "Scheduler.get_who_has": "c0e96e9d464f",
        "Scheduler.get_has_what": "13c030435109",
        "Scheduler.get_processing": "a9bb5cf0e0ff",
        "Scheduler.get_task_stream": "9d876fc41123",
        "Scheduler.get_task_stream_index": "ae93aabf567a",
        "Scheduler.add_plugin": "66c5c5a9fec2",
        "Scheduler.remove_plugin": "eef1de9322bd",
        # What they look at, as they hear of transitions late
        "distributed.diagnostics.task_stream:TaskStreamPlugin": "e632d0e23433",
        "distributed.diagnostics.progress:Progress": "69eb3a147c13",
        "distributed.diagnostics.progress:MultiProgress": "ec3339a2662f",
        "Scheduler.check_idle": "f6bacb4048a5",
        "Scheduler._check_no_workers": "7f40b9b47409",
        "Scheduler._check_unrunnable_task_timeouts": "acfb78a79d10",
        "Scheduler._check_queued_task_timeouts": "475877204509",
        "Scheduler._fail_tasks_after_no_workers_timeout": "c4ae767b0a90",
        "Scheduler._refresh_no_workers_since": "da7976ccd751",
        "NoValidWorkerError": "00ae3c3d9b7b",
        "NoWorkerError": "a60f98799618",
        "TaskState": "a478e3a2064b",
        "WorkerState": "7b84667ecb2d",
        "ClientState": "dac99dde506b",
        "TaskGroup": "d46f0f975374",
        "TaskPrefix": "bd658544d449",
        "Computation": "cde4253de86c",
        "distributed.stealing": "99143d44cb54",
        "SpansSchedulerExtension": ("94728da81114", "d2f1a8818f27"),
    },
)

#: Where results that a client puts on workers become tasks, which the same keeps likewise: by
#: itself, as a request and as a message
PLACED_RESULTS: Final = InstancePatch(
    shown="Scheduler.update_data",
    without="results that are scattered are Dask's to keep",
    attribute="update_data",
    read={
        "update_data": "c48781983b12",
        "log_errors": "3e2526feca6f",
        "Scheduler.scatter": "97c71f89e1b7",
        "Scheduler.replicate": "194517122b57",
        "Scheduler.gather_on_worker": "865624df6f3c",
        "SchedulerState.new_task": "993e31910686",
        "SchedulerState.add_replica": "26997a1724c8",
        "Scheduler.client_desires_keys": "754aedc8e1ad",
    },
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

#: Where handlers of streams are, which `backhaul.dask.scheduler_core.programs` watches
WATCHED_HANDLERS: Final = InstancePatch(
    shown="Scheduler.stream_handlers",
    without="handlers of streams that a program replaces are passed over",
    attribute="stream_handlers",
    read={"Server.__init__": "aa009702f799"},
)

#: What the scheduler and its peers say to each other, while the engine handles it for
#: `backhaul.dask.scheduler_core.streams`; only looked at
ENGINE_STREAMS: Final = InstancePatch(
    shown="Scheduler.send_all",
    without="hot messages are handled in Python",
    attribute="send_all",
    read={
        "SchedulerState._task_to_msg": "13eb3b7e9c31",
        "Scheduler.send_all": "8c228e56a8c2",
        "Scheduler.report": "931fd0794eb3",
        "Scheduler.handle_worker": "366977a9613d",
        "Scheduler.add_client": "43ffdaa14b08",
        "Scheduler.handle_task_finished": "f2459ffb4e7e",
        "Scheduler.client_releases_keys": "a6fce90e9b42",
        "Scheduler.release_worker_data": "7aea3584592a",
        "Client._release_key": "2d790ca7d72e",
        "Client._handle_key_in_memory": "11081f4e9941",
        "ComputeTaskEvent": "6aa056a6e4f9",
        "TaskFinishedMsg": "232e1fa070b3",
        "ReleaseWorkerDataMsg": "c3a8deb2653e",
    },
)

#: The choice of a worker for a queued task: ours while a worker is filled
QUEUED_TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_rootish_queuing_enabled",
    without="workers are not kept filled",
    attribute="decide_worker_rootish_queuing_enabled",
    read={
        "SchedulerState.decide_worker_rootish_queuing_enabled": "7280849e5a73",
        "SchedulerState._transition_queued_processing": "582686aa38d4",
    },
)

#: The choice of a worker for a task with inputs: `backhaul.dask.placement` makes it
TASK_DECISION: Final = InstancePatch(
    shown="Scheduler.decide_worker_non_rootish",
    without="tasks are placed by one bandwidth",
    attribute="decide_worker_non_rootish",
    read={
        "SchedulerState.decide_worker_non_rootish": "1aa228f24ad3",
        "SchedulerState._get_prefix_duration": "c83d2014ed24",
        "WorkerState": "7b84667ecb2d",
        "TaskState": "a478e3a2064b",
        "TaskPrefix": "bd658544d449",
    },
)

#: What it costs to run a task on a worker, where upstream still chooses: actors, restrictions
WORKER_OBJECTIVE: Final = InstancePatch(
    shown="Scheduler.worker_objective",
    without="tasks are placed by one bandwidth",
    attribute="worker_objective",
    read={
        "SchedulerState.worker_objective": "86f78b3327dd",
        "SchedulerState._calc_occupancy": "c33a7e8955e0",
    },
)

#: How long the inputs of a task take to come to a worker, for work stealing
COMM_COST: Final = InstancePatch(
    shown="Scheduler.get_comm_cost",
    without="tasks are stolen by one bandwidth",
    attribute="get_comm_cost",
    read={
        "SchedulerState.get_comm_cost": "9512e209bdcd",
        "distributed.stealing": "99143d44cb54",
    },
)

#: Whether a task is a root: `backhaul.dask.roots` notes which one was asked about
ROOTISH: Final = InstancePatch(
    shown="Scheduler.is_rootish",
    without="roots go to whoever is free",
    attribute="is_rootish",
    read={
        "SchedulerState.is_rootish": "8ea0f7489699",
        "SchedulerState._transition_waiting_processing": "c7f0cf0e0bd3",
    },
)

#: Which queued tasks go out when threads are free
QUEUE_SLOTS: Final = InstancePatch(
    shown="Scheduler.stimulus_queue_slots_maybe_opened",
    without="roots go to whoever is free",
    attribute="stimulus_queue_slots_maybe_opened",
    read={
        "Scheduler.stimulus_queue_slots_maybe_opened": "2aa9c5a70172",
        "SchedulerState._transition_queued_processing": "582686aa38d4",
        "task_slots_available": "22021da7cd1e",
        "HeapSet": "c711cb774f6b",
    },
)

#: Answers to the requests of `backhaul.dask.steal_back`, which uses the messages of work stealing
STEAL_RESPONSE: Final = InstancePatch(
    shown="Scheduler.stream_handlers['steal-response']",
    without="workers are not kept filled",
    item="steal-response",
    read={
        "distributed.stealing": "99143d44cb54",
        "WorkerStateMachine._handle_steal_request": "ccd69569dfc4",
    },
)

#: The handler of heartbeats: `backhaul.dask.account` takes the report out of them
SCHEDULER_HEARTBEAT: Final = InstancePatch(
    shown="Scheduler.handlers['heartbeat_worker']",
    without="no account of transfers is kept",
    item="heartbeat_worker",
    read={"Scheduler.heartbeat_worker": "a4c0156b01a3"},
)

#: One metric more for the heartbeats of a worker: the one of `backhaul.dask.reports`
WORKER_METRIC: Final = InstancePatch(
    shown="Worker.metrics['backhaul-transfers']",
    without="the worker does not report its transfers",
    item="backhaul-transfers",
    read={"Worker.get_metrics": "da3c2e202322"},
)

#: What a worker is told of its links: `backhaul.dask.sources` listens
LINK_NEWS: Final = InstancePatch(
    shown="Worker.stream_handlers['backhaul-links']",
    without="the worker fetches as upstream does",
    item="backhaul-links",
    read={"Worker.handle_scheduler": "de01a9fc9cf6"},
)

#: The process memory of a worker, see `backhaul.dask.memory`
WORKER_MEMORY: Final = InstancePatch(
    shown="SystemMonitor.get_process_memory",
    without="memory that is borrowed or free counts, too",
    attribute="get_process_memory",
    read={"SystemMonitor.get_process_memory": "26814941647b"},
)

#: The memory monitor of a nanny: it goes by the memory that the worker counts
NANNY_MEMORY_MONITOR: Final = InstancePatch(
    shown="Nanny.periodic_callbacks['memory_monitor'].callback",
    without="a nanny ends its worker for memory that is borrowed or free, too",
    attribute="callback",
    read={"NannyMemoryManager": "51361236b37f"},
)

#: Streams over our comms send without timers; put there by the patch of `BatchedSend.start`
STREAM_CLASS: Final = InstancePatch(
    shown="BatchedSend.__class__",
    without="messages wait for timers",
    attribute="__class__",
    read={"BatchedSend": "6b8b9c6179e7"},
)

#: The same of a client, by which its threads may send, too
SHARED_STREAM: Final = InstancePatch(
    shown="BatchedSend.__class__",
    without="the event loop of a client sends all that its threads submit",
    attribute="__class__",
    read={
        "BatchedSend": "6b8b9c6179e7",
        "Client._ensure_connected": "0b45412d9c6b",
        "Client._send_to_scheduler": "650edb8d752b",
        "Client._send_to_scheduler_safe": "6ca335890717",
        "Client._heartbeat": "7f0a94eec8cb",
        "Client._gather": "e5e8b8868464",
        "Client._dec_ref": "f7c892d68ed0",
        "Client._release_key": "2d790ca7d72e",
    },
)

#: The queue of a worker's thread pool, in C; see `backhaul.dask.execution`
EXECUTOR_QUEUE: Final = InstancePatch(
    shown="ThreadPoolExecutor._work_queue",
    without="tasks pass a slower queue",
    attribute="_work_queue",
    read={"ThreadPoolExecutor": "ea2d0c64c2c5"},
)

#: A nanny's view of its worker process, and the process that it starts: they pin the worker. Dask
#: offers `worker_class` for what runs inside the process only, which is too late for that.
WORKER_PROCESS_CLASS: Final = InstancePatch(
    shown="Nanny.process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read={
        "Nanny.instantiate": "7ab41bd91330",
        "WorkerProcess": ("081408171cfe", "a649c41f0265"),
    },
)
ASYNC_PROCESS_CLASS: Final = InstancePatch(
    shown="AsyncProcess._process.__class__",
    without="its worker is not pinned",
    attribute="__class__",
    read={"AsyncProcess": "6de012ffa30a"},
)

#: The navigation of a scheduler's dashboard: one page more, of `backhaul.dask.dashboard`
DASHBOARD_PAGES: Final = InstancePatch(
    shown="template_variables(scheduler)['pages']",
    without="the page of transfers is not in the navigation",
    item=slice(None),
    # By name: it needs Bokeh.
    read={"distributed.dashboard.scheduler": "d15b73ada655"},
)

#: All that is replaced on single objects
INSTANCE_PATCHES: Final = (
    GRAPH_STATE,
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
    *RESOURCE_PATCHES,
)
