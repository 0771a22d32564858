//! Invariants of one side at any time, when nothing moves, and at the end.

use backhaul_proto::MessageKind;

use super::Node;
use crate::model::{Waiting, cost_in_messages};

impl Node {
    /// Checks that must hold at any time
    pub(super) fn check(&self) {
        let statistics = self.connection.statistics();
        assert_eq!(statistics.recvs_posted, self.model.posted.len());
        assert_eq!(statistics.unexpected_messages, self.model.unexpected.len());
        assert_eq!(statistics.sends_queued, self.unstarted.len());
        let (messages, bytes) = self.model.first_held_credit();
        assert!(messages <= self.limits.credit_messages);
        assert!(bytes <= self.limits.credit_bytes);
        let early_bytes = statistics.unexpected_bytes - self.model.stored_bytes();
        assert!(early_bytes <= self.limits.early_accept_bytes_max);
    }

    /// Checks, with nothing under way, that what waits here waits for a caller
    pub(crate) fn check_quiet(&self, peer: &Self) {
        assert!(self.model.matched.is_empty(), "matched, but not complete");
        if let Some(next) = self.unstarted.front() {
            let window = peer.limits.credit_messages;
            let segments = self.sends[next.0].segment_bytes.len() as u64;
            let (held, _) = peer.model.held_credit();
            let cost = cost_in_messages(segments, window);
            // For one that costs more, less than a quarter is granted where a receive waits.
            let is_awaited = !peer.model.posted.is_empty();
            let is_deferred = cost > 1 && !is_awaited;
            let deferred = if is_deferred { window / 4 - 1 } else { 0 };
            assert!(held + cost + deferred > window, "room, but not granted");
        }
        let statistics = self.connection.statistics();
        let early_bytes = statistics.unexpected_bytes - self.model.stored_bytes();
        let is_early = |waiting: &&Waiting| {
            waiting.kind == MessageKind::Untagged && !waiting.is_eager && !waiting.is_returned
        };
        let mut left_bytes = early_bytes;
        for request in self.model.unexpected.iter().filter(is_early) {
            if left_bytes == 0 {
                let room_bytes = self.limits.early_accept_bytes_max - early_bytes;
                assert!(request.bytes > room_bytes, "room, but not accepted early");
                break;
            }
            left_bytes -= request.bytes;
        }
    }

    /// Returns whether everything is done and the other side knows
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_flushed()
            && self.writing.is_none()
            && self.connection.peer_closed()
            && self.works.is_empty()
            && self.model.unexpected.is_empty()
    }

    pub(crate) fn check_over(&self) {
        assert!(self.sends.is_empty(), "sends hang");
        assert!(self.recvs.is_empty(), "receives hang");
        assert!(self.arrivals.is_empty(), "arrivals are left");
        assert!(self.model.matched.is_empty(), "matched, but not complete");
        assert_eq!(self.arrived, self.incoming.borrow().len(), "lost messages");
        assert!(self.payload.is_none(), "a payload is cut off");
        let statistics = self.connection.statistics();
        assert_eq!(statistics.unexpected_bytes, 0);
        assert_eq!(statistics.sends_rendezvous, 0);
        self.check_all_ended();
    }

    pub(super) fn check_all_ended(&self) {
        assert_eq!(self.tally.begun, self.tally.ended(), "{:?}", self.tally);
    }
}
