//! The giving side of a board

#[cfg(not(loom))]
use std::fmt;

#[cfg(not(loom))]
use super::lending::Lending;
use super::table::Table;
use super::{CLOSED, SLOTS, Ticket};
use crate::sync::Ordering;

/// Leases that a peer has and will give back
///
/// Dropped with leases outstanding it abandons them, since nobody will ever learn of their return:
/// call [`return_all`](Self::return_all) first where the peer is known to be gone.
#[cfg(not(loom))]
pub struct GivenLeases(Given<Lending>);

#[cfg(not(loom))]
impl GivenLeases {
    pub(super) fn new(table: Table) -> Self {
        Self(Given::new(table))
    }

    /// Enters a lease, returning what the peer needs to give it back
    ///
    /// # Errors
    ///
    /// The lease itself if no slot is free: the peer has [`SLOTS`] of ours and returns none.
    pub fn issue(&mut self, lease: impl Into<Lending>) -> Result<Ticket, Lending> {
        self.0.issue(lease.into())
    }

    /// Drops the leases that the peer has given back, returning how many
    pub fn sweep(&mut self) -> usize {
        self.take_returned().len()
    }

    /// Takes out the leases that the peer has given back
    ///
    /// To drop one may take long: where `self` is behind a lock, do it after.
    #[must_use = "a lease is back when it is dropped"]
    pub fn take_returned(&mut self) -> Vec<Lending> {
        self.0.take_returned()
    }

    /// Counts the leases that the peer has, as of the last sweep
    pub fn outstanding(&self) -> usize {
        self.0.outstanding.len()
    }

    /// Bytes of the leases that the peer has, as of the last sweep
    pub fn outstanding_bytes(&self) -> u64 {
        self.0.leases().map(|lease| lease.bytes() as u64).sum()
    }

    /// Has every lease be back: the peer is gone, and its mappings with it
    pub fn return_all(&mut self) {
        drop(self.0.take_all());
    }

    /// Has every lease that is not back be out for good: the peer may live, and can tell nobody any
    /// more
    ///
    /// Their slots are not used again, as the peer may still store into them.
    pub fn abandon_all(&mut self) {
        self.sweep();
        for lease in self.0.take_all_for_good() {
            lease.abandon();
        }
    }
}

#[cfg(all(test, not(loom)))]
impl GivenLeases {
    /// Pretends that a slot has been issued `generation` times
    pub(super) fn set_generation(&mut self, slot: usize, generation: u32) {
        self.0.slots[slot].generation = generation;
    }
}

#[cfg(not(loom))]
impl Drop for GivenLeases {
    fn drop(&mut self) {
        self.abandon_all();
    }
}

#[cfg(not(loom))]
impl fmt::Debug for GivenLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenLeases")
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

/// Slots, and what is out in them; of leases it knows only that they are dropped
///
/// Invariant: a slot below `slots.len()` is in `free`, in `outstanding` (and has a lease then), or
/// used no more.
#[derive(Debug)]
pub(super) struct Given<L> {
    table: Table,
    /// Those ever used
    slots: Vec<Slot<L>>,
    free: Vec<u32>,
    outstanding: Vec<u32>,
}

#[derive(Debug)]
struct Slot<L> {
    /// Of the lease issued last
    generation: u32,
    lease: Option<L>,
}

impl<L> Given<L> {
    pub(super) fn new(table: Table) -> Self {
        Self {
            table,
            slots: Vec::new(),
            free: Vec::new(),
            outstanding: Vec::new(),
        }
    }

    pub(super) fn issue(&mut self, lease: L) -> Result<Ticket, L> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(Slot {
                    generation: 0,
                    lease: None,
                });
                self.slots.len() as u32 - 1
            }
            None => return Err(lease),
        };
        let entry = &mut self.slots[slot as usize];
        // 0 is what a fresh board holds, and would be a return, as would the other.
        entry.generation = match entry.generation + 1 {
            CLOSED => 1,
            next => next,
        };
        entry.lease = Some(lease);
        self.outstanding.push(slot);
        Ok(Ticket {
            slot,
            generation: entry.generation,
        })
    }

    pub(super) fn take_returned(&mut self) -> Vec<L> {
        let mut returned = Vec::new();
        let Self {
            table,
            slots,
            free,
            outstanding,
        } = self;
        outstanding.retain(|slot| {
            let entry = &mut slots[*slot as usize];
            // Acquire pairs with the stores in `Receipt::drop` and `TakenLeases::close`: the peer's
            // last look at the bytes comes before whatever we do with them.
            let word = table.word(*slot as usize).load(Ordering::Acquire);
            if word != entry.generation && word != CLOSED {
                return true;
            }
            returned.extend(entry.lease.take());
            free.push(*slot);
            false
        });
        returned
    }

    /// Takes out every lease, its slot to be used again
    fn take_all(&mut self) -> Vec<L> {
        self.free.extend(&self.outstanding);
        self.take_all_for_good()
    }

    /// Takes out every lease, its slot to be used no more
    fn take_all_for_good(&mut self) -> Vec<L> {
        let slots = &mut self.slots;
        let taken = self.outstanding.drain(..);
        taken
            .filter_map(|slot| slots[slot as usize].lease.take())
            .collect()
    }

    fn leases(&self) -> impl Iterator<Item = &L> {
        let entries = self
            .outstanding
            .iter()
            .map(|slot| &self.slots[*slot as usize]);
        entries.filter_map(|entry| entry.lease.as_ref())
    }
}
