//! One connection: commands and frames in, events and frames out.
//!
//! Split by direction: [`send`] starts messages and streams long ones, [`recv`] matches what
//! arrives. They share nothing but the lane, so this file only separates them and adds what
//! belongs to both: liveness and the order of control frames.

mod early;
mod event;
mod inline;
mod recv;
mod send;

use std::collections::VecDeque;
use std::time::Instant;

use self::recv::RecvHalf;
use self::send::SendHalf;
use crate::decoder::Frame;
use crate::error::{ProtocolError, RecvRefused, SendRefused};
use crate::frame::{FrameHeader, FrameKind};
use crate::ids::{ArrivalId, Capacity, MessageKind, RecvId, Selector, SendId, Tag, TagMask};
use crate::limits::{Limits, PeerLimits};
use crate::liveness::{KeepAliveExpired, Liveness};

pub use self::event::{
    ConnectionStatistics, Event, Give, Given, HeaderBytes, Incoming, Outgoing, PayloadRange,
    Posted, Span, Store, Transmit, Withdrawn,
};
pub use self::inline::Inline;
pub use self::send::Long;
#[cfg(test)]
pub(crate) use self::send::{encode_sources, encode_start};

/// The protocol state of one connection
///
/// After any command or input, drain [`poll_event`](Self::poll_event) to `None`, and before
/// reading the payload that [`handle_frame`](Self::handle_frame) announces.
/// [`poll_transmit`](Self::poll_transmit) has something to say after any command or input too, and
/// is drained as fast as the lane takes frames: what is not polled can still be overtaken by
/// control frames, or cancelled. Frames go on the lane in the order they are polled.
///
/// After an error the connection is over: the driver fails what is pending and drops it.
#[derive(Debug)]
pub struct Connection {
    sending: SendHalf,
    receiving: RecvHalf,
    liveness: Liveness,
    /// Token of the last ping, which was not answered; earlier ones need no answer of their own
    pong_due: Option<u64>,
    events: VecDeque<Event>,
}

impl Connection {
    /// Starts a connection on which frames can flow, both sides with their credit
    ///
    /// `limits` must be those our Hello announced, `peer` those of the peer's.
    #[must_use]
    pub fn new(limits: Limits, peer: PeerLimits, now: Instant) -> Self {
        Self {
            sending: SendHalf::new(&limits, peer),
            receiving: RecvHalf::new(&limits),
            liveness: Liveness::new(limits.keep_alive, now),
            pong_due: None,
            events: VecDeque::new(),
        }
    }

    /// Queues a message; it is done when a [`Transmit`] that completes it is written, or with
    /// [`Event::SendComplete`]
    ///
    /// Messages start in the order of the calls. `id` must not be that of a live send.
    ///
    /// # Errors
    ///
    /// [`SendRefused`]; nothing about the message is kept.
    pub fn send(
        &mut self,
        id: SendId,
        kind: MessageKind,
        segment_bytes: &[u64],
    ) -> Result<(), SendRefused> {
        self.sending.send(id, kind, segment_bytes, &Long::default())
    }

    /// As [`send`](Self::send), for a message of which a carrier may bring something
    ///
    /// # Errors
    ///
    /// [`SendRefused`]; nothing about the message is kept.
    pub fn send_long(
        &mut self,
        id: SendId,
        kind: MessageKind,
        segment_bytes: &[u64],
        long: &Long<'_>,
    ) -> Result<(), SendRefused> {
        self.sending.send(id, kind, segment_bytes, long)
    }

    /// Posts a receive; it ends with one of the `Recv` events, perhaps at once
    ///
    /// `id` must not be that of a live receive.
    ///
    /// # Errors
    ///
    /// [`RecvRefused`]; nothing about the receive is kept.
    pub fn post_recv(
        &mut self,
        id: RecvId,
        selector: Selector,
        capacity: Capacity,
    ) -> Result<Posted, RecvRefused> {
        self.receiving
            .post(id, selector, capacity, &mut self.events)
    }

    /// The tagged message that a receive would take now, its tag and its size in bytes
    ///
    /// It stays where it is. A long one may be announced and not here yet.
    #[must_use]
    pub fn probe(&self, tag: Tag, mask: TagMask) -> Option<(Tag, u64)> {
        self.receiving.probe(tag, mask)
    }

    /// Withdraws a receive; a message that it has met stays for others, in its place in the order
    pub fn withdraw_recv(&mut self, id: RecvId) -> Withdrawn {
        self.receiving.withdraw(id, &mut self.events)
    }

    /// Takes back a message that a receive has got, to be received by another in its order
    ///
    /// `message` is the number that came with it. Returns what it is called from now on; the driver
    /// has its bytes, and gets the same events as for every other when a receive has it.
    pub fn restore(&mut self, message: u64, kind: MessageKind, bytes: u64) -> ArrivalId {
        self.receiving
            .restore(message, kind, bytes, &mut self.events)
    }

    /// Asks the peer for the bytes of a message, after an [`Event::Prepare`] that asks
    ///
    /// Also after [`fetch`](Self::fetch), if that came to nothing. `carrier` is the number of the
    /// carrier that is preferred, or 0; `advice_bytes` is from how many bytes on the peer is to
    /// announce messages that can be fetched; 0 says nothing.
    ///
    /// # Panics
    ///
    /// If the message does not wait for that.
    pub fn accept(&mut self, arrival: ArrivalId, carrier: u8, advice_bytes: u64) {
        self.receiving.accept(arrival, carrier, advice_bytes);
    }

    /// Says that there is no place for the bytes of a message, after an [`Event::Prepare`] that asks
    ///
    /// It counts as complete: the driver knows that its bytes are missing.
    ///
    /// # Panics
    ///
    /// If the message does not wait for that.
    pub fn skip(&mut self, arrival: ArrivalId) {
        self.receiving.skip(arrival, &mut self.events);
    }

    /// Says that the driver fetches the bytes of a message, after an [`Event::Prepare`] that asks
    ///
    /// # Panics
    ///
    /// If the message does not wait for that.
    pub fn fetch(&mut self, arrival: ArrivalId) {
        self.receiving.fetch(arrival);
    }

    /// Handles that all bytes of a message are there that [`fetch`](Self::fetch) was called for
    ///
    /// `advice_bytes` as for [`accept`](Self::accept).
    ///
    /// # Panics
    ///
    /// If it was not.
    pub fn handle_fetched(&mut self, arrival: ArrivalId, advice_bytes: u64) {
        self.receiving
            .handle_fetched(arrival, advice_bytes, &mut self.events);
    }

    /// Takes back a send of which no frame was polled, returning whether it was one
    ///
    /// `false`: the peer may know of it, and it ends as if not cancelled.
    pub fn cancel_send(&mut self, id: SendId) -> bool {
        self.sending.cancel(id)
    }

    /// Refuses further sends; once the earlier ones are done, Close goes out
    ///
    /// Receives go on. [`is_flushed`](Self::is_flushed) says when that has happened.
    pub fn close(&mut self, now: Instant) {
        // Every input takes the time, so that a later version may use it without a new signature.
        let _ = now;
        self.sending.close();
    }

    /// Handles a frame of the peer, returning whether payload follows
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for a frame that the peer should not have sent.
    ///
    /// # Panics
    ///
    /// If payload announced before was not handed in with
    /// [`handle_payload`](Self::handle_payload).
    pub fn handle_frame(&mut self, now: Instant, frame: Frame) -> Result<Incoming, ProtocolError> {
        self.assert_no_payload_is_due();
        self.liveness.handle_heard(now);
        let header = frame.header;
        match header.kind {
            FrameKind::Eager | FrameKind::Request => {
                return self.receiving.handle_start(frame, &mut self.events);
            }
            FrameKind::Data | FrameKind::Carried => return self.receiving.handle_piece(&header),
            FrameKind::Accept => self.sending.handle_accept(&header)?,
            FrameKind::Skip => {
                let send = self.sending.handle_skip(header.message)?;
                self.events.push_back(Event::SendComplete { send });
            }
            FrameKind::Fetched => {
                let send = self.sending.handle_fetched(&header)?;
                self.events.push_back(Event::SendComplete { send });
            }
            FrameKind::Credit => self.sending.handle_credit(header.message, header.tag),
            FrameKind::Ping => self.pong_due = Some(header.message),
            FrameKind::Pong => {}
            FrameKind::Close => self.receiving.handle_close(&mut self.events)?,
        }
        Ok(Incoming::Control)
    }

    /// Handles that the payload announced by the last [`handle_frame`](Self::handle_frame) is
    /// stored completely
    ///
    /// # Panics
    ///
    /// If no payload of `arrival` was announced.
    pub fn handle_payload(&mut self, now: Instant, arrival: ArrivalId) {
        self.liveness.handle_heard(now);
        self.receiving.handle_payload(arrival, &mut self.events);
    }

    /// Handles that bytes are stored which [`Incoming::Carried`] announced
    ///
    /// At any time, in any order, and in as many parts as it takes.
    ///
    /// # Panics
    ///
    /// If so many bytes of `arrival` were not announced.
    pub fn handle_carried(&mut self, now: Instant, arrival: ArrivalId, bytes: u64) {
        self.liveness.handle_heard(now);
        self.receiving
            .handle_stored(arrival, bytes, &mut self.events);
    }

    /// Handles that bytes came which complete neither a frame nor a payload, or another sign that
    /// the peer was there at that time
    ///
    /// Optional: it keeps a lane so slow that one payload takes longer than the keep-alive from
    /// being given up, and a peer that does not answer while its host does.
    pub fn handle_activity(&mut self, at: Instant) {
        self.liveness.handle_heard(at);
    }

    /// Returns whether [`handle_timeout`](Self::handle_timeout) is due with a ping unanswered
    ///
    /// A driver that knows by other means when the peer was last there hands that to
    /// [`handle_activity`](Self::handle_activity) first.
    #[must_use]
    pub fn is_answer_overdue(&self, now: Instant) -> bool {
        self.liveness.is_answer_overdue(now)
    }

    /// Handles the passing of time; harmless when called early
    ///
    /// # Errors
    ///
    /// [`KeepAliveExpired`] if the peer has been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), KeepAliveExpired> {
        self.liveness.handle_timeout(now)
    }

    /// Returns the next step on the way out
    ///
    /// # Panics
    ///
    /// If the last [`Outgoing::Give`] was not answered.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        if let Some(header) = self.poll_control() {
            return Some(Outgoing::Frame(Transmit::control(header)));
        }
        self.sending.poll_transmit()
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have something; `false` is
    /// certain
    #[inline]
    #[must_use]
    pub fn may_transmit(&self) -> bool {
        self.has_control() || self.sending.may_transmit()
    }

    /// Says what came of the last [`Outgoing::Give`]; with `None` the part goes on the lane
    ///
    /// # Panics
    ///
    /// If there was none.
    pub fn given(&mut self, given: Option<Given>) {
        self.sending.given(given);
    }

    /// Returns the next event
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout)
    ///
    /// Input moves it back, so a driver may keep an earlier timer instead of setting it anew.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.liveness.poll_timeout()
    }

    /// From how many bytes on the peer wants messages announced that it can fetch, if it has said
    #[must_use]
    pub fn announce_advice_bytes(&self) -> Option<u64> {
        self.sending.announce_advice_bytes()
    }

    /// Returns whether nothing is left to transmit, and every send is done
    ///
    /// After [`close`](Self::close), also that Close was transmitted. Frames polled but not written
    /// are the driver's to count.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        !self.has_control() && self.sending.is_flushed()
    }

    /// Returns whether the peer has said that it sends no further message
    #[must_use]
    pub fn peer_closed(&self) -> bool {
        self.receiving.peer_closed()
    }

    /// A snapshot for reports
    #[must_use]
    pub fn statistics(&self) -> ConnectionStatistics {
        ConnectionStatistics {
            sends_queued: self.sending.queued_len(),
            sends_rendezvous: self.sending.rendezvous_len(),
            recvs_posted: self.receiving.posted_len(),
            unexpected_messages: self.receiving.unexpected_len(),
            unexpected_bytes: self.receiving.unexpected_bytes(),
            credit_messages_left: self.sending.credit().messages_left(),
            credit_bytes_left: self.sending.credit().bytes_left(),
        }
    }

    fn assert_no_payload_is_due(&self) {
        assert!(
            !self.receiving.awaits_payload(),
            "a payload is handed in before the next frame"
        );
    }

    #[inline]
    fn has_control(&self) -> bool {
        self.pong_due.is_some() || self.liveness.has_ping() || self.receiving.has_control()
    }

    /// The next frame that goes before all messages
    fn poll_control(&mut self) -> Option<FrameHeader> {
        if let Some(header) = self.receiving.poll_control() {
            return Some(header);
        }
        if let Some(token) = self.pong_due.take() {
            return Some(FrameHeader::bare(FrameKind::Pong, token));
        }
        let token = self.liveness.poll_ping()?;
        Some(FrameHeader::bare(FrameKind::Ping, token))
    }
}

#[cfg(test)]
mod tests;
