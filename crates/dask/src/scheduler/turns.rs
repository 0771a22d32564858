//! Which request waits for too long while others go past it, as `backhaul.dask.resource_pools.starvation` counts it.
//!
//! A request for much may find nothing while those for little take each unit as it gets free. After
//! [`PASSES_MAX`] leases of tasks that come after its first one, for something that it needs too,
//! something is kept for it, for one request at a time.

use std::cmp::Ordering;

use backhaul_placement::resources::Signature;

use super::compact::PriorityOrNone;

/// Leases that may go past a request before something is kept for it
const PASSES_MAX: u64 = 16;

/// The requests that wait, and who went past them
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The request that a worker or unit is reserved for
    pub(super) kept: Option<Signature>,
    /// In the order in which they began to wait
    waiting: Vec<Waits>,
}

/// One request that waits
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) request: Signature,
    /// Where its first task stands among all tasks
    pub(super) stands: PriorityOrNone,
    pub(super) passes: u64,
}

impl Turns {
    /// Notes that the first task of a request waits
    pub(super) fn refused(&mut self, request: Signature, stands: PriorityOrNone) {
        match self.waiting.iter_mut().find(|one| one.request == request) {
            Some(one) => one.stands = stands,
            None => self.waiting.push(Waits {
                request,
                stands,
                passes: 0,
            }),
        }
    }

    /// Notes that a task has got what it asks for, and where it stood; `shares` tells whether
    /// another request needs something of the same. Returns whether something is to be kept now
    pub(super) fn granted(
        &mut self,
        request: Signature,
        stood: PriorityOrNone,
        shares: impl Fn(Signature) -> bool,
    ) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        if self.kept == Some(request) {
            self.kept = None;
        }
        self.waiting.retain(|one| one.request != request);
        for one in &mut self.waiting {
            if stands_before(one.stands, stood) && shares(one.request) {
                one.passes += 1;
            }
        }
        self.kept.is_none()
    }

    /// The requests that others have gone past too often, in the order in which they began to wait
    pub(super) fn overdue(&self) -> Vec<Signature> {
        let overdue = self.waiting.iter().filter(|one| one.passes >= PASSES_MAX);
        overdue.map(|one| one.request).collect()
    }

    /// Notes that no task waits with a request any more; returns whether something was kept for it
    pub(super) fn left(&mut self, request: Signature) -> bool {
        self.waiting.retain(|one| one.request != request);
        let was_kept = self.kept == Some(request);
        if was_kept {
            self.kept = None;
        }
        was_kept
    }

    /// Adds a request that waits already, behind the others
    pub(super) fn inherit(&mut self, waits: Waits, is_kept: bool) {
        if is_kept {
            self.kept = Some(waits.request);
        }
        self.waiting.push(waits);
    }

    /// All that wait
    pub(super) fn waiting(&self) -> &[Waits] {
        &self.waiting
    }
}

/// Returns whether a task comes before another one
fn stands_before(one: PriorityOrNone, other: PriorityOrNone) -> bool {
    match (one.get(), other.get()) {
        (Some(one), Some(other)) => one.order(&other) == Ordering::Less,
        (one, other) => one.is_none() && other.is_some(),
    }
}
