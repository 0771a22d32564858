//! How a link ends: closed here, closed by the peer, lost, broken or out of time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul_proto::RecvId;

use super::Link;
use super::event::{LinkEvent, Now};
use crate::error::CloseReason;
use crate::lane::LaneError;

impl<S, R> Link<S, R> {
    /// Begins a graceful close: what was sent goes out first, for at most `linger`
    pub fn close(&mut self, now: &Now, linger: Duration) {
        if self.is_open() && self.linger_until.is_none() {
            let now = now.get();
            self.core.close(now);
            self.linger_until = Some(now + linger);
        }
    }

    /// Ends the link at once
    pub fn abort(&mut self) {
        self.end(CloseReason::Local);
    }

    /// Returns whether the link has not ended
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Returns whether a graceful close is under way
    pub fn is_closing(&self) -> bool {
        self.linger_until.is_some()
    }

    /// Returns why the link has ended; before that, the reason for operations that come too late
    pub(super) fn close_reason(&self) -> CloseReason {
        self.ended.clone().unwrap_or_else(|| self.graceful_reason())
    }

    /// Why the link ends if it ends gracefully
    fn graceful_reason(&self) -> CloseReason {
        if self.core.peer_closed() && !self.is_closing() {
            CloseReason::Peer { peer: self.peer }
        } else {
            CloseReason::Local
        }
    }

    /// Ends the link when the peer sends nothing further, all that it gave has been taken, and a
    /// graceful close of this side, if there is one, has everything out
    ///
    /// The peer says that it has closed as soon as carriers have what it sent; they bring it in their
    /// own time.
    pub fn finish_close(&mut self) {
        let is_said = !self.is_closing() || self.is_flushed();
        if self.core.peer_closed() && is_said && self.takes.is_empty() {
            self.end(self.graceful_reason());
        }
    }

    /// Returns whether everything that was sent is with the lane
    pub fn is_flushed(&self) -> bool {
        self.outbound.is_empty() && self.core.is_flushed()
    }

    /// Handles that the lane's stream has ended
    pub fn handle_end(&mut self) {
        if !self.is_closed_by_peer() {
            self.handle_error(LinkError::End);
        }
    }

    /// Handles that the lane is broken; what could still be read from it was handed in before
    pub fn handle_lane_error(&mut self, error: LaneError) {
        if !self.is_closed_by_peer() {
            self.handle_error(LinkError::Lane(error));
        }
    }

    /// Handles that the connection to the peer has ended beside the lane
    pub fn handle_peer_ended(&mut self, detail: &str) {
        if self.is_closed_by_peer() {
            return;
        }
        let reason = if self.is_closing() && self.is_flushed() {
            CloseReason::Local
        } else {
            CloseReason::PeerGone {
                peer: self.peer,
                detail: Arc::from(detail),
            }
        };
        self.end(reason);
    }

    /// Handles the passing of time; harmless when called early
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.is_open() {
            return;
        }
        if self.linger_until.is_some_and(|until| until <= now) {
            self.end(CloseReason::Local);
        } else if let Err(expired) = self.core.handle_timeout(now) {
            self.end(CloseReason::Silent {
                peer: self.peer,
                waited: expired.silent,
            });
        }
    }

    /// Returns whether [`handle_timeout`](Self::handle_timeout) is due with a ping unanswered
    ///
    /// A driver that can tell otherwise when the peer's host was last there says so first, by
    /// [`handle_heard`](Self::handle_heard).
    pub fn is_answer_overdue(&self, now: Instant) -> bool {
        self.is_open() && self.core.is_answer_overdue(now)
    }

    /// Handles that the peer's host was there at that time, whatever the peer itself did
    pub fn handle_heard(&mut self, at: Instant) {
        self.core.handle_activity(at);
    }

    /// When to call [`Link::handle_timeout`]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.linger_until, self.core.poll_timeout()];
        timeouts
            .into_iter()
            .flatten()
            .min()
            .filter(|_| self.is_open())
    }

    /// Returns whether the peer has said that it sends nothing further, and this side has not
    ///
    /// Then the link ends when carriers have brought what the peer gave before; the lane matters no
    /// more.
    fn is_closed_by_peer(&self) -> bool {
        self.is_open() && !self.is_closing() && self.core.peer_closed()
    }

    /// Ends the link because the system, or a carrier, refused what it needs
    pub(super) fn fail_for_system(&mut self, detail: &str) {
        self.end(CloseReason::System {
            peer: self.peer,
            detail: Arc::from(detail),
        });
    }

    pub(super) fn handle_error(&mut self, error: LinkError) {
        let reason = self.reason_of(error);
        self.end(reason);
    }

    fn reason_of(&self, error: LinkError) -> CloseReason {
        let peer = self.peer;
        let is_said = self.is_closing() && (self.is_flushed() || self.core.peer_closed());
        match error {
            LinkError::Protocol(source) => CloseReason::Violation {
                peer,
                source: Arc::new(source),
            },
            LinkError::End if is_said => CloseReason::Local,
            // As an end: a peer that was done first may close on what we sent last.
            LinkError::Lane(LaneError::Io(error)) if is_said && is_hang_up(&error) => {
                CloseReason::Local
            }
            LinkError::End => CloseReason::PeerGone {
                peer,
                detail: Arc::from("connection ended without a Close frame"),
            },
            LinkError::Lane(error) => CloseReason::PeerGone {
                peer,
                detail: Arc::from(error.to_string()),
            },
        }
    }

    /// Ends the link: whatever is in flight fails with `reason`
    fn end(&mut self, reason: CloseReason) {
        if !self.is_open() {
            return;
        }
        match &reason {
            CloseReason::Local | CloseReason::Peer { .. } => {}
            CloseReason::Violation { peer, source } => {
                tracing::warn!(%peer, error = %source, "peer broke the protocol");
            }
            other => tracing::info!(peer = %self.peer, reason = %other, "link ended"),
        }
        self.ended = Some(reason.clone());
        // Before the operations: the holder of a failed one may ask for the reason.
        self.events.push_back(LinkEvent::Closed(reason.clone()));
        self.outbound.clear();
        self.inbound.stop();
        self.takes.clear();
        self.arrivals.drop_incomplete();
        self.meter.stop();
        let sends: Vec<_> = self.sends.drain().collect();
        self.operations.clear();
        for mut send in sends {
            self.overtaken.push(std::mem::take(&mut send.segments));
            self.finish_send(send, Err(reason.clone().into()));
        }
        let posted: Vec<usize> = self.recvs.iter().map(|(id, _)| id).collect();
        for id in posted {
            self.core.withdraw_recv(RecvId(id));
            self.fail_recv(id, reason.clone().into());
        }
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

/// Returns whether the peer has closed its socket
fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

impl From<backhaul_proto::ProtocolError> for LinkError {
    fn from(error: backhaul_proto::ProtocolError) -> Self {
        Self::Protocol(error)
    }
}
