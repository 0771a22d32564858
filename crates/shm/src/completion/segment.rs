//! The layout of a completion table in its memory
//!
//! ```text
//! 0     header                              16 bytes
//! 1024  marks of the creator's leases       1 byte for each slot
//! 2048  marks of the attacher's leases      1 byte for each slot
//! 4096  words of the creator's leases       4 bytes for each slot
//! 8192  words of the attacher's leases      4 bytes for each slot
//! ```
//!
//! Integers are in the byte order of the host, which both sides share. A word of zero
//! says that no lease of its slot has been returned yet. A mark that is not zero says that the exporter
//! has freed the block; an exporter that writes no marks leaves them zero.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, pread, pwrite};
use thiserror::Error;

use super::words::Words;
use super::{CompletionTable, ExportedLeases, ImportedLeases, SLOTS};
use crate::mapping::Mapping;
use crate::memfd::{self, SealError};

/// Creates the memory of a completion table
pub(super) fn create() -> Result<OwnedFd, TableError> {
    memfd::create("backhaul-completion", BYTES as u64, |file| {
        // A file in memory is written whole or, when memory is out, not.
        match pwrite(file, &header(), 0)? {
            HEADER_BYTES => Ok(()),
            _ => Err(Errno::NOMEM),
        }
    })
    .map_err(|errno| TableError::System(errno.into()))
}

/// Checks that a descriptor is a completion table; nothing is mapped
///
/// The checked facts stay true: the size is sealed, and the header is not read again.
pub(super) fn check(file: BorrowedFd<'_>) -> Result<(), TableError> {
    let file_bytes = memfd::sealed_bytes(file)?;
    if file_bytes != BYTES as u64 {
        return Err(TableError::Size {
            file_bytes,
            expected_bytes: BYTES as u64,
        });
    }
    let mut found = [0; HEADER_BYTES];
    // Shorter than asked for, the rest stays zero and is refused.
    pread(file, &mut found, 0).map_err(|errno| TableError::System(errno.into()))?;
    if found == header() {
        Ok(())
    } else {
        Err(TableError::Header { found })
    }
}

pub(super) fn map(file: BorrowedFd<'_>) -> Result<Arc<Mapping>, TableError> {
    let mapping = Mapping::shared(file, BYTES).map_err(TableError::System)?;
    Ok(Arc::new(mapping))
}

/// One end of the completion table in `mapping`
pub(super) fn end(mapping: &Arc<Mapping>, creator: bool) -> Result<CompletionTable, TableError> {
    // SAFETY: the layout of this module gives each array a place of its own, and nothing in this
    // process uses a completion table as anything else.
    let words = |offset, marks| unsafe { Words::new(Arc::clone(mapping), offset, marks) };
    let ours = words(CREATOR_OFFSET, CREATOR_MARKS_OFFSET);
    let theirs = words(ATTACHER_OFFSET, ATTACHER_MARKS_OFFSET);
    let (exported, imported) = if creator {
        (ours, theirs)
    } else {
        (theirs, ours)
    };
    let imported = ImportedLeases::new(imported);
    let imported = imported.map_err(|error| TableError::System(error.into()))?;
    Ok(CompletionTable {
        exported: ExportedLeases::new(exported),
        imported,
    })
}

/// Why a completion table was not created or attached to
///
/// All but [`System`](Self::System) are the peer's fault, and no retry helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The memory is not sealed as required
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Too long or too short for a completion table
    #[error("completion table of {file_bytes} bytes should have {expected_bytes}")]
    Size {
        /// Size of the file
        file_bytes: u64,
        /// Size of every completion table
        expected_bytes: u64,
    },
    /// Not a completion table, or one of another version
    #[error("not a completion table of this version: it starts with \"{}\"", found.escape_ascii())]
    Header {
        /// First bytes of the file
        found: [u8; HEADER_BYTES],
    },
    /// The system gave no memory or no descriptor; a retry can help once some are released
    #[error("cannot create or map a completion table")]
    System(#[source] io::Error),
}

fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(b"bkhl-brd");
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header[12..].copy_from_slice(&(SLOTS as u32).to_ne_bytes());
    header
}

/// Counts every change of the layout
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CREATOR_MARKS_OFFSET: usize = 1024;
const ATTACHER_MARKS_OFFSET: usize = 2048;
const CREATOR_OFFSET: usize = 4096;
const ATTACHER_OFFSET: usize = CREATOR_OFFSET + SLOTS * size_of::<u32>();
pub(super) const BYTES: usize = ATTACHER_OFFSET + SLOTS * size_of::<u32>();

const _: () = assert!(BYTES == 3 * 4096);
const _: () = assert!(CREATOR_MARKS_OFFSET + SLOTS <= ATTACHER_MARKS_OFFSET);
const _: () = assert!(ATTACHER_MARKS_OFFSET + SLOTS <= CREATOR_OFFSET);
