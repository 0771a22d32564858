//! From Rust's errors to the tree of exceptions in `backhaul.errors`: the only place that does it.

use backhaul::cuda::CudaMemoryError;
use backhaul::{
    AcceptError, CloseReason, ConfigError, ConnectError, ContextError, HandshakeError, ListenError,
    RecvError, RecvRefused, SendError, SendRefused, TlsError,
};
use backhaul_topology::PlanError;
use backhaul_topology::distance::UnknownDevice;
use backhaul_topology::read::sysfs::NoSystem;
use backhaul_topology::read::{ParseError, UnknownFormat};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::operation::Operation;

/// Turns an error into the exception that Python raises
pub(crate) trait IntoException {
    /// The exception
    fn into_exception(self, py: Python<'_>) -> PyErr;

    /// Returns the text to log if no caller looks at the request; `None` if that is the end of the
    /// connection or a cancel, which shows elsewhere
    fn unseen(&self) -> Option<String> {
        None
    }
}

/// A class of `backhaul.errors` with its arguments
fn raise<'py>(py: Python<'py>, class: &str, arguments: impl PyCallArgs<'py>) -> PyErr {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE
        .get_or_try_init(py, || Ok(py.import("backhaul.errors")?.unbind()))
        .and_then(|module: &Py<PyModule>| module.bind(py).getattr(class)?.call1(arguments))
        .map_or_else(|error| error, PyErr::from_value)
}

fn message(py: Python<'_>, class: &str, error: &impl std::fmt::Display) -> PyErr {
    raise(py, class, (error.to_string(),))
}

/// A buffer that cannot be used as asked
pub(crate) fn buffer_error(py: Python<'_>, text: String) -> PyErr {
    raise(py, "InvalidBuffer", (text,))
}

/// An argument outside what is allowed
pub(crate) fn config_error(py: Python<'_>, text: String) -> PyErr {
    raise(py, "ConfigError", (text,))
}

/// Makes the error of a text or object that is no machine
pub(crate) fn machine_error(py: Python<'_>, text: String) -> PyErr {
    raise(py, "MachineError", (text,))
}

/// `wait` ran out of time; the operation goes on
pub(crate) fn wait_timed_out(py: Python<'_>, operation: Operation, timeout_s: f64) -> PyErr {
    let text = format!("{operation} is not done after {timeout_s} s");
    let text = match operation.cause() {
        Some(cause) => format!("{text}: {cause}; it goes on"),
        None => text,
    };
    raise(py, "TimedOut", (text,))
}

/// A result was asked for before it was there
pub(crate) fn not_done(py: Python<'_>) -> PyErr {
    raise(py, "NotDone", ("the operation is not done",))
}

/// Something made before a fork was used after it, in the child
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    raise(
        py,
        "EndpointClosed",
        ("it belongs to the process that forked this one: make another in this process",),
    )
}

impl IntoException for CloseReason {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        let class = match &self {
            Self::Local | Self::Peer { .. } => "EndpointClosed",
            Self::PeerGone { .. } | Self::Silent { .. } => "PeerGone",
            Self::Violation { .. } => "ProtocolViolation",
            _ => "ConnectionFailed",
        };
        message(py, class, &self)
    }
}

impl IntoException for SendError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Closed(reason) => reason.into_exception(py),
            Self::Cancelled => message(py, "Cancelled", &self),
            Self::Refused(SendRefused::QueueFull { .. }) => message(py, "QueueFull", &self),
            Self::Refused(SendRefused::Closed) => message(py, "EndpointClosed", &self),
            Self::Refused(SendRefused::NoCarrier { .. }) => message(py, "NoCarrier", &self),
            _ => message(py, "MessageTooLarge", &self),
        }
    }

    fn unseen(&self) -> Option<String> {
        match self {
            Self::Refused(SendRefused::Closed) | Self::Closed(_) | Self::Cancelled => None,
            refused => Some(format!("a send was refused: {refused}")),
        }
    }
}

impl IntoException for RecvError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Closed(reason) => reason.into_exception(py),
            Self::Cancelled => message(py, "Cancelled", &self),
            Self::Truncated { .. } => message(py, "TruncatedError", &self),
            Self::OutOfMemory { .. } => message(py, "OutOfMemory", &self),
            Self::Refused(RecvRefused::NoCarrier { .. }) => message(py, "NoCarrier", &self),
            _ => message(py, "QueueFull", &self),
        }
    }

    fn unseen(&self) -> Option<String> {
        match self {
            Self::Closed(_) | Self::Cancelled => None,
            lost => Some(format!("a receive failed: {lost}")),
        }
    }
}

impl IntoException for ConnectError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match &self {
            Self::Address(_) => message(py, "AddressError", &self),
            Self::Config(ConfigError::Tls(_)) => message(py, "TlsError", &self),
            Self::Config(_) => message(py, "ConfigError", &self),
            Self::Ucx(_) => message(py, "UcxUnavailable", &self),
            Self::Cancelled { .. } => message(py, "Cancelled", &self),
            Self::Handshake {
                source: HandshakeError::TimedOut { .. },
                ..
            } => message(py, "TimedOut", &self),
            Self::Handshake {
                source:
                    HandshakeError::NoProof
                    | HandshakeError::UnexpectedProof
                    | HandshakeError::WrongProof { .. },
                ..
            } => message(py, "AuthenticationFailed", &self),
            Self::Handshake { .. } => message(py, "HandshakeFailed", &self),
            Self::Tls { .. } => message(py, "EncryptionFailed", &self),
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => {
                message(py, "TimedOut", &self)
            }
            Self::Io { source, .. } => os_error(py, "ConnectFailed", source, &self),
            _ => message(py, "ConnectFailed", &self),
        }
    }
}

impl IntoException for ListenError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match &self {
            Self::Address(_) => message(py, "AddressError", &self),
            Self::Config(ConfigError::Tls(_)) => message(py, "TlsError", &self),
            Self::Config(_) => message(py, "ConfigError", &self),
            Self::Io { source, .. } => os_error(py, "ListenError", source, &self),
            _ => message(py, "ListenError", &self),
        }
    }
}

impl IntoException for AcceptError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Cancelled => message(py, "Cancelled", &self),
            _ => message(py, "EndpointClosed", &self),
        }
    }
}

impl IntoException for TlsError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "TlsError", &self)
    }
}

impl IntoException for ConfigError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "ConfigError", &self)
    }
}

impl IntoException for ContextError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Config(error) => error.into_exception(py),
            Self::Ucx(_) => message(py, "UcxUnavailable", &self),
            Self::Cuda(_) => message(py, "CudaUnavailable", &self),
            _ => message(py, "BackhaulError", &self),
        }
    }
}

impl IntoException for CudaMemoryError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match &self {
            Self::Load(_) => message(py, "CudaUnavailable", &self),
            Self::Memory(_) => message(py, "InvalidBuffer", &self),
            Self::NoDevice { .. } => message(py, "ConfigError", &self),
            Self::Cuda(error) if error.is_out_of_memory() => message(py, "OutOfMemory", &self),
            _ => message(py, "BackhaulError", &self),
        }
    }
}

impl IntoException for ParseError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "MachineError", &self)
    }
}

impl IntoException for NoSystem {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "MachineError", &self)
    }
}

impl IntoException for UnknownFormat {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "ConfigError", &self)
    }
}

impl IntoException for UnknownDevice {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "ConfigError", &self)
    }
}

impl IntoException for PlanError {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        message(py, "PlanError", &self)
    }
}

impl IntoException for std::convert::Infallible {
    fn into_exception(self, _py: Python<'_>) -> PyErr {
        match self {}
    }
}

/// An exception that is an `OSError` with its number, where the system gave one
fn os_error(
    py: Python<'_>,
    class: &str,
    source: &std::io::Error,
    error: &impl std::fmt::Display,
) -> PyErr {
    match source.raw_os_error() {
        Some(number) => raise(py, class, (number, error.to_string())),
        None => message(py, class, error),
    }
}
