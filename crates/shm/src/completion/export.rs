//! Memory that an exported lease keeps alive

use crate::arena::Lease;
use crate::leased::Reexport;

/// Exported memory: a block of this process, or a lease imported from another peer
#[derive(Debug)]
#[must_use = "the peer may read the memory only while this lives"]
pub enum Export {
    /// A block of an arena
    Own(Lease),
    /// A part of a lease imported from another peer
    Reexport(Reexport),
}

impl Export {
    /// How many bytes are exported
    pub fn bytes(&self) -> usize {
        match self {
            Self::Own(lease) => lease.bytes(),
            Self::Reexport(part) => part.bytes(),
        }
    }

    /// Returns whether the owner has freed the memory
    pub(super) fn is_freed(&self) -> bool {
        match self {
            Self::Own(lease) => lease.is_freed(),
            Self::Reexport(part) => part.receipt().is_freed(),
        }
    }

    /// Leaves the memory exported for good: the peer may still use it, and cannot say when it is done
    pub(super) fn abandon(self) {
        match self {
            Self::Own(lease) => lease.abandon(),
            // It is returned to its owner when this process ends.
            Self::Reexport(part) => std::mem::forget(part),
        }
    }
}

impl From<Lease> for Export {
    fn from(lease: Lease) -> Self {
        Self::Own(lease)
    }
}

impl From<Reexport> for Export {
    fn from(part: Reexport) -> Self {
        Self::Reexport(part)
    }
}
