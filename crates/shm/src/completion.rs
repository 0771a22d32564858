//! The completion table: which leases have been returned, in memory that both sides see
//!
//! It has two arrays of words, one for the leases of each side. The exporter of a lease takes a
//! free slot and sends its number and generation with the lease, as a [`Ticket`]. The importer,
//! when it needs the lease no longer, stores the generation into the word of the slot; the exporter
//! reads the words when it wants memory back. This takes no message and no system call, and neither
//! side waits for the other.
//!
//! Beside the words it has two arrays of marks, with which the exporter says that it has freed the
//! block of a lease, so that the importer alone uses the memory from then on. The marks serve the
//! accounting of memory only: nothing waits for them.
//!
//! A side that will import no more leases stores `CLOSED` into the word of every slot that it holds
//! no lease of, and into the others when their leases are returned. So leases that were sent and
//! will never be imported are returned too.
//!
//! # Trust
//!
//! A peer may store anything. A word that is neither `CLOSED` nor the generation issued last is
//! ignored; one that is returns the lease. A peer that returns a lease and still reads it sees
//! recycled bytes, which harms no other process. A peer that returns nothing holds at most
//! [`SLOTS`] leases, which the exporter can count, until the connection ends.

#[cfg(not(loom))]
mod export;
mod exported;
mod imported;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod segment;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg_attr(loom, path = "completion/words_loom.rs")]
mod words;

#[cfg(not(loom))]
use std::os::fd::{AsFd, OwnedFd};
#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
pub use self::export::Export;
#[cfg(not(loom))]
pub use self::exported::ExportedLeases;
pub use self::imported::{BadTicket, ImportedLeases, Keep, Receipt};
#[cfg(not(loom))]
pub use self::segment::TableError;
#[cfg(not(loom))]
use crate::mapping::Mapping;

/// Leases that each side can have out at a time
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 1024 };

/// In the word of a slot: the lease of it that is out, if any, and every later one are returned
const CLOSED: u32 = u32::MAX;

/// One end of a completion table
///
/// The fields may be moved out and used apart. Dropping the table tells the peer nothing.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct CompletionTable {
    /// Leases that this side has exported to the peer
    pub exported: ExportedLeases,
    /// Leases that this side has imported from the peer
    pub imported: ImportedLeases,
}

/// Creates a completion table, returning this end and the descriptor for the peer to [`attach_table`]
///
/// # Errors
///
/// [`TableError::System`]; a retry can help once descriptors or memory are released.
#[cfg(not(loom))]
pub fn create_table() -> Result<(CompletionTable, OwnedFd), TableError> {
    let fd = segment::create()?;
    let mapping = segment::map(fd.as_fd())?;
    Ok((segment::end(&mapping, true)?, fd))
}

/// Attaches to a completion table that a peer created
///
/// The peer is not trusted: seals, size and header are checked before anything is mapped. The
/// descriptor is closed.
///
/// # Errors
///
/// [`TableError`]: except for its `System`, the peer's fault, and no retry helps.
#[cfg(not(loom))]
pub fn attach_table(fd: OwnedFd) -> Result<CompletionTable, TableError> {
    segment::check(fd.as_fd())?;
    let mapping = segment::map(fd.as_fd())?;
    segment::end(&mapping, false)
}

/// Creates both ends of a completion table in this process, on private memory
///
/// # Errors
///
/// [`TableError::System`]; a retry can help once memory is released.
#[cfg(not(loom))]
pub fn table_in_process() -> Result<(CompletionTable, CompletionTable), TableError> {
    let mapping = Mapping::anonymous(segment::BYTES).map_err(TableError::System)?;
    let mapping = Arc::new(mapping);
    let creators = segment::end(&mapping, true)?;
    Ok((creators, segment::end(&mapping, false)?))
}

/// Names a lease to the peer: a slot, and which of its leases
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket {
    /// Index of the exporter's word, below [`SLOTS`]
    pub slot: u32,
    /// Counts the leases of the slot; never 0 nor `u32::MAX`
    pub generation: u32,
}

impl From<Ticket> for u64 {
    fn from(ticket: Ticket) -> Self {
        Self::from(ticket.generation) << 32 | Self::from(ticket.slot)
    }
}

impl From<u64> for Ticket {
    fn from(word: u64) -> Self {
        Self {
            slot: word as u32,
            generation: (word >> 32) as u32,
        }
    }
}
