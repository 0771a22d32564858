from collections.abc import Callable
from typing import Any, Final

import cloudpickle as cloudpickle
from cloudpickle.cloudpickle import _PICKLE_BY_VALUE_MODULES as by_value_modules
from dask._expr import Expr as Expr
from dask._expr import FinalizeCompute as FinalizeCompute
from dask._expr import HLGExpr as HLGExpr
from dask._expr import HLGFinalizeCompute as HLGFinalizeCompute
from dask._expr import LLGExpr as LLGExpr
from dask._expr import _ExprSequence as ExprSequence
from dask._expr import _HLGExprGroup as HLGExprGroup
from dask._expr import _HLGExprSequence as HLGExprSequence
from dask._expr import optimize_until as optimize_until
from dask._task_spec import Alias as Alias
from dask._task_spec import DataNode as DataNode
from dask._task_spec import Dict as Dict
from dask._task_spec import GraphNode as GraphNode
from dask._task_spec import List as List
from dask._task_spec import Set as Set
from dask._task_spec import Task as Task
from dask._task_spec import TaskRef as TaskRef
from dask._task_spec import Tuple as Tuple
from dask._task_spec import parse_input as parse_input
from dask.array.core import concatenate3 as concatenate3
from dask.array.rechunk import old_to_new as old_to_new
from dask.core import validate_key as validate_key
from dask.dataframe.dask_expr._expr import Assign as Assign
from dask.dataframe.dask_expr._expr import Fused as Fused
from dask.dataframe.dask_expr._expr import Projection as Projection
from dask.dataframe.dask_expr._merge import HashJoinP2P as HashJoinP2P
from dask.dataframe.dask_expr._merge import (
    create_assign_index_merge_transfer as create_assign_index_merge_transfer,
)
from dask.dataframe.dask_expr._shuffle import AssignPartitioningIndex as AssignPartitioningIndex
from dask.dataframe.dask_expr._shuffle import P2PShuffle as P2PShuffle
from dask.dataframe.dask_expr._shuffle import _is_numeric_cast_type as is_numeric_cast_type
from dask.dataframe.dask_expr._shuffle import _SetPartitionsPreSetIndex as SetPartitionsPreSetIndex
from dask.dataframe.dask_expr.io.io import FromGraph as FromGraph
from dask.dataframe.dask_expr.io.io import FromPandas as FromPandas
from dask.dataframe.dispatch import from_pyarrow_table_dispatch as from_pyarrow_table_dispatch
from dask.dataframe.dispatch import to_pyarrow_table_dispatch as to_pyarrow_table_dispatch
from dask.dataframe.multi import merge_chunk as merge_chunk
from dask.dataframe.shuffle import partitioning_index as partitioning_index
from dask.dataframe.shuffle import set_partitions_pre as set_partitions_pre
from dask.local import MultiprocessingPoolExecutor as MultiprocessingPoolExecutor
from dask.multiprocessing import initialize_worker_process as initialize_worker_process
from dask.order import order as dask_order
from dask.system import CPU_COUNT as CPU_COUNT
from dask.utils import shorten_traceback as shorten_traceback
from distributed import worker_state_machine as instructions
from distributed.active_memory_manager import (
    ActiveMemoryManagerExtension as ActiveMemoryManagerExtension,
)
from distributed.active_memory_manager import ReduceReplicas as ReduceReplicas
from distributed.active_memory_manager import RetireWorker as RetireWorker
from distributed.batched import BatchedSend as BatchedSend
from distributed.client import Client as Client
from distributed.client import Future as Future
from distributed.client import FutureState as FutureState
from distributed.client import _MapExpr as MapExpr
from distributed.client import _wait as client_wait
from distributed.client import get_collections_metadata as get_collections_metadata
from distributed.collections import HeapSet as HeapSet
from distributed.comm import get_address_host as get_address_host
from distributed.comm import utils as comm_utils
from distributed.comm.core import BaseListener as BaseListener
from distributed.comm.core import Comm as Comm
from distributed.comm.core import CommClosedError as CommClosedError
from distributed.comm.core import Connector as Connector
from distributed.comm.core import FatalCommClosedError as FatalCommClosedError
from distributed.comm.core import Listener as DaskListener
from distributed.comm.registry import Backend as Backend
from distributed.comm.registry import backends as backends
from distributed.comm.registry import get_backend as get_backend
from distributed.comm.utils import OFFLOAD_THRESHOLD as OFFLOAD_THRESHOLD
from distributed.comm.utils import from_frames as from_frames
from distributed.comm.utils import to_frames as to_frames
from distributed.core import ConnectionPool as ConnectionPool
from distributed.core import Server as Server
from distributed.core import Status as Status
from distributed.core import coerce_to_address as coerce_to_address
from distributed.core import context_meter_to_server_digest as context_meter_to_server_digest
from distributed.core import error_message as error_message
from distributed.deploy.utils import nprocesses_nthreads as processes_and_threads
from distributed.metrics import DelayedMetricsLedger as DelayedMetricsLedger
from distributed.metrics import context_meter as context_meter
from distributed.metrics import monotonic as monotonic
from distributed.metrics import time as time
from distributed.nanny import Nanny as Nanny
from distributed.nanny import WorkerProcess as WorkerProcess
from distributed.process import AsyncProcess as AsyncProcess
from distributed.protocol import pickle as pickle
from distributed.protocol.compression import decompress as decompress
from distributed.protocol.compression import maybe_compress as maybe_compress
from distributed.protocol.core import dumps as dumps
from distributed.protocol.core import loads as loads
from distributed.protocol.cuda import cuda_deserialize as cuda_deserialize
from distributed.protocol.cuda import cuda_serialize as cuda_serialize
from distributed.protocol.pickle import _DaskPickler as DaskPickler
from distributed.protocol.serialize import Pickled as Pickled
from distributed.protocol.serialize import Serialize as Serialize
from distributed.protocol.serialize import Serialized as Serialized
from distributed.protocol.serialize import ToPickle as ToPickle
from distributed.protocol.serialize import _is_dumpable as is_dumpable
from distributed.protocol.serialize import _is_msgpack_serializable as is_msgpack_serializable
from distributed.protocol.serialize import dask_deserialize as dask_deserialize
from distributed.protocol.serialize import dask_serialize as dask_serialize
from distributed.protocol.serialize import deserialize as deserialize
from distributed.protocol.serialize import merge_and_deserialize as merge_and_deserialize
from distributed.protocol.serialize import msgpack_decode_default as msgpack_decode_default
from distributed.protocol.serialize import msgpack_encode_default as msgpack_encode_default
from distributed.protocol.serialize import serialize as serialize
from distributed.protocol.serialize import serialize_and_split as serialize_and_split
from distributed.protocol.serialize import to_serialize as to_serialize
from distributed.protocol.utils import msgpack_opts as msgpack_opts
from distributed.scheduler import DEFAULT_DATA_SIZE as DEFAULT_DATA_SIZE
from distributed.scheduler import ClientState as ClientState
from distributed.scheduler import Computation as Computation
from distributed.scheduler import ErredTask as ErredTask
from distributed.scheduler import KilledWorker as KilledWorker
from distributed.scheduler import NoValidWorkerError as NoValidWorkerError
from distributed.scheduler import NoWorkerError as NoWorkerError
from distributed.scheduler import Scheduler as Scheduler
from distributed.scheduler import SchedulerState as SchedulerState
from distributed.scheduler import TaskGroup as TaskGroup
from distributed.scheduler import TaskPrefix as TaskPrefix
from distributed.scheduler import TaskState as TaskState
from distributed.scheduler import Transition as Transition
from distributed.scheduler import WorkerState as WorkerState
from distributed.scheduler import _cull as cull_graph
from distributed.scheduler import _materialize_graph as materialize_graph
from distributed.scheduler import _task_slots_available as task_slots_available
from distributed.shuffle._arrow import _INPUT_PARTITION_ID_COLUMN as input_partition_column
from distributed.shuffle._arrow import convert_shards as convert_shards
from distributed.shuffle._merge import merge_unpack as merge_unpack
from distributed.shuffle._rechunk import P2PRechunkLayer as P2PRechunkLayer
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin as ShuffleSchedulerPlugin
from distributed.shuffle._shuffle import DataFrameShuffleRun as DataFrameShuffleRun
from distributed.shuffle._shuffle import split_by_partition as split_by_partition
from distributed.shuffle._shuffle import split_by_worker as split_by_worker
from distributed.sizeof import safe_sizeof as safe_sizeof
from distributed.spans import SpanMetadata as SpanMetadata
from distributed.spans import SpansSchedulerExtension as SpansSchedulerExtension
from distributed.spill import Slow as SpillSlow
from distributed.spill import SpillBuffer as SpillBuffer
from distributed.stealing import WorkStealing as WorkStealing
from distributed.stealing import fast_tasks as fast_tasks
from distributed.system_monitor import SystemMonitor as SystemMonitor
from distributed.threadpoolexecutor import ThreadPoolExecutor as ThreadPoolExecutor
from distributed.threadpoolexecutor import _worker as pool_worker
from distributed.threadpoolexecutor import rejoin as rejoin
from distributed.threadpoolexecutor import thread_state as pool_thread_state
from distributed.threadpoolexecutor import threads_lock as threads_lock
from distributed.utils import ensure_memoryview as ensure_memoryview
from distributed.utils import get_ip as get_ip
from distributed.utils import get_ip_interface as get_ip_interface
from distributed.utils import get_mp_context as get_mp_context
from distributed.utils import import_term as import_term
from distributed.utils import iscoroutinefunction as iscoroutinefunction
from distributed.utils import json_load_robust as read_when_there
from distributed.utils import key_split as key_split
from distributed.utils import key_split_group as key_split_group
from distributed.utils import log_errors as log_errors
from distributed.utils import offload as offload
from distributed.utils import thread_state as thread_state
from distributed.worker import WORKER_ANY_RUNNING as WORKER_ANY_RUNNING
from distributed.worker import Reschedule as Reschedule
from distributed.worker import Worker as Worker
from distributed.worker import _run_actor as run_actor
from distributed.worker import _run_task as run_task
from distributed.worker import _run_task_simple as run_task_simple
from distributed.worker import _worker_cvar as worker_variable
from distributed.worker import run as run_function
from distributed.worker import sizeof as sizeof
from distributed.worker_memory import NannyMemoryManager as NannyMemoryManager
from distributed.worker_memory import parse_memory_limit as parse_memory_limit
from distributed.worker_state_machine import AcquireReplicasEvent as AcquireReplicasEvent
from distributed.worker_state_machine import BaseWorker as BaseWorker
from distributed.worker_state_machine import ComputeTaskEvent as ComputeTaskEvent
from distributed.worker_state_machine import ExecuteFailureEvent as ExecuteFailureEvent
from distributed.worker_state_machine import ExecuteSuccessEvent as ExecuteSuccessEvent
from distributed.worker_state_machine import FindMissingEvent as FindMissingEvent
from distributed.worker_state_machine import FreeKeysEvent as FreeKeysEvent
from distributed.worker_state_machine import GatherDepSuccessEvent as GatherDepSuccessEvent
from distributed.worker_state_machine import RefreshWhoHasEvent as RefreshWhoHasEvent
from distributed.worker_state_machine import ReleaseWorkerDataMsg as ReleaseWorkerDataMsg
from distributed.worker_state_machine import RemoveReplicasEvent as RemoveReplicasEvent
from distributed.worker_state_machine import RemoveWorkerEvent as RemoveWorkerEvent
from distributed.worker_state_machine import RescheduleEvent as RescheduleEvent
from distributed.worker_state_machine import SecedeEvent as SecedeEvent
from distributed.worker_state_machine import StateMachineEvent as StateMachineEvent
from distributed.worker_state_machine import StealRequestEvent as StealRequestEvent
from distributed.worker_state_machine import TaskCounter as TaskCounter
from distributed.worker_state_machine import TaskFinishedMsg as TaskFinishedMsg
from distributed.worker_state_machine import TaskState as WorkerTaskState
from distributed.worker_state_machine import UnpauseEvent as UnpauseEvent
from distributed.worker_state_machine import WorkerState as WorkerStateMachine
from zict.utils import InsertionSortedSet as InsertionSortedSet

# Renamed imports; type checkers take the others as exported.
__all__ = [
    "DaskListener",
    "DaskPickler",
    "ExprSequence",
    "HLGExprGroup",
    "HLGExprSequence",
    "MapExpr",
    "SetPartitionsPreSetIndex",
    "SpillSlow",
    "WorkerStateMachine",
    "WorkerTaskState",
    "by_value_modules",
    "client_wait",
    "comm_utils",
    "concatenate3",
    "cull_graph",
    "dask_order",
    "input_partition_column",
    "instructions",
    "is_dumpable",
    "is_msgpack_serializable",
    "is_numeric_cast_type",
    "materialize_graph",
    "old_to_new",
    "pool_thread_state",
    "pool_worker",
    "processes_and_threads",
    "read_when_there",
    "run_actor",
    "run_function",
    "run_task",
    "run_task_simple",
    "task_slots_available",
    "worker_variable",
]

class MissingName(ImportError):
    path: str
    def __init__(self, path: str) -> None: ...

NAMES: Final[dict[str, str]]
containers: tuple[Any, ...]
worker_events: dict[str, Any]
handle_report: Callable[..., Any]
update_graph: Callable[..., Any]
add_worker: Callable[..., Any]
remove_worker: Callable[..., Any]
update_data: Callable[..., Any]
retire_workers: Callable[..., Any]
get_data: Callable[..., Any]

def resolve(path: str) -> Any: ...
def process_of(process: AsyncProcess) -> Any: ...
def span_metadata() -> SpanMetadata: ...
def starting_method() -> str: ...
