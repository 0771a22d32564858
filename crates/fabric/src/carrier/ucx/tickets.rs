//! The numbers of what a connection offers over UCX, whichever carrier does.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::runtime::lock;

/// Gives out tickets, and knows which are in use
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Tickets that the peer has neither fetched nor refused
    open: BTreeSet<u64>,
}

impl Tickets {
    /// A ticket that was not in use before
    pub(super) fn open(&self) -> u64 {
        let mut state = lock(&self.0);
        let ticket = state.next;
        state.next += 1;
        state.open.insert(ticket);
        ticket
    }

    /// The peer has fetched or refused, or the endpoint is gone
    pub(super) fn close(&self, ticket: u64) {
        lock(&self.0).open.remove(&ticket);
    }

    /// Returns whether the peer may still fetch
    pub(super) fn is_open(&self, ticket: u64) -> bool {
        lock(&self.0).open.contains(&ticket)
    }
}
