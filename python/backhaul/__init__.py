"""Messages between processes over the best path there is.

`listen` and `connect` give an `Endpoint`, one connected peer. Each operation on it returns a
`Request`: ``await`` it, or ``wait()`` for it. How the bytes travel, the *lane*, is agreed on when
connecting: through the process, through shared memory, or over TCP,
encrypted where a `Tls` is given.
"""

from __future__ import annotations

import warnings

from backhaul._api import Server, connect, default_context, listen
from backhaul._buffers import Received
from backhaul._logs import add_fallback_handler
from backhaul._native import (
    DEBUG_BUILD,
    Arena,
    Context,
    DeviceBuffer,
    Endpoint,
    Listener,
    Request,
    Tls,
    __version__,
)
from backhaul._store import StoredObject, get, put, remove, stored
from backhaul.errors import (
    AddressError,
    AuthenticationFailed,
    BackhaulError,
    Cancelled,
    ConfigError,
    ConnectFailed,
    ConnectionFailed,
    CudaUnavailable,
    EncryptionFailed,
    EndpointClosed,
    EscapeError,
    HandshakeFailed,
    InvalidBuffer,
    ListenError,
    MachineError,
    MessageTooLarge,
    NoCarrier,
    NotDone,
    NotObserved,
    NotStored,
    ObjectError,
    OutOfMemory,
    PeerGone,
    PlanError,
    ProtocolViolation,
    QueueFull,
    ResourceError,
    TaskTooLarge,
    TimedOut,
    TlsError,
    TruncatedError,
    UcxUnavailable,
)

__all__ = [
    "AddressError",
    "Arena",
    "AuthenticationFailed",
    "BackhaulError",
    "Cancelled",
    "ConfigError",
    "ConnectFailed",
    "ConnectionFailed",
    "Context",
    "CudaUnavailable",
    "DeviceBuffer",
    "EncryptionFailed",
    "Endpoint",
    "EndpointClosed",
    "EscapeError",
    "HandshakeFailed",
    "InvalidBuffer",
    "ListenError",
    "Listener",
    "MachineError",
    "MessageTooLarge",
    "NoCarrier",
    "NotDone",
    "NotObserved",
    "NotStored",
    "ObjectError",
    "OutOfMemory",
    "PeerGone",
    "PlanError",
    "ProtocolViolation",
    "QueueFull",
    "Received",
    "Request",
    "ResourceError",
    "Server",
    "StoredObject",
    "TaskTooLarge",
    "TimedOut",
    "Tls",
    "TlsError",
    "TruncatedError",
    "UcxUnavailable",
    "__version__",
    "connect",
    "default_context",
    "get",
    "listen",
    "put",
    "remove",
    "stored",
]

add_fallback_handler()

if DEBUG_BUILD:
    warnings.warn(
        "backhaul was built without optimisation: do not measure it", RuntimeWarning, stacklevel=2
    )
