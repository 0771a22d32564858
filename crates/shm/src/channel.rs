//! Two byte rings, one each way, in one sealed memfd
//!
//! One side [`create`]s the segment and passes the descriptor, over a Unix socket or by
//! inheritance; the other [`attach`]es. The segment has no name, so a crash leaves nothing behind:
//! it ends with its last mapping and descriptor. It is sealed against changes of its size, so
//! neither side can make the other touch a page that is not there.
//!
//! Passing the descriptor is passing the right to write: its holder can overwrite bytes and
//! indices. That is the trust described in [`ring`](crate::ring), and no more is needed.

mod error;
mod segment;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

pub use self::error::{AttachError, CreateError};
use self::segment::{Header, Role};
use crate::mapping::Mapping;
use crate::memfd;
use crate::ring::{Consumer, Producer};

/// Smallest capacity of one ring, in bytes
pub const CAPACITY_BYTES_MIN: usize = 4096;
/// Largest capacity of one ring, in bytes
pub const CAPACITY_BYTES_MAX: usize = 1 << 30;

/// One end of a channel
///
/// The producer and the consumer may be moved to different threads; the segment stays mapped until
/// both are dropped. Dropping tells the peer nothing: the driver must notice that a peer is gone.
#[derive(Debug)]
pub struct Duplex {
    /// Writing end of the ring towards the peer
    pub producer: Producer,
    /// Reading end of the ring from the peer
    pub consumer: Consumer,
}

/// Creates a channel, returning this end and the descriptor for the peer to [`attach`]
///
/// Each of the two rings holds `capacity_bytes`, a power of two from [`CAPACITY_BYTES_MIN`] to
/// [`CAPACITY_BYTES_MAX`]; messages larger than a ring stream through it, best at about 1 MiB (see
/// `benches/ring.rs`). The descriptor is close-on-exec. Pages come when they are first written;
/// where memory has run out by then, the system ends a process of its choice.
///
/// # Errors
///
/// [`CreateError`]: the capacity is the caller's fault, the rest is the system's.
pub fn create(capacity_bytes: usize) -> Result<(Duplex, OwnedFd), CreateError> {
    let segment_bytes = checked_segment_bytes(capacity_bytes)?;
    let refused = |source: rustix::io::Errno| CreateError::System {
        segment_bytes,
        source: source.into(),
    };
    let header = Header::new(capacity_bytes);
    let fd = memfd::create("backhaul-channel", segment_bytes as u64, |file| {
        header.write_to(file)
    })
    .map_err(refused)?;
    let mapping = map_shared(&fd, segment_bytes).map_err(|source| CreateError::System {
        segment_bytes,
        source,
    })?;
    // SAFETY: nothing else in this process has the creator's end: the segment is new, and `attach`
    // takes the other end.
    let duplex = unsafe { segment::duplex(&mapping, capacity_bytes, Role::Creator) };
    Ok((duplex, fd))
}

/// Attaches to a channel that a peer created
///
/// The peer is not trusted: kind, seals, size and header are checked before anything is mapped or
/// used. The descriptor is closed, since the mapping needs it no more. Bytes that the creator has
/// already written are there to read.
///
/// # Errors
///
/// [`AttachError`]: except for its `System`, the peer's fault, and no retry helps.
pub fn attach(fd: OwnedFd) -> Result<Duplex, AttachError> {
    let (capacity_bytes, segment_bytes) = segment::check(fd.as_fd())?;
    let mapping = map_shared(&fd, segment_bytes).map_err(AttachError::System)?;
    if !segment::claim(&mapping) {
        return Err(AttachError::AlreadyAttached);
    }
    // SAFETY: `claim` is true once per segment, so nothing else in this process has this end. (A
    // peer that clears the word may make it true again; a peer that can do so could as well
    // overwrite the ring from another process.)
    Ok(unsafe { segment::duplex(&mapping, capacity_bytes, Role::Attacher) })
}

/// Creates both ends of a channel in this process, on private memory
///
/// # Errors
///
/// As [`create`].
pub fn in_process(capacity_bytes: usize) -> Result<(Duplex, Duplex), CreateError> {
    let segment_bytes = checked_segment_bytes(capacity_bytes)?;
    let mapping = Mapping::anonymous(segment_bytes).map_err(|source| CreateError::System {
        segment_bytes,
        source,
    })?;
    let mapping = Arc::new(mapping);
    // SAFETY: each end is taken once, of memory that nothing else has.
    let end = |role| unsafe { segment::duplex(&mapping, capacity_bytes, role) };
    Ok((end(Role::Creator), end(Role::Attacher)))
}

fn map_shared(fd: &OwnedFd, segment_bytes: usize) -> std::io::Result<Arc<Mapping>> {
    Mapping::shared(fd.as_fd(), segment_bytes).map(Arc::new)
}

fn checked_segment_bytes(capacity_bytes: usize) -> Result<usize, CreateError> {
    if is_capacity(capacity_bytes) {
        Ok(segment::segment_bytes(capacity_bytes))
    } else {
        Err(CreateError::Capacity { capacity_bytes })
    }
}

fn is_capacity(bytes: usize) -> bool {
    bytes.is_power_of_two() && (CAPACITY_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&bytes)
}
