//! How a link ends: closed here, closed by the peer, lost, broken or out of time.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::RecvId;

use super::Conn;
use super::link::Link;
use crate::error::CloseReason;
use crate::lane::LaneError;
use crate::request::Wakes;

impl Link {
    /// Ends the link: whatever is in flight fails with `reason`
    pub(super) fn fail(&mut self, conn: &Conn, reason: CloseReason, wakes: &mut Wakes) {
        if self.lane.take().is_none() {
            return;
        }
        match &reason {
            CloseReason::Local | CloseReason::Peer { .. } => {}
            CloseReason::Violation { peer, source } => {
                tracing::warn!(%peer, error = %source, "peer broke the protocol");
            }
            other => tracing::info!(peer = %conn.facts.peer, reason = %other, "link ended"),
        }
        // First: who sees an operation fail may ask why.
        conn.record_closed(&reason);
        self.outgoing.clear();
        self.incoming.stop();
        self.inflow.stop();
        // What was borrowed stays valid: it holds the courier's taking half.
        self.memory.courier = None;
        for send in self.sends.drain().collect::<Vec<_>>() {
            self.finish_send(conn, send, Err(reason.clone().into()), wakes);
        }
        let posted: Vec<usize> = self.recvs.iter().map(|(id, _)| id).collect();
        for id in posted {
            self.proto.cancel_recv(RecvId(id));
            self.fail_recv(id, reason.clone().into(), wakes);
        }
        for closer in self.closers.drain(..) {
            closer.complete(Ok(()), wakes);
        }
        conn.tell_closed(wakes);
    }

    /// Ends a graceful close when everything is out and the peer knows
    pub(super) fn finish_close(&mut self, conn: &Conn, wakes: &mut Wakes) {
        if self.linger_until.is_some() && self.proto.peer_closed() && self.is_flushed() {
            self.fail(conn, CloseReason::Local, wakes);
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && self.proto.is_flushed()
    }

    /// The connection to the peer has ended
    pub(super) fn peer_ended(&mut self, conn: &Conn, detail: &str, wakes: &mut Wakes) {
        let reason = if self.linger_until.is_some() && self.is_flushed() {
            CloseReason::Local
        } else {
            CloseReason::PeerGone {
                peer: conn.facts.peer,
                detail: Arc::from(detail),
            }
        };
        self.fail(conn, reason, wakes);
    }

    /// Time has passed; returns when to call next
    pub(super) fn handle_deadline(
        &mut self,
        conn: &Conn,
        now: Instant,
        wakes: &mut Wakes,
    ) -> Option<Instant> {
        self.lane.as_ref()?;
        if self.linger_until.is_some_and(|until| until <= now) {
            self.fail(conn, CloseReason::Local, wakes);
            return None;
        }
        if let Err(expired) = self.proto.handle_timeout(now) {
            let reason = CloseReason::Silent {
                peer: conn.facts.peer,
                waited: expired.silent,
            };
            self.fail(conn, reason, wakes);
            return None;
        }
        self.poll_timeout()
    }

    pub(super) fn close_reason(&self, conn: &Conn) -> CloseReason {
        conn.close_reason().cloned().unwrap_or(CloseReason::Local)
    }
}

/// The link cannot go on
#[derive(Debug)]
pub(super) enum LinkError {
    /// The lane is broken
    Lane(LaneError),
    /// The peer broke the protocol
    Protocol(backhaul_proto::ProtocolError),
    /// The peer's stream ended
    End,
}

impl LinkError {
    pub(super) fn into_reason(self, conn: &Conn, is_said: bool) -> CloseReason {
        let peer = conn.facts.peer;
        match self {
            Self::Protocol(source) => CloseReason::Violation {
                peer,
                source: Arc::new(source),
            },
            Self::End if is_said && conn.is_closed() => CloseReason::Local,
            // As an end: a peer that was done first may close on what we sent last.
            Self::Lane(LaneError::Io(error))
                if is_said && is_hang_up(&error) && conn.is_closed() =>
            {
                CloseReason::Local
            }
            Self::End => CloseReason::PeerGone {
                peer,
                detail: Arc::from("connection ended without a goodbye"),
            },
            Self::Lane(error) => CloseReason::PeerGone {
                peer,
                detail: Arc::from(error.to_string()),
            },
        }
    }
}

/// Whether the peer has closed its socket
fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

impl From<LaneError> for LinkError {
    fn from(error: LaneError) -> Self {
        Self::Lane(error)
    }
}

impl From<backhaul_proto::ProtocolError> for LinkError {
    fn from(error: backhaul_proto::ProtocolError) -> Self {
        Self::Protocol(error)
    }
}
