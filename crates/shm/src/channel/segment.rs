//! How a channel lies in its segment
//!
//! ```text
//! 0     header                            128 bytes
//! 128   words of the creator's ring       512 bytes
//! 640   words of the attacher's ring      512 bytes
//! 4096  bytes of the creator's ring       capacity
//! ...   bytes of the attacher's ring      capacity
//! ```
//!
//! A side's ring is the one it writes to. Integers are in the byte order of the host, which both
//! sides share. Words of zero are an empty ring.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::{Errno, pread, pwrite};

use super::{AttachError, Duplex, is_capacity};
use crate::mapping::Mapping;
use crate::memfd;
use crate::ring::{Consumer, Control, Producer, RingMemory};

/// Header of a segment: the description of the rest
///
/// Written by the creator before it seals, read once by the attacher; then only `claimed`, which
/// follows it, is used.
pub(super) struct Header {
    magic: [u8; 8],
    version: u32,
    capacity_bytes: u64,
}

impl Header {
    pub(super) fn new(capacity_bytes: usize) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            capacity_bytes: capacity_bytes as u64,
        }
    }

    pub(super) fn write_to(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut encoded = [0; HEADER_BYTES];
        encoded[..8].copy_from_slice(&self.magic);
        encoded[8..12].copy_from_slice(&self.version.to_ne_bytes());
        encoded[16..24].copy_from_slice(&self.capacity_bytes.to_ne_bytes());
        // A file in memory is written whole or, when memory is out, not.
        match pwrite(file, &encoded, 0)? {
            HEADER_BYTES => Ok(()),
            _ => Err(Errno::NOMEM),
        }
    }

    /// Reads the header of a file of at least `HEADER_BYTES`
    fn read_from(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut encoded = [0; HEADER_BYTES];
        // Shorter than asked for, the rest stays zero and is refused by its magic or capacity.
        pread(file, &mut encoded, 0)?;
        let (magic, rest) = encoded.split_at(8);
        let (version, rest) = rest.split_at(8);
        Ok(Self {
            magic: std::array::from_fn(|at| magic[at]),
            version: u32::from_ne_bytes(std::array::from_fn(|at| version[at])),
            capacity_bytes: u64::from_ne_bytes(std::array::from_fn(|at| rest[at])),
        })
    }
}

/// Which of the two ends of a channel
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Creator,
    Attacher,
}

/// Checks that a descriptor is a segment, returning the capacity of a ring and its size, in bytes
///
/// Nothing is mapped. The checked facts stay true: the seals come first, so the size is final, and
/// the header is not read again.
pub(super) fn check(file: BorrowedFd<'_>) -> Result<(usize, usize), AttachError> {
    let system = |errno: Errno| AttachError::System(io::Error::from(errno));
    let file_bytes = memfd::sealed_bytes(file)?;
    if file_bytes < HEADER_BYTES as u64 {
        return Err(AttachError::Truncated {
            file_bytes,
            header_bytes: HEADER_BYTES as u64,
        });
    }
    let Header {
        magic,
        version,
        capacity_bytes,
    } = Header::read_from(file).map_err(system)?;
    if magic != MAGIC {
        return Err(AttachError::Magic { magic });
    }
    if version != VERSION {
        return Err(AttachError::Version {
            version,
            supported: VERSION,
        });
    }
    let capacity = usize::try_from(capacity_bytes)
        .ok()
        .filter(|bytes| is_capacity(*bytes))
        .ok_or(AttachError::Capacity { capacity_bytes })?;
    let expected = segment_bytes(capacity);
    if file_bytes != expected as u64 {
        return Err(AttachError::Size {
            file_bytes,
            expected_bytes: expected as u64,
        });
    }
    Ok((capacity, expected))
}

/// Size of a segment whose rings hold `capacity_bytes` each, in bytes
pub(super) fn segment_bytes(capacity_bytes: usize) -> usize {
    DATA_OFFSET + 2 * capacity_bytes
}

/// Claims the attacher's end of a segment, returning whether it was free
pub(super) fn claim(mapping: &Mapping) -> bool {
    assert!(mapping.bytes() >= DATA_OFFSET);
    // SAFETY: within the mapping (asserted), aligned since the mapping is to a page, and used as
    // an atomic only: no other code in this process maps the header.
    let claimed = unsafe {
        mapping
            .address()
            .add(CLAIMED_OFFSET)
            .cast::<AtomicU32>()
            .as_ref()
    };
    // Relaxed: it decides who has the end, and orders nothing else.
    claimed.swap(1, Ordering::Relaxed) == 0
}

/// Takes one end of the channel that lies in `mapping`
///
/// # Panics
///
/// If the mapping is shorter than `segment_bytes(capacity_bytes)`.
///
/// # Safety
///
/// - The mapping is a segment, used by this process as one only, and started as zeroes after the
///   header. (What another process writes there does not matter.)
/// - No other value of this process has this end, nor will.
pub(super) unsafe fn duplex(mapping: &Arc<Mapping>, capacity_bytes: usize, role: Role) -> Duplex {
    // SAFETY: the layout of this module gives words and bytes of each ring a place of their own.
    let ring = |control_offset, data_offset| unsafe {
        RingMemory::new(
            Arc::clone(mapping),
            control_offset,
            data_offset,
            capacity_bytes,
        )
    };
    let creators = ring(CREATOR_OFFSET, DATA_OFFSET);
    let attachers = ring(ATTACHER_OFFSET, DATA_OFFSET + capacity_bytes);
    let (outgoing, incoming) = match role {
        Role::Creator => (creators, attachers),
        Role::Attacher => (attachers, creators),
    };
    // SAFETY: the caller has this end alone: one producer of the one ring, one consumer of the
    // other.
    unsafe {
        Duplex {
            producer: Producer::new(outgoing, 0),
            consumer: Consumer::new(incoming, 0),
        }
    }
}

const MAGIC: [u8; 8] = *b"bkhl-shm";
/// Counts every change of the layout, that of [`Control`] included
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
/// An `AtomicU32`, 0 until a process attaches
const CLAIMED_OFFSET: usize = 64;
const CREATOR_OFFSET: usize = 128;
const ATTACHER_OFFSET: usize = CREATOR_OFFSET + size_of::<Control>();
/// A page, so that bytes share no page with words
const DATA_OFFSET: usize = 4096;

const _: () = assert!(ATTACHER_OFFSET + size_of::<Control>() <= DATA_OFFSET);
