"""Everything of Dask's that is replaced, whether for the whole process or on single objects.

Most of Backhaul reaches Dask through its entry points. What costs microseconds per task does not
have one: there a function of ours takes the place of one of Dask's, which it calls for whatever it
does not handle. `PATCHES` lists those that a whole process shares; the constants of
`backhaul.dask.instance_patches` and `backhaul.dask.resource_patches` list what is replaced on one
scheduler, worker, nanny, stream or thread pool, by whom it names. Nothing else in this package
assigns to anything of Dask's; ``tests/dask/test_patched_names.py`` reads the sources for that. When
they are installed, `backhaul.dask.activation` says; how, and when it is refused,
`backhaul.dask.patching`.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.patching import Patch

__all__ = [
    "LAZY_SERIALIZERS",
    "PATCHES",
]

#: What keeps the results of a worker
_STORES: Final = {
    "SpillBuffer": "4c66a9e8386b",
    "zict:Buffer": "26e604d1a2dc",
    "zict:LRU": "d4edf3efc59e",
    "zict:Cache": "9b427047cebc",
    "InsertionSortedSet": "a233c1f61311",
}

#: What is replaced for the whole process, in the order in which it is installed
PATCHES: tuple[Patch, ...] = (
    Patch(
        switch="tls.note-settings",
        owner="distributed.security:Security",
        name="_get_tls_context",
        replace="encryption.remembering",
        read={"distributed.security:Security._get_tls_context": "1ec828009c21"},
        without="so that a process may have one set of certificates only",
    ),
    Patch(
        switch="hot-path.batching",
        owner="BatchedSend",
        name="start",
        replace="batching.adaptive_start",
        read={"BatchedSend": "6b8b9c6179e7"},
    ),
    Patch(
        switch="hot-path.batching",
        owner="Server",
        name="handle_stream",
        replace="streams.draining_handle_stream",
        read={
            "Server.handle_stream": "72ba087c9df7",
            "Worker._handle_remote_stimulus": "cb8790fe82a6",
            "Worker.handle_stimulus": "623c704ef088",
            "ComputeTaskEvent": "6aa056a6e4f9",
            "StateMachineEvent": "b2e4fc28d8a7",
            "WorkerStateMachine.handle_stimulus": "eacb3baa767e",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner="Worker",
        name="_start_async_instruction",
        replace="execution.direct_start",
        read={
            "Worker.execute": "981e9c472e6a",
            "BaseWorker._start_async_instruction": "24de6e1ef8a2",
            "BaseWorker._finish_async_instruction": "1f40fa28fc06",
            "BaseWorker._finalize_metrics": "f736e6f8ef51",
            "DelayedMetricsLedger": "f6bb5bb68eaa",
            "ExecuteSuccessEvent": "eb99624cc883",
            "Worker.digest_metric": "552b03dfe65e",
            "Server.digest_metric": "f23ec8f16243",
            "ThreadPoolExecutor": "ea2d0c64c2c5",
            "run_task": "879cc11a993c",
            "run_task_simple": "072a00fb1d13",
        },
    ),
    # The order in which tasks are named, and by what
    Patch(
        switch="hot-path.runs",
        owner="Worker",
        name="handle_stimulus",
        replace="runs.settling_handle_stimulus",
        read={
            "Worker.handle_stimulus": "623c704ef088",
            "BaseWorker.handle_stimulus": "0739943b78ca",
            "WorkerStateMachine.handle_stimulus": "eacb3baa767e",
            "WorkerStateMachine._ensure_computing": "664c3d170a5a",
            "WorkerStateMachine._next_ready_task": "c6e4cce31e04",
            "WorkerStateMachine._execute_done_common": "c12998ac1878",
            "WorkerStateMachine._transition_ready_executing": "50a6b69dd448",
            "WorkerStateMachine._transition_waiting_ready": "29c380c4195a",
            "WorkerStateMachine._transition_to_memory": "a4e5ce4c6111",
            "HeapSet": "c711cb774f6b",
            "pool_worker": "f2ce8d32fd23",
        },
    ),
    # Whoever asks a worker for its results finds those that its threads have come to
    Patch(
        switch="hot-path.worker-threads",
        owner="Worker",
        name="data",
        replace="asked_data.heard_data",
        read={"Worker.data.fget": "7a258cef56b7"},
    ),
    # Whoever asks for the worker of a task finds the task executing
    Patch(
        switch="hot-path.worker-threads",
        owner="distributed.worker",
        name="_worker_cvar",
        replace="foretold.catching_up_variable",
        read={
            "distributed:get_worker": "8fa2422e1856",
            "distributed:secede": "2390d7f2d0c6",
            "Worker._get_client": "a1b51ce73613",
            "WorkerStateMachine._handle_compute_task": "341fd97e4ff3",
            "WorkerStateMachine._transition_to_memory": "a4e5ce4c6111",
            "WorkerStateMachine._get_task_finished_msg": "38db9750edf3",
            "TaskFinishedMsg": "232e1fa070b3",
            "ExecuteSuccessEvent": "eb99624cc883",
            "pool_worker": "f2ce8d32fd23",
            "Worker.batched_send": "1572e111945b",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner="WorkerStateMachine",
        name="_handle_event",
        replace="fast_paths.direct_handle_event",
        read={"WorkerStateMachine.handle_stimulus": "eacb3baa767e"},
    ),
    # The whole class: each of its functions may matter to a task
    Patch(
        switch="hot-path.transitions",
        owner="WorkerStateMachine",
        name="handle_stimulus",
        replace="plain_events.stepping_handle_stimulus",
        read={
            "WorkerStateMachine": "ed3f4188f272",
            "WorkerTaskState": "f5aac6b586cb",
            "StateMachineEvent": "b2e4fc28d8a7",
            "ComputeTaskEvent": "6aa056a6e4f9",
            "ExecuteSuccessEvent": "eb99624cc883",
            "FreeKeysEvent": "c84677ac4944",
            "TaskCounter": "9f88d3ca6578",
            "HeapSet": "c711cb774f6b",
        },
    ),
    Patch(
        switch="hot-path.transitions",
        owner="TaskCounter",
        name="transitions",
        replace="task_counts.quick_transitions",
        read={"TaskCounter": "9f88d3ca6578"},
    ),
    Patch(
        switch="hot-path.execution",
        owner="WorkerStateMachine",
        name="_get_task_finished_msg",
        replace="fast_paths.quick_finished_message",
        read={
            "WorkerStateMachine._get_task_finished_msg": "38db9750edf3",
            "TaskFinishedMsg": "232e1fa070b3",
        },
    ),
    Patch(
        switch="hot-path.execution",
        owner="SpillBuffer",
        name="__getitem__",
        replace="spill_paths.quick_getitem",
        read=_STORES,
    ),
    Patch(
        switch="hot-path.execution",
        owner="SpillBuffer",
        name="__setitem__",
        replace="spill_paths.quick_setitem",
        read=_STORES,
    ),
    Patch(
        switch="hot-path.execution",
        owner="SpillBuffer",
        name="__delitem__",
        replace="spill_paths.quick_delitem",
        read=_STORES,
    ),
    Patch(
        switch="hot-path.execution",
        owner="SpillBuffer",
        name="__contains__",
        replace="spill_paths.quick_contains",
        read=_STORES,
    ),
    Patch(
        switch="hot-path.execution",
        owner="StateMachineEvent",
        name="__copy__",
        replace="fast_paths.add_copy",
        read={"StateMachineEvent": "b2e4fc28d8a7"},
    ),
    Patch(
        switch="hot-path.futures",
        owner="FutureState",
        name="wait",
        replace="waiting.untimed_wait",
        read={"FutureState": "a3cf7ecc4e8d", "wait_for": "f9c57ed5f23e"},
    ),
    Patch(
        switch="hot-path.futures",
        owner="FutureState",
        name="_get_event",
        replace="waiting.shared_event",
        read={"FutureState": "a3cf7ecc4e8d"},
    ),
    # In its module, where the scheduler looks it up at each call.
    Patch(
        switch="hot-path.order",
        owner="dask.order",
        name="order",
        replace="order.native_order",
        read={"dask.order": "632001b800fc"},
    ),
    Patch(
        switch="arena.allocate",
        owner="distributed.worker",
        name="_run_actor",
        replace="memory.arena_actor",
        read={"run_actor": "9088419020a7"},
    ),
    # In its module, where the client looks it up; modules that imported the name keep Dask's own.
    Patch(
        switch="hot-path.futures",
        owner="distributed.utils",
        name="All",
        replace="waiting.light_all",
        read={"wait_for_all": "4a12c1f80983", "Client._gather": "e5e8b8868464"},
    ),
    Patch(
        switch="hot-path.futures",
        owner="Client",
        name="_send_to_scheduler",
        replace="outbox.collected_send",
        read={
            "Client._send_to_scheduler": "650edb8d752b",
            "Client._send_to_scheduler_safe": "6ca335890717",
        },
    ),
    Patch(
        switch="hot-path.futures",
        owner="Future",
        name="release",
        replace="outbox.collected_release",
        read={
            "Future.release": "46a65cb22fca",
            "Future.__del__": "bffba933b84f",
            "Future._verify_initialized": "8cfcb0e99a39",
            "Future._bind_late": "36cf95d12009",
            "Client._dec_ref": "f7c892d68ed0",
            "Client._release_key": "2d790ca7d72e",
        },
    ),
    # In its module, where the scheduler looks it up.
    Patch(
        switch="hot-path.small-graphs",
        owner="distributed.scheduler",
        name="offload",
        replace="small_graphs.inline_offload",
        read={
            "update_graph": "042ec25aa66b",
            "materialize_graph": "a9e296bb767e",
            "offload": "d8c86146670c",
            "LLGExpr": "8f2f688147e6",
        },
    ),
    # No expression, and one pickle that the scheduler does not open
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="submit",
        replace="compact_submit.compact_submit",
        read={
            "Client.submit": "f7700dc68809",
            "Client._graph_to_futures": "3357da93545b",
            "Client._send_to_scheduler_safe": "6ca335890717",
            "GraphNode": "4928dcd1f6ea",
            "Task": "ab586b5a0fd9",
            "parse_input": "0c710c7cc0a7",
            "dask.tokenize": "edc3202efc14",
        },
    ),
    # The same of all calls of a map
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="map",
        replace="compact_map.compact_map",
        read={
            "Client.map": "7196a47e5af4",
            "Client._inc_ref": "416dd9bcc8fb",
            "Future.__init__": "1755966a4a1e",
            "Future._bind_late": "36cf95d12009",
            "FutureState": "a3cf7ecc4e8d",
            "MapExpr": "a10a921df4f9",
            "Client._graph_to_futures": "3357da93545b",
            "Client._send_to_scheduler_safe": "6ca335890717",
            "GraphNode": "4928dcd1f6ea",
            "Task": "ab586b5a0fd9",
            "parse_input": "0c710c7cc0a7",
            "dask.tokenize": "edc3202efc14",
        },
    ),
    # Graphs whose tasks are there already, likewise
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="_graph_to_futures",
        replace="compact_graph.compact_graph",
        read={
            "Client._graph_to_futures": "3357da93545b",
            "Client._send_to_scheduler_safe": "6ca335890717",
            "update_graph": "042ec25aa66b",
            "materialize_graph": "a9e296bb767e",
            "cull_graph": "cfca7b65c022",
            "LLGExpr": "8f2f688147e6",
            "HLGExpr": "de9d66d9a551",
            "HLGExprGroup": "f0f8675135db",
            "HLGExprSequence": "bed4c46cd1ba",
            "HLGFinalizeCompute": "00e5502ccaf2",
            "GraphNode": "4928dcd1f6ea",
            "Task": "ab586b5a0fd9",
        },
    ),
    # What simplifying and tuning makes of many Delayed objects, at once
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="compute",
        replace="compact_compute.compact_compute",
        read={
            "Client.compute": "8004cd24cff6",
            "dask.base:collections_to_expr": "fdc5bd52eaec",
            "get_collections_metadata": "0f616434e147",
            "Expr": "f291a714a5a2",
            "ExprSequence": "4607c02827b1",
            "FinalizeCompute": "d94234218f0b",
            "HLGExpr": "de9d66d9a551",
            "HLGExprGroup": "f0f8675135db",
            "HLGExprSequence": "bed4c46cd1ba",
            "HLGFinalizeCompute": "00e5502ccaf2",
            "optimize_until": "60ef7ce445db",
            "dask.highlevelgraph:HighLevelGraph": "d7273e560c19",
            "dask.delayed:Delayed.__init__": "2db447fb3a67",
            "dask.delayed:Delayed.__dask_graph__": "20f423dc34a1",
            "dask.delayed:Delayed.__dask_keys__": "840d18b48808",
            "dask.delayed:Delayed.__dask_postcompute__": "9aba948f59d7",
        },
    ),
    # Names of tasks, for all calls of a map together
    Patch(
        switch="hot-path.submit",
        owner="MapExpr",
        name="keys",
        replace="map_keys.quick_keys",
        read={"MapExpr": "a10a921df4f9", "dask.tokenize": "edc3202efc14"},
    ),
    # A client says that it holds results before it hears of the first
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_handle_report",
        replace="held_results.holding_handle_report",
        read={
            "handle_report": "b758acbb2eb2",
            "log_errors": "3e2526feca6f",
            "Client._start": "3fb82c8b15ee",
        },
    ),
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_release_key",
        replace="held_results.releasing_release_key",
        read={"Client._release_key": "2d790ca7d72e"},
    ),
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_gather_remote",
        replace="held_results.sparing_gather_remote",
        read={"Client._gather_remote": "b9dc86ed83f4", "Client._gather": "e5e8b8868464"},
    ),
    Patch(
        switch="hot-path.result",
        owner="Future",
        name="result",
        replace="native_wait.blocking_result",
        read={
            "Future.result": "ab86f0096ede",
            "Future._result": "f096ab6c742d",
            "Client.sync": "7422a21c49bc",
            "FutureState": "a3cf7ecc4e8d",
        },
    ),
    Patch(
        switch="hot-path.client-threads",
        owner="Client",
        name="gather",
        replace="native_gather.blocking_gather",
        read={
            "Client.gather": "6d82188d98fe",
            "Client._gather": "e5e8b8868464",
            "Client.sync": "7422a21c49bc",
            "FutureState": "a3cf7ecc4e8d",
        },
    ),
    # Many futures, one watcher
    Patch(
        switch="hot-path.result",
        owner="distributed:as_completed",
        name="update",
        replace="completions.watched_update",
        read={
            "distributed:as_completed.update": "b51be79455e2",
            "distributed:as_completed._track_future": "ebb2ee173662",
            "client_wait": "d8f4a995d247",
            "Future._result": "f096ab6c742d",
        },
    ),
    # News of a stream may come ahead of the answer to a request that causes it
    Patch(
        switch="hot-path.batching",
        owner="Client",
        name="_retry",
        replace="request_order.ordered_retry",
        read={
            "Client._retry": "e75d55c36029",
            "FutureState": "a3cf7ecc4e8d",
            "Scheduler.stimulus_retry": "088af7602a87",
        },
        without="so that the result of a short task that is retried may never arrive",
    ),
    Patch(
        switch="hot-path.batching",
        owner="Client",
        name="_get_dataset",
        replace="request_order.confirmed_get_dataset",
        read={
            "Client._get_dataset": "3177968be939",
            "Client._inform_scheduler_of_futures": "02a8e7646549",
            "distributed.publish": "d917d751a482",
        },
        without="so that a dataset that is removed next may lose its results",
    ),
    # The thread of a task sends its result without the event loop, and its events likewise
    Patch(
        switch="hot-path.worker-threads",
        owner="Worker",
        name="log_event",
        replace="worker_events.ordered_log_event",
        read={"Worker.log_event": "41f0d5ea2a78", "Worker.batched_send": "1572e111945b"},
        without="so that events of a task may come after its result",
    ),
    # What users ask each process for
    Patch(
        switch="versions.listed",
        owner="Client",
        name="get_versions",
        replace="versions.listing_get_versions",
        read={"Client.get_versions": "ca20fad053a1", "Client._get_versions": "aa532dfcaa7a"},
        without="without Backhaul in its list",
    ),
    # Where a scheduler keeps account of what each worker still needs
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="_inc_needs_replica",
        replace="placement.counted_need",
        read={"WorkerState": "7b84667ecb2d"},
    ),
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="_dec_needs_replica",
        replace="placement.dropped_need",
        read={"WorkerState": "7b84667ecb2d"},
    ),
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="add_replica",
        replace="placement.met_need",
        read={"WorkerState": "7b84667ecb2d"},
    ),
    # From whom a worker fetches first
    Patch(
        switch="placement.nearest-first",
        owner="WorkerStateMachine",
        name="_select_workers_for_gather",
        replace="sources.nearest_first",
        read={
            "WorkerStateMachine._select_workers_for_gather": "e24f58140a7c",
            "WorkerStateMachine._ensure_communicating": "b18511a30f05",
            "WorkerStateMachine._select_keys_for_gather": "8ce869b693d9",
            "HeapSet": "c711cb774f6b",
        },
    ),
)

#: Libraries whose serializers of the family ``dask``, registered by Dask when the library is first
#: met, are wrapped by `backhaul.dask.device_arrays`, through the same registry
LAZY_SERIALIZERS: Final = ("torch", "torchvision")
