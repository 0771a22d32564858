//! Long untagged messages that are fetched before a receive asks for them.
//!
//! Untagged messages are received in order, so it is known which comes next, and its bytes may be
//! under way by the time the receive is posted. The bytes fetched ahead are bounded; a message
//! that does not fit waits for its receive, and those behind it wait for it.

use std::collections::VecDeque;

use crate::ids::ArrivalId;

/// Untagged requests that have not met a receive
#[derive(Debug)]
pub(super) struct EarlyAccepts {
    /// Requests that were not accepted, oldest first, with their bytes
    waiting: VecDeque<(ArrivalId, u64)>,
    /// Bytes of those that were accepted; at most `accepted_bytes_max`
    accepted_bytes: u64,
    accepted_bytes_max: u64,
}

impl EarlyAccepts {
    pub(super) const fn new(accepted_bytes_max: u64) -> Self {
        Self {
            waiting: VecDeque::new(),
            accepted_bytes: 0,
            accepted_bytes_max,
        }
    }

    /// Queues a request that no receive was posted for
    pub(super) fn push(&mut self, arrival: ArrivalId, bytes: u64) {
        self.waiting.push_back((arrival, bytes));
    }

    /// Handles that a request, which was not accepted, has met its receive
    pub(super) fn handle_met(&mut self, arrival: ArrivalId) {
        let oldest = self.waiting.pop_front().map(|(oldest, _)| oldest);
        assert_eq!(oldest, Some(arrival), "untagged messages are met in order");
    }

    /// Handles that a request of that size, which was accepted early, has met its receive
    pub(super) fn release(&mut self, bytes: u64) {
        self.accepted_bytes -= bytes;
    }

    /// The next request to accept, with its bytes
    pub(super) fn poll(&mut self) -> Option<(ArrivalId, u64)> {
        let room_bytes = self.accepted_bytes_max - self.accepted_bytes;
        let (_, bytes) = *self.waiting.front()?;
        if bytes > room_bytes {
            return None;
        }
        self.accepted_bytes += bytes;
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_accepted_in_order_while_there_is_room() {
        let mut early = EarlyAccepts::new(500);
        for arrival in 0..3 {
            early.push(ArrivalId(arrival), 200);
        }
        assert_eq!(early.poll(), Some((ArrivalId(0), 200)));
        assert_eq!(early.poll(), Some((ArrivalId(1), 200)));
        assert_eq!(early.poll(), None);
        early.release(200);
        assert_eq!(early.poll(), Some((ArrivalId(2), 200)));
    }

    #[test]
    fn a_request_beyond_the_room_holds_back_others_until_it_is_met() {
        let mut early = EarlyAccepts::new(500);
        early.push(ArrivalId(0), 501);
        early.push(ArrivalId(1), 1);
        assert_eq!(early.poll(), None);
        early.handle_met(ArrivalId(0));
        assert_eq!(early.poll(), Some((ArrivalId(1), 1)));
    }
}
