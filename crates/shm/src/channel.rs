//! Two rings, one each way, in one sealed memfd

use std::io;
use std::os::fd::OwnedFd;

use thiserror::Error;

use crate::ring::{Consumer, Producer};

/// One end of a channel
#[derive(Debug)]
pub struct Duplex {
    /// Towards the peer
    pub producer: Producer,
    /// From the peer
    pub consumer: Consumer,
}

/// Creates a channel whose descriptor is to be passed to the peer
///
/// # Errors
///
/// [`CreateError`]
pub fn create(_capacity_bytes: usize) -> Result<(Duplex, OwnedFd), CreateError> {
    todo!()
}

/// Attaches to the channel that a peer created
///
/// # Errors
///
/// [`AttachError`]
pub fn attach(_fd: OwnedFd) -> Result<Duplex, AttachError> {
    todo!()
}

/// Creates both ends of a channel in this process, on private memory
///
/// # Errors
///
/// [`CreateError`]
pub fn in_process(_capacity_bytes: usize) -> Result<(Duplex, Duplex), CreateError> {
    todo!()
}

/// Smallest capacity of one ring, in bytes
pub const CAPACITY_BYTES_MIN: usize = 4096;
/// Largest capacity of one ring, in bytes
pub const CAPACITY_BYTES_MAX: usize = 1 << 30;

/// Why a channel was not created
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Caller's fault: not a power of two, or out of bounds
    #[error(
        "ring capacity {capacity_bytes} is not a power of two from {CAPACITY_BYTES_MIN} to \
         {CAPACITY_BYTES_MAX} bytes"
    )]
    Capacity {
        /// Refused capacity, in bytes
        capacity_bytes: usize,
    },
    /// The system gave no memory or no descriptor; a retry can help
    #[error("cannot create a segment of {segment_bytes} bytes")]
    System {
        /// Size of the segment, in bytes
        segment_bytes: usize,
        /// What the system said
        source: io::Error,
    },
}

/// Why a descriptor was refused; no retry helps unless it is `System`
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The system refused to look at or map the descriptor
    #[error("cannot map the peer's segment")]
    System {
        /// What the system said
        #[from]
        source: io::Error,
    },
}
