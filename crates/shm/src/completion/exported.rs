//! The exporting side of a completion table

use std::collections::TryReserveError;
#[cfg(not(loom))]
use std::fmt;

#[cfg(not(loom))]
use super::export::Export;
use super::words::Words;
use super::{CLOSED, SLOTS, Ticket};
use crate::sync::Ordering;

/// Leases exported to a peer, which returns them
///
/// Dropped with leases outstanding it abandons them, since their return could no longer be noticed:
/// call [`return_all`](Self::return_all) first where the peer is known to be gone.
#[cfg(not(loom))]
pub struct ExportedLeases(Exported<Export>);

#[cfg(not(loom))]
impl ExportedLeases {
    pub(super) fn new(words: Words) -> Self {
        Self(Exported::new(words))
    }

    /// Enters a lease, returning the ticket with which the peer returns it
    ///
    /// # Errors
    ///
    /// The lease itself if no slot is free, since the peer holds [`SLOTS`] leases of this process,
    /// or if there is no memory for another slot.
    pub fn issue(&mut self, lease: impl Into<Export>) -> Result<Ticket, Export> {
        self.0.issue(lease.into())
    }

    /// Drops the leases that the peer has returned, returning how many
    pub fn sweep(&mut self) -> usize {
        self.take_returned().len()
    }

    /// Takes out the leases that the peer has returned
    ///
    /// One that there is no memory to list here is taken out by a later call. Dropping them may
    /// take long: where a lock protects `self`, drop them after releasing it.
    #[must_use = "a returned lease releases its block when it is dropped"]
    pub fn take_returned(&mut self) -> Vec<Export> {
        self.0.take_returned()
    }

    /// Marks the leases whose memory the owner has freed, so that the peer can count it as its own
    pub fn mark_freed(&self) {
        self.0.mark(Export::is_freed);
    }

    /// Counts the leases that the peer holds, as of the last sweep
    pub fn outstanding(&self) -> usize {
        self.0.outstanding.len()
    }

    /// Bytes of the leases that the peer holds, as of the last sweep
    pub fn outstanding_bytes(&self) -> u64 {
        self.0.leases().map(|lease| lease.bytes() as u64).sum()
    }

    /// Returns every lease, for when the peer is gone and its mappings with it
    pub fn return_all(&mut self) {
        self.0.return_all();
    }

    /// Abandons every lease that is not returned: the peer may still use the memory, but its return
    /// can no longer be noticed
    ///
    /// Their slots are not used again, as the peer may still store into their words.
    pub fn abandon_all(&mut self) {
        self.sweep();
        self.0.retire_all(Export::abandon);
    }
}

#[cfg(all(test, not(loom)))]
impl ExportedLeases {
    /// Pretends that a slot has been issued `generation` times
    pub(super) fn set_generation(&mut self, slot: usize, generation: u32) {
        self.0.slots[slot].generation = generation;
    }
}

#[cfg(not(loom))]
impl Drop for ExportedLeases {
    fn drop(&mut self) {
        self.abandon_all();
    }
}

#[cfg(not(loom))]
impl fmt::Debug for ExportedLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedLeases")
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

/// Slots, and the lease that is out in each; generic so that loom can test it with any value
///
/// Invariant: a slot below `slots.len()` is in `free`, in `outstanding` (and has a lease then), or
/// retired.
#[derive(Debug)]
pub(super) struct Exported<L> {
    words: Words,
    /// Slots used so far; more are added as needed
    slots: Vec<Slot<L>>,
    /// Both have room for every slot, so that to return one takes no memory
    free: Vec<u32>,
    outstanding: Vec<u32>,
}

#[derive(Debug)]
struct Slot<L> {
    /// Of the lease issued last
    generation: u32,
    lease: Option<L>,
}

impl<L> Exported<L> {
    pub(super) fn new(words: Words) -> Self {
        Self {
            words,
            slots: Vec::new(),
            free: Vec::new(),
            outstanding: Vec::new(),
        }
    }

    pub(super) fn issue(&mut self, lease: L) -> Result<Ticket, L> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS && self.reserve_slot().is_ok() => {
                self.slots.push(Slot {
                    generation: 0,
                    lease: None,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(lease),
        };
        let entry = &mut self.slots[slot as usize];
        // 0, which a new table holds, and `CLOSED` would read as returned at once.
        entry.generation = match entry.generation + 1 {
            CLOSED => 1,
            next => next,
        };
        entry.lease = Some(lease);
        // Relaxed: the message that brings the ticket orders it.
        self.words.mark(slot as usize).store(0, Ordering::Relaxed);
        self.outstanding.push(slot);
        Ok(Ticket {
            slot,
            generation: entry.generation,
        })
    }

    pub(super) fn take_returned(&mut self) -> Vec<L> {
        let mut returned = Vec::new();
        let Self {
            words,
            slots,
            free,
            outstanding,
        } = self;
        outstanding.retain(|slot| {
            let entry = &mut slots[*slot as usize];
            // Acquire pairs with the stores in `Receipt::drop` and `ImportedLeases::close`: the peer's
            // last access to the bytes comes before whatever we do with them.
            let word = words.word(*slot as usize).load(Ordering::Acquire);
            if (word != entry.generation && word != CLOSED) || returned.try_reserve(1).is_err() {
                return true;
            }
            returned.extend(entry.lease.take());
            free.push(*slot);
            false
        });
        returned
    }

    /// Marks the leases that are outstanding and `is_marked`, which they stay until they are returned
    fn mark(&self, is_marked: impl Fn(&L) -> bool) {
        for slot in &self.outstanding {
            let mark = self.words.mark(*slot as usize);
            let lease = self.slots[*slot as usize].lease.as_ref();
            // Relaxed: a statistic; nothing is ordered by it.
            if mark.load(Ordering::Relaxed) == 0 && lease.is_some_and(&is_marked) {
                mark.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Drops every lease and frees its slot
    fn return_all(&mut self) {
        for slot in self.outstanding.drain(..) {
            drop(self.slots[slot as usize].lease.take());
            self.free.push(slot);
        }
    }

    /// Takes out every lease and retires its slot
    fn retire_all(&mut self, retire: impl FnMut(L)) {
        let slots = &mut self.slots;
        let outstanding = self.outstanding.drain(..);
        outstanding
            .filter_map(|slot| slots[slot as usize].lease.take())
            .for_each(retire);
    }

    /// Reserves memory for one more slot, free or outstanding
    fn reserve_slot(&mut self) -> Result<(), TryReserveError> {
        let slots = self.slots.len() + 1;
        self.slots.try_reserve(1)?;
        self.free.try_reserve(slots - self.free.len())?;
        self.outstanding.try_reserve(slots - self.outstanding.len())
    }

    fn leases(&self) -> impl Iterator<Item = &L> {
        let entries = self
            .outstanding
            .iter()
            .map(|slot| &self.slots[*slot as usize]);
        entries.filter_map(|entry| entry.lease.as_ref())
    }
}
