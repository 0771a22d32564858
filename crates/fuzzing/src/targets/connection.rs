//! The protocol state of a connection, with a peer that sends any frames in any order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use backhaul_proto::{
    ArrivalId, Capacity, Connection, Event, Frame, FrameHeader, FrameKind, Given, Incoming,
    KeepAlive, Limits, Long, MessageKind, Outgoing, RecvId, Selector, SendId, Span, Store, Tag,
    TagMask, Withdrawn,
};

use crate::Input;

/// Each operation ends at most once, and what waits stays within the limits, whatever the peer sends
pub(super) fn connection(data: &[u8]) {
    let mut input = Input::new(data);
    let mut driver = Driver::new(&mut input);
    while !input.is_empty() && driver.is_open {
        driver.step(&mut input);
        driver.settle(&mut input);
        driver.check();
    }
}

/// A driver that keeps to what the connection asks of it
struct Driver {
    core: Connection,
    limits: Limits,
    now: Instant,
    sends: BTreeSet<usize>,
    recvs: BTreeMap<usize, Capacity>,
    /// Arrivals that ask how their bytes are to come
    asked: VecDeque<ArrivalId>,
    fetching: VecDeque<ArrivalId>,
    /// Bytes that carriers are to bring
    carried: VecDeque<(ArrivalId, u64)>,
    delivered: VecDeque<(u64, MessageKind, u64)>,
    /// Arrivals that were prepared and are not over
    prepared: BTreeMap<usize, Store>,
    next_id: usize,
    /// Messages that the peer has started, as an honest one counts
    started: u64,
    is_open: bool,
    has_restored: bool,
}

impl Driver {
    fn new(input: &mut Input<'_>) -> Self {
        let limits = Limits {
            eager_bytes_max: input.choose(&[0, 64, 2000]),
            credit_bytes: input.choose(&[64, 4000]),
            credit_messages: input.choose(&[1, 4, 20]),
            message_bytes_max: 1 << 20,
            segments_max: 16,
            sends_max: 8,
            recvs_max: 8,
            data_chunk_bytes: input.choose(&[1, 500]),
            early_accept_bytes_max: input.choose(&[0, 5000]),
            keep_alive: input.flag().then_some(KeepAlive {
                interval: Duration::from_millis(10),
                timeout: Duration::from_millis(40),
            }),
        };
        let mut peer = limits.announced();
        peer.credit_bytes = input.choose(&[0, 100, 1 << 40, u64::MAX]);
        peer.credit_messages = input.choose(&[1, 2, 1 << 40, u64::MAX]);
        peer.data_chunk_bytes = input.choose(&[1, 1 << 20, u64::MAX]);
        peer.message_bytes_max = input.choose(&[0, 1 << 20, u64::MAX]);
        peer.segments_max = input.choose(&[0, 3, u32::MAX]);
        let now = Instant::now();
        Self {
            core: Connection::new(limits.clone(), peer, now),
            limits,
            now,
            sends: BTreeSet::new(),
            recvs: BTreeMap::new(),
            asked: VecDeque::new(),
            fetching: VecDeque::new(),
            carried: VecDeque::new(),
            delivered: VecDeque::new(),
            prepared: BTreeMap::new(),
            next_id: 0,
            started: 0,
            is_open: true,
            has_restored: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=7 => self.frame(input),
            8 => self.send(input),
            9 => self.post(input),
            10 => self.withdraw(input),
            11 => {
                let nth = input.below(8);
                if let Some(id) = self.sends.iter().nth(nth).copied()
                    && self.core.cancel_send(SendId(id))
                {
                    self.sends.remove(&id);
                }
            }
            12 => {
                if let Some((arrival, bytes)) = self.carried.pop_front() {
                    let part = 1 + input.number() % bytes;
                    self.core.handle_carried(self.now, arrival, part);
                    if part < bytes {
                        self.carried.push_front((arrival, bytes - part));
                    }
                } else if let Some(arrival) = self.fetching.pop_front() {
                    match input.flag() {
                        true => self.core.handle_fetched(arrival, input.number()),
                        false => self.core.accept(arrival, input.byte(), input.number()),
                    }
                }
            }
            13 => {
                if let Some((message, kind, bytes)) = self.delivered.pop_front() {
                    self.has_restored = true;
                    self.core.restore(message, kind, bytes);
                }
            }
            14 => {
                self.now += Duration::from_millis(input.byte().into());
                self.is_open &= self.core.handle_timeout(self.now).is_ok();
            }
            _ => self.core.close(self.now),
        }
    }

    /// The peer sends a frame, or what looks like one
    fn frame(&mut self, input: &mut Input<'_>) {
        let kinds = [
            FrameKind::Eager,
            FrameKind::Request,
            FrameKind::Accept,
            FrameKind::Skip,
            FrameKind::Data,
            FrameKind::Credit,
            FrameKind::Ping,
            FrameKind::Pong,
            FrameKind::Close,
            FrameKind::Carried,
            FrameKind::Fetched,
        ];
        let kind = input.choose(&kinds);
        let is_start = kind.starts_message();
        let message = match input.below(4) {
            0..=2 if is_start => self.started,
            _ => input.number(),
        };
        let segments = if is_start { input.below(6) } else { 0 };
        let sizes: Vec<u64> = (0..segments).map(|_| input.number() % 5000).collect();
        let untagged = is_start && input.flag();
        let mut header = FrameHeader {
            untagged,
            carrier: input.byte() % 4,
            segment_count: u32::try_from(segments).unwrap(),
            tag: input.number(),
            payload_bytes: input.number(),
            ..FrameHeader::bare(kind, message)
        };
        if is_start {
            header.payload_bytes = sizes.iter().sum();
            header.tag = if untagged { 0 } else { header.tag % 3 };
        }
        // A header that the decoder refuses never reaches the connection.
        let Ok(header) = FrameHeader::decode(&header.encode()) else {
            return;
        };
        let frame = Frame {
            header,
            segment_bytes: sizes.into_iter().collect(),
            sources: None,
        };
        match self.core.handle_frame(self.now, frame) {
            Ok(incoming) => {
                self.started += u64::from(is_start);
                self.take_in(incoming, input);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                self.is_open = false;
            }
        }
    }

    fn take_in(&mut self, incoming: Incoming, input: &mut Input<'_>) {
        match incoming {
            Incoming::Control => {}
            Incoming::Payload { arrival, bytes } => {
                // Prepared before its payload is read.
                self.settle(input);
                assert!(bytes > 0 && self.prepared.contains_key(&arrival.0));
                self.core.handle_payload(self.now, arrival);
            }
            Incoming::Carried {
                arrival,
                offset,
                bytes,
                carrier,
                ..
            } => {
                assert!(bytes > 0 && carrier > 0);
                assert!(offset + bytes <= self.limits.message_bytes_max);
                self.carried.push_back((arrival, bytes));
            }
        }
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let sizes: Vec<u64> = (0..input.below(5)).map(|_| input.number() % 3000).collect();
        let kind = some_kind(input);
        let id = self.next_id();
        let first = sizes.first().copied().filter(|bytes| *bytes > 0);
        let spans: Vec<Span> = first
            .filter(|_| input.flag())
            .map(|bytes| Span { offset: 0, bytes })
            .into_iter()
            .collect();
        let long = Long {
            spans: &spans,
            ..Long::default()
        };
        if self.core.send_long(SendId(id), kind, &sizes, &long).is_ok() {
            self.sends.insert(id);
        }
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let id = self.next_id();
        let selector = match some_kind(input) {
            MessageKind::Untagged => Selector::Untagged,
            MessageKind::Tagged(tag) => Selector::Tagged {
                tag,
                mask: input.choose(&[TagMask::FULL, TagMask::ANY, TagMask(1)]),
            },
        };
        let capacity = match input.below(3) {
            0 => Capacity::Allocate,
            1 => Capacity::Into(u64::from(input.byte())),
            _ => Capacity::Into(1 << 20),
        };
        if self.core.post_recv(RecvId(id), selector, capacity).is_ok() {
            self.recvs.insert(id, capacity);
        }
    }

    fn withdraw(&mut self, input: &mut Input<'_>) {
        let nth = input.below(8);
        let Some(id) = self.recvs.keys().nth(nth).copied() else {
            return;
        };
        match self.core.withdraw_recv(RecvId(id)) {
            Withdrawn::Waiting | Withdrawn::Met(_) => {
                self.has_restored = true;
                self.recvs.remove(&id);
            }
            Withdrawn::No => {}
        }
    }

    /// Drains what the connection has to say
    fn settle(&mut self, input: &mut Input<'_>) {
        while let Some(event) = self.core.poll_event() {
            self.handle(event);
        }
        while let Some(arrival) = self.asked.pop_front() {
            match input.below(4) {
                0 => self.core.skip(arrival),
                1 => {
                    self.core.fetch(arrival);
                    self.fetching.push_back(arrival);
                }
                _ => self.core.accept(arrival, input.byte() % 3, 0),
            }
            while let Some(event) = self.core.poll_event() {
                self.handle(event);
            }
        }
        let mut frames = 0;
        while let Some(outgoing) = self.core.poll_transmit() {
            frames += 1;
            assert!(frames < FRAMES_MAX, "frames without end");
            match outgoing {
                Outgoing::Frame(transmit) => {
                    if let Some(payload) = transmit.payload {
                        assert!(payload.bytes > 0);
                    }
                    if let Some(send) = transmit.completes {
                        assert!(self.sends.remove(&send.0), "a send is over once");
                    }
                }
                Outgoing::Give(give) => {
                    let given = Given {
                        carrier: 1,
                        ticket: give.range.offset,
                    };
                    self.core.given(input.flag().then_some(given));
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Prepare {
                arrival,
                store,
                asks,
                ..
            } => {
                let former = self.prepared.insert(arrival.0, store);
                assert!(former.is_none(), "{arrival:?} is prepared twice");
                if asks {
                    self.asked.push_back(arrival);
                }
            }
            Event::RecvComplete {
                recv,
                arrival,
                kind,
                message,
                bytes,
            } => {
                let capacity = self.recvs.remove(&recv.0).expect("a receive is over once");
                assert!(!matches!(capacity, Capacity::Into(most) if bytes > most));
                self.prepared.remove(&arrival.0);
                self.delivered.push_back((message, kind, bytes));
            }
            Event::RecvTruncated {
                recv,
                arrival,
                message_bytes,
                capacity_bytes,
            } => {
                assert!(message_bytes > capacity_bytes);
                assert!(self.recvs.remove(&recv.0).is_some());
                self.prepared.remove(&arrival.0);
            }
            Event::SendComplete { send } => assert!(self.sends.remove(&send.0)),
            Event::RecvClosed { recv } => assert!(self.recvs.remove(&recv.0).is_some()),
            Event::PeerClosed => assert!(self.core.peer_closed()),
        }
    }

    fn check(&self) {
        let statistics = self.core.statistics();
        assert!(statistics.recvs_posted <= self.limits.recvs_max);
        assert!(statistics.sends_queued <= self.limits.sends_max);
        if self.has_restored {
            // A message that was taken back is beside the credit.
            return;
        }
        let most = usize::try_from(self.limits.credit_messages).unwrap();
        assert!(statistics.unexpected_messages <= most);
        let early = self
            .limits
            .early_accept_bytes_max
            .max(self.limits.message_bytes_max);
        assert!(statistics.unexpected_bytes <= self.limits.credit_bytes + early);
    }

    fn next_id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }
}

fn some_kind(input: &mut Input<'_>) -> MessageKind {
    match input.below(3) {
        0 => MessageKind::Untagged,
        tag => MessageKind::Tagged(Tag(tag as u64)),
    }
}

/// Far more than anything leads to: the longest message in pieces of a byte, of a few sends
const FRAMES_MAX: usize = 200_000;
