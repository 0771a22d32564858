"""Every name of ``distributed`` that we touch and that its documentation does not promise.

The rest of the package imports these names from here and from nowhere else; what it imports from
``distributed`` directly is documented. A name is looked up when it is first imported. A release of
Dask that lacks the name makes that raise `MissingName`, which refuses the feature that needs the
name and nothing else (`backhaul.dask.compat.activation`). ``names.pyi`` declares the same names
for type checkers; ``tests/dask/test_private_names.py`` compares the two.

Read for 2026.7.1 and 2026.8.0. Between them nothing changed in the modules below, nor in the rest
of ``distributed.comm``, ``protocol``, ``shuffle``, ``batched`` and ``client``. Changes: ``nanny``
(one closes though its process does not end), ``node``, ``scheduler`` and ``worker`` (HTTP services
are stopped by awaiting) and ``spans``.

Besides the names below we depend on some facts that no import shows:

- ``distributed.comm.core.connect`` reads ``comm._peer_addr`` and ``comm._local_addr``;
- ``BaseListener`` keeps the comms that are still shaking hands, and ``Server`` aborts them through
  ``listener.abort_handshaking_comms()`` when it stops;
- a worker calls each of ``Worker.metrics`` for a heartbeat, and ``Scheduler.handlers`` has the
  handler that takes it;
- ``distributed.dashboard.scheduler.template_variables`` gives the same ``pages`` to all pages of a
  scheduler, ``distributed.dashboard.core.BokehApplication`` makes an application from functions,
  ``scheduler.http_application`` takes and stops any number of them, and ``simple.html`` shows what
  a document holds; they are imported where there is a dashboard, as they need Bokeh;
- ``/metrics`` shows what is registered with ``prometheus_client.REGISTRY``;
- a worker asks ``monitor.get_process_memory()`` how much it holds, for its memory monitor and for
  the scheduler;
- ``periodic_callbacks["memory_monitor"]`` of a nanny compares its worker's memory with the limit;
- a nanny has its ``WorkerProcess`` in ``process``, and that its ``AsyncProcess`` in ``process``,
  each set before it is started; ``AsyncProcess._process.start`` is called on a thread of its own,
  and ``WorkerProcess._init_msg_interval`` says how often the worker's first message is looked for.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, Final

import distributed

import dask

__all__ = ["NAMES", "MissingName", "process_of", "resolve"]

#: Name in this module, and where Dask has it: a module, or a module and a name there
NAMES: Final[dict[str, str]] = {
    "cloudpickle": "cloudpickle",
    "by_value_modules": "cloudpickle.cloudpickle:_PICKLE_BY_VALUE_MODULES",
    "Expr": "dask._expr:Expr",
    "ExprSequence": "dask._expr:_ExprSequence",
    "FinalizeCompute": "dask._expr:FinalizeCompute",
    "HLGExpr": "dask._expr:HLGExpr",
    "HLGExprGroup": "dask._expr:_HLGExprGroup",
    "HLGExprSequence": "dask._expr:_HLGExprSequence",
    "HLGFinalizeCompute": "dask._expr:HLGFinalizeCompute",
    "LLGExpr": "dask._expr:LLGExpr",
    "optimize_until": "dask._expr:optimize_until",
    "Alias": "dask._task_spec:Alias",
    "DataNode": "dask._task_spec:DataNode",
    "Dict": "dask._task_spec:Dict",
    "GraphNode": "dask._task_spec:GraphNode",
    "List": "dask._task_spec:List",
    "Set": "dask._task_spec:Set",
    "Task": "dask._task_spec:Task",
    "TaskRef": "dask._task_spec:TaskRef",
    "Tuple": "dask._task_spec:Tuple",
    "parse_input": "dask._task_spec:parse_input",
    "validate_key": "dask.core:validate_key",
    "concatenate3": "dask.array.core:concatenate3",
    "old_to_new": "dask.array.rechunk:old_to_new",
    "Fused": "dask.dataframe.dask_expr._expr:Fused",
    "FromGraph": "dask.dataframe.dask_expr.io.io:FromGraph",
    "FromPandas": "dask.dataframe.dask_expr.io.io:FromPandas",
    "HashJoinP2P": "dask.dataframe.dask_expr._merge:HashJoinP2P",
    "create_assign_index_merge_transfer": (
        "dask.dataframe.dask_expr._merge:create_assign_index_merge_transfer"
    ),
    "AssignPartitioningIndex": "dask.dataframe.dask_expr._shuffle:AssignPartitioningIndex",
    "P2PShuffle": "dask.dataframe.dask_expr._shuffle:P2PShuffle",
    "is_numeric_cast_type": "dask.dataframe.dask_expr._shuffle:_is_numeric_cast_type",
    "from_pyarrow_table_dispatch": "dask.dataframe.dispatch:from_pyarrow_table_dispatch",
    "to_pyarrow_table_dispatch": "dask.dataframe.dispatch:to_pyarrow_table_dispatch",
    "merge_chunk": "dask.dataframe.multi:merge_chunk",
    "partitioning_index": "dask.dataframe.shuffle:partitioning_index",
    "MultiprocessingPoolExecutor": "dask.local:MultiprocessingPoolExecutor",
    "initialize_worker_process": "dask.multiprocessing:initialize_worker_process",
    "dask_order": "dask.order:order",
    "CPU_COUNT": "dask.system:CPU_COUNT",
    "shorten_traceback": "dask.utils:shorten_traceback",
    "instructions": "distributed.worker_state_machine",
    "ActiveMemoryManagerExtension": (
        "distributed.active_memory_manager:ActiveMemoryManagerExtension"
    ),
    "ReduceReplicas": "distributed.active_memory_manager:ReduceReplicas",
    "RetireWorker": "distributed.active_memory_manager:RetireWorker",
    "BatchedSend": "distributed.batched:BatchedSend",
    "Client": "distributed.client:Client",
    "Future": "distributed.client:Future",
    "FutureState": "distributed.client:FutureState",
    "MapExpr": "distributed.client:_MapExpr",
    "client_wait": "distributed.client:_wait",
    "get_collections_metadata": "distributed.client:get_collections_metadata",
    "HeapSet": "distributed.collections:HeapSet",
    "comm_utils": "distributed.comm.utils",
    "get_address_host": "distributed.comm:get_address_host",
    "BaseListener": "distributed.comm.core:BaseListener",
    "Comm": "distributed.comm.core:Comm",
    "CommClosedError": "distributed.comm.core:CommClosedError",
    "Connector": "distributed.comm.core:Connector",
    "DaskListener": "distributed.comm.core:Listener",
    "FatalCommClosedError": "distributed.comm.core:FatalCommClosedError",
    "Backend": "distributed.comm.registry:Backend",
    "backends": "distributed.comm.registry:backends",
    "get_backend": "distributed.comm.registry:get_backend",
    "OFFLOAD_THRESHOLD": "distributed.comm.utils:OFFLOAD_THRESHOLD",
    "from_frames": "distributed.comm.utils:from_frames",
    "to_frames": "distributed.comm.utils:to_frames",
    "ConnectionPool": "distributed.core:ConnectionPool",
    "Server": "distributed.core:Server",
    "Status": "distributed.core:Status",
    "coerce_to_address": "distributed.core:coerce_to_address",
    "context_meter_to_server_digest": "distributed.core:context_meter_to_server_digest",
    "error_message": "distributed.core:error_message",
    "processes_and_threads": "distributed.deploy.utils:nprocesses_nthreads",
    "DelayedMetricsLedger": "distributed.metrics:DelayedMetricsLedger",
    "context_meter": "distributed.metrics:context_meter",
    "monotonic": "distributed.metrics:monotonic",
    "time": "distributed.metrics:time",
    "Nanny": "distributed.nanny:Nanny",
    "WorkerProcess": "distributed.nanny:WorkerProcess",
    "AsyncProcess": "distributed.process:AsyncProcess",
    "pickle": "distributed.protocol.pickle",
    "decompress": "distributed.protocol.compression:decompress",
    "maybe_compress": "distributed.protocol.compression:maybe_compress",
    "dumps": "distributed.protocol.core:dumps",
    "loads": "distributed.protocol.core:loads",
    "cuda_deserialize": "distributed.protocol.cuda:cuda_deserialize",
    "cuda_serialize": "distributed.protocol.cuda:cuda_serialize",
    "DaskPickler": "distributed.protocol.pickle:_DaskPickler",
    "Pickled": "distributed.protocol.serialize:Pickled",
    "Serialize": "distributed.protocol.serialize:Serialize",
    "Serialized": "distributed.protocol.serialize:Serialized",
    "ToPickle": "distributed.protocol.serialize:ToPickle",
    "dask_deserialize": "distributed.protocol.serialize:dask_deserialize",
    "dask_serialize": "distributed.protocol.serialize:dask_serialize",
    "deserialize": "distributed.protocol.serialize:deserialize",
    "is_dumpable": "distributed.protocol.serialize:_is_dumpable",
    "is_msgpack_serializable": "distributed.protocol.serialize:_is_msgpack_serializable",
    "merge_and_deserialize": "distributed.protocol.serialize:merge_and_deserialize",
    "msgpack_decode_default": "distributed.protocol.serialize:msgpack_decode_default",
    "msgpack_encode_default": "distributed.protocol.serialize:msgpack_encode_default",
    "serialize": "distributed.protocol.serialize:serialize",
    "serialize_and_split": "distributed.protocol.serialize:serialize_and_split",
    "to_serialize": "distributed.protocol.serialize:to_serialize",
    "msgpack_opts": "distributed.protocol.utils:msgpack_opts",
    "ClientState": "distributed.scheduler:ClientState",
    "Computation": "distributed.scheduler:Computation",
    "DEFAULT_DATA_SIZE": "distributed.scheduler:DEFAULT_DATA_SIZE",
    "ErredTask": "distributed.scheduler:ErredTask",
    "KilledWorker": "distributed.scheduler:KilledWorker",
    "NoValidWorkerError": "distributed.scheduler:NoValidWorkerError",
    "NoWorkerError": "distributed.scheduler:NoWorkerError",
    "Scheduler": "distributed.scheduler:Scheduler",
    "SchedulerState": "distributed.scheduler:SchedulerState",
    "TaskGroup": "distributed.scheduler:TaskGroup",
    "TaskPrefix": "distributed.scheduler:TaskPrefix",
    "TaskState": "distributed.scheduler:TaskState",
    "Transition": "distributed.scheduler:Transition",
    "WorkerState": "distributed.scheduler:WorkerState",
    "cull_graph": "distributed.scheduler:_cull",
    "materialize_graph": "distributed.scheduler:_materialize_graph",
    "task_slots_available": "distributed.scheduler:_task_slots_available",
    "convert_shards": "distributed.shuffle._arrow:convert_shards",
    "input_partition_column": "distributed.shuffle._arrow:_INPUT_PARTITION_ID_COLUMN",
    "merge_unpack": "distributed.shuffle._merge:merge_unpack",
    "ShuffleSchedulerPlugin": "distributed.shuffle._scheduler_plugin:ShuffleSchedulerPlugin",
    "P2PRechunkLayer": "distributed.shuffle._rechunk:P2PRechunkLayer",
    "DataFrameShuffleRun": "distributed.shuffle._shuffle:DataFrameShuffleRun",
    "split_by_partition": "distributed.shuffle._shuffle:split_by_partition",
    "split_by_worker": "distributed.shuffle._shuffle:split_by_worker",
    "safe_sizeof": "distributed.sizeof:safe_sizeof",
    "SpanMetadata": "distributed.spans:SpanMetadata",
    "SpansSchedulerExtension": "distributed.spans:SpansSchedulerExtension",
    "SpillBuffer": "distributed.spill:SpillBuffer",
    "SpillSlow": "distributed.spill:Slow",
    "WorkStealing": "distributed.stealing:WorkStealing",
    "fast_tasks": "distributed.stealing:fast_tasks",
    "SystemMonitor": "distributed.system_monitor:SystemMonitor",
    "ThreadPoolExecutor": "distributed.threadpoolexecutor:ThreadPoolExecutor",
    "pool_thread_state": "distributed.threadpoolexecutor:thread_state",
    "pool_worker": "distributed.threadpoolexecutor:_worker",
    "rejoin": "distributed.threadpoolexecutor:rejoin",
    "threads_lock": "distributed.threadpoolexecutor:threads_lock",
    "ensure_memoryview": "distributed.utils:ensure_memoryview",
    "get_ip": "distributed.utils:get_ip",
    "get_ip_interface": "distributed.utils:get_ip_interface",
    "get_mp_context": "distributed.utils:get_mp_context",
    "import_term": "distributed.utils:import_term",
    "iscoroutinefunction": "distributed.utils:iscoroutinefunction",
    "key_split": "distributed.utils:key_split",
    "key_split_group": "distributed.utils:key_split_group",
    "log_errors": "distributed.utils:log_errors",
    "offload": "distributed.utils:offload",
    "read_when_there": "distributed.utils:json_load_robust",
    "thread_state": "distributed.utils:thread_state",
    "Reschedule": "distributed.worker:Reschedule",
    "WORKER_ANY_RUNNING": "distributed.worker:WORKER_ANY_RUNNING",
    "Worker": "distributed.worker:Worker",
    "run_actor": "distributed.worker:_run_actor",
    "run_function": "distributed.worker:run",
    "run_task": "distributed.worker:_run_task",
    "run_task_simple": "distributed.worker:_run_task_simple",
    "sizeof": "distributed.worker:sizeof",
    "worker_variable": "distributed.worker:_worker_cvar",
    "NannyMemoryManager": "distributed.worker_memory:NannyMemoryManager",
    "parse_memory_limit": "distributed.worker_memory:parse_memory_limit",
    "AcquireReplicasEvent": "distributed.worker_state_machine:AcquireReplicasEvent",
    "BaseWorker": "distributed.worker_state_machine:BaseWorker",
    "ComputeTaskEvent": "distributed.worker_state_machine:ComputeTaskEvent",
    "ExecuteFailureEvent": "distributed.worker_state_machine:ExecuteFailureEvent",
    "ExecuteSuccessEvent": "distributed.worker_state_machine:ExecuteSuccessEvent",
    "FindMissingEvent": "distributed.worker_state_machine:FindMissingEvent",
    "FreeKeysEvent": "distributed.worker_state_machine:FreeKeysEvent",
    "GatherDepSuccessEvent": "distributed.worker_state_machine:GatherDepSuccessEvent",
    "RefreshWhoHasEvent": "distributed.worker_state_machine:RefreshWhoHasEvent",
    "ReleaseWorkerDataMsg": "distributed.worker_state_machine:ReleaseWorkerDataMsg",
    "RemoveReplicasEvent": "distributed.worker_state_machine:RemoveReplicasEvent",
    "RemoveWorkerEvent": "distributed.worker_state_machine:RemoveWorkerEvent",
    "RescheduleEvent": "distributed.worker_state_machine:RescheduleEvent",
    "SecedeEvent": "distributed.worker_state_machine:SecedeEvent",
    "StateMachineEvent": "distributed.worker_state_machine:StateMachineEvent",
    "StealRequestEvent": "distributed.worker_state_machine:StealRequestEvent",
    "TaskCounter": "distributed.worker_state_machine:TaskCounter",
    "TaskFinishedMsg": "distributed.worker_state_machine:TaskFinishedMsg",
    "UnpauseEvent": "distributed.worker_state_machine:UnpauseEvent",
    "WorkerStateMachine": "distributed.worker_state_machine:WorkerState",
    "WorkerTaskState": "distributed.worker_state_machine:TaskState",
    "InsertionSortedSet": "zict.utils:InsertionSortedSet",
}

#: Functions without their decorator, which hides where they come from
_UNWRAPPED: Final[dict[str, str]] = {
    "handle_report": "Client._handle_report",
    "update_graph": "Scheduler.update_graph",
    "add_worker": "Scheduler.add_worker",
    "remove_worker": "Scheduler.remove_worker",
    "update_data": "Scheduler.update_data",
    "retire_workers": "Scheduler.retire_workers",
    "get_data": "Worker.get_data",
}

#: Class of the event for a message of the scheduler to a worker, by operation
_WORKER_EVENTS: Final[dict[str, str]] = {
    "acquire-replicas": "AcquireReplicasEvent",
    "compute-task": "ComputeTaskEvent",
    "free-keys": "FreeKeysEvent",
    "refresh-who-has": "RefreshWhoHasEvent",
    "remove-replicas": "RemoveReplicasEvent",
    "remove-worker": "RemoveWorkerEvent",
    "steal-request": "StealRequestEvent",
}


class MissingName(ImportError):
    """The installed release of Dask lacks a private name that a feature needs."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is missing from dask {dask.__version__} and distributed "
            f"{distributed.__version__}"
        )
        self.path = path


def resolve(path: str) -> Any:
    """Find an object of Dask.

    Parameters
    ----------
    path : str
        One of the names of this module, or a module, or ``module:name``; attributes may follow.

    Raises
    ------
    MissingName
        If the installed release does not have it.
    """
    head, *attributes = path.split(".")
    if not _is_here(head):
        return _look_up(path)
    found = globals()[head] if head in globals() else __getattr__(head)
    try:
        for attribute in attributes:
            found = getattr(found, attribute)
    except AttributeError as error:
        raise MissingName(path) from error
    return found


def process_of(process: Any) -> Any:
    """Reach the process of ``multiprocessing`` that Dask starts on a thread of its own."""
    return process._process


def _span_metadata() -> Callable[[], Any]:
    metadata = resolve("SpanMetadata")

    def span_metadata() -> Any:
        """Make what a client says of the futures that it submits, for their span.

        A new one each time: 2026.7.1 tells them apart by their addresses.
        """
        return metadata(collections=[{"type": "Future"}])

    return span_metadata


def _starting_method() -> Callable[[], str]:
    context = resolve("get_mp_context")

    def starting_method() -> str:
        """Tell how Dask starts worker processes, as ``multiprocessing`` calls it."""
        return str(context().get_start_method())

    return starting_method


#: Values made of several names, or functions that need one
_MADE: Final[dict[str, Callable[[], Any]]] = {
    "span_metadata": _span_metadata,
    "starting_method": _starting_method,
    "containers": lambda: tuple(map(resolve, ("List", "Tuple", "Set", "Dict"))),
    "worker_events": lambda: {name: resolve(path) for name, path in _WORKER_EVENTS.items()},
}


def _is_here(name: str) -> bool:
    return name in NAMES or name in _UNWRAPPED or name in _MADE


def _look_up(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise MissingName(path) from error


def __getattr__(name: str) -> Any:
    if name in NAMES:
        found = _look_up(NAMES[name])
    elif name in _UNWRAPPED:
        found = inspect.unwrap(resolve(_UNWRAPPED[name]))
    elif name in _MADE:
        found = _MADE[name]()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
