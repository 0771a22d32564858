//! The taking side of a board

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::table::Table;
use super::{CLOSED, SLOTS, Ticket};
use crate::fork::Origin;
use crate::sync::{AtomicU32, Ordering, fence};

/// Leases that a peer has given to this side; clones share one table
#[derive(Clone)]
pub struct TakenLeases(Arc<Taken>);

impl TakenLeases {
    pub(super) fn new(table: Table) -> Self {
        let held = (0..SLOTS).map(|_| AtomicU32::new(0)).collect();
        Self(Arc::new(Taken {
            table,
            held,
            closed: AtomicU32::new(0),
            origin: Origin::here(),
        }))
    }

    /// Takes charge of a lease: it goes back when the receipt is dropped
    ///
    /// `keep` is dropped right after, which is a place for whoever wants to know.
    ///
    /// # Errors
    ///
    /// [`BadTicket`], which no honest peer sends: nothing goes back.
    pub fn receipt(
        &self,
        ticket: Ticket,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Receipt, BadTicket> {
        let Ticket { slot, generation } = ticket;
        let bad = BadTicket { slot, generation };
        let held = self.0.held.get(slot as usize).ok_or(bad)?;
        if generation == 0 || generation == CLOSED {
            return Err(bad);
        }
        // Relaxed: it says who has the slot, and orders nothing else. That an honest giver reuses
        // it only after `Receipt::drop` is ordered by the word there and by the message that brings
        // the ticket.
        held.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| bad)?;
        Ok(Receipt {
            taken: Arc::clone(&self.0),
            ticket,
            keep,
        })
    }
}

impl TakenLeases {
    /// Says that no lease will be taken any more: those without a receipt are back, now and later
    ///
    /// Receipts that are out are not affected. Not to be called while another thread asks for one.
    pub fn close(&self) {
        let Taken {
            table,
            held,
            closed,
            origin,
        } = &*self.0;
        if !origin.is_here() {
            return;
        }
        closed.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Receipt::drop`: either the slot is seen free here, or closed
        // there. In both cases `CLOSED` comes after the generation.
        fence(Ordering::SeqCst);
        for (slot, held) in held.iter().enumerate() {
            // Acquire pairs with the store in `Receipt::drop`, and Release with the load in
            // `Given::take_returned`: its last look comes before the giver's use.
            if held.load(Ordering::Acquire) == 0 {
                table.word(slot).store(CLOSED, Ordering::Release);
            }
        }
    }
}

impl fmt::Debug for TakenLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |word: &&AtomicU32| word.load(Ordering::Relaxed) != 0;
        f.debug_struct("TakenLeases")
            .field("held", &self.0.held.iter().filter(held).count())
            .finish_non_exhaustive()
    }
}

/// Gives a lease back when it is dropped
///
/// In a forked child it does not: the parent still has the lease.
#[must_use = "dropping it gives the lease back"]
pub struct Receipt {
    taken: Arc<Taken>,
    ticket: Ticket,
    /// Dropped after `drop` has run
    keep: Arc<dyn Any + Send + Sync>,
}

impl Receipt {
    /// What was given to keep
    pub fn keep(&self) -> &(dyn Any + Send + Sync) {
        &*self.keep
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.taken.origin.is_here() {
            return;
        }
        let Ticket { slot, generation } = self.ticket;
        // First ours, then the peer's: once the peer sees the word, it may send the slot again.
        // Release pairs with the load in `TakenLeases::close`.
        self.taken.held[slot as usize].store(0, Ordering::Release);
        // Release pairs with the load in `Given::take_returned`.
        let word = self.taken.table.word(slot as usize);
        word.store(generation, Ordering::Release);
        // Pairs with the fence in `TakenLeases::close`.
        fence(Ordering::SeqCst);
        if self.taken.closed.load(Ordering::Relaxed) != 0 {
            word.store(CLOSED, Ordering::Release);
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receipt").field(&self.ticket).finish()
    }
}

/// A ticket that no honest peer sends: the slot does not exist, or is out already
///
/// No retry helps.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("bad lease: slot {slot}, generation {generation}, of {SLOTS} slots")]
pub struct BadTicket {
    /// Slot in the ticket
    pub slot: u32,
    /// Generation in the ticket
    pub generation: u32,
}

struct Taken {
    table: Table,
    /// Generation that is out here, by slot; 0: none
    held: Box<[AtomicU32]>,
    /// Not 0: no lease is taken any more
    closed: AtomicU32,
    origin: Origin,
}
