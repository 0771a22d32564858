//! The importing side of a completion table

use std::collections::TryReserveError;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::words::Words;
use super::{CLOSED, SLOTS, Ticket};
use crate::fork::{Forks, Origin, watch_forks};
#[cfg(not(loom))]
use crate::leased::ReexportHandle;
use crate::sync::{AtomicU32, Ordering, fence};

/// Object that stays as long as an imported lease does
pub trait Keep: Send + Sync {
    /// Returns the handle by which to export the lease again, if that is possible
    #[cfg(not(loom))]
    fn reexport_handle(&self) -> Option<&ReexportHandle> {
        None
    }
}

impl Keep for () {}

/// Leases imported from a peer; clones share their state
#[derive(Clone)]
pub struct ImportedLeases(Arc<Imported>);

impl ImportedLeases {
    pub(super) fn new(words: Words) -> Result<Self, TryReserveError> {
        watch_forks();
        let mut held = Vec::new();
        held.try_reserve_exact(SLOTS)?;
        held.resize_with(SLOTS, || AtomicU32::new(0));
        let held = held.into_boxed_slice();
        Ok(Self(Arc::new(Imported {
            words,
            held,
            closed: AtomicU32::new(0),
            origin: Origin::here(),
        })))
    }

    /// Imports a lease: it is returned when the receipt is dropped
    ///
    /// `keep` is dropped right after the return, so its `Drop` can act on it.
    ///
    /// # Errors
    ///
    /// [`BadTicket`], which no honest peer sends: nothing is returned.
    pub fn receipt(&self, ticket: Ticket, keep: Arc<dyn Keep>) -> Result<Receipt, BadTicket> {
        let Ticket { slot, generation } = ticket;
        let bad = BadTicket { slot, generation };
        let held = self.0.held.get(slot as usize).ok_or(bad)?;
        if generation == 0 || generation == CLOSED {
            return Err(bad);
        }
        // Relaxed: it decides which receipt has the slot, and orders nothing else. An honest exporter
        // reuses the slot only after `Imported::give_back`: that is ordered by the slot's word and by the
        // message that brings the ticket.
        held.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| bad)?;
        Ok(Receipt {
            imported: Arc::clone(&self.0),
            ticket,
            keep,
            forks: Forks::so_far(),
        })
    }
}

impl ImportedLeases {
    /// Imports no more leases: those without a receipt are returned, now and later
    ///
    /// Existing receipts are not affected. Must not be called while another thread calls
    /// [`receipt`](Self::receipt).
    pub fn close(&self) {
        let Imported {
            words,
            held,
            closed,
            origin,
        } = &*self.0;
        if !origin.is_here() {
            return;
        }
        closed.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Imported::give_back`: either the slot is seen free here, or closed
        // there. In both cases `CLOSED` comes after the generation.
        fence(Ordering::SeqCst);
        for (slot, held) in held.iter().enumerate() {
            // Acquire pairs with the store in `Imported::give_back`, and Release with the load in
            // `Exported::take_returned`: its last access comes before the exporter's use.
            if held.load(Ordering::Acquire) == 0 {
                words.word(slot).store(CLOSED, Ordering::Release);
            }
        }
    }
}

impl fmt::Debug for ImportedLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = |word: &&AtomicU32| word.load(Ordering::Relaxed) != 0;
        f.debug_struct("ImportedLeases")
            .field("held", &self.0.held.iter().filter(held).count())
            .finish_non_exhaustive()
    }
}

/// Returns a lease when it is dropped
///
/// In a forked child it does not: the parent still has the lease. In the parent of a child that was
/// forked meanwhile the lease is returned when that child has ended.
#[must_use = "dropping it returns the lease"]
pub struct Receipt {
    imported: Arc<Imported>,
    ticket: Ticket,
    /// Dropped after the lease is returned
    keep: Arc<dyn Keep>,
    forks: Forks,
}

impl Receipt {
    /// Returns whether the exporter says that the owner has freed the memory
    pub fn is_freed(&self) -> bool {
        let mark = self.imported.words.mark(self.ticket.slot as usize);
        // Relaxed: a statistic; nothing is ordered by it.
        mark.load(Ordering::Relaxed) != 0
    }

    /// The value passed as `keep`
    pub fn keep(&self) -> &dyn Keep {
        &*self.keep
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if !self.imported.origin.is_here() {
            return;
        }
        let (imported, ticket) = (Arc::clone(&self.imported), self.ticket);
        let keep = Arc::clone(&self.keep);
        self.forks.when_ended(move || {
            imported.give_back(ticket);
            drop(keep);
        });
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receipt").field(&self.ticket).finish()
    }
}

/// A ticket that no honest peer sends: the slot does not exist, or its lease is out already
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

struct Imported {
    words: Words,
    /// Generation that this side holds, by slot; 0: none
    held: Box<[AtomicU32]>,
    /// Not 0: no more leases are imported
    closed: AtomicU32,
    origin: Origin,
}

impl Imported {
    fn give_back(&self, ticket: Ticket) {
        let Ticket { slot, generation } = ticket;
        // Our own entry first: once the peer sees the word, it may send the slot again.
        // Release pairs with the load in `ImportedLeases::close`.
        self.held[slot as usize].store(0, Ordering::Release);
        // Release pairs with the load in `Exported::take_returned`.
        let word = self.words.word(slot as usize);
        word.store(generation, Ordering::Release);
        // Pairs with the fence in `ImportedLeases::close`.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) != 0 {
            word.store(CLOSED, Ordering::Release);
        }
    }
}
