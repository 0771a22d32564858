//! One connected peer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use backhaul_proto::{
    CarrierKind, ConnectionStatistics, LaneKind, MessageKind, Selector, Tag, TagMask,
};

use crate::carrier::{CHOICE_BYTES_MIN, WayStatistics};
use crate::connection::{Conn, ConnectionEvent, Frames};
use crate::context::Core;
use crate::error::{CloseReason, RecvError, SendError};
use crate::identity::Identity;
use crate::memory::{Message, Received, RecvBuffer, Segment, Segments};
use crate::request::Request;
use crate::statistics::EndpointStatistics;
use crate::tls::TlsInfo;
use crate::trust::Trust;

/// A connected peer
///
/// Messages are either *tagged*, and matched as MPI matches them (64-bit tag and mask, in order
/// per tag), or *untagged* lists of segments, received in the order sent. All methods may be called
/// from any thread. Dropping the endpoint ends the connection at once: what is still queued is
/// lost, so [`Endpoint::close`] first.
#[derive(Debug)]
pub struct Endpoint {
    conn: Arc<Conn>,
    /// Keeps the engine running
    core: Arc<Core>,
}

/// Facts about a connection
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Our address on the first socket
    pub local_address: SocketAddr,
    /// The peer's address on the first socket
    pub peer_address: SocketAddr,
    /// Lane that carries the messages
    pub lane: LaneKind,
    /// How the peers have met, and proved each other, if that was encrypted; within a host the messages
    /// may go another way then
    pub tls: Option<TlsInfo>,
    /// Why this lane, and why not the better ones
    pub reason: String,
    /// Process id of the peer, in the peer's own namespace
    pub peer_pid: u32,
    /// User id of the peer, as the peer says
    pub peer_uid: u32,
    /// Proof that the peer had to show before it was accepted
    pub trust: Trust,
    /// The peer says that it runs under the same kernel boot
    pub same_host: bool,
    /// Why the connection ended, if it has
    pub closed: Option<String>,
    /// State of the protocol; `None` while data is being moved
    pub protocol: Option<ConnectionStatistics>,
    /// Carriers that both sides have on this lane
    pub carriers: Vec<CarrierKind>,
    /// By which ways long private messages came, and how fast; empty while data is being moved
    pub ways: Vec<WayStatistics>,
}

impl Endpoint {
    pub(crate) fn new(conn: Arc<Conn>, core: Arc<Core>) -> Self {
        Self { conn, core }
    }

    #[cfg(test)]
    pub(crate) fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    /// Sends one segment under a tag
    ///
    /// Complete when the memory may be reused: the bytes are with the lane, not yet with a
    /// receive of the peer.
    pub fn send(&self, tag: Tag, segment: impl Into<Segment>) -> Request<(), SendError> {
        self.conn
            .send(MessageKind::Tagged(tag), Segments::from_iter([segment]))
    }

    /// Sends a copy of the bytes under a tag, which are the caller's again at once
    ///
    /// As [`Endpoint::send`], without the memory management where the lane takes them now.
    pub fn send_copy(&self, tag: Tag, bytes: &[u8]) -> Request<(), SendError> {
        self.conn.send_copy(MessageKind::Tagged(tag), bytes)
    }

    /// Sends several segments as one message under a tag
    pub fn send_segments(&self, tag: Tag, segments: Segments) -> Request<(), SendError> {
        self.conn.send(MessageKind::Tagged(tag), segments)
    }

    /// Sends segments as one untagged message
    pub fn send_frames(&self, segments: Segments) -> Request<(), SendError> {
        self.conn.send(MessageKind::Untagged, segments)
    }

    /// Sends as [`Endpoint::send_segments`] does, from memory that is not written to any more
    ///
    /// Memory in the context's arena is lent to a peer on this host, not copied: the peer reads
    /// the same pages, for as long as it holds the message, though the send is complete long
    /// before. A program that writes to the memory all the same changes what the peer reads, as
    /// long as the peer has not written there itself. Freeing the memory is safe at any time.
    pub fn send_segments_shared(&self, tag: Tag, segments: Segments) -> Request<(), SendError> {
        self.conn
            .send(MessageKind::Tagged(tag), segments.exported())
    }

    /// As [`Endpoint::send_frames`], under the conditions of [`Endpoint::send_segments_shared`]
    pub fn send_frames_shared(&self, segments: Segments) -> Request<(), SendError> {
        self.conn.send(MessageKind::Untagged, segments.exported())
    }

    /// Receives the next message whose tag matches, its segments one behind the other
    pub fn recv(
        &self,
        tag: Tag,
        mask: TagMask,
        buffer: impl RecvBuffer,
    ) -> Request<Received, RecvError> {
        self.recv_boxed(tag, mask, Box::new(buffer))
    }

    /// As [`Endpoint::recv`], for a buffer that is boxed already
    pub fn recv_boxed(
        &self,
        tag: Tag,
        mask: TagMask,
        buffer: Box<dyn RecvBuffer>,
    ) -> Request<Received, RecvError> {
        self.conn.recv(Selector::Tagged { tag, mask }, buffer)
    }

    /// Receives the next message whose tag matches, in memory allocated for it
    pub fn recv_message(&self, tag: Tag, mask: TagMask) -> Request<Message, RecvError> {
        self.conn.recv_message(Selector::Tagged { tag, mask })
    }

    /// Receives the next untagged message, in memory allocated for it
    pub fn recv_frames(&self) -> Request<Message, RecvError> {
        self.conn.recv_message(Selector::Untagged)
    }

    /// Returns the untagged messages of this connection, for another object
    pub fn frames(&self) -> Frames {
        Frames::new(&self.conn)
    }

    /// The tagged message that a receive with this tag and mask would take now: its tag, and its
    /// size in bytes
    ///
    /// It stays for the receive, which may be posted by another thread meanwhile. `None` if there
    /// is none yet; of a long message that is the case until it is announced, not until it is here.
    /// Untagged messages are not looked at.
    pub fn probe(&self, tag: Tag, mask: TagMask) -> Option<(Tag, u64)> {
        self.conn.probe(tag, mask)
    }

    /// Closes: earlier sends go out first, later ones fail
    ///
    /// Complete when the peer knows, or after the configured time to linger.
    pub fn close(&self) -> Request<(), CloseReason> {
        self.conn.close()
    }

    /// Ends the connection at once; what is in flight fails
    pub fn abort(&self) {
        self.conn.abort();
    }

    /// Returns whether the connection has ended, or is being closed from here
    pub fn is_closed(&self) -> bool {
        self.conn.is_closed()
    }

    /// Completes with the reason when the connection has ended
    pub fn watch_close(&self) -> Request<CloseReason, Infallible> {
        self.conn.watch_close()
    }

    /// Why the connection ended, if it has
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.conn.close_reason().cloned()
    }

    /// Returns the last events on the connection besides bytes that moved, the oldest first
    ///
    /// They show why something waits; there are at most 64 events.
    pub fn recent_events(&self) -> Vec<ConnectionEvent> {
        self.conn.recent_events()
    }

    /// Payload bytes of sends that are not complete
    pub fn queued_bytes(&self) -> u64 {
        self.conn.counters.queued_bytes()
    }

    /// Longest message that always leaves without asking the peer for room, in bytes
    ///
    /// The send of a longer one may be complete only when the peer has posted a receive for it, or,
    /// if it is untagged, fetches it before one is posted.
    pub fn unasked_bytes_max(&self) -> u64 {
        let eager_bytes_max = self.core.config.limits.eager_bytes_max;
        if self.conn.about.carriers.is_empty() {
            return eager_bytes_max;
        }
        // From here on the peer may be asked to fetch it.
        eager_bytes_max.min(CHOICE_BYTES_MIN - 1)
    }

    /// Our address
    pub fn local_address(&self) -> SocketAddr {
        self.conn.about.local
    }

    /// The peer's address
    pub fn peer_address(&self) -> SocketAddr {
        self.conn.about.peer
    }

    /// Lane in use
    pub fn lane(&self) -> LaneKind {
        self.conn.about.lane
    }

    /// Returns the facts about the connection
    pub fn info(&self) -> EndpointInfo {
        let about = &self.conn.about;
        let peer = &about.peer_hello;
        EndpointInfo {
            local_address: about.local,
            peer_address: about.peer,
            lane: about.lane,
            tls: about.tls.clone(),
            reason: about.reason.clone(),
            peer_pid: peer.pid,
            peer_uid: peer.uid,
            trust: Trust::of(&self.core.config, about.tls.is_some()),
            same_host: peer.boot_id != [0; 16]
                && Identity::current().is_ok_and(|identity| identity.boot_id == peer.boot_id),
            closed: self.close_reason().map(|reason| reason.to_string()),
            protocol: self.conn.protocol_statistics(),
            carriers: about.carriers.clone(),
            ways: self.conn.ways(),
        }
    }

    /// Returns the amounts that the endpoint has moved
    pub fn statistics(&self) -> EndpointStatistics {
        self.conn.counters.snapshot(self.conn.about.lane)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.conn.abort();
    }
}
