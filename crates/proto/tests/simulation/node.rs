//! One side: a driver that is as thin as drivers should be, and checks that watch it.

mod check;
mod events;
mod work;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use backhaul_proto::{
    ArrivalId, Capacity, Connection, FrameDecoder, FrameHeader, FrameKind, Give, Given,
    HEADER_BYTES, Incoming, KeepAliveExpired, Limits, Long, Outgoing, PeerLimits, RecvId,
    RecvRefused, SegmentSource, Selector, SendId, SendRefused, Span, Store, Transmit, Withdrawn,
};
use slab::Slab;

use self::work::Work;
use crate::lane::Lane;
use crate::message::{Journal, Message, Shared, carrier_of};
use crate::model::{Model, Waiting};
use crate::rng::Rng;

pub(crate) struct Node {
    pub(crate) limits: Limits,
    pub(crate) peer: PeerLimits,
    pub(crate) connection: Connection,
    decoder: FrameDecoder,
    sends: Slab<Message>,
    recvs: Slab<Capacity>,
    arrivals: HashMap<ArrivalId, Arrival>,
    /// Work that the driver does in its own time
    pub(crate) works: Vec<Work>,
    /// Receives whose message is dropped as it comes
    dropped: HashSet<RecvId>,
    /// Chance of this side
    rng: Rng,
    /// Payload that is being read, with the bytes it lacks
    payload: Option<(ArrivalId, usize)>,
    /// The frame that is being written
    writing: Option<Writing>,
    /// Sends of which no frame was polled, oldest first
    unstarted: VecDeque<SendId>,
    /// Messages that this side has started
    pub(crate) sent: Journal,
    /// Messages that the peer has started
    pub(crate) incoming: Journal,
    /// Memory that this side lends to the other, and that both reach
    pub(crate) lent: Shared,
    /// Memory that the peer lends to this side
    pub(crate) borrowed: Shared,
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
    /// Parts that a carrier took
    pub(crate) carried: u64,
    /// Carried parts that went on before an earlier one was over
    pub(crate) overtaken: u64,
    /// Messages fetched, and those of which the fetch came to nothing
    pub(crate) fetched: u64,
    pub(crate) fell_back: u64,
    /// Receives withdrawn while their message came, and after that
    pub(crate) withdrawn: u64,
    pub(crate) restored: u64,
}

impl Tally {
    /// Returns the events that have to happen in a workload, by name
    pub(crate) fn counts(&self) -> [(&'static str, u64); 10] {
        [
            ("received", self.received),
            ("truncated", self.truncated),
            ("cancelled", self.cancelled),
            ("requested", self.requested),
            ("carried", self.carried),
            ("overtaken", self.overtaken),
            ("fetched", self.fetched),
            ("fell back", self.fell_back),
            ("withdrawn", self.withdrawn),
            ("restored", self.restored),
        ]
    }

    fn ended(&self) -> u64 {
        self.sent + self.received + self.truncated + self.cancelled + self.closed + self.failed
    }
}

struct Arrival {
    segment_bytes: Vec<u64>,
    sources: Option<Vec<SegmentSource>>,
    /// True if the driver chose how its bytes come
    asks: bool,
    store: Store,
    content: Vec<u8>,
    /// Bytes that frames have announced
    announced: usize,
    /// Bytes that are not stored
    missing: usize,
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
        [lent, borrowed]: [Shared; 2],
        seed: u64,
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
            works: Vec::new(),
            dropped: HashSet::new(),
            rng: Rng::new(seed),
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
        let long = Long {
            spans: &message.spans,
            sources: &message.sources,
            announce: message.announce,
        };
        let result = self
            .connection
            .send_long(id, message.kind, &message.segment_bytes, &long);
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

    /// Withdraws a receive, whatever has become of it
    pub(crate) fn withdraw_any_recv(&mut self, rng: &mut Rng) {
        let ids: Vec<usize> = self.recvs.iter().map(|(id, _)| id).collect();
        if ids.is_empty() {
            return;
        }
        let id = RecvId(rng.pick(&ids));
        let withdrawn = self.connection.withdraw_recv(id);
        if self.model.cancel(id) {
            assert_eq!(withdrawn, Withdrawn::Waiting);
        } else if self.dropped.contains(&id) {
            assert_eq!(withdrawn, Withdrawn::No);
            return;
        } else {
            let Withdrawn::Met(arrival) = withdrawn else {
                panic!("{id:?} has met a message, and is {withdrawn:?}");
            };
            // Moved elsewhere, if it was in the buffer of the receive.
            let state = self.arrivals.get_mut(&arrival).expect("was prepared");
            state.store = Store::Allocate;
            let waiting = self.model.matched.remove(&id).expect("it has met one");
            self.model.put_back(waiting);
            self.tally.withdrawn += 1;
        }
        self.recvs.remove(id.0);
        self.tally.cancelled += 1;
        self.drain_events();
        self.check();
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
                let (arrival, missing_before) = (*arrival, *missing);
                *missing -= count;
                let offset = self.arrivals[&arrival].announced - missing_before;
                self.store(arrival, offset, &bytes[..count]);
                bytes = &bytes[count..];
                if count == missing_before {
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
                    let state = self.arrivals.get_mut(&arrival).expect("was prepared");
                    state.announced += bytes as usize;
                    self.payload = Some((arrival, bytes as usize));
                }
                Incoming::Carried { .. } => self.begin_carry(incoming),
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

    /// Polls a frame, giving carriers what they take
    fn poll_transmit(&mut self) -> Option<Transmit> {
        loop {
            match self.connection.poll_transmit()? {
                Outgoing::Frame(transmit) => return Some(transmit),
                Outgoing::Give(give) => {
                    let given = self.give(&give);
                    self.connection.given(given);
                }
            }
        }
    }

    fn give(&mut self, give: &Give) -> Option<Given> {
        let range = give.range;
        let message = &self.sends[range.send.0];
        let span = Span {
            offset: range.offset,
            bytes: range.bytes,
        };
        assert!(message.spans.contains(&span), "{span:?} was not offered");
        // Refused now and then, as when a peer holds too much.
        if self.rng.chance(33) {
            return None;
        }
        let start = range.offset as usize;
        let part = message.content[start..start + range.bytes as usize].to_vec();
        let mut lent = self.lent.borrow_mut();
        lent.push(part);
        self.tally.carried += 1;
        let ticket = lent.len() as u64 - 1;
        let carrier = carrier_of(ticket);
        Some(Given { carrier, ticket })
    }

    fn poll_frame(&mut self) {
        let Some(transmit) = self.poll_transmit() else {
            return;
        };
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
            let chunk_bytes_max = self.limits.data_chunk_bytes.min(self.peer.data_chunk_bytes);
            assert!(header.kind == FrameKind::Eager || payload.bytes <= chunk_bytes_max);
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
        if !header.kind.starts_message() {
            return;
        }
        assert_eq!(header.message as usize, self.arrived);
        self.arrived += 1;
        let waiting = Waiting::new(header, self.limits.credit_messages);
        let met = self.model.arrive(waiting);
        if let Some(recv) = met
            && header.kind == FrameKind::Eager
            && let Capacity::Into(capacity_bytes) = self.recvs[recv.0]
            && header.payload_bytes > capacity_bytes
        {
            self.dropped.insert(recv);
        }
    }
}
