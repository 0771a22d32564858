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

from backhaul.dask.compat.patching import Function, Patch, of

__all__ = [
    "LAZY_SERIALIZERS",
    "PATCHES",
]

#: Patches for the whole process, in the order in which they are installed
PATCHES: tuple[Patch, ...] = (
    Patch(
        switch="tls.note-settings",
        functions=(
            Function("distributed.security:Security._get_tls_context", "comm.tls.remembering"),
        ),
        read=("distributed.security:Security._get_tls_context",),
        without="so that a process may have one set of certificates only",
    ),
    Patch(
        switch="hot-path.batching",
        functions=(Function("BatchedSend.start", "comm.threaded_stream.adaptive_start"),),
        read=of("BatchedSend", "__init__ start closed _background_send send close abort"),
    ),
    Patch(
        switch="hot-path.execution",
        functions=(
            Function("Worker._start_async_instruction", "worker.task_start.direct_start"),
            Function(
                "WorkerStateMachine._get_task_finished_msg",
                "worker.finished_message.quick_finished_message",
            ),
        ),
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
            "WorkerStateMachine._get_task_finished_msg",
            "TaskFinishedMsg",
        ),
    ),
    # Threads send results without the event loop: a program that asks a worker for its results, or
    # for the worker of a task, finds those that threads have reported; events of a task come first
    Patch(
        switch="hot-path.worker-threads",
        functions=(
            Function("Worker.data", "worker.get_data.synced_data"),
            Function(
                "distributed.worker._worker_cvar", "worker.early_execution.catching_up_variable"
            ),
            Function("Worker.log_event", "worker.log_events.ordered_log_event"),
        ),
        read=(
            "Worker.data.fget",
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
            "Worker.log_event",
        ),
    ),
    Patch(
        switch="hot-path.futures",
        functions=(Function("FutureState._get_event", "client.state_event.shared_event"),),
        read=("FutureState",),
    ),
    # In its module, where the scheduler looks it up at each call.
    Patch(
        switch="hot-path.order",
        functions=(Function("dask.order.order", "scheduler.order.native_order"),),
        read=("dask.order",),
    ),
    Patch(
        switch="arena.allocate",
        functions=(Function("distributed.worker._run_actor", "worker.memory.arena_actor"),),
        read=("run_actor",),
    ),
    # One queue of what a client sends and releases
    Patch(
        switch="hot-path.futures",
        functions=(
            Function("Client._send_to_scheduler", "client.outgoing_queue.collected_send"),
            Function("Future.release", "client.outgoing_queue.collected_release"),
        ),
        read=(
            "Client._send_to_scheduler",
            "Client._send_to_scheduler_safe",
            *of("Future", "release __del__ _verify_initialized _bind_late"),
            "Client._dec_ref",
            "Client._release_key",
        ),
    ),
    Patch(
        switch="hot-path.result",
        functions=(Function("Future.result", "client.blocking_wait.blocking_result"),),
        read=(
            "Future.result",
            "Future._result",
            "Client.sync",
            "FutureState",
        ),
    ),
    # Many futures, one watcher
    Patch(
        switch="hot-path.result",
        functions=(
            Function("distributed:as_completed.update", "client.as_completed.watched_update"),
        ),
        read=(
            "distributed:as_completed.update",
            "distributed:as_completed._track_future",
            "client_wait",
            "Future._result",
        ),
    ),
    # Where expressions become tasks
    Patch(
        switch="exchange",
        functions=(Function("Expr.__dask_graph__", "exchange.cluster.with_exchange"),),
        read=("Expr.__dask_graph__",),
    ),
    Patch(
        switch="exchange",
        functions=(
            Function("P2PRechunkLayer._construct_graph", "exchange.cluster.with_direct_chunks"),
        ),
        read=("P2PRechunkLayer",),
    ),
)

#: Libraries whose serializers of the family ``dask``, registered by Dask when the library is first
#: met, are wrapped by `backhaul.dask.serialize.device_arrays`, through the same registry
LAZY_SERIALIZERS: Final = ("torch", "torchvision")
