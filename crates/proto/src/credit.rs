//! Credit: how many messages and eager bytes may wait at the other side for a receive.
//!
//! Totals since the start of the connection, so a repeated or late grant is harmless (the scheme
//! of RFC 9000, section 4.1). A message takes credit when it starts and gives it back when it
//! meets its receive, and takes it again if that is withdrawn. The amount is its [`Cost`]: a
//! message of many segments costs more than one, as each of them takes memory at the receiver.

use crate::error::ProtocolError;

/// Receiver's credit that one message takes
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Cost {
    /// Credit for messages: 1, and 1 more for each [`SEGMENTS_PER_MESSAGE`] segments
    messages: u64,
    /// Credit for bytes, which only eager messages take: payload, and [`SEGMENT_BYTES`] for each
    /// segment after the first; nothing for an empty message, which cannot be requested instead
    bytes: u64,
}

impl Cost {
    /// The cost of an eager message, where the receiver's Hello grants `window_messages`
    pub(crate) fn of_eager(window_messages: u64, payload_bytes: u64, segments: u32) -> Self {
        let further = u64::from(segments.saturating_sub(1));
        let bytes = if payload_bytes == 0 {
            0
        } else {
            payload_bytes.saturating_add(further * SEGMENT_BYTES)
        };
        Self {
            bytes,
            ..Self::of_request(window_messages, segments)
        }
    }

    /// The cost of a message that waits for an answer before its bytes come
    pub(crate) fn of_request(window_messages: u64, segments: u32) -> Self {
        // Never more than a quarter of the window, which the receiver always grants in the end.
        let further = u64::from(segments) / SEGMENTS_PER_MESSAGE;
        Self {
            messages: (1 + further).min((window_messages / 4).max(1)),
            bytes: 0,
        }
    }
}

/// Messages and bytes that the peer still lets this side start
#[derive(Debug)]
pub(crate) struct SendCredit {
    /// Messages that the peer's Hello granted
    window_messages: u64,
    /// Credit for messages taken; never above `messages_granted`
    messages_taken: u64,
    /// Messages that the peer has ever allowed
    messages_granted: u64,
    /// Credit for bytes taken; never above `bytes_granted`
    bytes_taken: u64,
    /// Eager bytes that the peer has ever allowed
    bytes_granted: u64,
}

impl SendCredit {
    /// Starts with what the peer's Hello allows
    pub(crate) const fn new(messages: u64, bytes: u64) -> Self {
        Self {
            window_messages: messages,
            messages_taken: 0,
            messages_granted: messages,
            bytes_taken: 0,
            bytes_granted: bytes,
        }
    }

    /// Handles the totals of a grant; those that are lower than before are late
    pub(crate) fn handle_grant(&mut self, messages: u64, bytes: u64) {
        self.messages_granted = self.messages_granted.max(messages);
        self.bytes_granted = self.bytes_granted.max(bytes);
    }

    /// Returns the cost of an eager message
    pub(crate) fn cost_of_eager(&self, payload_bytes: u64, segments: u32) -> Cost {
        Cost::of_eager(self.window_messages, payload_bytes, segments)
    }

    /// Returns the cost of a message that is announced
    pub(crate) fn cost_of_request(&self, segments: u32) -> Cost {
        Cost::of_request(self.window_messages, segments)
    }

    /// Returns whether a message may start
    pub(crate) const fn allows(&self, cost: Cost) -> bool {
        cost.messages <= self.messages_left() && cost.bytes <= self.bytes_left()
    }

    /// Takes credit for one message; the caller has looked whether there is enough
    pub(crate) fn take(&mut self, cost: Cost) {
        assert!(self.allows(cost), "a message is started only with credit");
        self.messages_taken += cost.messages;
        self.bytes_taken += cost.bytes;
    }

    /// Messages that may start
    pub(crate) const fn messages_left(&self) -> u64 {
        self.messages_granted - self.messages_taken
    }

    /// Bytes that may be sent eagerly
    pub(crate) const fn bytes_left(&self) -> u64 {
        self.bytes_granted - self.bytes_taken
    }
}

/// Messages and bytes that this side still lets the peer start
#[derive(Debug)]
pub(crate) struct RecvCredit {
    messages: Window,
    bytes: Window,
}

impl RecvCredit {
    /// Starts with what our Hello allows
    pub(crate) const fn new(messages: u64, bytes: u64) -> Self {
        Self {
            messages: Window::new(messages),
            bytes: Window::new(bytes),
        }
    }

    /// Returns the cost of an eager message
    pub(crate) fn cost_of_eager(&self, payload_bytes: u64, segments: u32) -> Cost {
        Cost::of_eager(self.messages.size, payload_bytes, segments)
    }

    /// Returns the cost of a message that is announced
    pub(crate) fn cost_of_request(&self, segments: u32) -> Cost {
        Cost::of_request(self.messages.size, segments)
    }

    /// Checks and counts a message of the peer
    pub(crate) fn handle_start(&mut self, message: u64, cost: Cost) -> Result<(), ProtocolError> {
        if !self.messages.take(cost.messages) {
            return Err(ProtocolError::MessageCreditExceeded {
                message,
                granted: self.messages.granted,
            });
        }
        if !self.bytes.take(cost.bytes) {
            return Err(ProtocolError::ByteCreditExceeded {
                bytes: cost.bytes,
                left: self.bytes.left(),
            });
        }
        Ok(())
    }

    /// Gives back what a message took, since it has met its receive
    pub(crate) fn release(&mut self, cost: Cost) {
        self.messages.released += cost.messages;
        self.bytes.released += cost.bytes;
    }

    /// Charges a message again that has lost its receive
    ///
    /// Granted credit stays granted; there is no further grant until as much has come back.
    pub(crate) fn reclaim(&mut self, cost: Cost) {
        self.messages.released -= cost.messages;
        self.bytes.released -= cost.bytes;
    }

    /// The totals to grant now (messages, bytes), if it is worth a frame; `is_awaited`: a receive waits
    /// for a message that has not started
    pub(crate) fn poll_grant(&mut self, is_awaited: bool) -> Option<(u64, u64)> {
        self.has_grant(is_awaited)
            .then(|| (self.messages.grant(), self.bytes.grant()))
    }

    /// Returns whether a grant is worth a frame
    #[inline]
    pub(crate) fn has_grant(&self, is_awaited: bool) -> bool {
        // Without the last condition, a peer that lacks credit for its next message could wait for a
        // grant that is not worth a frame, while we wait for the message it holds back. Most cost 1, and
        // none costs more than a quarter of the window: for such a one it is a receive that waits, or
        // a peer that is ahead of its receives would get a frame for each message of its last quarter.
        // Bytes need no such rule: without them, a message is requested.
        let least = if is_awaited {
            self.messages.quarter()
        } else {
            1
        };
        self.messages.is_quarter_back()
            || self.bytes.is_quarter_back()
            || (self.messages.to_grant() > 0 && self.messages.left() < least)
    }
}

/// One kind of credit that we hand out; all in messages or all in bytes
#[derive(Debug)]
struct Window {
    /// How much may be unreleased at a time
    size: u64,
    /// Used by the peer since the start; never above `granted`
    used: u64,
    /// Given back since the start; never above `used`
    released: u64,
    /// Total that the peer has been granted since the start; at most `released + size`, where
    /// `released` counts the credit that was reclaimed since
    granted: u64,
}

impl Window {
    const fn new(size: u64) -> Self {
        Self {
            size,
            used: 0,
            released: 0,
            granted: size,
        }
    }

    /// Counts a use, returning whether the peer was allowed it
    const fn take(&mut self, amount: u64) -> bool {
        let allowed = amount <= self.left();
        if allowed {
            self.used += amount;
        }
        allowed
    }

    const fn left(&self) -> u64 {
        self.granted - self.used
    }

    /// Room that the peer does not know of
    fn to_grant(&self) -> u64 {
        let room = self.released.saturating_sub(self.granted - self.size);
        // A boundless window ends at the largest number that can be granted.
        room.min(u64::MAX - self.granted)
    }

    fn is_quarter_back(&self) -> bool {
        self.to_grant() >= self.quarter()
    }

    fn quarter(&self) -> u64 {
        (self.size / 4).max(1)
    }

    fn grant(&mut self) -> u64 {
        self.granted += self.to_grant();
        self.granted
    }
}

/// Cost of a segment after the first at the receiver: a line of memory at least, and its
/// description
const SEGMENT_BYTES: u64 = 128;

/// Segments of a message whose table takes what the bookkeeping of a message does
const SEGMENTS_PER_MESSAGE: u64 = 64;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn late_grant_does_not_shrink_credit() {
        let mut credit = SendCredit::new(2, 100);
        credit.handle_grant(4, 200);
        credit.handle_grant(3, 150);
        assert_eq!((credit.messages_left(), credit.bytes_left()), (4, 200));
    }

    fn messages(messages: u64) -> Cost {
        Cost { messages, bytes: 0 }
    }

    fn eager(bytes: u64) -> Cost {
        Cost { messages: 1, bytes }
    }

    #[test]
    fn segments_cost_credit() {
        let of_request = |segments| Cost::of_request(4096, segments).messages;
        assert_eq!([0, 1, 63, 64, 127, 128].map(of_request), [1, 1, 1, 2, 2, 3]);
        let of_eager = |segments| Cost::of_eager(4096, 100, segments);
        assert_eq!(of_eager(1), eager(100));
        assert_eq!(of_eager(3), eager(100 + 2 * 128));
        let many = Cost {
            messages: 2,
            bytes: 100 + 63 * 128,
        };
        assert_eq!(of_eager(64), many);
        assert_eq!(Cost::of_eager(8, u64::MAX, u32::MAX).bytes, u64::MAX);
    }

    #[test]
    fn an_empty_message_needs_no_credit_for_bytes() {
        let mut credit = SendCredit::new(4096, 0);
        let cost = credit.cost_of_eager(0, 1000);
        assert_eq!(cost, messages(1 + 15));
        credit.take(cost);
        assert!(!credit.allows(credit.cost_of_eager(1, 1)));
    }

    #[test]
    fn no_message_costs_more_than_a_quarter_of_the_window() {
        let cost = |window| Cost::of_request(window, u32::MAX).messages;
        assert_eq!([1, 3, 4, 7, 8, 4096].map(cost), [1, 1, 1, 1, 2, 1024]);
    }

    #[test]
    fn a_peer_that_exceeds_its_credit_is_refused() {
        let mut credit = RecvCredit::new(2, 100);
        assert_eq!(credit.handle_start(0, eager(60)), Ok(()));
        let error = ProtocolError::ByteCreditExceeded {
            bytes: 41,
            left: 40,
        };
        assert_eq!(credit.handle_start(1, eager(41)), Err(error));
        let error = ProtocolError::MessageCreditExceeded {
            message: 2,
            granted: 2,
        };
        assert_eq!(credit.handle_start(2, messages(1)), Err(error));
    }

    #[test]
    fn credit_is_granted_by_the_quarter() {
        let mut credit = RecvCredit::new(8, 100);
        for message in 0..4 {
            credit.handle_start(message, eager(10)).unwrap();
        }
        credit.release(eager(10));
        assert_eq!(credit.poll_grant(true), None);
        credit.release(eager(10));
        assert_eq!(credit.poll_grant(true), Some((10, 120)));
        assert_eq!(credit.poll_grant(true), None);
        credit.release(eager(10));
        assert_eq!(credit.poll_grant(true), None);
    }

    #[test]
    fn a_peer_that_may_lack_credit_for_an_awaited_message_gets_the_first_that_comes_back() {
        let mut credit = RecvCredit::new(8, 100);
        for message in 0..6 {
            credit.handle_start(message, messages(1)).unwrap();
        }
        credit.release(messages(1));
        // Two are left, and no message costs more.
        assert_eq!(credit.poll_grant(true), None);
        credit.handle_start(6, messages(1)).unwrap();
        // Unless no message waits for it.
        assert_eq!(credit.poll_grant(false), None);
        assert_eq!(credit.poll_grant(true), Some((9, 100)));
    }

    #[test]
    fn what_is_reclaimed_is_granted_once() {
        let mut credit = RecvCredit::new(4, 100);
        for message in 0..2 {
            credit.handle_start(message, eager(50)).unwrap();
            credit.release(eager(50));
        }
        assert_eq!(credit.poll_grant(true), Some((6, 200)));
        for _ in 0..2 {
            credit.reclaim(eager(50));
        }
        for message in 2..6 {
            credit.handle_start(message, messages(1)).unwrap();
        }
        for _ in 0..2 {
            credit.release(messages(1));
            assert_eq!(credit.poll_grant(true), None);
        }
        credit.release(eager(50));
        assert_eq!(credit.poll_grant(true), Some((7, 200)));
    }

    #[test]
    fn a_boundless_window_does_not_overflow() {
        let size = u64::MAX / 2;
        let mut credit = RecvCredit::new(8, size);
        for granted in [Some((9, u64::MAX - 1)), None] {
            credit.handle_start(0, eager(size)).unwrap();
            credit.release(eager(size));
            assert_eq!(credit.poll_grant(true), granted);
        }
        credit.handle_start(2, eager(1)).unwrap_err();
    }

    proptest! {
        /// Messages of any segments start while there is credit, and meet their receives in any
        /// order; once all have, the next may start
        #[test]
        fn a_sender_that_lacks_credit_gets_a_grant_in_the_end(
            window in prop_oneof![1_u64..10, Just(64), Just(4096)],
            window_bytes in prop_oneof![Just(0_u64), 1_u64..1000, Just(1 << 20)],
            steps in proptest::collection::vec(
                (any_segments(), 0_u64..2000, any::<prop::sample::Index>(), 0_usize..4),
                0..200,
            ),
        ) {
            let mut sender = SendCredit::new(window, window_bytes);
            let mut receiver = RecvCredit::new(window, window_bytes);
            let mut unmet = Vec::new();
            for (number, (segments, bytes, index, met)) in (0..).zip(steps) {
                let mut cost = sender.cost_of_eager(bytes, segments);
                let mut seen = receiver.cost_of_eager(bytes, segments);
                if !sender.allows(cost) {
                    cost = sender.cost_of_request(segments);
                    seen = receiver.cost_of_request(segments);
                }
                prop_assert_eq!(cost, seen);
                loop {
                    if let Some((messages, bytes)) = receiver.poll_grant(true) {
                        sender.handle_grant(messages, bytes);
                    }
                    if sender.allows(cost) {
                        break;
                    }
                    // No message waits while there is room, and all have room in the end.
                    let held: u64 = unmet.iter().map(|cost: &Cost| cost.messages).sum();
                    prop_assert!(held + cost.messages > window);
                    prop_assert!(!unmet.is_empty());
                    receiver.release(unmet.swap_remove(index.index(unmet.len())));
                }
                sender.take(cost);
                prop_assert_eq!(receiver.handle_start(number, cost), Ok(()));
                unmet.push(cost);
                for _ in 0..met.min(unmet.len()) {
                    receiver.release(unmet.swap_remove(index.index(unmet.len())));
                }
            }
        }
    }

    fn any_segments() -> impl Strategy<Value = u32> {
        prop_oneof![0_u32..4, 0_u32..300, Just(1 << 16), any::<u32>()]
    }
}
