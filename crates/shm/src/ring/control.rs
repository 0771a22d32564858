//! The words that the two sides of a ring share

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Indices and waiting flags of one ring, as they lie in shared memory
///
/// Each word has 128 bytes of its own: a line of 64, and the next, which the adjacent-line
/// prefetcher of x86 brings along.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    /// Bytes ever written; stored by the producer only
    pub(super) head: Line<AtomicU64>,
    /// Bytes ever read; stored by the consumer only
    pub(super) tail: Line<AtomicU64>,
    /// Set by the producer before it sleeps for space, cleared by the thread that wakes it
    pub(super) producer_waiting: Flag,
    /// Set by the consumer before it sleeps for bytes, cleared by the thread that wakes it
    pub(super) consumer_waiting: Flag,
}

impl Control {
    /// A ring into and out of which `index` bytes have gone
    #[cfg(test)]
    pub(super) fn at(index: u64) -> Self {
        Self {
            head: Line(AtomicU64::new(index)),
            tail: Line(AtomicU64::new(index)),
            producer_waiting: Flag(Line(AtomicU32::new(0))),
            consumer_waiting: Flag(Line(AtomicU32::new(0))),
        }
    }
}

/// A word with its neighbourhood for itself
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

/// A side's announcement that it is about to sleep
///
/// Only its owner sets it. A peer that sets or clears it at will costs wake-ups or loses its own;
/// bytes and indices do not depend on it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Flag(Line<AtomicU32>);

impl Flag {
    /// Sets the flag; what the owner loads after this is not older than the flag
    pub(super) fn set(&self) {
        self.change(1);
        // Pairs with the fence in `take`: of the two loads after the fences, ours of the peer's
        // index and the peer's of this flag, at least one sees what was stored before the other
        // fence.
        fence(Ordering::SeqCst);
    }

    /// Clears the flag
    pub(super) fn clear(&self) {
        self.change(0);
    }

    /// Takes the flag, returning whether it was set; what was stored before this call is seen by
    /// an owner who sets the flag later
    pub(super) fn take(&self) -> bool {
        // Pairs with the fence in `set`.
        fence(Ordering::SeqCst);
        // Relaxed: the fences order it. The load keeps the line shared while no thread sleeps; the
        // swap makes sure that one set is answered once.
        self.0.0.load(Ordering::Relaxed) != 0 && self.change(0) != 0
    }

    /// Stores a value, returning the one before
    ///
    /// Every change is a swap that pairs with the one before it, by either side. Relaxed stores
    /// would do, since the fences order the flag and coherence its changes, but loom knows only
    /// some of coherence and reports a lost wake-up; a swap by who is about to sleep costs nothing.
    fn change(&self, value: u32) -> u32 {
        self.0.0.swap(value, Ordering::AcqRel)
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Control>() == 512 && align_of::<Control>() == 128);
    assert!(std::mem::offset_of!(Control, head) == 0);
    assert!(std::mem::offset_of!(Control, tail) == 128);
    assert!(std::mem::offset_of!(Control, producer_waiting) == 256);
    assert!(std::mem::offset_of!(Control, consumer_waiting) == 384);
};
