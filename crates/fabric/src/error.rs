//! Errors: one small enum for each operation, and the reason a link ended.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use backhaul_proto::{HandshakeError, ProtocolError, RecvRefused, SendRefused};
use backhaul_ucx::UcxError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::tls::TlsFailure;

/// Why a link ended
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed or aborted the endpoint
    #[error("endpoint was closed here")]
    Local,
    /// The peer said that it sends nothing further
    #[error("peer {peer} closed the connection")]
    Peer {
        /// Address of the peer
        peer: SocketAddr,
    },
    /// The peer ended, or the connection to it broke
    #[error("peer {peer} is gone: {detail}")]
    PeerGone {
        /// Address of the peer
        peer: SocketAddr,
        /// Error that the system reported
        detail: Arc<str>,
    },
    /// The peer broke the protocol
    #[error("peer {peer} broke the protocol: {source}")]
    Violation {
        /// Address of the peer
        peer: SocketAddr,
        /// Violation by the peer
        source: Arc<ProtocolError>,
    },
    /// The peer answered nothing for too long, nor did its host
    #[error("peer {peer} answered nothing for {waited:?}")]
    Silent {
        /// Address of the peer
        peer: SocketAddr,
        /// How long
        waited: Duration,
    },
    /// The operating system refused something the link needs
    #[error("connection to {peer} failed: {detail}")]
    System {
        /// Address of the peer
        peer: SocketAddr,
        /// Error that the system reported
        detail: Arc<str>,
    },
}

/// A send did not happen
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is over a limit of either side, or too many sends are queued
    #[error(transparent)]
    Refused(#[from] SendRefused),
    /// The endpoint is closed; whether the peer got the message is unknown
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// The send was withdrawn before anything of it left
    #[error("send was cancelled")]
    Cancelled,
}

/// A receive got no message
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Too many receives are posted
    #[error(transparent)]
    Refused(#[from] RecvRefused),
    /// The endpoint is closed and nothing that arrived earlier matches
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// The receive was cancelled before a message matched it
    #[error("receive was cancelled")]
    Cancelled,
    /// The message was larger than the buffer; it is consumed
    #[error(
        "message of {message_bytes} bytes does not fit the receive buffer of {capacity_bytes} bytes"
    )]
    Truncated {
        /// Size of the message, in bytes
        message_bytes: u64,
        /// Size of the buffer, in bytes
        capacity_bytes: u64,
    },
    /// There is no memory for the message; it is consumed
    #[error("no memory for a message of {message_bytes} bytes")]
    OutOfMemory {
        /// Size of the message, in bytes
        message_bytes: u64,
    },
}

/// A connection was not made
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is no address, or names no host
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A setting cannot work
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system could not reach the peer; trying again later may help
    #[error("cannot connect to {address}: {source}")]
    Io {
        /// Address of the peer
        address: String,
        /// Error that the system reported
        source: io::Error,
    },
    /// The peer does not speak our protocol, or we could not agree
    #[error("handshake with {address} failed: {source}")]
    Handshake {
        /// Address of the peer
        address: String,
        /// Cause of the failure
        source: HandshakeError,
    },
    /// The two sides do not agree on encryption: one does not ask for it, or does not believe the
    /// other's certificate
    #[error("no encrypted connection to {address}: {source}")]
    Tls {
        /// Address of the peer
        address: String,
        /// Cause of the failure
        source: TlsFailure,
    },
    /// There is no lane that both sides allow
    #[error("no lane to {address}: {reason}")]
    NoLane {
        /// Address of the peer
        address: String,
        /// Why not each of them
        reason: String,
    },
    /// The lane of UCX was asked for, and UCX cannot be used here
    #[error(transparent)]
    Ucx(#[from] UcxError),
    /// The connect was cancelled, or its context was closed
    #[error("connecting to {address} was cancelled")]
    Cancelled {
        /// Address of the peer
        address: String,
    },
}

/// A text that is no address
#[derive(Clone, Debug, Error)]
#[error("{address:?} is no address: {detail}; write host:port or [ipv6]:port")]
pub struct AddressError {
    /// The text
    pub address: String,
    /// Fault of the value
    pub detail: String,
}

/// A listener was not made
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The text is no address, or names no host
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A setting cannot work
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system refused, for example because the port is taken
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Address asked for
        address: String,
        /// Error that the system reported
        source: io::Error,
    },
}

/// A listener gives no endpoint any more
#[derive(Clone, Copy, Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The listener was closed
    #[error("listener was closed")]
    Closed,
    /// This accept was cancelled
    #[error("accept was cancelled")]
    Cancelled,
}

/// A context was not made
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ContextError {
    /// A setting cannot work
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The lane of UCX was asked for, and UCX cannot be used here
    #[error(transparent)]
    Ucx(#[from] UcxError),
    /// The carrier of CUDA was asked for, and CUDA cannot be used here
    #[error(transparent)]
    Cuda(#[from] backhaul_cuda::LoadError),
    /// The system gave no descriptor or thread
    #[error("cannot start the progress engine: {source}")]
    Io {
        /// Error that the system reported
        #[from]
        source: io::Error,
    },
}
