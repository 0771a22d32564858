//! Where a ring lies while loom explores it: on the heap, each byte watched for races

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::Control;

/// One side's view of a ring; stands in for the mapped one of `memory.rs`
#[derive(Debug)]
pub(crate) struct RingMemory {
    /// Shared words
    control: Arc<Control>,
    /// A power of two of bytes
    data: Arc<[UnsafeCell<u8>]>,
}

impl RingMemory {
    /// Both sides of a ring, as if `index` bytes had gone through
    #[cfg(test)]
    pub(super) fn pair_at(index: u64, capacity_bytes: usize) -> (Self, Self) {
        let control = Arc::new(Control::at(index));
        let data: std::sync::Arc<[_]> = (0..capacity_bytes).map(|_| UnsafeCell::new(0)).collect();
        let data = Arc::from_std(data);
        let side = || Self {
            control: Arc::clone(&control),
            data: Arc::clone(&data),
        };
        (side(), side())
    }

    /// Words that both sides share
    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// A hint, which has no meaning here
    pub(super) fn prefetch(&self, _index: u64) {}

    /// Bytes of the ring
    pub(super) fn capacity(&self) -> u64 {
        self.data.len() as u64
    }

    /// Copies `bytes` into the ring from position `index`, wrapping at the end
    ///
    /// # Safety
    ///
    /// - As that of `memory.rs`; loom panics where it does not hold.
    pub(super) unsafe fn copy_in(&self, index: u64, bytes: &[u8]) {
        for (position, byte) in (index..).zip(bytes) {
            // SAFETY: the caller is the only user of this position; loom checks it.
            self.cell(position)
                .with_mut(|cell| unsafe { *cell = *byte });
        }
    }

    /// Copies out of the ring from position `index` into `buffer`, wrapping at the end
    ///
    /// # Safety
    ///
    /// - As that of `memory.rs`; loom panics where it does not hold.
    pub(super) unsafe fn copy_out(&self, index: u64, buffer: &mut [u8]) {
        for (position, byte) in (index..).zip(buffer) {
            // SAFETY: no thread writes this position now; loom checks it.
            *byte = self.cell(position).with(|cell| unsafe { *cell });
        }
    }

    fn cell(&self, position: u64) -> &UnsafeCell<u8> {
        &self.data[(position & (self.capacity() - 1)) as usize]
    }
}
