//! Lease: keeps a block for a peer

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Shared;
use super::blocks::Pin;

/// Pins a block for as long as a peer may look at it
///
/// Dropping it says that the peer is done: the block is recycled once its owner has freed it and
/// every lease on it is back.
#[derive(Debug)]
#[must_use = "the peer may look at the block only while the lease lives"]
pub struct Lease {
    arena: Arc<Shared>,
    pin: Pin,
    bytes: usize,
    abandoned: bool,
}

impl Lease {
    pub(super) fn new(arena: Arc<Shared>, pin: Pin, bytes: usize) -> Self {
        Self {
            arena,
            pin,
            bytes,
            abandoned: false,
        }
    }

    /// Memory to be passed to the peer, who reads from it at [`offset`](Self::offset)
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.pin.memory.descriptor()
    }

    /// Where the first leased byte is in the memory
    pub fn offset(&self) -> u64 {
        self.pin.offset
    }

    /// How many bytes are leased
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the owner has freed the block
    pub fn is_freed(&self) -> bool {
        let blocks = self.arena.lock();
        blocks.is_some_and(|blocks| blocks.is_freed(self.pin.block))
    }

    /// Gives the block up: the peer may map it for ever, without a report of the end
    ///
    /// The owner keeps it, but the arena hands it out no more. Its segment goes when all other
    /// blocks there are free.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.arena.unpin(self.pin.block, self.abandoned);
    }
}
