//! The short way of short messages through the link: no queue, no event, no state of their own.
//!
//! See `Connection::send_at_once` and `Connection::handle_at_once` for what the protocol has to
//! say about it.

use std::io::IoSlice;
use std::time::Instant;

use backhaul_proto::{Frame, HEADER_BYTES, MessageKind, Selector};

use super::ending::LinkError;
use super::link::{Link, Outcome, Work};
use super::{Conn, Target};
use crate::lane::Moved;
use crate::request::Wakes;

impl Link {
    /// Sends a message of one segment if the lane takes it whole now, returning whether it is out
    pub(super) fn send_at_once(&mut self, conn: &Conn, kind: MessageKind, segment: &[u8]) -> bool {
        let frame_bytes = HEADER_BYTES + segment.len();
        if self.linger_until.is_some() || !self.outgoing.is_empty() {
            return false;
        }
        let Some(lane) = &mut self.lane else {
            return false;
        };
        if !lane.has_room(frame_bytes) {
            return false;
        }
        let Some(header) = self.proto.send_at_once(kind, segment.len() as u64) else {
            return false;
        };
        let written = lane.write(&[IoSlice::new(&header), IoSlice::new(segment)]);
        assert!(
            matches!(written, Ok(Moved::Bytes(bytes)) if bytes == frame_bytes),
            "there was room for {frame_bytes} bytes, but {written:?}"
        );
        conn.counters.sent_messages.bump(1);
        conn.counters.sent_bytes.bump(segment.len() as u64);
        true
    }

    /// Posts a receive, and works on the link if that led to anything
    pub(super) fn post_recv(
        &mut self,
        conn: &Conn,
        operation: u64,
        selector: Selector,
        target: Target,
        started: Option<Instant>,
        wakes: &mut Wakes,
    ) -> Outcome {
        if self.handle_recv(conn, operation, selector, target, started, wakes) {
            Outcome::default()
        } else {
            self.advance(conn, None, Work::SUBMIT, wakes)
        }
    }

    /// Delivers a message of one segment that is staged whole to a receive that waits for it
    ///
    /// Returns whether there was one; else nothing has changed.
    pub(super) fn deliver_at_once(
        &mut self,
        conn: &Conn,
        frame: &Frame,
        wakes: &mut Wakes,
    ) -> Result<bool, LinkError> {
        let Some(staged) = self.incoming.staged(frame.header.payload_bytes) else {
            return Ok(false);
        };
        let now = self.now();
        let Some(recv) = self.proto.handle_at_once(now, frame)? else {
            return Ok(false);
        };
        let mut recv = self.recvs.remove(recv.0);
        let Target::Into(buffer, _) = &mut recv.target else {
            unreachable!("only a receive with a buffer is filled");
        };
        buffer.as_mut_slice()[..staged.len()]
            .copy_from_slice(&self.incoming.staging()[staged.clone()]);
        self.incoming.consume(staged.len());
        let kind = frame.header.message_kind();
        self.inflow.received_at_once(frame.header.payload_bytes);
        self.finish_recv(conn, recv, kind, frame.header.payload_bytes, None, wakes);
        Ok(true)
    }
}
