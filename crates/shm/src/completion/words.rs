//! The words of one side in a mapping

use std::ptr::NonNull;
use std::sync::Arc;

use super::SLOTS;
use crate::mapping::Mapping;
use crate::sync::AtomicU32;

/// The words of the leases of one side
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// In `_mapping`
    words: NonNull<[AtomicU32; SLOTS]>,
    /// Keeps `words` mapped
    _mapping: Arc<Mapping>,
}

// SAFETY: `words` leads into `_mapping`, which is `Send + Sync`, and is made of atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Views the words at `offset`
    ///
    /// # Panics
    ///
    /// If it would not lie within the mapping, or is not aligned.
    ///
    /// # Safety
    ///
    /// - This process uses the memory there as such words only.
    pub(super) unsafe fn new(mapping: Arc<Mapping>, offset: usize) -> Self {
        let end = offset.checked_add(size_of::<[AtomicU32; SLOTS]>());
        assert!(end.is_some_and(|end| end <= mapping.bytes()));
        // SAFETY: within the mapping: asserted.
        let words: NonNull<[AtomicU32; SLOTS]> = unsafe { mapping.address().add(offset) }.cast();
        assert!(words.is_aligned());
        Self {
            words,
            _mapping: mapping,
        }
    }

    /// Word of a slot, stored by the importer that returns a lease and loaded by the exporter
    ///
    /// # Panics
    ///
    /// If the slot is not below [`SLOTS`].
    pub(super) fn word(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: aligned and within the mapping (`new`), mapped while `self` lives, and made of
        // atomics, for which any bytes are valid and which a peer may change at any time.
        let words = unsafe { self.words.as_ref() };
        &words[slot]
    }
}
