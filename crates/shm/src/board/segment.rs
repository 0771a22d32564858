//! How a board lies in its memory
//!
//! ```text
//! 0     header                              16 bytes
//! 4096  words of the creator's leases       4 bytes for each slot
//! 8192  words of the attacher's leases      4 bytes for each slot
//! ```
//!
//! Integers are in the byte order of the host, which both sides share. A word of zero is one that
//! no lease of its slot has been returned to.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::{Errno, pread, pwrite};
use thiserror::Error;

use super::table::Table;
use super::{Board, GivenLeases, SLOTS, TakenLeases};
use crate::mapping::Mapping;
use crate::memfd::{self, SealError};

/// Makes the memory of a board
pub(super) fn create() -> Result<OwnedFd, BoardError> {
    memfd::create("backhaul-board", BYTES as u64, |file| {
        // A file in memory is written whole or, when memory is out, not.
        match pwrite(file, &header(), 0)? {
            HEADER_BYTES => Ok(()),
            _ => Err(Errno::NOMEM),
        }
    })
    .map_err(|errno| BoardError::System(errno.into()))
}

/// Checks that a descriptor is a board; nothing is mapped
///
/// What was checked stays so: the size is sealed, and the header is not read again.
pub(super) fn check(file: BorrowedFd<'_>) -> Result<(), BoardError> {
    let file_bytes = memfd::sealed_bytes(file)?;
    if file_bytes != BYTES as u64 {
        return Err(BoardError::Size {
            file_bytes,
            expected_bytes: BYTES as u64,
        });
    }
    let mut found = [0; HEADER_BYTES];
    // Shorter than asked for, the rest stays zero and is refused.
    pread(file, &mut found, 0).map_err(|errno| BoardError::System(errno.into()))?;
    if found == header() {
        Ok(())
    } else {
        Err(BoardError::Header { found })
    }
}

pub(super) fn map(file: BorrowedFd<'_>) -> Result<Arc<Mapping>, BoardError> {
    let mapping = Mapping::shared(file, BYTES).map_err(BoardError::System)?;
    Ok(Arc::new(mapping))
}

/// One end of the board in `mapping`
pub(super) fn board(mapping: &Arc<Mapping>, creator: bool) -> Board {
    // SAFETY: the layout of this module gives each table a place of its own, and nobody in this
    // process uses a board as anything else.
    let table = |offset| unsafe { Table::new(Arc::clone(mapping), offset) };
    let (ours, theirs) = (table(CREATOR_OFFSET), table(ATTACHER_OFFSET));
    let (given, taken) = if creator {
        (ours, theirs)
    } else {
        (theirs, ours)
    };
    Board {
        given: GivenLeases::new(given),
        taken: TakenLeases::new(taken),
    }
}

/// Why there is no board
///
/// All but [`System`](Self::System) are the peer's fault, and no retry helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BoardError {
    /// The memory is not to be relied on
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Too long or too short for a board
    #[error("board of {file_bytes} bytes should have {expected_bytes}")]
    Size {
        /// Size of the file
        file_bytes: u64,
        /// Size of every board
        expected_bytes: u64,
    },
    /// No board, or one of another version
    #[error("not a board of this version: it starts with \"{}\"", found.escape_ascii())]
    Header {
        /// First bytes of the file
        found: [u8; HEADER_BYTES],
    },
    /// The system gave no memory or no descriptor; a retry can help once some are released
    #[error("cannot create or map a board")]
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
const CREATOR_OFFSET: usize = 4096;
const ATTACHER_OFFSET: usize = CREATOR_OFFSET + SLOTS * size_of::<u32>();
pub(super) const BYTES: usize = ATTACHER_OFFSET + SLOTS * size_of::<u32>();

const _: () = assert!(BYTES == 3 * 4096);
