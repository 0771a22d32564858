//! Detection of lost wake-ups: now and then the engine checks for work that no thread has looked at
//! for seconds.
//!
//! If it finds any, a thread was not woken as it should have been: a defect, which is logged with
//! what happened last on the connection, and counted. The work is done, so nothing hangs by it. An
//! event loop that is kept from its work is no defect: the engine does it in its place.

use std::sync::atomic::{AtomicU64, Ordering};

use super::recorder::{EventKind, in_one_line};
use super::{Conn, lock};

/// How often it happened in this process, on any connection: for tests, which fail by it
pub fn overlooked_in_process() -> u64 {
    // A count that nothing is ordered by.
    OVERLOOKED.load(Ordering::Relaxed)
}

static OVERLOOKED: AtomicU64 = AtomicU64::new(0);

/// Work that no thread has taken care of yet
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Waiting {
    /// Reads that had brought bytes, where there is something to be read
    pub(super) reads: Option<u64>,
    /// Writes that had taken bytes, where there is room for what is to be written
    pub(super) writes: Option<u64>,
}

impl Conn {
    /// Looks whether something has been waiting since the last look; `false` ends the looks
    pub(super) fn inspect(&self) -> bool {
        if self.closed.get().is_some() {
            return false;
        }
        let waiting = self.waiting();
        let overlooked = {
            let mut seen = lock(&self.seen_waiting);
            let before = std::mem::replace(&mut *seen, waiting);
            let is_same = |now: Option<u64>, before: Option<u64>| now.is_some() && now == before;
            before.zip(waiting).is_some_and(|(before, now)| {
                is_same(now.reads, before.reads) || is_same(now.writes, before.writes)
            })
        };
        if overlooked {
            self.handle_overlooked();
        }
        true
    }

    /// Returns the work that can be done, unless another thread holds the port
    fn waiting(&self) -> Option<Waiting> {
        if self.inline.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let waiting = self.try_port().map(|mut port| port.waiting());
        self.take_over();
        waiting
    }

    fn handle_overlooked(&self) {
        let events = self.recorder.recent();
        self.recorder.note(EventKind::Overlooked);
        if self.interest.is_with_loop() {
            tracing::debug!(
                peer = %self.about.peer,
                "an event loop is kept from its work; the engine does it"
            );
            self.leave_loop();
        } else {
            self.counters.overlooked.add(1);
            OVERLOOKED.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                peer = %self.about.peer,
                lane = self.about.lane.name(),
                events = in_one_line(&events),
                "an operation waited for seconds and its waiter was not woken: a defect"
            );
        }
        self.drive();
    }
}
