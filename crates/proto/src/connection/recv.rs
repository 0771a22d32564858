//! The receiving half: messages arrive, meet their receives, and long ones are asked for.

mod answers;
mod withdraw;

use std::collections::{BTreeMap, VecDeque};

use slab::Slab;

use super::early::EarlyAccepts;
use super::event::{Event, Incoming, Posted as Outcome, Store};
use super::inline::Inline;
use crate::credit::{Cost, RecvCredit};
use crate::decoder::{Frame, SegmentBytes};
use crate::error::{ProtocolError, RecvRefused};
use crate::frame::{FrameHeader, FrameKind};
use crate::ids::{ArrivalId, Capacity, MessageKind, RecvId, Selector, Tag, TagMask};
use crate::limits::Limits;
use crate::matching::Matcher;
use crate::memory::SourceTable;
use crate::queue::Notes;

use withdraw::Whereabouts;

/// Messages on their way from the peer, and the receives for them
#[derive(Debug)]
pub(super) struct RecvHalf {
    credit: RecvCredit,
    /// Number of the next message of the peer
    next_message: u64,
    /// Messages that are not over: bytes are missing, or no receive has them
    arrivals: Slab<Arrival>,
    tagged: Matcher<Posted, ArrivalId>,
    /// All with tag 0, so both queues are plain ones
    untagged: Matcher<Posted, ArrivalId>,
    /// Where each receive was last: it may be over
    whereabouts: Notes<Whereabouts>,
    /// Requested messages that frames may come for, by message number
    unfinished: BTreeMap<u64, ArrivalId>,
    early: EarlyAccepts,
    /// Bytes prepared for messages that have not met a receive
    unexpected_bytes: u64,
    /// Payload that comes next on the lane
    announced: Option<(ArrivalId, u64)>,
    /// Answers to requests; at most one for each receive posted or early accept
    answers: VecDeque<FrameHeader>,
    peer_closed: bool,
    recvs_max: usize,
    piece_bytes_max: u64,
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
    bytes: u64,
    /// Bytes that no frame has announced yet
    unannounced_bytes: u64,
    /// Bytes that are not stored yet
    missing_bytes: u64,
    stage: Stage,
    /// Credit that it takes while it has no receive
    cost: Cost,
    /// Bytes that count as fetched before a receive asked for them
    early_bytes: u64,
    /// The receive it has met
    claim: Option<Posted>,
    /// Its bytes are dropped as they come
    is_discarded: bool,
}

/// Where the bytes of a message are to come from
#[derive(Debug)]
enum Stage {
    /// Behind its first frame
    Eager,
    /// Nowhere yet: it was announced, with the sizes and places of its segments
    Requested(Box<(SegmentBytes, Option<SourceTable>)>),
    /// The driver has an event, and has not said how it wants them
    Asked,
    /// The driver fetches them
    Fetching,
    /// In frames, as the driver has accepted it
    Accepted,
}

impl RecvHalf {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            credit: RecvCredit::new(limits.credit_messages, limits.credit_bytes),
            next_message: 0,
            arrivals: Slab::new(),
            tagged: Matcher::default(),
            untagged: Matcher::default(),
            whereabouts: Notes::default(),
            unfinished: BTreeMap::new(),
            early: EarlyAccepts::new(limits.early_accept_bytes_max),
            unexpected_bytes: 0,
            announced: None,
            answers: VecDeque::new(),
            peer_closed: false,
            recvs_max: limits.recvs_max,
            piece_bytes_max: limits.data_chunk_bytes.max(1),
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
        let ticket = matcher.push_posted(tag, mask, posted);
        let place = match selector {
            Selector::Tagged { .. } => Whereabouts::Tagged(ticket),
            Selector::Untagged => Whereabouts::Untagged(ticket),
        };
        self.whereabouts.put(recv.0, place);
        if self.credit.has_grant(true) {
            return Ok(Outcome::Grants);
        }
        Ok(Outcome::Waits)
    }

    /// The tagged message that a receive would take now: its tag and size
    pub(super) fn probe(&self, tag: Tag, mask: TagMask) -> Option<(Tag, u64)> {
        let (tag, arrival) = self.tagged.find_unexpected(tag, mask)?;
        Some((tag, self.arrivals[arrival.0].bytes))
    }

    /// Handles the start of a message
    pub(super) fn handle_start(
        &mut self,
        frame: Frame,
        events: &mut VecDeque<Event>,
    ) -> Result<Incoming, ProtocolError> {
        let cost = self.check_start(&frame.header)?;
        if frame.header.kind == FrameKind::Eager {
            Ok(self.start_eager(frame, cost, events))
        } else {
            self.start_request(frame, cost, events);
            Ok(Incoming::Control)
        }
    }

    /// Handles the start of an eager message that is here whole, unless its receive is too small
    pub(super) fn start_inline(
        &mut self,
        header: &FrameHeader,
    ) -> Result<Option<Inline>, ProtocolError> {
        if header.kind != FrameKind::Eager {
            return Ok(None);
        }
        let bytes = header.payload_bytes;
        let kind = header.message_kind();
        let (matcher, tag) = match kind {
            MessageKind::Tagged(tag) => (&self.tagged, tag),
            MessageKind::Untagged => (&self.untagged, UNTAGGED),
        };
        let Some((index, posted)) = matcher.find_posted(tag) else {
            return self.keep_inline(header).map(Some);
        };
        if posted.capacity.exceeded_by(bytes).is_some() {
            return Ok(None);
        }
        let recv = posted.recv;
        let cost = self.check_start(header)?;
        self.credit.release(cost);
        let matcher = match kind {
            MessageKind::Tagged(_) => &mut self.tagged,
            MessageKind::Untagged => &mut self.untagged,
        };
        matcher.take_posted(index);
        let message = header.message;
        Ok(Some(Inline::Received { recv, message }))
    }

    /// Keeps a message that is here whole, and that no receive waits for
    fn keep_inline(&mut self, header: &FrameHeader) -> Result<Inline, ProtocolError> {
        let cost = self.check_start(header)?;
        let arrival = self.insert(header, Stage::Eager, cost);
        let state = &mut self.arrivals[arrival.0];
        state.unannounced_bytes = 0;
        state.missing_bytes = 0;
        self.unexpected_bytes += header.payload_bytes;
        Ok(Inline::Kept { arrival })
    }

    /// Handles the header of a piece of a long message, on the lane or by a carrier
    pub(super) fn handle_piece(&mut self, header: &FrameHeader) -> Result<Incoming, ProtocolError> {
        self.check_open(header.kind)?;
        let message = header.message;
        let unfinished = self.unfinished.get(&message).copied();
        let accepted =
            unfinished.filter(|arrival| matches!(self.arrivals[arrival.0].stage, Stage::Accepted));
        let Some(arrival) = accepted else {
            return Err(ProtocolError::NotAwaited {
                kind: header.kind.code(),
                message,
            });
        };
        let state = &mut self.arrivals[arrival.0];
        let bytes = header.payload_bytes;
        if bytes > state.unannounced_bytes {
            return Err(ProtocolError::TooMuchData {
                message,
                bytes,
                left: state.unannounced_bytes,
            });
        }
        if header.kind == FrameKind::Data && bytes > self.piece_bytes_max {
            return Err(ProtocolError::PieceTooLarge {
                message,
                bytes,
                max: self.piece_bytes_max,
            });
        }
        let offset = state.bytes - state.unannounced_bytes;
        state.unannounced_bytes -= bytes;
        if state.unannounced_bytes == 0 {
            self.unfinished.remove(&message);
        }
        if header.kind == FrameKind::Carried {
            return Ok(Incoming::Carried {
                arrival,
                offset,
                bytes,
                carrier: header.carrier,
                ticket: header.tag,
            });
        }
        self.announced = Some((arrival, bytes));
        Ok(Incoming::Payload { arrival, bytes })
    }

    /// Handles that the payload announced last is stored
    pub(super) fn handle_payload(&mut self, arrival: ArrivalId, events: &mut VecDeque<Event>) {
        let announced = self.announced.take();
        let bytes = match announced {
            Some((announced, bytes)) if announced == arrival => bytes,
            _ => panic!("payload of {arrival:?} was not announced, but {announced:?}"),
        };
        self.handle_stored(arrival, bytes, events);
    }

    /// Handles that bytes of a message are stored
    pub(super) fn handle_stored(
        &mut self,
        arrival: ArrivalId,
        bytes: u64,
        events: &mut VecDeque<Event>,
    ) {
        let state = &mut self.arrivals[arrival.0];
        assert!(
            bytes <= state.missing_bytes - state.unannounced_bytes,
            "{bytes} bytes of {arrival:?} were not announced"
        );
        state.missing_bytes -= bytes;
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
        let is_awaited = self.posted_len() > 0;
        if let Some((messages, bytes)) = self.credit.poll_grant(is_awaited) {
            return Some(FrameHeader {
                tag: bytes,
                ..FrameHeader::bare(FrameKind::Credit, messages)
            });
        }
        self.answers.pop_front()
    }

    #[inline]
    pub(super) fn has_control(&self) -> bool {
        self.credit.has_grant(self.posted_len() > 0) || !self.answers.is_empty()
    }

    /// Returns whether the driver owes a payload before it may hand in the next frame
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
    fn check_start(&mut self, header: &FrameHeader) -> Result<Cost, ProtocolError> {
        self.check_open(header.kind)?;
        let cost = if header.kind == FrameKind::Eager {
            self.credit
                .cost_of_eager(header.payload_bytes, header.segment_count)
        } else {
            self.credit.cost_of_request(header.segment_count)
        };
        let expected = self.next_message;
        self.credit.handle_start(expected, cost)?;
        if header.message == expected {
            self.next_message += 1;
            Ok(cost)
        } else {
            Err(ProtocolError::OutOfOrder {
                message: header.message,
                expected,
            })
        }
    }

    fn start_eager(&mut self, frame: Frame, cost: Cost, events: &mut VecDeque<Event>) -> Incoming {
        let bytes = frame.header.payload_bytes;
        let arrival = self.insert(&frame.header, Stage::Eager, cost);
        let state = &mut self.arrivals[arrival.0];
        state.unannounced_bytes = 0;
        let store = match state.claim {
            Some(posted) if posted.capacity.exceeded_by(bytes).is_some() => {
                state.is_discarded = true;
                Store::Discard
            }
            Some(posted) => Store::Into(posted.recv),
            None => {
                self.unexpected_bytes += bytes;
                Store::Allocate
            }
        };
        events.push_back(Event::Prepare {
            arrival,
            segment_bytes: frame.segment_bytes,
            sources: None,
            store,
            asks: false,
        });
        if bytes == 0 {
            self.finish_if_over(arrival, events);
            return Incoming::Control;
        }
        self.announced = Some((arrival, bytes));
        Incoming::Payload { arrival, bytes }
    }

    fn start_request(&mut self, frame: Frame, cost: Cost, events: &mut VecDeque<Event>) {
        let stage = Stage::Requested(Box::new((frame.segment_bytes, frame.sources)));
        let arrival = self.insert(&frame.header, stage, cost);
        self.unfinished.insert(frame.header.message, arrival);
        match self.arrivals[arrival.0].claim {
            Some(posted) => self.answer_request(arrival, posted, events),
            None if frame.header.untagged => {
                self.early.push(arrival, frame.header.payload_bytes);
                self.accept_early(events);
            }
            None => {}
        }
    }

    /// Makes an arrival of a message that starts, with the receive it meets
    fn insert(&mut self, header: &FrameHeader, stage: Stage, cost: Cost) -> ArrivalId {
        let arrival = ArrivalId(self.arrivals.vacant_key());
        let kind = header.message_kind();
        let message = header.message;
        let claim = match kind {
            MessageKind::Tagged(tag) => self.tagged.arrive(tag, message, arrival),
            MessageKind::Untagged => self.untagged.arrive(UNTAGGED, message, arrival),
        };
        let bytes = header.payload_bytes;
        self.arrivals.insert(Arrival {
            message,
            kind,
            bytes,
            unannounced_bytes: bytes,
            missing_bytes: bytes,
            stage,
            cost,
            early_bytes: 0,
            claim,
            is_discarded: false,
        });
        if let Some(posted) = claim {
            self.note_met(posted, arrival);
            self.credit.release(cost);
        }
        arrival
    }

    /// A receive is posted for a message that was there before it
    fn claim_unexpected(
        &mut self,
        arrival: ArrivalId,
        posted: Posted,
        events: &mut VecDeque<Event>,
    ) {
        self.note_met(posted, arrival);
        let state = &mut self.arrivals[arrival.0];
        state.claim = Some(posted);
        self.credit.release(state.cost);
        let is_untagged = state.kind == MessageKind::Untagged;
        if matches!(state.stage, Stage::Requested(..)) {
            if is_untagged {
                self.early.handle_met(arrival);
            }
            self.answer_request(arrival, posted, events);
        } else {
            self.unexpected_bytes -= state.bytes;
            self.early.release(std::mem::take(&mut state.early_bytes));
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
            self.ask(arrival, Store::Into(posted.recv), events);
        }
    }

    /// Asks for untagged requests that no receive has asked for, while there is room
    fn accept_early(&mut self, events: &mut VecDeque<Event>) {
        while let Some((arrival, bytes)) = self.early.poll() {
            self.unexpected_bytes += bytes;
            self.arrivals[arrival.0].early_bytes = bytes;
            self.ask(arrival, Store::Allocate, events);
        }
    }

    /// Has the driver choose how the bytes of a request come
    fn ask(&mut self, arrival: ArrivalId, store: Store, events: &mut VecDeque<Event>) {
        let state = &mut self.arrivals[arrival.0];
        let Stage::Requested(told) = std::mem::replace(&mut state.stage, Stage::Asked) else {
            unreachable!("a request is asked for once");
        };
        let (segment_bytes, sources) = *told;
        events.push_back(Event::Prepare {
            arrival,
            segment_bytes,
            sources,
            store,
            asks: true,
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
                message: state.message,
                bytes: state.bytes,
            },
        });
    }
}

/// The tag under which untagged messages are matched with each other
const UNTAGGED: Tag = Tag(0);

#[cfg(test)]
mod tests;
