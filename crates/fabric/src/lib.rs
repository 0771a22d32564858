//! Backhaul: messages between processes over the best path there is.
//!
//! A [`Context`] owns configuration, pooled memory and a progress engine. A [`Listener`] accepts
//! and [`Context::connect`] makes an [`Endpoint`], one connected peer. Each operation returns a
//! [`Request`]: a future for any executor, or something to block on. How the bytes of a peer
//! travel, its *lane*, is agreed on in a handshake: through this process, through shared memory,
//! or over TCP, encrypted where [`Tls`] is given; [`Endpoint::info`] says which and why.
//!
//! ```
//! use backhaul::{Config, Context, Tag, TagMask};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new(Config::default())?;
//! let listener = context.listen("127.0.0.1:0")?;
//! let address = listener.local_address().to_string();
//!
//! let accept = listener.accept();
//! let near = context.connect(&address).wait(None).expect("no time limit")?;
//! let far = accept.wait(None).expect("no time limit")?;
//!
//! near.send(Tag(7), &b"hello"[..]).wait(None).expect("no time limit")?;
//! let received = far.recv(Tag(7), TagMask::FULL, vec![0; 16]).wait(None).expect("no time limit")?;
//! assert_eq!(received.bytes, 5);
//! # Ok(())
//! # }
//! ```
//!
//! Memory given to a request belongs to it until it is over, so that dropping a future is safe.

#![forbid(unsafe_code)]

mod address;
mod bootstrap;
mod carrier;
mod config;
mod connecting;
mod connection;
mod context;
pub mod cuda;
mod endpoint;
mod error;
mod establish;
mod experiments;
mod flow;
mod host_memory;
mod identity;
mod lane;
mod link;
mod listener;
mod memory;
mod memory_watch;
mod request;
mod retention;
mod runtime;
mod statistics;
mod sync;
mod tls;
mod trust;
mod ucx;

pub use backhaul_placement::links::{LinkEstimate, SizeClass};
pub use backhaul_proto::{
    CarrierKind, ConnectionStatistics, HandshakeError, KeepAlive, LaneKind, Limits, ProtocolError,
    RecvRefused, Secret, SecretError, SendRefused, Tag, TagMask,
};
pub use backhaul_proto::{Device, MemoryKind, Vendor};
pub use backhaul_shm::arena::{Arena, ArenaBuf, ArenaConfig, ArenaStatistics};
pub use backhaul_shm::doorbell::Doorbell;
pub use backhaul_shm::leased::{borrowed_bytes, is_leased as is_borrowed};
pub use backhaul_shm::pool::PoolStatistics;
pub use backhaul_ucx::{LoadError, Search as UcxSearch, UcxError, Version as UcxVersion};
pub use bytes::Bytes;
pub use carrier::{Way, WayStatistics};
pub use config::{Config, ConfigError, UcxConfig};
pub use connection::{ConnectionEvent, EventKind, FrameStream, Frames};
pub use context::Context;
pub use endpoint::{Endpoint, EndpointInfo};
pub use error::{
    AcceptError, AddressError, CloseReason, ConnectError, ContextError, ListenError, RecvError,
    SendError,
};
pub use flow::{FlowStatistics, SizeStatistics};
pub use identity::process_token;
pub use listener::{Listener, ListenerStatistics};
pub use memory::{
    DeviceAllocator, DeviceError, DeviceMemory, Message, PoolBuf, Received, RecvBuffer, RecvMemory,
    Segment, Segments,
};
pub use memory_watch::{MemoryLook, MemoryWatch, MemoryWatchConfig};
pub use request::Request;
pub use runtime::LoopWatch;
pub use statistics::EndpointStatistics;
pub use tls::{Pem, Tls, TlsError, TlsFailure, TlsHelpers, TlsInfo, TlsOptions, TlsVersion};
pub use trust::Trust;

/// The seams of the fabric: what a lane, a carrier or a driver from outside is made of
///
/// For experiments and tests: it may change with any release.
pub mod seams {
    pub use crate::carrier::{Carrier, Carriers, Payload, TakeError, Ways};
    pub use crate::connection::overlooked_in_process;
    pub use crate::experiments::{CarrierProvider, Experiments, LaneEnd, LaneProvider};
    pub use crate::lane::{Farewell, Lane, LaneError, LaneTraits, Moved};
    pub use crate::link::{
        CarrierReach, Content, Delivery, GiveRequest, Held, Link, LinkEvent, LinkMemory, LinkParts,
        MessageMemory, Meter, Now, ReadTargets, Recv, Send, TakeId, TakeRequest, TakeTarget,
    };
    pub use crate::statistics::Counters;
    pub use backhaul_proto::Hello;
    pub use backhaul_shm::doorbell::Doorbell;
}

/// Entry points for the bytes of untrusted peers, for fuzzing, and for checks that take a test too
/// long
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::address::read_address;
    pub use crate::bootstrap::take_offer;
    pub use crate::carrier::{CudaPackets, LeasePackets};
    pub use crate::tls::{TlsBeliefs, TlsSession, tls_buffers_helped, tls_with_short_keys};
    pub use crate::ucx::UcxMessages;
}
