//! What is lent

use crate::arena::Lease;
use crate::leased::Again;

/// What is lent: a block of ours, or what another peer has lent to us
#[derive(Debug)]
#[must_use = "the peer may look at the memory only while this lives"]
pub enum Lending {
    /// A block of an arena
    Own(Lease),
    /// A part of a lease
    Again(Again),
}

impl Lending {
    /// How many bytes are lent
    pub fn bytes(&self) -> usize {
        match self {
            Self::Own(lease) => lease.bytes(),
            Self::Again(again) => again.bytes(),
        }
    }

    /// Has the memory be lent for good: the peer may live, and can tell nobody any more
    pub(super) fn abandon(self) {
        match self {
            Self::Own(lease) => lease.abandon(),
            // It goes back to its owner when this process ends.
            Self::Again(again) => std::mem::forget(again),
        }
    }
}

impl From<Lease> for Lending {
    fn from(lease: Lease) -> Self {
        Self::Own(lease)
    }
}

impl From<Again> for Lending {
    fn from(again: Again) -> Self {
        Self::Again(again)
    }
}
