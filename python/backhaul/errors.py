"""Exceptions: one tree under `BackhaulError`, each also a built-in where one fits.

::

    BackhaulError
    ├── ConfigError (ValueError)         a setting or lane that cannot be used
    │   ├── CudaUnavailable              memory of a GPU, and CUDA cannot be used here
    │   ├── TlsError                     certificates, keys, versions or ciphers that cannot be used
    │   └── UcxUnavailable               the ucx lane was asked for, and UCX cannot be used here
    ├── AddressError (ValueError)        a text that is no address
    ├── MachineError (ValueError)        a text or a host that no machine can be read from
    ├── PlanError (ValueError)           a launch plan that is impossible
    ├── InvalidBuffer (ValueError)       not contiguous, or read-only where it is written to
    ├── MessageTooLarge (ValueError)     over a limit of this side or of the peer
    ├── NoCarrier                        memory of a GPU, and no way for it between the two sides
    ├── TruncatedError (ValueError)      a message larger than the buffer of its receive
    ├── ObjectError (ValueError)         a message that was to be an object, and is none
    ├── ListenError (OSError)            an address that cannot be listened on; has ``errno``
    ├── ConnectionFailed (ConnectionError)
    │   ├── ConnectFailed                the peer was not reached; has ``errno``
    │   ├── HandshakeFailed              the peer does not speak our protocol
    │   │   ├── EncryptionFailed         TLS was not agreed on: certificates, or one side has none
    │   │   └── AuthenticationFailed     the two have not the same secret
    │   ├── EndpointClosed               closed here, or by the peer in good order
    │   ├── PeerGone                     the peer died or fell silent
    │   └── ProtocolViolation            the peer sent nonsense
    ├── EscapeError (ValueError)         a scheduler and a core that cannot take each other's place
    ├── TimedOut (TimeoutError)          time ran out; a request that was waited for goes on
    ├── QueueFull (BlockingIOError)      too many operations are posted; try again later
    ├── Cancelled                        the operation was cancelled
    ├── NotObserved                      the figure asked for has not been counted
    ├── NotDone                          a result was asked for before it was there
    ├── NotStored (LookupError)          a name that the store of this host has no object for
    ├── ResourceError (LookupError)      a unit that a task does not hold
    ├── OutOfMemory (MemoryError)        no memory for a message, which is dropped
    └── TaskTooLarge (MemoryError)       a task that needs more memory than a worker may use
"""

from __future__ import annotations

__all__ = [
    "AddressError",
    "AuthenticationFailed",
    "BackhaulError",
    "Cancelled",
    "ConfigError",
    "ConnectFailed",
    "ConnectionFailed",
    "CudaUnavailable",
    "EncryptionFailed",
    "EndpointClosed",
    "EscapeError",
    "HandshakeFailed",
    "InvalidBuffer",
    "ListenError",
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
    "ResourceError",
    "TaskTooLarge",
    "TimedOut",
    "TlsError",
    "TruncatedError",
    "UcxUnavailable",
]


class BackhaulError(Exception):
    """Anything that Backhaul raises of its own."""


class ConfigError(BackhaulError, ValueError):
    """A setting that cannot work; the message has the value and what is allowed."""


class UcxUnavailable(ConfigError):
    """UCX was asked for and cannot be used; the message says which libraries and what to do."""


class TlsError(ConfigError):
    """Certificates, keys, versions or ciphers that cannot be used; names the file and why."""


class CudaUnavailable(ConfigError):
    """CUDA was asked for and cannot be used; the message says what is missing."""


class AddressError(BackhaulError, ValueError):
    """A text that is no address."""


class MachineError(BackhaulError, ValueError):
    """The text that was read describes no machine; the message has the place in the text."""


class PlanError(BackhaulError, ValueError):
    """A launch plan that is impossible; the message has the value and the way out."""


class InvalidBuffer(BackhaulError, ValueError):
    """Memory that cannot be used as asked: not contiguous, or read-only."""


class MessageTooLarge(BackhaulError, ValueError):
    """A message over a limit of either side; nothing was sent."""


class NoCarrier(BackhaulError):
    """Memory that no way between the two sides reaches; nothing was sent or received."""


class TruncatedError(BackhaulError, ValueError):
    """A message larger than the receive buffer; the message is consumed."""


class ObjectError(BackhaulError, ValueError):
    """A message that was received as an object, and was not sent as one; it is consumed."""


class ListenError(BackhaulError, OSError):
    """An address that cannot be listened on."""


class ConnectionFailed(BackhaulError, ConnectionError):
    """A connection that was not made, or has ended."""


class ConnectFailed(ConnectionFailed):
    """The peer could not be reached; trying again later may help."""


class HandshakeFailed(ConnectionFailed):
    """The peer does not speak the protocol, or another version of it."""


class AuthenticationFailed(HandshakeFailed):
    """The peer does not prove the secret of this side, or proves one and this side has none."""


class EncryptionFailed(HandshakeFailed):
    """No encryption: one side does not ask for it, or refuses the other's certificate."""


class EndpointClosed(ConnectionFailed):
    """The endpoint was closed, here or by the peer."""


class PeerGone(ConnectionFailed):
    """The peer ended without closing, or answers nothing."""


class ProtocolViolation(ConnectionFailed):
    """The peer sent what the protocol forbids."""


class EscapeError(BackhaulError, ValueError):
    """A scheduler and a core that cannot take each other's place; says what is in the way."""


class TimedOut(BackhaulError, TimeoutError):
    """Time ran out."""


class QueueFull(BackhaulError, BlockingIOError):
    """Too many operations are posted on the endpoint."""


class Cancelled(BackhaulError):
    """The operation was cancelled."""


class NotDone(BackhaulError):
    """The result is not there yet."""


class NotObserved(BackhaulError):
    """The requested events were not counted; the message says how to count them."""


class NotStored(BackhaulError, LookupError):
    """A name that the store of this host has no object for."""


# MemoryError first: it makes its instances itself, and refuses to for a class built on another.
class OutOfMemory(MemoryError, BackhaulError):
    """There was no memory for a message."""


class TaskTooLarge(MemoryError, BackhaulError):
    """A task that needs more memory than a worker may use; the message has what was measured."""


class ResourceError(BackhaulError, LookupError):
    """A unit of a resource that the running task does not hold, or no task is running."""
