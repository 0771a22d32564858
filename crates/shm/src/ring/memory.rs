//! Where a ring lies in a mapping

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::Control;
use crate::mapping::Mapping;

/// One side's view of a ring: its shared words and its bytes
///
/// It copies in and out by position and knows nothing of which bytes are whose.
#[derive(Debug)]
pub(crate) struct RingMemory {
    /// Shared words, in `mapping`
    control: NonNull<Control>,
    /// First of `capacity` bytes, in `mapping`
    data: NonNull<u8>,
    /// Power of two
    capacity: u64,
    /// Keeps `control` and `data` mapped
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointers lead into `_mapping`, which is `Send + Sync`; the words are atomics, and
// the bytes are touched through the unsafe `copy_in` and `copy_out` only.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Views a ring whose words are at `control_offset` and whose bytes are at `data_offset`
    ///
    /// # Panics
    ///
    /// If the ring would not lie within the mapping, a word is not aligned, or the capacity is not
    /// a power of two.
    ///
    /// # Safety
    ///
    /// - The memory at `control_offset` is used as a [`Control`] only, and that at `data_offset`
    ///   as the bytes of this ring only, by everybody in this process.
    pub(crate) unsafe fn new(
        mapping: Arc<Mapping>,
        control_offset: usize,
        data_offset: usize,
        capacity_bytes: usize,
    ) -> Self {
        let fits = |offset: usize, bytes: usize| {
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= mapping.bytes())
        };
        assert!(fits(control_offset, size_of::<Control>()) && fits(data_offset, capacity_bytes));
        assert!(capacity_bytes.is_power_of_two());
        // SAFETY: `control_offset` is within the mapping: asserted above.
        let control: NonNull<Control> = unsafe { mapping.address().add(control_offset) }.cast();
        assert!(control.is_aligned());
        Self {
            control,
            // SAFETY: `data_offset` is within the mapping: asserted above.
            data: unsafe { mapping.address().add(data_offset) },
            capacity: capacity_bytes as u64,
            _mapping: mapping,
        }
    }

    /// Words that both sides share
    pub(super) fn control(&self) -> &Control {
        // SAFETY: aligned and within the mapping (`new`), mapped while `self` lives, and made of
        // atomics, for which any bytes are valid and which a peer may change at any time.
        unsafe { self.control.as_ref() }
    }

    /// Bytes of the ring
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Copies `bytes` into the ring from position `index`, wrapping at the end
    ///
    /// # Safety
    ///
    /// - `bytes.len() <= capacity`.
    /// - No other copy of this process touches these positions at the same time: they are free,
    ///   and the caller is the only producer. (Another process may; then the bytes are not
    ///   specified, here and there.)
    pub(super) unsafe fn copy_in(&self, index: u64, bytes: &[u8]) {
        let (offset, first) = self.split(index, bytes.len());
        // SAFETY: `offset + first <= capacity` and the rest is at most `capacity` (`split`), all
        // mapped (`new`). `bytes` cannot overlap the ring: no reference leads into it.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.as_ptr().add(offset), first);
            let rest = &bytes[first..];
            ptr::copy_nonoverlapping(rest.as_ptr(), self.data.as_ptr(), rest.len());
        }
    }

    /// Copies out of the ring from position `index` into `buffer`, wrapping at the end
    ///
    /// # Safety
    ///
    /// - `buffer.len() <= capacity`.
    /// - No other copy of this process writes these positions at the same time: they are filled,
    ///   and the caller is the only consumer. (Another process may; then `buffer` holds any mix of
    ///   the bytes before and after.)
    pub(super) unsafe fn copy_out(&self, index: u64, buffer: &mut [u8]) {
        let (offset, first) = self.split(index, buffer.len());
        // SAFETY: as in `copy_in`, the other way.
        unsafe {
            ptr::copy_nonoverlapping(self.data.as_ptr().add(offset), buffer.as_mut_ptr(), first);
            let rest = &mut buffer[first..];
            ptr::copy_nonoverlapping(self.data.as_ptr(), rest.as_mut_ptr(), rest.len());
        }
    }

    /// Prefetches the bytes at position `index`, on processors with such an instruction
    #[inline]
    pub(super) fn prefetch(&self, index: u64) {
        let (offset, _) = self.split(index, 0);
        // SAFETY: `offset < capacity` (`split`), which is mapped (`new`); and nothing is read.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.data.as_ptr().add(offset).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Offset of position `index`, and how many of `bytes` bytes lie before the end
    fn split(&self, index: u64, bytes: usize) -> (usize, usize) {
        debug_assert!(bytes as u64 <= self.capacity);
        // Below the capacity, which was a usize.
        let offset = (index & (self.capacity - 1)) as usize;
        (offset, bytes.min(self.capacity as usize - offset))
    }
}

#[cfg(test)]
impl RingMemory {
    /// Both sides of a ring on private memory, as if `index` bytes had gone through
    pub(super) fn pair_at(index: u64, capacity_bytes: usize) -> (Self, Self) {
        let mapping = Mapping::anonymous(size_of::<Control>() + capacity_bytes);
        let mapping = Arc::new(mapping.expect("a page or two of memory"));
        // SAFETY: fresh memory, aligned to a page and long enough; no other code has it yet.
        unsafe { mapping.address().cast().write(Control::at(index)) };
        let view = || {
            // SAFETY: both views use the memory the same way, and no other code has it.
            unsafe {
                Self::new(
                    Arc::clone(&mapping),
                    0,
                    size_of::<Control>(),
                    capacity_bytes,
                )
            }
        };
        (view(), view())
    }
}
