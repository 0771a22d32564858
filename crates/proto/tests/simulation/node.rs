//! One side: a driver that is as thin as drivers should be, and checks that watch it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use backhaul_proto::{ArrivalId, HEADER_BYTES};
use backhaul_proto::{
    Capacity, Connection, Event, FrameDecoder, FrameHeader, FrameKind, Incoming, KeepAliveExpired,
    Limits, MessageKind, PayloadRange, PeerLimits, RecvId, RecvRefused, Selector, SendId,
    SendRefused, Span, Store,
};
use slab::Slab;

use crate::lane::Lane;
use crate::model::{Model, Waiting};
use crate::rng::Rng;

/// Messages that one side has started, in order
pub(crate) type Journal = Rc<RefCell<Vec<Message>>>;

/// Bytes that one side has lent, by ticket
pub(crate) type Loans = Rc<RefCell<Vec<Vec<u8>>>>;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    pub(crate) segment_bytes: Vec<u64>,
    pub(crate) content: Vec<u8>,
}

pub(crate) struct Node {
    pub(crate) limits: Limits,
    pub(crate) peer: PeerLimits,
    pub(crate) connection: Connection,
    decoder: FrameDecoder,
    sends: Slab<Message>,
    recvs: Slab<Capacity>,
    arrivals: HashMap<ArrivalId, Arrival>,
    /// Payload that is being read, with the bytes it lacks
    payload: Option<(ArrivalId, usize)>,
    /// The frame that is being written
    writing: Option<Writing>,
    /// Sends of which no frame was polled, oldest first
    unstarted: VecDeque<SendId>,
    /// What this side has started
    pub(crate) sent: Journal,
    /// What the peer has started
    pub(crate) incoming: Journal,
    /// What this side has lent, by ticket: memory that both sides reach
    pub(crate) lent: Loans,
    /// What the peer has lent
    pub(crate) borrowed: Loans,
    /// Messages of the peer of which the start has come
    arrived: usize,
    pub(crate) model: Model,
    pub(crate) closed: bool,
    pub(crate) peer_closed: bool,
    pub(crate) tally: Tally,
}

/// How operations ended
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    pub(crate) begun: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) truncated: u64,
    pub(crate) cancelled: u64,
    pub(crate) closed: u64,
    pub(crate) failed: u64,
    pub(crate) requested: u64,
    pub(crate) lent: u64,
}

impl Tally {
    fn ended(&self) -> u64 {
        self.sent + self.received + self.truncated + self.cancelled + self.closed + self.failed
    }
}

struct Arrival {
    segment_bytes: Vec<u64>,
    store: Store,
    content: Vec<u8>,
}

struct Writing {
    bytes: Vec<u8>,
    written: usize,
    completes: Option<SendId>,
}

impl Node {
    pub(crate) fn new(
        limits: Limits,
        peer: PeerLimits,
        sent: Journal,
        incoming: Journal,
        [lent, borrowed]: [Loans; 2],
        now: Instant,
    ) -> Self {
        Self {
            connection: Connection::new(limits.clone(), peer, now),
            limits,
            peer,
            decoder: FrameDecoder::new(),
            sends: Slab::new(),
            recvs: Slab::new(),
            arrivals: HashMap::new(),
            payload: None,
            writing: None,
            unstarted: VecDeque::new(),
            sent,
            incoming,
            lent,
            borrowed,
            arrived: 0,
            model: Model::default(),
            closed: false,
            peer_closed: false,
            tally: Tally::default(),
        }
    }

    pub(crate) fn send(&mut self, message: Message) {
        let bytes: u64 = message.segment_bytes.iter().sum();
        let bytes_max = self
            .limits
            .message_bytes_max
            .min(self.peer.message_bytes_max);
        let segments_max = self.limits.segments_max.min(self.peer.segments_max);
        let expected = if self.closed {
            Err(SendRefused::Closed)
        } else if message.segment_bytes.len() > segments_max as usize {
            Err(SendRefused::TooManySegments {
                segments: message.segment_bytes.len(),
                max: segments_max,
            })
        } else if bytes > bytes_max {
            Err(SendRefused::TooLarge {
                bytes,
                max: bytes_max,
            })
        } else if self.unstarted.len() >= self.limits.sends_max {
            Err(SendRefused::QueueFull {
                max: self.limits.sends_max,
            })
        } else {
            Ok(())
        };
        let entry = self.sends.vacant_entry();
        let id = SendId(entry.key());
        let lendable = lendable(&message.segment_bytes);
        let result =
            self.connection
                .send_lendable(id, message.kind, &message.segment_bytes, &lendable);
        assert_eq!(result, expected);
        if result.is_ok() {
            entry.insert(message);
            self.unstarted.push_back(id);
            self.tally.begun += 1;
        }
        self.drain_events();
    }

    /// Posts a receive, returning whether it was taken
    pub(crate) fn post(
        &mut self,
        selector: Selector,
        capacity: Capacity,
    ) -> Result<(), RecvRefused> {
        let expected = if self.model.has(selector) {
            Ok(())
        } else if self.peer_closed {
            Err(RecvRefused::Closed)
        } else if self.model.posted.len() >= self.limits.recvs_max {
            Err(RecvRefused::QueueFull {
                max: self.limits.recvs_max,
            })
        } else {
            Ok(())
        };
        let entry = self.recvs.vacant_entry();
        let id = RecvId(entry.key());
        let result = self.connection.post_recv(id, selector, capacity).map(drop);
        assert_eq!(result, expected);
        if result.is_ok() {
            entry.insert(capacity);
            self.model.post(selector, id);
            self.tally.begun += 1;
        }
        self.drain_events();
        result
    }

    pub(crate) fn cancel_any_send(&mut self, rng: &mut Rng) {
        let ids: Vec<usize> = self.sends.iter().map(|(id, _)| id).collect();
        if ids.is_empty() {
            return;
        }
        let id = SendId(rng.pick(&ids));
        let index = self.unstarted.iter().position(|unstarted| *unstarted == id);
        assert_eq!(self.connection.cancel_send(id), index.is_some());
        if let Some(index) = index {
            self.unstarted.remove(index);
            self.sends.remove(id.0);
            self.tally.cancelled += 1;
        }
        self.drain_events();
    }

    pub(crate) fn cancel_any_recv(&mut self, rng: &mut Rng) {
        let ids: Vec<usize> = self.recvs.iter().map(|(id, _)| id).collect();
        if ids.is_empty() {
            return;
        }
        let id = RecvId(rng.pick(&ids));
        let waited = self.model.cancel(id);
        assert_eq!(self.connection.cancel_recv(id), waited);
        if waited {
            self.recvs.remove(id.0);
            self.tally.cancelled += 1;
        }
        self.drain_events();
    }

    pub(crate) fn close(&mut self, now: Instant) {
        self.closed = true;
        self.connection.close(now);
    }

    /// Writes what the lane takes, returning whether it took anything
    pub(crate) fn write(&mut self, now_ns: u64, lane: &mut Lane, rng: &mut Rng) -> bool {
        if self.writing.is_none() {
            self.poll_frame();
        }
        let Some(writing) = &mut self.writing else {
            return false;
        };
        let count = lane.write(now_ns, &writing.bytes[writing.written..], rng);
        writing.written += count;
        if writing.written == writing.bytes.len() {
            if let Some(send) = writing.completes {
                self.sends.remove(send.0);
                self.tally.sent += 1;
            }
            self.writing = None;
        }
        self.check();
        count > 0
    }

    /// Handles bytes from the lane
    pub(crate) fn read(&mut self, now: Instant, mut bytes: &[u8]) {
        // On the narrowest lanes a frame takes longer than a peer may be silent.
        self.connection.handle_activity(now);
        while !bytes.is_empty() {
            if let Some((arrival, missing)) = &mut self.payload {
                let count = bytes.len().min(*missing);
                let stored = self.arrivals.get_mut(arrival).expect("was prepared");
                stored.content.extend_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                *missing -= count;
                if *missing == 0 {
                    let arrival = *arrival;
                    self.payload = None;
                    self.connection.handle_payload(now, arrival);
                    self.drain_events();
                }
                continue;
            }
            let (used, frame) = self
                .decoder
                .handle(&self.limits, bytes)
                .expect("the peer sends good frames");
            bytes = &bytes[used..];
            let Some(frame) = frame else { continue };
            self.note_start(&frame.header);
            let incoming = self
                .connection
                .handle_frame(now, frame)
                .expect("the peer keeps the protocol");
            self.drain_events();
            match incoming {
                Incoming::Control => {}
                Incoming::Payload { arrival, bytes } => {
                    assert!(bytes > 0);
                    self.payload = Some((arrival, bytes as usize));
                }
                Incoming::Leased {
                    arrival,
                    bytes,
                    ticket,
                } => {
                    let loan = self.borrowed.borrow()[ticket as usize].clone();
                    assert_eq!(loan.len() as u64, bytes);
                    let stored = self.arrivals.get_mut(&arrival).expect("was prepared");
                    stored.content.extend_from_slice(&loan);
                    self.connection.handle_payload(now, arrival);
                    self.drain_events();
                }
            }
        }
        self.check();
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), KeepAliveExpired> {
        self.connection.handle_timeout(now)
    }

    /// The lane is gone: what is pending fails
    pub(crate) fn fail(&mut self) {
        self.tally.failed += (self.sends.len() + self.recvs.len()) as u64;
        self.sends.clear();
        self.recvs.clear();
        self.check_all_ended();
    }

    /// Whether everything is done and the other side knows
    pub(crate) fn is_over(&self) -> bool {
        self.connection.is_flushed()
            && self.writing.is_none()
            && self.connection.peer_closed()
            && self.model.unexpected.is_empty()
    }

    pub(crate) fn check_over(&self) {
        assert!(self.sends.is_empty(), "sends hang");
        assert!(self.recvs.is_empty(), "receives hang");
        assert!(self.arrivals.is_empty(), "arrivals are left");
        assert!(self.model.matched.is_empty(), "matched, but not complete");
        assert_eq!(self.arrived, self.incoming.borrow().len(), "lost messages");
        assert!(self.payload.is_none(), "a payload is cut off");
        let statistics = self.connection.statistics();
        assert_eq!(statistics.unexpected_bytes, 0);
        assert_eq!(statistics.sends_rendezvous, 0);
        self.check_all_ended();
    }

    /// Checks, with nothing under way, that what waits here waits for a caller
    pub(crate) fn check_quiet(&self, peer: &Self) {
        assert!(self.model.matched.is_empty(), "matched, but not complete");
        if !self.unstarted.is_empty() {
            let waiting = peer.model.unexpected.len() as u64;
            assert_eq!(
                waiting, peer.limits.credit_messages,
                "room, but not granted"
            );
        }
        let statistics = self.connection.statistics();
        let early_bytes = statistics.unexpected_bytes - self.model.eager_bytes();
        let is_early = |w: &&Waiting| w.kind == MessageKind::Untagged && !w.is_eager;
        let mut left_bytes = early_bytes;
        for request in self.model.unexpected.iter().filter(is_early) {
            if left_bytes == 0 {
                let room_bytes = self.limits.early_accept_bytes_max - early_bytes;
                assert!(request.bytes > room_bytes, "room, but not accepted early");
                break;
            }
            left_bytes -= request.bytes;
        }
    }

    fn check_all_ended(&self) {
        assert_eq!(self.tally.begun, self.tally.ended(), "{:?}", self.tally);
    }

    /// Checks that must hold at any time
    fn check(&self) {
        let statistics = self.connection.statistics();
        assert_eq!(statistics.recvs_posted, self.model.posted.len());
        assert_eq!(statistics.unexpected_messages, self.model.unexpected.len());
        assert_eq!(statistics.sends_queued, self.unstarted.len());
        let waiting = &self.model.unexpected;
        let eager_bytes = self.model.eager_bytes();
        assert!(waiting.len() as u64 <= self.limits.credit_messages);
        assert!(eager_bytes <= self.limits.credit_bytes);
        let early_bytes = statistics.unexpected_bytes - eager_bytes;
        assert!(early_bytes <= self.limits.early_accept_bytes_max);
    }

    fn poll_frame(&mut self) {
        let (sends, lent) = (&self.sends, &self.lent);
        let mut tally_lent = 0;
        let mut lend = |range: PayloadRange| {
            // Refused now and then, as when a peer holds too much.
            if range.offset.is_multiple_of(3) {
                return None;
            }
            tally_lent += 1;
            let start = range.offset as usize;
            let bytes = sends[range.send.0].content[start..start + range.bytes as usize].to_vec();
            lent.borrow_mut().push(bytes);
            Some(lent.borrow().len() as u64 - 1)
        };
        let Some(transmit) = self.connection.poll_transmit_lending(&mut lend) else {
            return;
        };
        self.tally.lent += tally_lent;
        let head: &[u8; HEADER_BYTES] = transmit.header.first_chunk().expect("a whole header");
        let header = FrameHeader::decode(head).expect("a good header");
        if header.kind.starts_message() {
            let send = self.unstarted.pop_front().expect("starts what was sent");
            let message = &self.sends[send.0];
            assert_eq!(header.message as usize, self.sent.borrow().len());
            assert_eq!(header.message_kind(), message.kind);
            assert_eq!(header.payload_bytes as usize, message.content.len());
            self.sent.borrow_mut().push(message.clone());
            if header.kind == FrameKind::Request {
                self.tally.requested += 1;
            } else {
                assert_eq!(transmit.completes, Some(send));
                assert!(header.payload_bytes <= self.limits.eager_bytes_max);
            }
        }
        let mut bytes = transmit.header.to_vec();
        if let Some(payload) = transmit.payload {
            assert!(payload.bytes > 0);
            assert!(
                header.kind == FrameKind::Eager || payload.bytes <= self.limits.data_chunk_bytes
            );
            let content = &self.sends[payload.send.0].content;
            let start = payload.offset as usize;
            bytes.extend_from_slice(&content[start..start + payload.bytes as usize]);
        }
        self.writing = Some(Writing {
            bytes,
            written: 0,
            completes: transmit.completes,
        });
    }

    fn note_start(&mut self, header: &FrameHeader) {
        if header.kind.starts_message() {
            assert_eq!(header.message as usize, self.arrived);
            let is_eager = header.kind == FrameKind::Eager;
            self.model.arrive(Waiting {
                kind: header.message_kind(),
                message: self.arrived,
                is_eager,
                bytes: header.payload_bytes,
            });
            self.arrived += 1;
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.connection.poll_event() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Prepare {
                arrival,
                segment_bytes,
                store,
            } => {
                if let Store::Into(recv) = store {
                    assert!(self.model.matched.contains_key(&recv));
                }
                let prepared = self.arrivals.insert(
                    arrival,
                    Arrival {
                        segment_bytes: segment_bytes.to_vec(),
                        store,
                        content: Vec::new(),
                    },
                );
                assert!(prepared.is_none(), "{arrival:?} is prepared twice");
            }
            Event::RecvComplete {
                recv,
                arrival,
                kind,
                bytes,
            } => {
                let message = self.take_matched(recv);
                let stored = self.arrivals.remove(&arrival).expect("was prepared");
                assert_eq!(kind, message.kind);
                assert_eq!(bytes as usize, message.content.len());
                assert_eq!(stored.segment_bytes, message.segment_bytes);
                assert!(stored.content == message.content, "content differs");
                assert!(
                    matches!(stored.store, Store::Into(to) if to == recv)
                        || stored.store == Store::Allocate
                );
                if let Capacity::Into(capacity_bytes) = self.recvs.remove(recv.0) {
                    assert!(bytes <= capacity_bytes);
                }
                self.tally.received += 1;
            }
            Event::RecvTruncated {
                recv,
                arrival,
                message_bytes,
                capacity_bytes,
            } => {
                let message = self.take_matched(recv);
                assert_eq!(message_bytes as usize, message.content.len());
                assert!(message_bytes > capacity_bytes);
                let capacity = self.recvs.remove(recv.0);
                assert_eq!(capacity, Capacity::Into(capacity_bytes));
                if let Some(stored) = self.arrivals.remove(&arrival) {
                    assert_eq!(stored.content.len(), message.content.len());
                    assert!(matches!(stored.store, Store::Discard | Store::Allocate));
                }
                self.tally.truncated += 1;
            }
            Event::SendComplete { send } => {
                self.sends.remove(send.0);
                self.tally.sent += 1;
            }
            Event::RecvClosed { recv } => {
                assert!(!self.peer_closed, "comes before PeerClosed");
                assert!(self.model.cancel(recv), "had met a message");
                self.recvs.remove(recv.0);
                self.tally.closed += 1;
            }
            Event::PeerClosed => {
                assert!(self.model.posted.is_empty());
                self.peer_closed = true;
            }
        }
    }

    /// The message that the model says a receive has met
    fn take_matched(&mut self, recv: RecvId) -> Message {
        let matched = self.model.matched.remove(&recv);
        let number = matched.expect("ends only with a message");
        self.incoming.borrow()[number].clone()
    }
}

/// Every other segment that has bytes
fn lendable(segment_bytes: &[u64]) -> Vec<Span> {
    let mut offset = 0;
    let mut spans = Vec::new();
    for (index, &bytes) in segment_bytes.iter().enumerate() {
        if bytes > 0 && index % 2 == 0 {
            spans.push(Span { offset, bytes });
        }
        offset += bytes;
    }
    spans
}
