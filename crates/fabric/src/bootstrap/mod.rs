//! A connection before it is one: a stream between two peers, who they are, and the lane agreed
//! on with all that it takes.
//!
//! A [`Handshaking`] runs on the engine thread and gives its outcome to a callback: what is made
//! of an [`Established`] connection, and of a [`Failure`], is for its caller to know. The steps
//! and their order are the protocol's ([`backhaul_proto::Handshake`]).

mod connect;
mod handshake;
mod introduction;
mod selection;
mod stream;
mod tls_stream;
mod unix_socket;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use backhaul_proto::{HandshakeError, Hello, LaneKind, Role, Secret};
use backhaul_shm::channel::Duplex;
use backhaul_shm::doorbell::Doorbell;
use backhaul_shm::peer_memory::PeerMemory;
use thiserror::Error;

use crate::carrier::lease;
use crate::experiments::{LaneEnd, LaneProvider};
use crate::runtime::SourceId;
use crate::tls::{Session, TlsFailure};
use crate::ucx::{Hub, UcxEnd};

pub(crate) use connect::connect;
pub(crate) use handshake::Handshaking;
pub(crate) use selection::in_words;
pub(crate) use stream::{PlainStream, Stream};
pub(crate) use tls_stream::TlsStream;
pub use unix_socket::take_offer;
pub(crate) use unix_socket::{OpenUnixSocket, UnixSocket};

/// Settings of a handshake
pub(crate) struct Settings {
    pub(crate) role: Role,
    /// Hello of this side; its lanes are those that may be selected, best first
    pub(crate) hello: Hello,
    /// Secret that the peer must have, too
    pub(crate) secret: Option<Secret>,
    /// Users, beside that of this process, that may share memory with it
    pub(crate) shared_memory_uids: Vec<u32>,
    /// Bytes of one ring
    pub(crate) ring_bytes: usize,
    /// The worker of this context, where there is one
    pub(crate) ucx: Option<Arc<Hub>>,
    /// Makes lanes from outside
    pub(crate) experiment: Option<Arc<dyn LaneProvider>>,
    /// How long all of it may take
    pub(crate) timeout: Duration,
    /// Where an acceptor gets offers of shared memory
    pub(crate) unix_socket: Option<Arc<UnixSocket>>,
}

/// Gets the outcome of a handshake, once; no lock is held
pub(crate) type Callback = Box<dyn FnOnce(Result<Established, Failure>) + Send>;

/// Both sides agree: all that a connection is made of
pub(crate) struct Established {
    /// Id under which the engine watches the socket, for the source that takes its place
    pub(crate) id: SourceId,
    pub(crate) socket: TcpStream,
    /// TLS session on the socket, which has proved the peer
    pub(crate) session: Option<Box<Session>>,
    pub(crate) peer_address: SocketAddr,
    /// Hello that this side has sent
    pub(crate) local: Hello,
    pub(crate) peer: Hello,
    pub(crate) resources: LaneResources,
    /// Why this lane
    pub(crate) reason: String,
    /// Bytes of frames that came behind the handshake
    pub(crate) staged: Vec<u8>,
}

/// The lane agreed on, and what it takes
pub(crate) enum LaneResources {
    /// Frames travel on the socket itself
    Socket,
    /// Frames travel through rings
    Rings {
        kind: RingKind,
        end: Box<ChannelEnd>,
    },
    /// Frames travel in active messages of UCX
    Ucx(UcxEnd),
    /// Frames travel in a way from outside
    Experiment(LaneEnd),
}

/// Process that owns the memory of the rings
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RingKind {
    Inproc,
    Shm,
}

/// One end of a pair of rings, and what belongs to it
pub(crate) struct ChannelEnd {
    pub(crate) rings: Duplex,
    /// Wakes the peer
    pub(crate) their_doorbell: Doorbell,
    /// Wakes this side
    pub(crate) our_doorbell: Doorbell,
    pub(crate) lease: lease::LeaseParts,
    /// The channel of the CUDA carrier, if both sides have it
    pub(crate) cuda: Option<OwnedFd>,
    /// Result of the test reads of the peer's private memory; `None` if one of the two sides
    /// disables them
    pub(crate) reading: Option<Reading>,
}

/// Result of the test reads of a peer's private memory
pub(crate) enum Reading {
    /// It has been tried
    Works(Arc<PeerMemory>),
    /// It does not, for this reason
    Fails(String),
}

impl Reading {
    fn of(opened: Result<Arc<PeerMemory>, String>) -> Self {
        opened.map_or_else(Self::Fails, Self::Works)
    }
}

impl From<RingKind> for LaneKind {
    fn from(kind: RingKind) -> Self {
        match kind {
            RingKind::Inproc => Self::Inproc,
            RingKind::Shm => Self::Shm,
        }
    }
}

/// Why a handshake ended without a connection
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The stream was not made, or broke
    #[error(transparent)]
    Io(io::Error),
    /// The peer is not one to talk to under encryption
    #[error(transparent)]
    Tls(TlsFailure),
    /// The peer does not speak our protocol, or breaks it
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// No lane is left that both sides allow
    #[error("no lane: {reason}")]
    NoLane {
        /// Why not each of them
        reason: String,
    },
    /// Another connection has its place
    #[error("it had said nothing, or not enough, when others needed its place")]
    GaveWay,
    /// Given up here
    #[error("cancelled")]
    Cancelled,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match TlsFailure::of_io(&error) {
            None => Self::Io(error),
            Some(failure) => Self::Tls(failure.clone()),
        }
    }
}
