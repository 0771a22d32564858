//! The inline path of short messages: started, or received, in one step.
//!
//! What [`Connection::send`] and [`Connection::handle_frame`] do in several steps with events
//! between them, for messages that nothing keeps waiting. The frames are the same, and so is the
//! state afterwards.

use std::time::Instant;

use super::Connection;
use super::event::HeaderBytes;
use crate::decoder::Frame;
use crate::error::ProtocolError;
use crate::ids::{ArrivalId, MessageKind, RecvId};

/// Outcome of a message that was here whole
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Inline {
    /// A receive is over with it
    Received {
        /// The receive
        recv: RecvId,
        /// Number of the message
        message: u64,
    },
    /// No receive waits for it: its bytes are to be kept until one has it
    Kept {
        /// The message
        arrival: ArrivalId,
    },
}

impl Connection {
    /// Starts an eager message of segments of these sizes, returning its header
    ///
    /// The header and the payload go on the lane before anything else, and the send is done with
    /// that. `None`: something is to go before it, or the peer does not let us, or it is too long;
    /// nothing has changed, and [`send`](Self::send) is the way.
    pub fn send_inline(&mut self, kind: MessageKind, segment_bytes: &[u64]) -> Option<HeaderBytes> {
        if self.has_control() {
            return None;
        }
        self.sending.start_inline(kind, segment_bytes)
    }

    /// Handles the start of a message of which all bytes have come
    ///
    /// A receive that waits for it is over with that: its buffer, which is long enough, or what is
    /// allocated for it, gets the payload. If none does, the driver keeps the payload, as after an
    /// [`Event::Prepare`](super::Event::Prepare) with [`Store::Allocate`](super::Store::Allocate),
    /// of which there is none. `None`: nothing has changed, and [`handle_frame`](Self::handle_frame)
    /// is the way.
    ///
    /// # Errors
    ///
    /// As [`handle_frame`](Self::handle_frame).
    ///
    /// # Panics
    ///
    /// As [`handle_frame`](Self::handle_frame).
    pub fn handle_inline(
        &mut self,
        now: Instant,
        frame: &Frame,
    ) -> Result<Option<Inline>, ProtocolError> {
        self.assert_no_payload_is_due();
        let inline = self.receiving.start_inline(&frame.header)?;
        if inline.is_some() {
            self.liveness.handle_heard(now);
        }
        Ok(inline)
    }
}

#[cfg(test)]
mod tests;
