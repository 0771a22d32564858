//! The short way of short messages: started, or received, in one step.
//!
//! What [`Connection::send`] and [`Connection::handle_frame`] do in several steps with events
//! between them, for messages of one segment that nothing keeps waiting. The frames are the same,
//! and so is the state afterwards.

use std::time::Instant;

use super::Connection;
use crate::decoder::Frame;
use crate::error::ProtocolError;
use crate::frame::HEADER_BYTES;
use crate::ids::{MessageKind, RecvId};

impl Connection {
    /// Starts an eager message of one segment of `bytes` bytes, returning its header
    ///
    /// The header and the payload go on the lane before anything else, and the send is done with
    /// that. `None`: something is to go before it, or the peer does not let us, or it is too long;
    /// nothing has changed, and [`send`](Self::send) is the way.
    pub fn send_at_once(&mut self, kind: MessageKind, bytes: u64) -> Option<[u8; HEADER_BYTES]> {
        if self.has_control() {
            return None;
        }
        self.sending.start_at_once(kind, bytes)
    }

    /// Handles the start of a message of which all bytes have come, if a receive waits for it
    ///
    /// The receive is over with that: its buffer, which is long enough, gets the payload. `None`:
    /// nothing has changed, and [`handle_frame`](Self::handle_frame) is the way.
    ///
    /// # Errors
    ///
    /// As [`handle_frame`](Self::handle_frame).
    ///
    /// # Panics
    ///
    /// As [`handle_frame`](Self::handle_frame).
    pub fn handle_at_once(
        &mut self,
        now: Instant,
        frame: &Frame,
    ) -> Result<Option<RecvId>, ProtocolError> {
        self.assert_no_payload_is_due();
        let recv = self.receiving.start_at_once(&frame.header)?;
        if recv.is_some() {
            self.liveness.handle_heard(now);
        }
        Ok(recv)
    }
}

#[cfg(test)]
mod tests;
