//! The words of one side under loom: on the heap

use std::sync::atomic::AtomicU8;

use loom::sync::Arc;

use super::SLOTS;
use crate::sync::AtomicU32;

/// The words of the leases of one side; stands in for the mapped ones of `words.rs`
#[derive(Clone, Debug)]
pub(super) struct Words {
    words: Arc<[AtomicU32; SLOTS]>,
    /// Not explored: no access depends on them
    marks: Arc<[AtomicU8; SLOTS]>,
}

impl Words {
    #[cfg(test)]
    pub(super) fn new() -> Self {
        Self {
            words: Arc::new(std::array::from_fn(|_| AtomicU32::new(0))),
            marks: Arc::new(std::array::from_fn(|_| AtomicU8::new(0))),
        }
    }

    /// Word of a slot
    pub(super) fn word(&self, slot: usize) -> &AtomicU32 {
        &self.words[slot]
    }

    /// Mark of a slot
    pub(super) fn mark(&self, slot: usize) -> &AtomicU8 {
        &self.marks[slot]
    }
}
