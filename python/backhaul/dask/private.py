"""Every name of ``distributed`` that we touch and that its documentation does not promise.

``distributed`` is pinned to one release for the sake of this list: when the pin moves, read each
name here again. The rest of the room imports these names from here and from nowhere else; what it
imports from ``distributed`` directly is documented.

Besides the names below we depend on two facts that no import shows:

- ``distributed.comm.core.connect`` reads ``comm._peer_addr`` and ``comm._local_addr``;
- ``BaseListener`` keeps the comms that are still shaking hands, and ``Server`` aborts them through
  ``listener.abort_handshaking_comms()`` when it stops.
"""

from __future__ import annotations

from distributed.batched import BatchedSend
from distributed.client import FutureState
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.core import FatalCommClosedError as FatalCommClosedError
from distributed.comm.core import Listener as DaskListener
from distributed.comm.registry import Backend, backends
from distributed.comm.utils import from_frames, to_frames
from distributed.core import ConnectionPool, Server, error_message
from distributed.metrics import DelayedMetricsLedger, context_meter, time
from distributed.protocol.core import dumps, loads
from distributed.threadpoolexecutor import ThreadPoolExecutor
from distributed.utils import All as wait_for_all
from distributed.utils import (
    ensure_memoryview,
    get_ip,
    get_ip_interface,
    iscoroutinefunction,
    key_split,
    thread_state,
    wait_for,
)
from distributed.worker import WORKER_ANY_RUNNING, Reschedule, Worker, sizeof
from distributed.worker import _run_task as run_task
from distributed.worker import _run_task_simple as run_task_simple
from distributed.worker import _worker_cvar as worker_variable
from distributed.worker_state_machine import (
    BaseWorker,
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    RescheduleEvent,
)

__all__ = [
    "WORKER_ANY_RUNNING",
    "Backend",
    "BaseListener",
    "BaseWorker",
    "BatchedSend",
    "Comm",
    "CommClosedError",
    "ConnectionPool",
    "Connector",
    "DaskListener",
    "DelayedMetricsLedger",
    "ExecuteFailureEvent",
    "ExecuteSuccessEvent",
    "FatalCommClosedError",
    "FutureState",
    "Reschedule",
    "RescheduleEvent",
    "Server",
    "ThreadPoolExecutor",
    "Worker",
    "backends",
    "context_meter",
    "dumps",
    "ensure_memoryview",
    "error_message",
    "from_frames",
    "get_ip",
    "get_ip_interface",
    "iscoroutinefunction",
    "key_split",
    "loads",
    "run_task",
    "run_task_simple",
    "sizeof",
    "thread_state",
    "time",
    "to_frames",
    "wait_for",
    "wait_for_all",
    "worker_variable",
]
