//! Who has given back which lease, in memory that both sides see
//!
//! A board has two tables of words, one for the leases of each side. Who gives a lease takes a free
//! slot and sends its number and generation with the lease, as a [`Ticket`]. Who is done with it
//! stores the generation into the word of the slot; the giver looks there when it wants memory
//! back. No message, no system call, and neither waits for the other.
//!
//! Who is to take no more leases stores `CLOSED` into the word of every slot that is not out here,
//! and later into those that were, as they go back: so what was sent, and will never be taken, is
//! back too.
//!
//! # Trust
//!
//! A peer may store what it likes. A word that is neither `CLOSED` nor the generation issued last
//! means nothing; one that is means the lease is back, and a peer that says so too early sees recycled bytes, which is
//! its own loss. A peer that never says so holds at most [`SLOTS`] leases, which the giver can
//! count, until the connection ends.

mod given;
#[cfg(not(loom))]
mod lending;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod segment;
#[cfg_attr(loom, path = "board/table_loom.rs")]
mod table;
mod taken;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
use std::os::fd::{AsFd, OwnedFd};
#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
pub use self::given::GivenLeases;
#[cfg(not(loom))]
pub use self::lending::Lending;
#[cfg(not(loom))]
pub use self::segment::BoardError;
pub use self::taken::{BadTicket, Receipt, TakenLeases};
#[cfg(not(loom))]
use crate::mapping::Mapping;

/// Leases that each side can have out at a time
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 1024 };

/// In the word of a slot: whatever lease of it is out is back, and so is every later one
const CLOSED: u32 = u32::MAX;

/// One end of a board
///
/// The halves may be taken apart. Dropping tells the peer nothing.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct Board {
    /// Leases that this side gives
    pub given: GivenLeases,
    /// Leases that the peer has given to this side
    pub taken: TakenLeases,
}

/// Creates a board, returning this end and the descriptor for the peer to [`attach_board`]
///
/// # Errors
///
/// [`BoardError::System`]; a retry can help once descriptors or memory are released.
#[cfg(not(loom))]
pub fn create_board() -> Result<(Board, OwnedFd), BoardError> {
    let fd = segment::create()?;
    let mapping = segment::map(fd.as_fd())?;
    Ok((segment::board(&mapping, true), fd))
}

/// Attaches to a board that a peer created
///
/// The peer is a stranger: seals, size and header are checked before anything is mapped. The
/// descriptor is closed.
///
/// # Errors
///
/// [`BoardError`]: except for its `System`, the peer's fault, and no retry helps.
#[cfg(not(loom))]
pub fn attach_board(fd: OwnedFd) -> Result<Board, BoardError> {
    segment::check(fd.as_fd())?;
    let mapping = segment::map(fd.as_fd())?;
    Ok(segment::board(&mapping, false))
}

/// Creates both ends of a board in this process, on private memory
///
/// # Panics
///
/// If the system has no three pages of memory.
#[cfg(not(loom))]
pub fn board_in_process() -> (Board, Board) {
    let mapping = Mapping::anonymous(segment::BYTES).expect("three pages of memory");
    let mapping = Arc::new(mapping);
    (
        segment::board(&mapping, true),
        segment::board(&mapping, false),
    )
}

/// Names a lease to the peer: a slot, and which of its leases
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket {
    /// Place in the giver's table, below [`SLOTS`]
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
