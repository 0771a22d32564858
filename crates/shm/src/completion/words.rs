//! The words and marks of one side in a mapping

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use super::SLOTS;
use crate::mapping::Mapping;
use crate::sync::AtomicU32;

/// The words and marks of the leases of one side
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// In `_mapping`
    words: NonNull<[AtomicU32; SLOTS]>,
    /// In `_mapping`
    marks: NonNull<[AtomicU8; SLOTS]>,
    /// Keeps both mapped
    _mapping: Arc<Mapping>,
}

// SAFETY: both pointers lead into `_mapping`, which is `Send + Sync`, to atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Views the words and the marks at two offsets
    ///
    /// # Panics
    ///
    /// If they would not lie within the mapping, or are not aligned.
    ///
    /// # Safety
    ///
    /// - This process uses the memory there as such words and marks only.
    pub(super) unsafe fn new(
        mapping: Arc<Mapping>,
        words_offset: usize,
        marks_offset: usize,
    ) -> Self {
        // SAFETY: the caller's.
        let words = unsafe { view::<[AtomicU32; SLOTS]>(&mapping, words_offset) };
        // SAFETY: the caller's.
        let marks = unsafe { view::<[AtomicU8; SLOTS]>(&mapping, marks_offset) };
        Self {
            words,
            marks,
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

    /// Mark of a slot: not 0 once the exporter has freed the block of the lease that is out
    ///
    /// # Panics
    ///
    /// If the slot is not below [`SLOTS`].
    pub(super) fn mark(&self, slot: usize) -> &AtomicU8 {
        // SAFETY: as in `word`.
        let marks = unsafe { self.marks.as_ref() };
        &marks[slot]
    }
}

/// Points to a `T` in a mapping
///
/// # Panics
///
/// If the value would not lie within the mapping, or is not aligned.
///
/// # Safety
///
/// - This process uses the memory there as a `T` only.
unsafe fn view<T>(mapping: &Mapping, offset: usize) -> NonNull<T> {
    let end = offset.checked_add(size_of::<T>());
    assert!(end.is_some_and(|end| end <= mapping.bytes()));
    // SAFETY: within the mapping: asserted.
    let viewed: NonNull<T> = unsafe { mapping.address().add(offset) }.cast();
    assert!(viewed.is_aligned());
    viewed
}
