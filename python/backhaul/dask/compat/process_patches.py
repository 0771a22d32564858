"""Everything of Dask's that is replaced, whether for the whole process or on single objects.

Most of Backhaul reaches Dask through its entry points. Steps that cost microseconds per task have
none: there a function of this package replaces one of Dask's, which it calls for everything that it
does not handle. `PATCHES` lists those that a whole process shares; the constants of
`backhaul.dask.compat.instance_patches` and `backhaul.dask.compat.resource_patches` list what is
replaced on one scheduler, worker, nanny, stream or thread pool. Nothing else in
this package assigns to anything of Dask's; ``tests/dask/test_patched_names.py`` reads the sources
for that. When they are installed, `backhaul.dask.compat.activation` says; how, and when it is
refused, `backhaul.dask.compat.patching`.
"""

from __future__ import annotations

from typing import Final

from backhaul.dask.compat.patching import Patch, of

__all__ = [
    "LAZY_SERIALIZERS",
    "PATCHES",
]

#: Patches for the whole process, in the order in which they are installed
PATCHES: tuple[Patch, ...] = (
    Patch(
        switch="tls.note-settings",
        owner="distributed.security:Security",
        name="_get_tls_context",
        replace="comm.tls.remembering",
        read=("distributed.security:Security._get_tls_context",),
        without="so that a process may have one set of certificates only",
    ),
    Patch(
        switch="hot-path.batching",
        owner="BatchedSend",
        name="start",
        replace="comm.threaded_stream.adaptive_start",
        read=of("BatchedSend", "__init__ start closed _background_send send close abort"),
    ),
    Patch(
        switch="hot-path.batching",
        owner="Server",
        name="handle_stream",
        replace="worker.event_stream.draining_handle_stream",
        read=(
            "Server.handle_stream",
            "Worker._handle_remote_stimulus",
            "Worker.handle_stimulus",
            "ComputeTaskEvent",
            "StateMachineEvent",
            "WorkerStateMachine.handle_stimulus",
        ),
    ),
    Patch(
        switch="hot-path.execution",
        owner="Worker",
        name="_start_async_instruction",
        replace="worker.task_start.direct_start",
        read=(
            "Worker.execute",
            *of(
                "BaseWorker",
                "_start_async_instruction _finish_async_instruction _finalize_metrics",
            ),
            "DelayedMetricsLedger",
            "ExecuteSuccessEvent",
            "Worker.digest_metric",
            "Server.digest_metric",
            "ThreadPoolExecutor",
            "run_task",
            "run_task_simple",
        ),
    ),
    # The order in which tasks are named, and by what
    Patch(
        switch="hot-path.runs",
        owner="Worker",
        name="handle_stimulus",
        replace="worker.local_queue.settling_handle_stimulus",
        read=(
            "Worker.handle_stimulus",
            "BaseWorker.handle_stimulus",
            *of(
                "WorkerStateMachine",
                "handle_stimulus _ensure_computing _next_ready_task _execute_done_common "
                "_transition_ready_executing _transition_waiting_ready _transition_to_memory",
            ),
            "HeapSet",
            "pool_worker",
        ),
    ),
    # A program that asks a worker for its results finds those that its threads have reported
    Patch(
        switch="hot-path.worker-threads",
        owner="Worker",
        name="data",
        replace="worker.get_data.heard_data",
        read=("Worker.data.fget",),
    ),
    # A program that asks for the worker of a task finds the task executing
    Patch(
        switch="hot-path.worker-threads",
        owner="distributed.worker",
        name="_worker_cvar",
        replace="worker.early_execution.catching_up_variable",
        read=(
            "distributed:get_worker",
            "distributed:secede",
            "Worker._get_client",
            *of(
                "WorkerStateMachine",
                "_handle_compute_task _transition_to_memory _get_task_finished_msg",
            ),
            "TaskFinishedMsg",
            "ExecuteSuccessEvent",
            "pool_worker",
            "Worker.batched_send",
        ),
    ),
    Patch(
        switch="hot-path.execution",
        owner="WorkerStateMachine",
        name="_get_task_finished_msg",
        replace="worker.finished_message.quick_finished_message",
        read=(
            "WorkerStateMachine._get_task_finished_msg",
            "TaskFinishedMsg",
        ),
    ),
    Patch(
        switch="hot-path.futures",
        owner="FutureState",
        name="_get_event",
        replace="client.state_event.shared_event",
        read=("FutureState",),
    ),
    # In its module, where the scheduler looks it up at each call.
    Patch(
        switch="hot-path.order",
        owner="dask.order",
        name="order",
        replace="scheduler.order.native_order",
        read=("dask.order",),
    ),
    Patch(
        switch="arena.allocate",
        owner="distributed.worker",
        name="_run_actor",
        replace="worker.memory.arena_actor",
        read=("run_actor",),
    ),
    Patch(
        switch="hot-path.futures",
        owner="Client",
        name="_send_to_scheduler",
        replace="client.outgoing_queue.collected_send",
        read=(
            "Client._send_to_scheduler",
            "Client._send_to_scheduler_safe",
        ),
    ),
    Patch(
        switch="hot-path.futures",
        owner="Future",
        name="release",
        replace="client.outgoing_queue.collected_release",
        read=(
            *of("Future", "release __del__ _verify_initialized _bind_late"),
            "Client._dec_ref",
            "Client._release_key",
        ),
    ),
    # No expression, and one pickle that the scheduler does not open
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="submit",
        replace="client.submit.compact_submit",
        read=(
            *of("Client", "submit _graph_to_futures _send_to_scheduler_safe"),
            *of("Task", "__init__ __call__ __getstate__ __setstate__"),
            "GraphNode.dependencies",
            "parse_input",
            "dask.tokenize",
        ),
    ),
    # The same of all calls of a map
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="map",
        replace="client.map.compact_map",
        read=(
            "Client.map",
            "Client._inc_ref",
            "Future.__init__",
            "Future._bind_late",
            "FutureState.__init__",
            "MapExpr.keys",
            "MapExpr._layer",
            "Client._graph_to_futures",
            "Client._send_to_scheduler_safe",
            *of("Task", "__init__ __call__ __getstate__ __setstate__"),
            "GraphNode.dependencies",
            "parse_input",
            "dask.tokenize",
        ),
    ),
    # Graphs whose tasks are there already, likewise
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="_graph_to_futures",
        replace="client.graph.compact_graph",
        read=(
            "Client._graph_to_futures",
            "Client._send_to_scheduler_safe",
            "update_graph",
            "materialize_graph",
            "cull_graph",
            "LLGExpr",
            "HLGExpr",
            "HLGExprGroup",
            "HLGExprSequence",
            "HLGFinalizeCompute",
            *of("Task", "__init__ __call__ __getstate__ __setstate__"),
            "GraphNode.dependencies",
        ),
    ),
    # The simplified and tuned expression of many Delayed objects, in one step
    Patch(
        switch="hot-path.submit",
        owner="Client",
        name="compute",
        replace="client.compute.compact_compute",
        read=(
            "Client.compute",
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
    ),
    # A client announces that it holds results before the first one arrives
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_handle_report",
        replace="client.result_cache.holding_handle_report",
        read=(
            "handle_report",
            "log_errors",
            "Client._start",
        ),
    ),
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_release_key",
        replace="client.result_cache.releasing_release_key",
        read=("Client._release_key",),
    ),
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_gather_remote",
        replace="client.result_cache.sparing_gather_remote",
        read=(
            "Client._gather_remote",
            "Client._gather",
        ),
    ),
    Patch(
        switch="small-results.enabled",
        owner="Client",
        name="_run",
        replace="client.result_cache.forgetting_run",
        read=("Client._run",),
        without="so that a result that `Client.run` replaces on its worker stays as it was",
    ),
    Patch(
        switch="hot-path.result",
        owner="Future",
        name="result",
        replace="client.blocking_wait.blocking_result",
        read=(
            "Future.result",
            "Future._result",
            "Client.sync",
            "FutureState",
        ),
    ),
    Patch(
        switch="hot-path.client-threads",
        owner="Client",
        name="gather",
        replace="client.blocking_gather.blocking_gather",
        read=(
            *of("Client", "gather _gather sync"),
            "FutureState",
        ),
    ),
    # Many futures, one watcher
    Patch(
        switch="hot-path.result",
        owner="distributed:as_completed",
        name="update",
        replace="client.as_completed.watched_update",
        read=(
            "distributed:as_completed.update",
            "distributed:as_completed._track_future",
            "client_wait",
            "Future._result",
        ),
    ),
    # News of a stream may come ahead of the answer to a request that causes it
    Patch(
        switch="hot-path.batching",
        owner="Client",
        name="_retry",
        replace="client.request_order.ordered_retry",
        read=(
            "Client._retry",
            "FutureState.__init__",
            "FutureState.retry",
            "Scheduler.stimulus_retry",
        ),
        without="so that the result of a short task that is retried may never arrive",
    ),
    Patch(
        switch="hot-path.batching",
        owner="Client",
        name="_get_dataset",
        replace="client.request_order.confirmed_get_dataset",
        read=(
            "Client._get_dataset",
            "Client._inform_scheduler_of_futures",
            *of("distributed.publish:PublishExtension", "put get delete"),
        ),
        without="so that a dataset that is removed next may lose its results",
    ),
    # The thread of a task sends its result without the event loop, and its events likewise
    Patch(
        switch="hot-path.worker-threads",
        owner="Worker",
        name="log_event",
        replace="worker.log_events.ordered_log_event",
        read=(
            "Worker.log_event",
            "Worker.batched_send",
        ),
        without="so that events of a task may come after its result",
    ),
    # Requests of users to each process
    Patch(
        switch="versions.listed",
        owner="Client",
        name="get_versions",
        replace="compat.version_listing.listing_get_versions",
        read=(
            "Client.get_versions",
            "Client._get_versions",
        ),
        without="without Backhaul in its list",
    ),
    # Where a scheduler keeps account of what each worker still needs
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="_inc_needs_replica",
        replace="placement.link_placement.counted_need",
        read=of(
            "WorkerState",
            "__init__ _inc_needs_replica _dec_needs_replica add_replica remove_replica clean",
        ),
    ),
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="_dec_needs_replica",
        replace="placement.link_placement.dropped_need",
        read=of(
            "WorkerState",
            "__init__ _inc_needs_replica _dec_needs_replica add_replica remove_replica clean",
        ),
    ),
    Patch(
        switch="placement.enabled",
        owner="WorkerState",
        name="add_replica",
        replace="placement.link_placement.met_need",
        read=of(
            "WorkerState",
            "__init__ _inc_needs_replica _dec_needs_replica add_replica remove_replica clean",
        ),
    ),
    # Where expressions become tasks
    Patch(
        switch="exchange",
        owner="Expr",
        name="__dask_graph__",
        replace="exchange.cluster.with_exchange",
        read=("Expr.__dask_graph__",),
    ),
    Patch(
        switch="exchange",
        owner="P2PRechunkLayer",
        name="_construct_graph",
        replace="exchange.cluster.with_direct_chunks",
        read=("P2PRechunkLayer",),
    ),
    # The worker from which results are fetched first
    Patch(
        switch="placement.nearest-first",
        owner="WorkerStateMachine",
        name="_select_workers_for_gather",
        replace="placement.fetch_order.nearest_first",
        read=(
            *of(
                "WorkerStateMachine",
                "_select_workers_for_gather _ensure_communicating _select_keys_for_gather",
            ),
            "HeapSet.peek",
            "HeapSet.__len__",
        ),
    ),
)

#: Libraries whose serializers of the family ``dask``, registered by Dask when the library is first
#: met, are wrapped by `backhaul.dask.serialize.device_arrays`, through the same registry
LAZY_SERIALIZERS: Final = ("torch", "torchvision")
