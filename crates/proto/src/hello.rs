//! Hello: who a peer is, what it offers and what it allows.

use thiserror::Error;

use crate::lane::LaneKind;
use crate::limits::PeerLimits;

/// Longest body of a Hello, in bytes
pub const HELLO_BODY_BYTES_MAX: usize = 4096;

/// Who a peer is, what it offers and what it allows
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// The kernel's id of this boot of the host
    pub boot_id: [u8; 16],
    /// Identity of the namespaces that decide who can be met; at most 64 bytes
    pub host_token: Vec<u8>,
    /// Random, one per process
    pub process_token: [u8; 16],
    /// Random, one per connection; proves that a second socket belongs to the first
    pub nonce: [u8; 16],
    /// Process id in its own namespace
    pub pid: u32,
    /// User id in its own namespace
    pub uid: u32,
    /// Lanes offered, best first
    pub lanes: Vec<LaneKind>,
    /// Name of an abstract Unix socket without the NUL in front; empty if there is none
    pub unix_name: String,
    /// Bytes of eager messages that may wait there
    pub credit_bytes: u64,
    /// Messages that may wait there
    pub credit_messages: u64,
    /// Longest message it receives, in bytes
    pub message_bytes_max: u64,
    /// Most segments of one message it receives
    pub segments_max: u32,
}

impl Hello {
    /// The limits it announces
    #[must_use]
    pub const fn peer_limits(&self) -> PeerLimits {
        PeerLimits {
            credit_bytes: self.credit_bytes,
            credit_messages: self.credit_messages,
            message_bytes_max: self.message_bytes_max,
            segments_max: self.segments_max,
        }
    }
}

/// A Hello that cannot be understood
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum HelloError {
    /// A field is absent
    #[error("the hello has no {field}")]
    Missing {
        /// Name of the field
        field: &'static str,
    },
}
