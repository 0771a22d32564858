"""Every name of ``distributed`` that we touch and that its documentation does not promise.

``distributed`` is held to releases that were tested for the sake of this list: when another one is
allowed, read each name here again. The rest of the room imports these names from here and from
nowhere else; what it imports from ``distributed`` directly is documented.

Read for 2026.7.1 and 2026.8.0. Between them nothing changed in the modules below, nor in the rest
of ``distributed.comm``, ``protocol``, ``shuffle``, ``batched`` and ``client``. What did: ``nanny``
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
from typing import Any

import cloudpickle
from cloudpickle.cloudpickle import _PICKLE_BY_VALUE_MODULES as by_value_modules
from dask._expr import Expr, FinalizeCompute, HLGExpr, HLGFinalizeCompute, LLGExpr, optimize_until
from dask._expr import _ExprSequence as ExprSequence
from dask._expr import _HLGExprGroup as HLGExprGroup
from dask._expr import _HLGExprSequence as HLGExprSequence
from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    Set,
    Task,
    TaskRef,
    Tuple,
    parse_input,
)
from dask.core import validate_key
from dask.local import MultiprocessingPoolExecutor
from dask.multiprocessing import initialize_worker_process
from dask.order import order as dask_order
from dask.system import CPU_COUNT
from dask.utils import shorten_traceback
from distributed import worker_state_machine as instructions
from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension,
    ReduceReplicas,
    RetireWorker,
)
from distributed.batched import BatchedSend
from distributed.client import Client, Future, FutureState, get_collections_metadata
from distributed.client import _MapExpr as MapExpr
from distributed.client import _wait as client_wait
from distributed.collections import HeapSet
from distributed.comm import get_address_host
from distributed.comm import utils as comm_utils
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.core import FatalCommClosedError as FatalCommClosedError
from distributed.comm.core import Listener as DaskListener
from distributed.comm.registry import Backend, backends, get_backend
from distributed.comm.utils import OFFLOAD_THRESHOLD, from_frames, to_frames
from distributed.core import (
    ConnectionPool,
    Server,
    Status,
    coerce_to_address,
    context_meter_to_server_digest,
    error_message,
)
from distributed.deploy.utils import nprocesses_nthreads as processes_and_threads
from distributed.metrics import DelayedMetricsLedger, context_meter, monotonic, time
from distributed.nanny import Nanny, WorkerProcess
from distributed.process import AsyncProcess
from distributed.protocol import pickle
from distributed.protocol.compression import decompress, maybe_compress
from distributed.protocol.core import dumps, loads
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.pickle import _DaskPickler as DaskPickler
from distributed.protocol.serialize import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    dask_deserialize,
    dask_serialize,
    deserialize,
    merge_and_deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    serialize,
    serialize_and_split,
    to_serialize,
)
from distributed.protocol.serialize import _is_dumpable as is_dumpable
from distributed.protocol.serialize import _is_msgpack_serializable as is_msgpack_serializable
from distributed.protocol.utils import msgpack_opts
from distributed.scheduler import (
    DEFAULT_DATA_SIZE,
    ClientState,
    Computation,
    ErredTask,
    KilledWorker,
    NoValidWorkerError,
    NoWorkerError,
    Scheduler,
    SchedulerState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    Transition,
    WorkerState,
)
from distributed.scheduler import _cull as cull_graph
from distributed.scheduler import _materialize_graph as materialize_graph
from distributed.scheduler import _task_slots_available as task_slots_available
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.sizeof import safe_sizeof
from distributed.spans import SpanMetadata, SpansSchedulerExtension
from distributed.spill import SpillBuffer
from distributed.stealing import WorkStealing, fast_tasks
from distributed.system_monitor import SystemMonitor
from distributed.threadpoolexecutor import ThreadPoolExecutor, rejoin, threads_lock
from distributed.threadpoolexecutor import _worker as pool_worker
from distributed.threadpoolexecutor import thread_state as pool_thread_state
from distributed.utils import All as wait_for_all
from distributed.utils import (
    ensure_memoryview,
    get_ip,
    get_ip_interface,
    get_mp_context,
    import_term,
    iscoroutinefunction,
    key_split,
    key_split_group,
    log_errors,
    offload,
    thread_state,
    wait_for,
)
from distributed.utils import (
    json_load_robust as read_when_there,
)
from distributed.worker import WORKER_ANY_RUNNING, Reschedule, Worker, sizeof
from distributed.worker import _run_actor as run_actor
from distributed.worker import _run_task as run_task
from distributed.worker import _run_task_simple as run_task_simple
from distributed.worker import _worker_cvar as worker_variable
from distributed.worker import run as run_function
from distributed.worker_memory import NannyMemoryManager, parse_memory_limit
from distributed.worker_state_machine import (
    AcquireReplicasEvent,
    BaseWorker,
    ComputeTaskEvent,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    FindMissingEvent,
    FreeKeysEvent,
    GatherDepSuccessEvent,
    RefreshWhoHasEvent,
    ReleaseWorkerDataMsg,
    RemoveReplicasEvent,
    RemoveWorkerEvent,
    RescheduleEvent,
    SecedeEvent,
    StateMachineEvent,
    StealRequestEvent,
    TaskCounter,
    TaskFinishedMsg,
    UnpauseEvent,
)
from distributed.worker_state_machine import TaskState as WorkerTaskState
from distributed.worker_state_machine import WorkerState as WorkerStateMachine
from zict.utils import InsertionSortedSet

__all__ = [
    "CPU_COUNT",
    "DEFAULT_DATA_SIZE",
    "OFFLOAD_THRESHOLD",
    "WORKER_ANY_RUNNING",
    "ActiveMemoryManagerExtension",
    "Alias",
    "AsyncProcess",
    "Backend",
    "BaseListener",
    "BaseWorker",
    "BatchedSend",
    "Client",
    "ClientState",
    "Comm",
    "CommClosedError",
    "Computation",
    "ComputeTaskEvent",
    "ConnectionPool",
    "Connector",
    "DaskListener",
    "DaskPickler",
    "DataNode",
    "DelayedMetricsLedger",
    "Dict",
    "ErredTask",
    "ExecuteFailureEvent",
    "ExecuteSuccessEvent",
    "Expr",
    "ExprSequence",
    "FatalCommClosedError",
    "FinalizeCompute",
    "FindMissingEvent",
    "FreeKeysEvent",
    "Future",
    "FutureState",
    "GatherDepSuccessEvent",
    "GraphNode",
    "HLGExpr",
    "HLGExprGroup",
    "HLGExprSequence",
    "HLGFinalizeCompute",
    "HeapSet",
    "InsertionSortedSet",
    "KilledWorker",
    "LLGExpr",
    "List",
    "MapExpr",
    "MultiprocessingPoolExecutor",
    "Nanny",
    "NannyMemoryManager",
    "NoValidWorkerError",
    "NoWorkerError",
    "Pickled",
    "ReduceReplicas",
    "ReleaseWorkerDataMsg",
    "Reschedule",
    "RescheduleEvent",
    "RetireWorker",
    "SchedulerState",
    "SecedeEvent",
    "Serialize",
    "Serialized",
    "Server",
    "Set",
    "ShuffleSchedulerPlugin",
    "SpanMetadata",
    "SpansSchedulerExtension",
    "SpillBuffer",
    "StateMachineEvent",
    "Status",
    "SystemMonitor",
    "Task",
    "TaskCounter",
    "TaskFinishedMsg",
    "TaskGroup",
    "TaskPrefix",
    "TaskRef",
    "TaskState",
    "ThreadPoolExecutor",
    "ToPickle",
    "Transition",
    "Tuple",
    "UnpauseEvent",
    "WorkStealing",
    "Worker",
    "WorkerProcess",
    "WorkerState",
    "WorkerStateMachine",
    "WorkerTaskState",
    "add_worker",
    "backends",
    "by_value_modules",
    "client_wait",
    "cloudpickle",
    "coerce_to_address",
    "comm_utils",
    "context_meter",
    "context_meter_to_server_digest",
    "cuda_deserialize",
    "cuda_serialize",
    "cull_graph",
    "dask_deserialize",
    "dask_order",
    "dask_serialize",
    "decompress",
    "deserialize",
    "dumps",
    "ensure_memoryview",
    "error_message",
    "fast_tasks",
    "from_frames",
    "get_address_host",
    "get_backend",
    "get_collections_metadata",
    "get_data",
    "get_ip",
    "get_ip_interface",
    "handle_report",
    "import_term",
    "initialize_worker_process",
    "instructions",
    "is_dumpable",
    "is_msgpack_serializable",
    "iscoroutinefunction",
    "key_split",
    "key_split_group",
    "loads",
    "log_errors",
    "materialize_graph",
    "maybe_compress",
    "merge_and_deserialize",
    "monotonic",
    "msgpack_decode_default",
    "msgpack_encode_default",
    "msgpack_opts",
    "offload",
    "optimize_until",
    "parse_input",
    "parse_memory_limit",
    "pickle",
    "pool_thread_state",
    "pool_worker",
    "process_of",
    "processes_and_threads",
    "read_when_there",
    "rejoin",
    "remove_worker",
    "retire_workers",
    "run_actor",
    "run_function",
    "run_task",
    "run_task_simple",
    "safe_sizeof",
    "serialize",
    "serialize_and_split",
    "shorten_traceback",
    "sizeof",
    "span_metadata",
    "starting_method",
    "task_slots_available",
    "thread_state",
    "threads_lock",
    "time",
    "to_frames",
    "to_serialize",
    "update_data",
    "update_graph",
    "validate_key",
    "wait_for",
    "wait_for_all",
    "worker_events",
    "worker_variable",
]

# Without their decorator, which hides where they come from
handle_report = inspect.unwrap(Client._handle_report)
update_graph = inspect.unwrap(Scheduler.update_graph)
add_worker = inspect.unwrap(Scheduler.add_worker)
remove_worker = inspect.unwrap(Scheduler.remove_worker)
update_data = inspect.unwrap(Scheduler.update_data)
retire_workers = inspect.unwrap(Scheduler.retire_workers)
get_data = inspect.unwrap(Worker.get_data)

containers = (List, Tuple, Set, Dict)

#: What a worker makes of a message of the scheduler, by operation
worker_events: dict[str, Any] = {
    "acquire-replicas": AcquireReplicasEvent,
    "compute-task": ComputeTaskEvent,
    "free-keys": FreeKeysEvent,
    "refresh-who-has": RefreshWhoHasEvent,
    "remove-replicas": RemoveReplicasEvent,
    "remove-worker": RemoveWorkerEvent,
    "steal-request": StealRequestEvent,
}


def process_of(process: AsyncProcess) -> Any:
    """Reach the process of ``multiprocessing`` that Dask starts on a thread of its own."""
    return process._process


def span_metadata() -> SpanMetadata:
    """Make what a client says of the futures that it submits, for their span.

    A new one each time: 2026.7.1 tells them apart by their addresses.
    """
    return SpanMetadata(collections=[{"type": "Future"}])


def starting_method() -> str:
    """Tell how Dask starts worker processes, as ``multiprocessing`` calls it."""
    return str(get_mp_context().get_start_method())
