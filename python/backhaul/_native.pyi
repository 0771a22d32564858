"""The Rust fabric as Python sees it; import the names from ``backhaul`` instead."""

from backhaul._stubs.codec import (
    Codec,
    TaskCalls,
    TaskGraph,
    difference_listing,
    order,
    set_listing,
)
from backhaul._stubs.context import Context, Listener, Tls
from backhaul._stubs.endpoint import Endpoint
from backhaul._stubs.exchange import Join, Partitioning, assemble_pieces, piece_sizes, read_piece
from backhaul._stubs.memory import (
    Arena,
    DeviceBuffer,
    MemoryWatch,
    arena_of_numpy_handler,
    borrowed_bytes,
    copy_memory,
    cuda_devices,
    current_numpy_handler,
    memory_policy,
    numpy_handler,
    set_default_numpy_handler,
    set_memory_policy,
    set_numpy_handler,
)
from backhaul._stubs.placement import FairNetwork, Links, Machine, Placement, Plan, plan_roots
from backhaul._stubs.requests import (
    Lookout,
    LoopBridge,
    LoopReader,
    Request,
    call_interruptibly,
    interrupt_call,
    process_token,
    running_calls,
)
from backhaul._stubs.resources import (
    PassedRequest,
    ResourcePlaces,
    ResourcePools,
    ResourceRequest,
    RoomState,
    UnmetRequest,
)
from backhaul._stubs.scheduler_core import SchedulerCore
from backhaul._stubs.scheduling import (
    ReplicatedTask,
    RunRecord,
    StealOutcome,
    StealRequest,
    WindowPolicy,
    WorkerLoad,
)
from backhaul._stubs.streams import EngineNotes, SchedulerStreams, StoppedStreams, SubmittedTask
from backhaul._stubs.worker_core import WorkerCore

__all__ = [
    "DEBUG_BUILD",
    "LEND_BYTES_MIN",
    "SIZE_CLASSES_BYTES_MIN",
    "Arena",
    "Codec",
    "Context",
    "DeviceBuffer",
    "Endpoint",
    "EngineNotes",
    "FairNetwork",
    "Join",
    "Links",
    "Listener",
    "Lookout",
    "LoopBridge",
    "LoopReader",
    "Machine",
    "MemoryWatch",
    "Partitioning",
    "PassedRequest",
    "Placement",
    "Plan",
    "ReplicatedTask",
    "Request",
    "ResourcePlaces",
    "ResourcePools",
    "ResourceRequest",
    "RoomState",
    "RunRecord",
    "SchedulerCore",
    "SchedulerStreams",
    "StealOutcome",
    "StealRequest",
    "StoppedStreams",
    "SubmittedTask",
    "TaskCalls",
    "TaskGraph",
    "Tls",
    "UnmetRequest",
    "WindowPolicy",
    "WorkerCore",
    "WorkerLoad",
    "__version__",
    "arena_of_numpy_handler",
    "assemble_pieces",
    "borrowed_bytes",
    "call_interruptibly",
    "copy_memory",
    "cuda_devices",
    "current_numpy_handler",
    "difference_listing",
    "interrupt_call",
    "memory_policy",
    "numpy_handler",
    "order",
    "piece_sizes",
    "plan_roots",
    "process_token",
    "read_piece",
    "running_calls",
    "set_default_numpy_handler",
    "set_listing",
    "set_memory_policy",
    "set_numpy_handler",
]

__version__: str
DEBUG_BUILD: bool
LEND_BYTES_MIN: int
#: Size of the smallest message of each class of `Context.flows`, in bytes.
SIZE_CLASSES_BYTES_MIN: tuple[int, ...]
