//! Why a channel was not created or attached to

use std::io;

use thiserror::Error;

use super::{CAPACITY_BYTES_MAX, CAPACITY_BYTES_MIN};
use crate::memfd::SealError;

/// Why a channel was not created
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Caller's fault: no power of two, or out of bounds
    #[error(
        "ring capacity {capacity_bytes} bytes is not a power of two from {CAPACITY_BYTES_MIN} to \
         {CAPACITY_BYTES_MAX}"
    )]
    Capacity {
        /// Refused capacity of one ring, in bytes
        capacity_bytes: usize,
    },
    /// The system gave no memory or no descriptor; a retry can help once some are released
    #[error("cannot create a shared segment of {segment_bytes} bytes")]
    System {
        /// Size of the segment, in bytes
        segment_bytes: usize,
        /// Error of the system
        source: io::Error,
    },
}

/// Why a descriptor was not attached to
///
/// All but [`System`](Self::System) are the peer's fault, and no retry helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The size could change under us; other files than memfds are among these
    #[error("segment is not sealed: seals {seals:#x}, required {required:#x}")]
    NotSealed {
        /// Seals on the file, as in `F_GET_SEALS`
        seals: u32,
        /// Seals that must be among them
        required: u32,
    },
    /// Reserved huge pages can run out when they are touched, which is a SIGBUS
    #[error("segment is made of reserved huge pages")]
    HugePages,
    /// Too short for a header
    #[error("segment of {file_bytes} bytes is truncated: the header takes {header_bytes}")]
    Truncated {
        /// Size of the file, in bytes
        file_bytes: u64,
        /// Size of the header, in bytes
        header_bytes: u64,
    },
    /// Not a segment of a channel
    #[error("not a backhaul segment: it starts with \"{}\"", magic.escape_ascii())]
    Magic {
        /// First bytes of the file
        magic: [u8; 8],
    },
    /// A layout that this version does not know
    #[error("segment has layout version {version}, supported is {supported}")]
    Version {
        /// Version in the header
        version: u32,
        /// The only version that this side knows
        supported: u32,
    },
    /// No power of two, or out of bounds
    #[error(
        "segment claims a ring capacity of {capacity_bytes} bytes, which is not a power of two from \
         {CAPACITY_BYTES_MIN} to {CAPACITY_BYTES_MAX}"
    )]
    Capacity {
        /// Capacity of one ring in the header, in bytes
        capacity_bytes: u64,
    },
    /// The size does not follow from the capacity
    #[error("segment of {file_bytes} bytes should have {expected_bytes} by its header")]
    Size {
        /// Size of the file, in bytes
        file_bytes: u64,
        /// Size that the header implies, in bytes
        expected_bytes: u64,
    },
    /// A channel has two ends, and both are taken
    #[error("segment is attached to already")]
    AlreadyAttached,
    /// The system refused to examine or map the descriptor; a retry can help if memory was short
    #[error("cannot examine or map the segment")]
    System(#[source] io::Error),
}

impl From<SealError> for AttachError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::NotSealed { seals, required } => Self::NotSealed { seals, required },
            SealError::HugePages => Self::HugePages,
            SealError::System(source) => Self::System(source),
        }
    }
}
