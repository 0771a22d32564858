//! The receiving half: messages arrive, meet their receives, and long ones are asked for.

use std::collections::{BTreeMap, VecDeque};

use slab::Slab;

use super::early::EarlyAccepts;
use super::event::{Event, Incoming, Posted as Outcome, Store};
use crate::credit::RecvCredit;
use crate::decoder::{Frame, SegmentBytes};
use crate::error::{ProtocolError, RecvRefused};
use crate::frame::{FrameHeader, FrameKind};
use crate::ids::{ArrivalId, Capacity, MessageKind, RecvId, Selector, Tag, TagMask};
use crate::limits::Limits;
use crate::matching::Matcher;

/// Messages on their way from the peer, and the receives for them
#[derive(Debug)]
pub(super) struct RecvHalf {
    credit: RecvCredit,
    /// Messages that are not over: bytes are missing, or no receive has them
    arrivals: Slab<Arrival>,
    tagged: Matcher<Posted, ArrivalId>,
    /// All with tag 0, so both queues are plain ones
    untagged: Matcher<Posted, ArrivalId>,
    /// Requested messages of which bytes are missing, by message number
    unfinished: BTreeMap<u64, ArrivalId>,
    early: EarlyAccepts,
    /// Bytes prepared for messages that have not met a receive
    unexpected_bytes: u64,
    /// Payload that comes next on the lane
    announced: Option<(ArrivalId, u64)>,
    /// Accepts and skips to transmit; at most one for each receive posted or early accept
    answers: VecDeque<FrameHeader>,
    peer_closed: bool,
    recvs_max: usize,
}

/// A receive
#[derive(Clone, Copy, Debug)]
struct Posted {
    recv: RecvId,
    capacity: Capacity,
}

/// A message that has started and is not over
#[derive(Debug)]
struct Arrival {
    message: u64,
    kind: MessageKind,
    is_eager: bool,
    bytes: u64,
    /// Bytes that are not stored yet
    missing_bytes: u64,
    /// Sizes of its segments until the driver knows them: in a request that was not accepted
    layout: Option<SegmentBytes>,
    /// The receive it has met
    claim: Option<Posted>,
}

impl RecvHalf {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            credit: RecvCredit::new(limits.credit_messages, limits.credit_bytes),
            arrivals: Slab::new(),
            tagged: Matcher::default(),
            untagged: Matcher::default(),
            unfinished: BTreeMap::new(),
            early: EarlyAccepts::new(limits.early_accept_bytes_max),
            unexpected_bytes: 0,
            announced: None,
            answers: VecDeque::new(),
            peer_closed: false,
            recvs_max: limits.recvs_max,
        }
    }

    pub(super) fn post(
        &mut self,
        recv: RecvId,
        selector: Selector,
        capacity: Capacity,
        events: &mut VecDeque<Event>,
    ) -> Result<Outcome, RecvRefused> {
        let posted_len = self.posted_len();
        let (matcher, tag, mask) = match selector {
            Selector::Tagged { tag, mask } => (&mut self.tagged, tag, mask),
            Selector::Untagged => (&mut self.untagged, UNTAGGED, TagMask::FULL),
        };
        let posted = Posted { recv, capacity };
        if let Some(arrival) = matcher.take_unexpected(tag, mask) {
            self.claim_unexpected(arrival, posted, events);
            return Ok(Outcome::Met);
        }
        if self.peer_closed {
            return Err(RecvRefused::Closed);
        }
        if posted_len >= self.recvs_max {
            return Err(RecvRefused::QueueFull {
                max: self.recvs_max,
            });
        }
        matcher.push_posted(tag, mask, posted);
        Ok(Outcome::Waits)
    }

    pub(super) fn cancel(&mut self, recv: RecvId) -> bool {
        let is_it = |posted: &Posted| posted.recv == recv;
        self.tagged.cancel(is_it).is_some() || self.untagged.cancel(is_it).is_some()
    }

    /// Handles the start of a message
    pub(super) fn handle_start(
        &mut self,
        frame: Frame,
        events: &mut VecDeque<Event>,
    ) -> Result<Incoming, ProtocolError> {
        self.check_start(&frame.header)?;
        if frame.header.kind == FrameKind::Eager {
            Ok(self.start_eager(frame, events))
        } else {
            self.start_request(frame, events);
            Ok(Incoming::Control)
        }
    }

    /// Handles the start of an eager message that is here whole, if a receive waits for it
    pub(super) fn start_at_once(
        &mut self,
        header: &FrameHeader,
    ) -> Result<Option<RecvId>, ProtocolError> {
        if header.kind != FrameKind::Eager || header.segment_count != 1 {
            return Ok(None);
        }
        let bytes = header.payload_bytes;
        let (matcher, tag) = match header.message_kind() {
            MessageKind::Tagged(tag) => (&self.tagged, tag),
            MessageKind::Untagged => (&self.untagged, UNTAGGED),
        };
        let fits = |posted: &Posted| matches!(posted.capacity, Capacity::Into(max) if bytes <= max);
        let Some(index) = matcher.find_posted(tag, fits) else {
            return Ok(None);
        };
        self.check_start(header)?;
        self.credit.release(bytes);
        let matcher = if header.untagged {
            &mut self.untagged
        } else {
            &mut self.tagged
        };
        Ok(matcher.take_posted(index).map(|posted| posted.recv))
    }

    /// Handles the header of a piece of a long message, sent or lent
    pub(super) fn handle_piece(&mut self, header: &FrameHeader) -> Result<Incoming, ProtocolError> {
        self.check_open(header.kind)?;
        let message = header.message;
        let unfinished = self.unfinished.get(&message).copied();
        let accepted = unfinished
            .map(|arrival| (arrival, &self.arrivals[arrival.0]))
            .filter(|(_, state)| state.layout.is_none());
        let Some((arrival, state)) = accepted else {
            return Err(ProtocolError::NotAwaited {
                kind: header.kind.code(),
                message,
            });
        };
        let bytes = header.payload_bytes;
        if bytes > state.missing_bytes {
            return Err(ProtocolError::TooMuchData {
                message,
                bytes,
                left: state.missing_bytes,
            });
        }
        self.announced = Some((arrival, bytes));
        Ok(match header.kind {
            FrameKind::Lease => Incoming::Leased {
                arrival,
                bytes,
                ticket: header.tag,
            },
            _ => Incoming::Payload { arrival, bytes },
        })
    }

    /// Handles that the payload announced last is stored
    pub(super) fn handle_payload(&mut self, arrival: ArrivalId, events: &mut VecDeque<Event>) {
        let announced = self.announced.take();
        let bytes = match announced {
            Some((announced, bytes)) if announced == arrival => bytes,
            _ => panic!("payload of {arrival:?} was not announced, but {announced:?}"),
        };
        let state = &mut self.arrivals[arrival.0];
        state.missing_bytes -= bytes;
        if state.missing_bytes == 0 && !state.is_eager {
            self.unfinished.remove(&state.message);
        }
        self.finish_if_over(arrival, events);
    }

    /// Handles that the peer sends no further message
    pub(super) fn handle_close(
        &mut self,
        events: &mut VecDeque<Event>,
    ) -> Result<(), ProtocolError> {
        self.check_open(FrameKind::Close)?;
        if !self.unfinished.is_empty() {
            return Err(ProtocolError::CloseTooEarly {
                unfinished: self.unfinished.len(),
            });
        }
        self.peer_closed = true;
        for posted in self
            .tagged
            .drain_posted()
            .chain(self.untagged.drain_posted())
        {
            events.push_back(Event::RecvClosed { recv: posted.recv });
        }
        events.push_back(Event::PeerClosed);
        Ok(())
    }

    /// The next frame to the peer about its messages
    pub(super) fn poll_control(&mut self) -> Option<FrameHeader> {
        if let Some((messages, bytes)) = self.credit.poll_grant() {
            return Some(FrameHeader {
                tag: bytes,
                ..FrameHeader::bare(FrameKind::Credit, messages)
            });
        }
        self.answers.pop_front()
    }

    pub(super) fn has_control(&self) -> bool {
        self.credit.has_grant() || !self.answers.is_empty()
    }

    /// Whether the driver owes a payload before it may hand in the next frame
    pub(super) const fn awaits_payload(&self) -> bool {
        self.announced.is_some()
    }

    pub(super) const fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    pub(super) fn posted_len(&self) -> usize {
        self.tagged.posted_len() + self.untagged.posted_len()
    }

    pub(super) fn unexpected_len(&self) -> usize {
        self.tagged.unexpected_len() + self.untagged.unexpected_len()
    }

    pub(super) const fn unexpected_bytes(&self) -> u64 {
        self.unexpected_bytes
    }

    fn check_open(&self, kind: FrameKind) -> Result<(), ProtocolError> {
        if self.peer_closed {
            return Err(ProtocolError::AfterClose { kind: kind.code() });
        }
        Ok(())
    }

    /// Checks that the peer may start a message, and counts it
    fn check_start(&mut self, header: &FrameHeader) -> Result<(), ProtocolError> {
        self.check_open(header.kind)?;
        let is_eager = header.kind == FrameKind::Eager;
        let eager_bytes = if is_eager { header.payload_bytes } else { 0 };
        let expected = self.credit.handle_start(eager_bytes)?;
        if header.message == expected {
            Ok(())
        } else {
            Err(ProtocolError::OutOfOrder {
                message: header.message,
                expected,
            })
        }
    }

    fn start_eager(&mut self, frame: Frame, events: &mut VecDeque<Event>) -> Incoming {
        let bytes = frame.header.payload_bytes;
        let (arrival, claim) = self.insert(&frame.header, None);
        let store = match claim {
            Some(posted) if posted.capacity.exceeded_by(bytes).is_some() => Store::Discard,
            Some(posted) => Store::Into(posted.recv),
            None => {
                self.unexpected_bytes += bytes;
                Store::Allocate
            }
        };
        events.push_back(Event::Prepare {
            arrival,
            segment_bytes: frame.segment_bytes,
            store,
        });
        if bytes == 0 {
            self.finish_if_over(arrival, events);
            return Incoming::Control;
        }
        self.announced = Some((arrival, bytes));
        Incoming::Payload { arrival, bytes }
    }

    fn start_request(&mut self, frame: Frame, events: &mut VecDeque<Event>) {
        let (arrival, claim) = self.insert(&frame.header, Some(frame.segment_bytes));
        self.unfinished.insert(frame.header.message, arrival);
        match claim {
            Some(posted) => self.answer_request(arrival, posted, events),
            None if frame.header.untagged => {
                self.early.push(arrival, frame.header.payload_bytes);
                self.accept_early(events);
            }
            None => {}
        }
    }

    /// Makes an arrival of a message that starts, with the receive it meets
    fn insert(
        &mut self,
        header: &FrameHeader,
        layout: Option<SegmentBytes>,
    ) -> (ArrivalId, Option<Posted>) {
        let arrival = ArrivalId(self.arrivals.vacant_key());
        let kind = header.message_kind();
        let claim = match kind {
            MessageKind::Tagged(tag) => self.tagged.arrive(tag, arrival),
            MessageKind::Untagged => self.untagged.arrive(UNTAGGED, arrival),
        };
        let is_eager = header.kind == FrameKind::Eager;
        let bytes = header.payload_bytes;
        self.arrivals.insert(Arrival {
            message: header.message,
            kind,
            is_eager,
            bytes,
            missing_bytes: bytes,
            layout,
            claim,
        });
        if claim.is_some() {
            self.credit.release(if is_eager { bytes } else { 0 });
        }
        (arrival, claim)
    }

    /// A receive is posted for a message that was there before it
    fn claim_unexpected(
        &mut self,
        arrival: ArrivalId,
        posted: Posted,
        events: &mut VecDeque<Event>,
    ) {
        let state = &mut self.arrivals[arrival.0];
        state.claim = Some(posted);
        let (is_eager, bytes) = (state.is_eager, state.bytes);
        let is_untagged = state.kind == MessageKind::Untagged;
        self.credit.release(if is_eager { bytes } else { 0 });
        if state.layout.is_some() {
            if is_untagged {
                self.early.handle_met(arrival);
            }
            self.answer_request(arrival, posted, events);
        } else {
            self.unexpected_bytes -= bytes;
            if !is_eager {
                self.early.release(bytes);
            }
            self.finish_if_over(arrival, events);
        }
        if is_untagged {
            self.accept_early(events);
        }
    }

    /// A request has met its receive: ask for the bytes if they fit, else skip them
    fn answer_request(&mut self, arrival: ArrivalId, posted: Posted, events: &mut VecDeque<Event>) {
        let state = &self.arrivals[arrival.0];
        if posted.capacity.exceeded_by(state.bytes).is_some() {
            let message = state.message;
            self.answers
                .push_back(FrameHeader::bare(FrameKind::Skip, message));
            self.unfinished.remove(&message);
            self.finish(arrival, posted, events);
        } else {
            self.accept(arrival, Store::Into(posted.recv), events);
        }
    }

    /// Accepts untagged requests that no receive has asked for, while there is room
    fn accept_early(&mut self, events: &mut VecDeque<Event>) {
        while let Some((arrival, bytes)) = self.early.poll() {
            self.unexpected_bytes += bytes;
            self.accept(arrival, Store::Allocate, events);
        }
    }

    fn accept(&mut self, arrival: ArrivalId, store: Store, events: &mut VecDeque<Event>) {
        let state = &mut self.arrivals[arrival.0];
        let layout = state.layout.take();
        self.answers
            .push_back(FrameHeader::bare(FrameKind::Accept, state.message));
        events.push_back(Event::Prepare {
            arrival,
            segment_bytes: layout.expect("a request is accepted once"),
            store,
        });
    }

    /// Ends an arrival that has a receive and lacks nothing
    fn finish_if_over(&mut self, arrival: ArrivalId, events: &mut VecDeque<Event>) {
        let state = &self.arrivals[arrival.0];
        if let Some(posted) = state.claim
            && state.missing_bytes == 0
        {
            self.finish(arrival, posted, events);
        }
    }

    fn finish(&mut self, arrival: ArrivalId, posted: Posted, events: &mut VecDeque<Event>) {
        let state = self.arrivals.remove(arrival.0);
        let recv = posted.recv;
        events.push_back(match posted.capacity.exceeded_by(state.bytes) {
            Some(capacity_bytes) => Event::RecvTruncated {
                recv,
                arrival,
                message_bytes: state.bytes,
                capacity_bytes,
            },
            None => Event::RecvComplete {
                recv,
                arrival,
                kind: state.kind,
                bytes: state.bytes,
            },
        });
    }
}

/// The tag under which untagged messages are matched with each other
const UNTAGGED: Tag = Tag(0);

#[cfg(test)]
mod tests;
