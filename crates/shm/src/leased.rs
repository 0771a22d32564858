//! Memory that a peer has leased to us: mapped, or copied out
//!
//! A mapping is private: what we write there the peer never sees. A page that we
//! have not written to is the peer's page itself, which an honest peer leaves unchanged until the
//! lease is returned. Each lease is mapped anew and unmapped before it is returned, so no private
//! page of an earlier one is ever seen.
//!
//! # Trust
//!
//! The peer may lie about everything. The descriptor must be sealed memory at least as long as the
//! lease says: then no access here can fault. That a peer does not change the bytes while we read
//! them is not checked, and cannot be: code that parses them must tolerate that, as for any shared
//! memory.

mod handle;
mod reexport;

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::{Errno, pread};
use rustix::param::page_size;
use thiserror::Error;

pub use self::handle::ReexportHandle;
use self::reexport::Entry;
pub use self::reexport::{Reexport, is_leased, orphaned_bytes, reexport};
use crate::completion::Receipt;
use crate::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::memfd;
pub use crate::memfd::SealError;

/// A peer's leased bytes, writable, mapped copy-on-write
///
/// Dropping it unmaps them and then returns the lease, unless a [`Reexport`] of it lives.
///
/// Meant for reading: the first write to each page copies it, which for all of 16 MiB takes nine
/// times as long as [`read_leased`] into a recycled block (`benches/arena.rs`).
pub struct Leased {
    /// First leased byte, in `_mapping`
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped before `_mapping`, and that before `_receipt`: fields are dropped in order
    _entry: Entry,
    _mapping: Mapping,
    _receipt: Arc<Receipt>,
    _counted: Counted,
}

// SAFETY: `start` leads into `_mapping`, which is this value's alone and `Send`.
unsafe impl Send for Leased {}
// SAFETY: `&Leased` gives shared access to plain bytes only.
unsafe impl Sync for Leased {}

impl Leased {
    /// Maps `bytes` bytes from `offset` of a peer's memory
    ///
    /// The descriptor is closed; the mapping keeps the memory. With `populate`, and always for short
    /// leases, the pages are mapped at once, which takes less time than a fault for each of them
    /// (from Linux 5.14). Not if the peer's file has fewer pages than the lease covers: they would
    /// be allocated here, before any thread reads them.
    ///
    /// # Errors
    ///
    /// [`MapError`]. If it is `Refused`, the lease is returned; where the system has no room for a
    /// mapping, the error holds what [`read_leased`] needs.
    pub fn map(
        fd: OwnedFd,
        offset: u64,
        bytes: usize,
        populate: bool,
        receipt: Receipt,
    ) -> Result<Self, MapError> {
        if bytes == 0 {
            return Err(LeaseError::Empty.into());
        }
        let file_bytes = check(fd.as_fd(), offset, bytes)?;
        // No overflow: the end is within a file (`check`), and files are far shorter.
        let mut end = offset + bytes as u64;
        let mut unit = page_size() as u64;
        if bytes >= WHOLE_BYTES_MIN {
            unit = HUGE_PAGE_BYTES as u64;
            end = end.next_multiple_of(unit).min(file_bytes);
        }
        let from = offset - offset % unit;
        let mapping_bytes = (end - from) as usize;
        match Mapping::private(fd.as_fd(), from, mapping_bytes) {
            Ok(mapping) => {
                let skip = (offset - from) as usize;
                let is_wanted = populate || bytes <= POPULATE_BYTES_MAX;
                if is_wanted && memfd::stored_bytes(fd.as_fd()) >= bytes as u64 {
                    mapping.populate_read(skip, bytes);
                }
                let start = mapping.at(skip);
                let receipt = Arc::new(receipt);
                Ok(Self {
                    start,
                    bytes,
                    _entry: Entry::new(start, bytes, &receipt),
                    _mapping: mapping,
                    _receipt: receipt,
                    _counted: Counted::new(bytes, mapping_bytes),
                })
            }
            Err(source) => Err(MapError::System {
                source,
                fd,
                receipt,
            }),
        }
    }

    /// Address of the first byte; it does not move with the value
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Deref for Leased {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, and initialised as memory of the kernel is (`map`); ours alone to write.
        // An honest peer does not write there either; a peer that does changes bytes, of which any
        // value is valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Leased {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("start", &self.start)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Bytes of peers that this process has mapped now
pub fn borrowed_bytes() -> usize {
    BORROWED_BYTES.load(Ordering::Relaxed)
}

/// Bytes of the mappings of what is borrowed
///
/// A mapping starts and ends at a page, or a huge page. A touch of what is borrowed may map the rest
/// of these, and so at most so many bytes of the process's resident memory are pages of peers.
pub fn borrowed_mapping_bytes() -> usize {
    MAPPING_BYTES.load(Ordering::Relaxed)
}

/// Counts borrowed bytes, and those of their mapping, while it lives
struct Counted {
    bytes: usize,
    mapping_bytes: usize,
}

impl Counted {
    fn new(bytes: usize, mapping_bytes: usize) -> Self {
        // Relaxed: statistics; nothing is ordered by them.
        BORROWED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        MAPPING_BYTES.fetch_add(mapping_bytes, Ordering::Relaxed);
        Self {
            bytes,
            mapping_bytes,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        BORROWED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
        MAPPING_BYTES.fetch_sub(self.mapping_bytes, Ordering::Relaxed);
    }
}

/// Of all that is [`Leased`] in this process
static BORROWED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Of the mappings of all that is [`Leased`] in this process
static MAPPING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Copies a peer's leased bytes, from `offset` on, until `target` is full
///
/// One copy, by the kernel, and no mapping: for a buffer that exists already, and for a process
/// that can map no more. The lease stays out until its receipt is dropped.
///
/// # Errors
///
/// [`ReadError`]; what `target` holds then is not specified.
pub fn read_leased(fd: BorrowedFd<'_>, offset: u64, target: &mut [u8]) -> Result<(), ReadError> {
    check(fd, offset, target.len())?;
    let mut filled = 0;
    while filled < target.len() {
        match pread(fd, &mut target[filled..], offset + filled as u64) {
            // Sealed and long enough: an end of file here would be a fault of the kernel.
            Ok(0) => return Err(ReadError::System(io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ReadError::System(errno.into())),
        }
    }
    Ok(())
}

/// Checks that the bytes are, and stay, within the peer's file, returning its size in bytes
fn check(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<u64, LeaseError> {
    let file_bytes = memfd::sealed_bytes(fd)?;
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= file_bytes => Ok(file_bytes),
        _ => Err(LeaseError::Outside {
            offset,
            bytes,
            file_bytes,
        }),
    }
}

/// Fault of a lease; the peer has made it, and no retry helps
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The memory is not sealed as required
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A lease of nothing
    #[error("lease of no bytes")]
    Empty,
    /// The memory is shorter than the lease
    #[error("lease of {bytes} bytes from {offset} is outside a memory of {file_bytes} bytes")]
    Outside {
        /// Where the lease starts
        offset: u64,
        /// Length of the lease
        bytes: usize,
        /// Size of the peer's file
        file_bytes: u64,
    },
}

/// Why leased bytes were not mapped
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The peer's fault; the lease is returned
    #[error(transparent)]
    Refused(#[from] LeaseError),
    /// The system has no room for a mapping: [`read_leased`] can still help
    #[error("cannot map leased memory")]
    System {
        /// Error of the system
        source: io::Error,
        /// The peer's memory
        fd: OwnedFd,
        /// Returns the lease when it is dropped
        receipt: Receipt,
    },
}

/// Why leased bytes were not copied
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The peer's fault
    #[error(transparent)]
    Refused(#[from] LeaseError),
    /// The system's
    #[error("cannot read leased memory")]
    System(#[source] io::Error),
}

/// Leases of at least this size are mapped with every huge page that holds some of their bytes,
/// since only a huge page within the mapping is mapped as one
///
/// For shorter ones the rest of the page would count too much in the size of the process.
const WHOLE_BYTES_MIN: usize = 1 << 20;
/// Leases of at most this size have their pages mapped before they are read
///
/// For more it would delay the caller where pages are small, and gain little where they are huge.
const POPULATE_BYTES_MAX: usize = 4 << 20;
