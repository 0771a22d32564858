//! The driver of a link: moves bytes between it, its lane and its carriers.
//!
//! The holder of the connection's lock has this. It decides nothing about the protocol: it reads,
//! hands in, drains and writes, for a bounded amount, and says what is left to do.

mod payloads;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul_proto::{Given, MessageKind, Offer, SegmentSource, SendRefused, Sources};
use smallvec::SmallVec;

use self::payloads::Incoming;
use super::inspection::Waiting;
use super::interest::Interest;
use crate::carrier::{Carriers, WayStatistics};
use crate::error::{RecvError, SendError};
use crate::lane::{Farewell, Lane, LaneTraits, Moved};
use crate::link::{Link, LinkEvent, Now, OFFERS_MAX, ReadTargets, Recv, Send};
use crate::memory::{Message, Received, Segments};
use crate::request::Completer;

/// Completion to make when a send is over
#[derive(Debug, Default)]
pub(crate) struct SendToken {
    /// `None` while it is being posted: most sends are over by the end of that
    pub(super) completer: Option<Completer<(), SendError>>,
    /// When it was posted, if it is timed
    pub(super) started: Option<Instant>,
}

/// Completion to make when a receive is over
pub(crate) struct RecvToken {
    pub(super) completer: RecvCompleter,
    /// When it was posted, if it is timed
    pub(super) started: Option<Instant>,
}

/// Completes a receive
pub(super) enum RecvCompleter {
    /// Into a buffer
    Into(Completer<Received, RecvError>),
    /// Into memory of its own
    Allocate(Completer<Message, RecvError>),
    /// For the tap of the connection, as its operation of this name
    Tap(u64),
}

/// A link, its lane and its carriers
pub(crate) struct Port {
    pub(super) link: Link<SendToken, RecvToken>,
    /// `None` once the link has ended
    lane: Option<Box<dyn Lane>>,
    carriers: Carriers,
    /// Payloads that carriers are bringing
    payloads: VecDeque<Incoming>,
    interest: Arc<Interest>,
    traits: LaneTraits,
    /// The last look in the middle of a long message found the lane not ready
    ///
    /// To ask again at once would keep the kernel from moving it on: both need the socket's lock.
    pub(super) is_stalled: bool,
    /// Reads and writes that have moved bytes
    reads: u64,
    writes: u64,
}

/// Command to a connection
pub(super) enum Command {
    Send(Send<SendToken>),
    Recv(Recv<RecvToken>),
    Cancel(u64),
    /// A message that no caller has looked at
    Restore(crate::link::Delivery),
    Close(Duration),
    Abort,
}

/// Purpose of a call of [`Port::work`]
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Take what has arrived
    read: bool,
    /// Ask to be woken for news before leaving
    arm_read: bool,
    /// Ask to be woken for room if the lane is full
    arm_write: bool,
    /// Ask not to be woken
    mask: bool,
    /// Let payloads that carriers are bringing wake the connection, because no caller polls it
    arm_payloads: bool,
    /// Wait for the lock rather than leave the work to its holder
    pub(super) waits: bool,
}

/// Result of a call of [`Port::work`]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Bytes moved
    pub(super) moved: bool,
    /// There is more to move right now
    pub(super) more: bool,
    /// A message is half sent or half received
    pub(super) partial: bool,
    /// Bytes that the peer may be fetching by itself
    pub(super) offered_bytes: u64,
    /// How long what carriers move is waited for awake, beyond what its bytes take
    pub(super) patience: Duration,
    /// Carriers have something to bring, too much for who only posts
    pub(super) has_takes_due: bool,
}

impl Work {
    /// A caller posted something
    pub(super) const SUBMIT: Self = Self {
        read: false,
        arm_read: false,
        arm_write: true,
        mask: false,
        arm_payloads: true,
        waits: false,
    };
    /// A caller polls
    pub(super) const POLL: Self = Self {
        read: true,
        arm_read: false,
        arm_write: false,
        mask: false,
        arm_payloads: false,
        waits: false,
    };
    /// A caller looks once and leaves
    pub(super) const STEP: Self = Self {
        read: true,
        ..Self::SUBMIT
    };
    /// A caller begins to poll
    pub(super) const MASK: Self = Self {
        mask: true,
        ..Self::POLL
    };
    /// The engine moves data
    pub(super) const DRIVE: Self = Self {
        waits: true,
        ..Self::POLL
    };
    /// The connection goes back to the engine
    pub(super) const ARM: Self = Self {
        arm_read: true,
        arm_write: true,
        arm_payloads: true,
        ..Self::DRIVE
    };

    /// This, where callers may poll the connection
    ///
    /// They look after what carriers are bringing, or else the tick that looks whether they do.
    pub(super) fn beside_pollers(self, are_there: bool) -> Self {
        Self {
            arm_payloads: self.arm_payloads && (self.arm_read || !are_there),
            ..self
        }
    }
}

impl Port {
    pub(crate) fn new(
        link: Link<SendToken, RecvToken>,
        lane: Box<dyn Lane>,
        carriers: Carriers,
        interest: Arc<Interest>,
    ) -> Self {
        Self {
            link,
            traits: lane.traits(),
            lane: Some(lane),
            carriers,
            payloads: VecDeque::new(),
            interest,
            is_stalled: false,
            reads: 0,
            writes: 0,
        }
    }

    pub(super) fn handle(&mut self, command: Command) {
        let now = Now::lazy();
        match command {
            Command::Send(send) => {
                self.post_send(send);
            }
            Command::Recv(recv) => {
                self.link.post_recv(&now, recv);
            }
            Command::Cancel(operation) => self.link.cancel(&now, operation),
            Command::Restore(delivery) => self.link.restore(&now, delivery),
            Command::Close(linger) => self.link.close(&now, linger),
            Command::Abort => self.link.abort(),
        }
    }

    /// Posts a send, returning its place as long as it is not over
    pub(super) fn post_send(&mut self, send: Send<SendToken>) -> Option<usize> {
        match self.offers(&send.segments) {
            Ok(sources) => self.link.post_send(send, sources),
            Err(refused) => {
                self.link.refuse_send(send, refused);
                None
            }
        }
    }

    /// How the peer may fetch the segments of a message, if it may fetch all of them
    fn offers(&mut self, segments: &Segments) -> Result<Sources, SendRefused> {
        let mut sources = Sources::new();
        let is_on_device = || segments.iter().any(|segment| segment.kind().is_device());
        if self.carriers.is_empty()
            || segments.len() > OFFERS_MAX
            || !(self.link.choose_offers(segments.bytes()) || is_on_device())
        {
            return Ok(sources);
        }
        for segment in segments.iter() {
            let offer = if segment.is_empty() {
                None
            } else {
                match self.carriers.offer(segment) {
                    Ok(Some((carrier, token))) => Some(Offer { carrier, token }),
                    Ok(None) => {
                        self.withdraw(&sources);
                        return Ok(Sources::new());
                    }
                    Err(detail) => {
                        self.withdraw(&sources);
                        let memory = segment.kind();
                        return Err(SendRefused::NoCarrier { memory, detail });
                    }
                }
            };
            sources.push(SegmentSource {
                memory: segment.kind(),
                offer,
            });
        }
        Ok(sources)
    }

    /// Takes offers back that are not going to be announced
    fn withdraw(&mut self, sources: &Sources) {
        for offer in sources.iter().flat_map(|source| source.offer) {
            self.carriers.handle_offer_over(offer.carrier, offer.token);
        }
    }

    /// Sends a short message if the lane takes it whole now, returning whether it is out
    pub(super) fn send_inline(
        &mut self,
        kind: MessageKind,
        sizes: &[u64],
        parts: &[&[u8]],
    ) -> bool {
        let Some(lane) = &mut self.lane else {
            return false;
        };
        let payload_bytes = sizes.iter().sum();
        if self.link.would_offer(payload_bytes) {
            return false;
        }
        let Some(frame_bytes) = self.link.inline_frame_bytes(sizes.len(), payload_bytes) else {
            return false;
        };
        if !lane.check_room(frame_bytes) {
            return false;
        }
        let Some(header) = self.link.send_inline(kind, sizes) else {
            return false;
        };
        let written = if let [part] = parts {
            lane.write(&[IoSlice::new(&header), IoSlice::new(part)])
        } else {
            let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            slices.push(IoSlice::new(&header));
            slices.extend(parts.iter().map(|part| IoSlice::new(part)));
            lane.write(&slices)
        };
        assert!(
            matches!(written, Ok(Moved::Bytes(bytes)) if bytes == frame_bytes),
            "there was room for {frame_bytes} bytes, but {written:?}"
        );
        self.link.handle_not_offered(payload_bytes);
        true
    }

    /// Moves what can be moved, up to one slice
    pub(super) fn work(&mut self, work: Work) -> Outcome {
        let mut outcome = Outcome::default();
        if self.lane.is_none() {
            return outcome;
        }
        // A receive that meets a message may fetch it: that is a read.
        if !work.read && self.link.has_takes_due() {
            if self.link.takes_due_bytes() <= POSTER_BYTES_MAX {
                self.take_due();
            } else {
                outcome.has_takes_due = true;
            }
        }
        self.pump(work, &mut outcome);
        while let Some((carrier, ticket)) = self.link.poll_offer_over() {
            self.carriers.handle_offer_over(carrier, ticket);
        }
        if work.arm_payloads {
            self.arm_payloads();
        }
        outcome.partial = self.link.is_partial();
        outcome.offered_bytes = self.link.offered_bytes();
        if outcome.offered_bytes > 0 || !self.payloads.is_empty() {
            outcome.patience = self.patience();
        }
        self.is_stalled = outcome.partial && !outcome.moved && !self.traits.looks_are_free;
        self.link.finish_close();
        outcome
    }

    /// Looks for something that can be moved, returning whether there is nothing until the peer acts
    #[inline]
    pub(super) fn look_is_in_vain(&self) -> bool {
        self.link.is_at_rest() && self.lane.as_ref().is_some_and(|lane| !lane.look_for_news())
    }

    /// Returns what can be moved now, as far as the lane knows
    pub(super) fn waiting(&mut self) -> Waiting {
        let has_output = self.link.is_blocked();
        let lane = self.lane.as_mut().filter(|_| self.link.is_open());
        let (has_news, has_room) = lane.map_or((false, false), |lane| {
            (lane.has_unread(), has_output && lane.check_room(1))
        });
        Waiting {
            reads: has_news.then_some(self.reads),
            writes: has_room.then_some(self.writes),
        }
    }

    /// Takes the note that looks have moved something that the lane is not for
    pub(super) fn take_moved_else(&self) -> bool {
        let lane = self.lane.as_ref();
        lane.is_some_and(|lane| lane.take_moved_else())
    }

    /// Handles that the connection to the peer has ended beside the lane
    pub(super) fn handle_peer_ended(&mut self, detail: &str) {
        self.link.handle_peer_ended(detail);
    }

    /// Handles bytes that were read before the link was made
    pub(super) fn handle_read_ahead(&mut self) {
        self.link.handle_read_ahead(&Now::lazy());
    }

    /// Handles the passing of time, returning when to call next
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Instant> {
        // Asked only when an answer is overdue: it is a system call.
        if self.link.is_answer_overdue(now)
            && let Some(at) = self.lane.as_ref().and_then(|lane| lane.last_heard(now))
        {
            self.link.handle_heard(at);
        }
        self.link.handle_timeout(now);
        self.link.poll_timeout()
    }

    /// Handles that the first socket has ended beside the lane, with what the peer said last on it;
    /// `true` if the lane still brings what was sent before, and then ends by itself
    pub(super) fn handle_sentinel_end(&mut self, farewell: Option<Farewell>) -> bool {
        let lane = self.lane.as_mut();
        lane.is_some_and(|lane| lane.handle_sentinel_end(farewell))
    }

    /// Returns the bytes for the peer on the first socket, which ends now
    pub(super) fn farewell(&mut self) -> Option<Farewell> {
        self.lane.as_mut()?.farewell()
    }

    /// Returns the next event of the link
    pub(super) fn poll_event(&mut self) -> Option<LinkEvent<SendToken, RecvToken>> {
        self.link.poll_event()
    }

    /// Releases the lane, the carriers and the memory that was being sent, because the link has
    /// ended and the peer can see that
    ///
    /// Imported memory stays valid: it keeps the carrier's importing side.
    pub(super) fn end(&mut self) {
        self.lane = None;
        self.payloads.clear();
        self.carriers.clear();
        self.link.release_overtaken();
    }

    /// By which ways long messages come, and how fast they were
    pub(super) fn ways(&self) -> Vec<WayStatistics> {
        self.link.ways().statistics()
    }

    fn pump(&mut self, work: Work, outcome: &mut Outcome) {
        if work.mask
            && let Some(lane) = &mut self.lane
        {
            lane.disarm_read();
        }
        let mut moved_bytes = 0;
        while self.link.is_open() {
            let read = if work.read { self.read_some() } else { 0 };
            let written = self.write_some();
            moved_bytes += read + written;
            outcome.moved |= read + written > 0;
            if moved_bytes >= SLICE_BYTES {
                outcome.more = true;
                return;
            }
            if written > 0 || (read > 0 && !self.is_drained()) {
                continue;
            }
            match self.arm(work) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return self.handle_lane_error(error),
            }
        }
    }

    /// Asks to be woken as `work` says; `false` if there is something to do already
    fn arm(&mut self, work: Work) -> Result<bool, crate::lane::LaneError> {
        let blocked = self.link.is_blocked();
        let Some(lane) = &mut self.lane else {
            return Ok(true);
        };
        if work.arm_write {
            self.interest.set(None, Some(blocked));
            if blocked && !lane.arm_write()? {
                return Ok(false);
            }
        }
        if work.arm_read {
            self.interest.set(Some(true), None);
            if !lane.arm_read()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether another read would find nothing, without asking
    fn is_drained(&self) -> bool {
        // Payload of a carrier does not come on the lane.
        self.payloads.is_empty() && self.lane.as_ref().is_some_and(|lane| lane.is_drained())
    }

    /// Takes some of what has arrived, returning how many bytes
    fn read_some(&mut self) -> usize {
        let mut total = self.take_some();
        while total < READ_BYTES_MAX && self.link.is_open() {
            let Some(lane) = &mut self.lane else {
                break;
            };
            let mut targets = ReadTargets::new();
            self.link.read_targets(&mut targets);
            match lane.read(&mut targets) {
                Ok(Moved::Bytes(bytes)) => {
                    drop(targets);
                    self.reads += 1;
                    total += bytes;
                    self.link.handle_read(&Now::lazy(), bytes);
                    lane.handle_due(self.link.payload_due());
                    total += self.take_some();
                }
                Ok(Moved::Blocked) => break,
                Ok(Moved::End) => {
                    drop(targets);
                    self.link.handle_end();
                    break;
                }
                Err(error) => {
                    drop(targets);
                    self.link.handle_lane_error(error);
                    break;
                }
            }
            if self.is_drained() {
                break;
            }
        }
        total
    }

    /// A write fails when the peer has ended; what it sent before may still be here
    fn handle_lane_error(&mut self, error: crate::lane::LaneError) {
        while self.read_some() > 0 {}
        self.link.handle_lane_error(error);
    }

    /// Writes what the lane takes, returning how much that was
    fn write_some(&mut self) -> usize {
        if !self.link.may_write() {
            return 0;
        }
        while let Some(request) = self.link.poll_give() {
            let given = self.carriers.give(request.segment, request.carrier);
            let given = given.map(|(carrier, ticket)| Given { carrier, ticket });
            self.link.handle_given(given);
        }
        let Some(lane) = &mut self.lane else {
            return 0;
        };
        self.link.offer_at_least(lane.write_bytes());
        let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
        self.link.write_slices(&mut slices);
        if slices.is_empty() {
            return 0;
        }
        let written = lane.write(&slices);
        drop(slices);
        match written {
            Ok(Moved::Bytes(bytes)) => {
                self.writes += 1;
                self.link.handle_written(bytes);
                bytes
            }
            Ok(Moved::Blocked) => 0,
            Ok(Moved::End) => {
                let end = io::Error::from(io::ErrorKind::BrokenPipe);
                self.handle_lane_error(end.into());
                0
            }
            Err(error) => {
                self.handle_lane_error(error);
                0
            }
        }
    }
}

/// Bytes moved under the lock before others may have it
const SLICE_BYTES: usize = 1 << 20;

/// Bytes that carriers bring for a caller who only posts: about what a wake-up takes
const POSTER_BYTES_MAX: u64 = 128 << 10;

/// Bytes taken from the lane before it is the writer's turn again
const READ_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests;
