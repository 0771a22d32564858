//! Credit: how many messages and eager bytes may wait at the other side for a receive.
//!
//! Totals since the start of the connection, so a repeated or late grant is harmless (the scheme
//! of RFC 9000, section 4.1). A message takes credit when it starts and gives it back when it
//! meets its receive.

use crate::error::ProtocolError;

/// What the peer still lets us start
#[derive(Debug)]
pub(crate) struct SendCredit {
    /// Messages started; never above `messages_granted`
    messages_sent: u64,
    /// Messages that the peer has ever allowed
    messages_granted: u64,
    /// Eager bytes sent; never above `bytes_granted`
    bytes_sent: u64,
    /// Eager bytes that the peer has ever allowed
    bytes_granted: u64,
}

impl SendCredit {
    /// Starts with what the peer's Hello allows
    pub(crate) const fn new(messages: u64, bytes: u64) -> Self {
        Self {
            messages_sent: 0,
            messages_granted: messages,
            bytes_sent: 0,
            bytes_granted: bytes,
        }
    }

    /// Handles the totals of a grant; those that are lower than before are late
    pub(crate) fn handle_grant(&mut self, messages: u64, bytes: u64) {
        self.messages_granted = self.messages_granted.max(messages);
        self.bytes_granted = self.bytes_granted.max(bytes);
    }

    /// Takes credit for one message with that many eager bytes; the caller has looked at what is
    /// left
    pub(crate) fn take(&mut self, eager_bytes: u64) {
        assert!(
            self.messages_left() > 0 && eager_bytes <= self.bytes_left(),
            "a message is started only with credit"
        );
        self.messages_sent += 1;
        self.bytes_sent += eager_bytes;
    }

    /// Messages that may start
    pub(crate) const fn messages_left(&self) -> u64 {
        self.messages_granted - self.messages_sent
    }

    /// Bytes that may be sent eagerly
    pub(crate) const fn bytes_left(&self) -> u64 {
        self.bytes_granted - self.bytes_sent
    }
}

/// What we still let the peer start
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

    /// Checks and counts a message of the peer with that many eager bytes, returning its number
    pub(crate) fn handle_start(&mut self, eager_bytes: u64) -> Result<u64, ProtocolError> {
        let message = self.messages.used;
        if !self.messages.take(1) {
            return Err(ProtocolError::MessageCreditExceeded {
                message,
                granted: self.messages.granted,
            });
        }
        if !self.bytes.take(eager_bytes) {
            return Err(ProtocolError::ByteCreditExceeded {
                bytes: eager_bytes,
                left: self.bytes.left(),
            });
        }
        Ok(message)
    }

    /// Gives back what a message took, since it has met its receive
    pub(crate) fn release(&mut self, eager_bytes: u64) {
        self.messages.released += 1;
        self.bytes.released += eager_bytes;
    }

    /// The totals to grant now (messages, bytes), if it is worth a frame
    pub(crate) fn poll_grant(&mut self) -> Option<(u64, u64)> {
        self.has_grant()
            .then(|| (self.messages.grant(), self.bytes.grant()))
    }

    /// Whether a grant is worth a frame
    pub(crate) fn has_grant(&self) -> bool {
        // Without the last condition, a peer that has used up its messages could wait for a grant
        // that is not worth a frame, while we wait for the message it holds back. Bytes need no
        // such rule: without them, a message is requested.
        self.messages.is_quarter_back()
            || self.bytes.is_quarter_back()
            || (self.messages.left() == 0 && self.messages.to_grant() > 0)
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
    /// What the peer knows it may use since the start; at most `released + size`
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
        let room = self.released - (self.granted - self.size);
        // A boundless window ends at the largest number that can be granted.
        room.min(u64::MAX - self.granted)
    }

    fn is_quarter_back(&self) -> bool {
        self.to_grant() >= (self.size / 4).max(1)
    }

    fn grant(&mut self) -> u64 {
        self.granted += self.to_grant();
        self.granted
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn late_grant_does_not_shrink_credit() {
        let mut credit = SendCredit::new(2, 100);
        credit.handle_grant(4, 200);
        credit.handle_grant(3, 150);
        assert_eq!((credit.messages_left(), credit.bytes_left()), (4, 200));
    }

    #[test]
    fn a_peer_that_exceeds_its_credit_is_refused() {
        let mut credit = RecvCredit::new(2, 100);
        assert_eq!(credit.handle_start(60), Ok(0));
        let error = ProtocolError::ByteCreditExceeded {
            bytes: 41,
            left: 40,
        };
        assert_eq!(credit.handle_start(41), Err(error));
        let error = ProtocolError::MessageCreditExceeded {
            message: 2,
            granted: 2,
        };
        assert_eq!(credit.handle_start(0), Err(error));
    }

    #[test]
    fn credit_is_granted_by_the_quarter() {
        let mut credit = RecvCredit::new(8, 100);
        for _ in 0..4 {
            credit.handle_start(10).unwrap();
        }
        credit.release(10);
        assert_eq!(credit.poll_grant(), None);
        credit.release(10);
        assert_eq!(credit.poll_grant(), Some((10, 120)));
        assert_eq!(credit.poll_grant(), None);
        credit.release(10);
        assert_eq!(credit.poll_grant(), None);
    }

    #[test]
    fn a_peer_without_messages_left_gets_the_first_that_comes_back() {
        let mut credit = RecvCredit::new(8, 100);
        for _ in 0..8 {
            credit.handle_start(0).unwrap();
        }
        assert_eq!(credit.poll_grant(), None);
        credit.release(0);
        assert_eq!(credit.poll_grant(), Some((9, 100)));
    }

    #[test]
    fn a_boundless_window_does_not_overflow() {
        let size = u64::MAX / 2;
        let mut credit = RecvCredit::new(8, size);
        for granted in [Some((9, u64::MAX - 1)), None] {
            credit.handle_start(size).unwrap();
            credit.release(size);
            assert_eq!(credit.poll_grant(), granted);
        }
        credit.handle_start(1).unwrap_err();
    }
}
