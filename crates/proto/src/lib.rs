//! The protocol of Backhaul as a state machine: frames, handshake, matching, credit, liveness.
//!
//! There is no I/O here, no clock and no thread. A driver reads bytes, hands in what it read and
//! the time, and writes what comes out; so the whole protocol can be simulated, fuzzed and
//! replayed from a seed. Payload bytes stay with the driver: the core says which bytes of which
//! message go where.
//!
//! The order of things on a connection:
//!
//! 1. [`Handshake`]: both sides say who they are ([`Hello`]) and agree on a [`LaneKind`].
//! 2. [`FrameDecoder`]: bytes of the lane become [`Frame`]s.
//! 3. [`Connection`]: frames and commands become events and frames to transmit.

#![forbid(unsafe_code)]

mod carrier;
mod connection;
mod credit;
mod decoder;
mod error;
mod frame;
mod handshake;
mod hello;
mod ids;
mod lane;
mod limits;
mod liveness;
mod matching;
mod memory;
mod queue;
mod secret;

pub use carrier::{CarrierKind, ParseCarrierError};
pub use connection::{
    Connection, ConnectionStatistics, Event, Give, Given, HeaderBytes, Incoming, Inline, Long,
    Outgoing, PayloadRange, Posted, Span, Store, Transmit, Withdrawn,
};
pub use decoder::{Frame, FrameDecoder, SegmentBytes};
pub use error::{ProtocolError, RecvRefused, SendRefused};
pub use frame::{FrameHeader, FrameKind, HEADER_BYTES};
pub use handshake::{Handshake, HandshakeError, HandshakeEvent, HandshakePhase, Role};
pub use hello::{HELLO_BODY_BYTES_MAX, Hello, HelloError, UCX_ADDRESS_BYTES_MAX};
pub use ids::{ArrivalId, Capacity, MessageKind, RecvId, Selector, SendId, Tag, TagMask};
pub use lane::{LaneKind, ParseLaneError};
pub use limits::{KeepAlive, Limits, PeerLimits};
pub use liveness::KeepAliveExpired;
pub use memory::{Device, MemoryKind, Offer, SegmentSource, SourceTable, Sources, Vendor};
pub use secret::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret, SecretError};
