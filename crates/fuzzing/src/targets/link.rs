//! The link that production runs, with a peer that writes any bytes to the lane.
//!
//! Beside the lane are carriers with what that peer says is there: tickets that are broken, out of
//! reach, or bring bytes, in any parts.

use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul::seams::{
    Carrier, Carriers, Counters, Delivery, Held, Link, LinkEvent, LinkMemory, LinkParts, Meter,
    Now, Payload, Recv, Send, TakeError, TakeRequest, TakeTarget,
};
use backhaul::{CarrierKind, KeepAlive, Limits, MemoryKind, RecvBuffer, Segment, Segments};
use backhaul_proto::{
    ArrivalId, Connection, FrameHeader, FrameKind, Given, MessageKind, Selector, Sources, Tag,
    TagMask,
};
use backhaul_shm::pool::{Pool, PoolBuf};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::Input;

/// Each operation ends once, and nothing is held when the link is over
pub(super) fn link(data: &[u8]) {
    let mut input = Input::new(data);
    let mut driver = Driver::new(&mut input);
    while !input.is_empty() && driver.link.is_open() {
        driver.step(&mut input);
        driver.settle(&mut input);
        driver.check();
    }
    driver.link.abort();
    driver.settle(&mut input);
    assert!(driver.sends.is_empty() && driver.recvs.is_empty());
    let held = Held {
        arrivals: 0,
        ..driver.link.held()
    };
    assert_eq!(held, Held::default());
}

struct Driver {
    link: Link<u64, u64>,
    carriers: Carriers,
    pool: Pool,
    limits: Limits,
    now: Instant,
    /// Bytes that the peer has written and the link has not read
    lane: Vec<u8>,
    payloads: Vec<(TakeRequest, Box<dyn Payload>)>,
    sends: BTreeSet<u64>,
    recvs: BTreeSet<u64>,
    deliveries: Vec<Delivery>,
    next_operation: u64,
    /// Messages that the peer has started, as an honest one counts
    started: u64,
    has_restored: bool,
}

impl Driver {
    fn new(input: &mut Input<'_>) -> Self {
        let limits = Limits {
            eager_bytes_max: input.choose(&[0, 64, 2000]),
            credit_bytes: input.choose(&[64, 4000]),
            credit_messages: input.choose(&[1, 4, 20]),
            message_bytes_max: 1 << 16,
            segments_max: 32,
            sends_max: 8,
            recvs_max: 8,
            data_chunk_bytes: input.choose(&[9, 500, 1 << 20]),
            early_accept_bytes_max: input.choose(&[0, 5000, 1 << 20]),
            keep_alive: input.flag().then_some(KeepAlive {
                interval: Duration::from_millis(10),
                timeout: Duration::from_millis(40),
            }),
        };
        let mut peer = limits.announced();
        peer.credit_bytes = input.choose(&[0, 100, u64::MAX]);
        peer.credit_messages = input.choose(&[1, 1 << 40, u64::MAX]);
        peer.data_chunk_bytes = input.choose(&[1, 1 << 20, u64::MAX]);
        peer.message_bytes_max = input.choose(&[0, 1 << 20, u64::MAX]);
        peer.segments_max = input.choose(&[0, 3, u32::MAX]);
        let mut carriers = Carriers::default();
        for kind in [CarrierKind::Lease, CarrierKind::SingleCopy] {
            if input.flag() {
                carriers.push(Box::new(Liar { kind }));
            }
        }
        let now = Instant::now();
        let pool = Pool::new(1 << 16);
        let link = Link::new(LinkParts {
            core: Connection::new(limits.clone(), peer, now),
            limits: limits.clone(),
            peer: ([127, 0, 0, 1], 1).into(),
            staged: Vec::new(),
            memory: LinkMemory {
                pool: pool.clone(),
                device_allocator: None,
                carriers: carriers.reach(),
                give_bytes_min: 1,
            },
            meter: Box::new(NoMeter),
            counters: Arc::new(Counters::new()),
            now,
        });
        Self {
            link,
            carriers,
            pool,
            limits,
            now,
            lane: Vec::new(),
            payloads: Vec::new(),
            sends: BTreeSet::new(),
            recvs: BTreeSet::new(),
            deliveries: Vec::new(),
            next_operation: 0,
            started: 0,
            has_restored: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let now = Now::at(self.now);
        match input.below(16) {
            0..=4 => self.write_frame(input),
            5 => self.lane.extend_from_slice(input.piece()),
            6 | 7 => self.read(1 + usize::from(input.short())),
            8 => self.send(input),
            9 => self.post(input),
            10 => self.link.cancel(&now, input.number()),
            11 => self.take(input),
            12 => {
                if let Some(delivery) = self.deliveries.pop() {
                    self.has_restored = true;
                    self.link.restore(&now, delivery);
                }
            }
            13 => {
                self.now += Duration::from_millis(input.byte().into());
                self.link.handle_timeout(self.now);
            }
            14 => self.write(input.number()),
            _ => match input.below(16) {
                0 => self
                    .link
                    .close(&now, Duration::from_millis(input.byte().into())),
                1 => self.link.handle_end(),
                2 => self.link.handle_peer_ended("it has ended"),
                _ => self.read(usize::MAX),
            },
        }
    }

    /// The peer writes something that begins as a frame does
    fn write_frame(&mut self, input: &mut Input<'_>) {
        let kinds = [
            FrameKind::Eager,
            FrameKind::Request,
            FrameKind::Data,
            FrameKind::Carried,
            FrameKind::Accept,
            FrameKind::Skip,
            FrameKind::Fetched,
            FrameKind::Credit,
            FrameKind::Ping,
            FrameKind::Close,
        ];
        let kind = input.choose(&kinds);
        let is_start = kind.starts_message();
        let message = match input.below(4) {
            0..=2 if is_start => self.started,
            _ => input.number(),
        };
        let segments = if is_start { input.below(5) } else { 0 };
        let sizes: Vec<u64> = (0..segments).map(|_| input.number() % 3000).collect();
        let untagged = is_start && input.flag();
        let mut header = FrameHeader {
            untagged,
            has_sources: kind == FrameKind::Request && input.flag(),
            segment_count: u32::try_from(segments).unwrap(),
            ..FrameHeader::bare(kind, message)
        };
        if is_start {
            header.payload_bytes = sizes.iter().sum();
            header.tag = if untagged {
                0
            } else {
                u64::from(input.byte() % 3)
            };
            self.started += 1;
        }
        if matches!(kind, FrameKind::Data | FrameKind::Carried) {
            header.payload_bytes = input.number();
        }
        if matches!(kind, FrameKind::Carried | FrameKind::Credit) {
            header.tag = input.number();
        }
        if matches!(kind, FrameKind::Carried | FrameKind::Accept) {
            header.carrier = input.byte() % 4;
        }
        self.lane.extend(header.encode());
        if header.has_sources {
            for size in &sizes {
                self.lane.extend(size.to_le_bytes());
                let carrier = input.byte() % 4;
                self.lane.extend([0, 0, 0, 0, carrier, 0, 0, 0]);
                let token = if carrier == 0 { 0 } else { input.number() };
                self.lane.extend(token.to_le_bytes());
            }
        } else if segments > 1 {
            self.lane
                .extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        }
        if kind.carries_payload() {
            let bytes = header.payload_bytes.min(8000);
            self.lane
                .resize(self.lane.len() + usize::try_from(bytes).unwrap(), 7);
        }
        if input.flag() {
            self.read(usize::MAX);
        }
    }

    /// The link reads at most so many bytes of the lane
    fn read(&mut self, bytes_max: usize) {
        let mut left = bytes_max.min(self.lane.len());
        while left > 0 && self.link.is_open() {
            let mut targets = Default::default();
            self.link.read_targets(&mut targets);
            let mut filled = 0;
            for target in targets.iter_mut() {
                let bytes = target.len().min(left);
                target[..bytes].copy_from_slice(&self.lane[filled..filled + bytes]);
                filled += bytes;
                left -= bytes;
            }
            drop(targets);
            assert!(filled > 0, "an open link takes what comes");
            self.lane.drain(..filled);
            self.link.handle_read(&Now::at(self.now), filled);
            self.settle_operations();
        }
    }

    /// The lane takes at most so many bytes of what the link writes
    fn write(&mut self, bytes_max: u64) {
        let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
        self.link.write_slices(&mut slices);
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        drop(slices);
        let bytes = (bytes as u64).min(bytes_max);
        if bytes > 0 {
            self.link.handle_written(usize::try_from(bytes).unwrap());
        }
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let kind = some_kind(input);
        let segments: Segments = (0..input.below(4))
            .map(|_| {
                let bytes = input.number() % 3000;
                let memory = Bytes::from(vec![1; usize::try_from(bytes).unwrap()]);
                match input.flag() {
                    true => Segment::Exported(memory),
                    false => Segment::Private(memory),
                }
            })
            .collect();
        let operation = self.operation();
        self.sends.insert(operation);
        let send = Send {
            operation: Some(operation),
            kind,
            segments,
            token: operation,
        };
        self.link.post_send(send, Sources::new());
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let selector = match some_kind(input) {
            MessageKind::Untagged => Selector::Untagged,
            MessageKind::Tagged(tag) => Selector::Tagged {
                tag,
                mask: input.choose(&[TagMask::FULL, TagMask::ANY, TagMask(1)]),
            },
        };
        let buffer: Option<Box<dyn RecvBuffer>> = match input.below(3) {
            0 => None,
            1 => Some(Box::new(vec![0_u8; usize::from(input.byte())])),
            _ => Some(Box::new(vec![0_u8; 1 << 13])),
        };
        let operation = self.operation();
        self.recvs.insert(operation);
        let recv = Recv {
            operation,
            selector,
            buffer,
            token: operation,
        };
        self.link.post_recv(&Now::at(self.now), recv);
    }

    /// A carrier brings something
    fn take(&mut self, input: &mut Input<'_>) {
        if self.payloads.is_empty() {
            return;
        }
        let index = input.below(self.payloads.len().min(256));
        let (request, payload) = &mut self.payloads[index];
        let id = request.id;
        let left = usize::try_from(self.link.take_left(id)).unwrap();
        let read = match self.link.take_target(id, 1 + usize::from(input.short())) {
            TakeTarget::Host(mut targets) => payload.read(&mut targets),
            TakeTarget::Device(_) => panic!("there are no devices here"),
            TakeTarget::Nowhere => Ok(left),
        };
        let now = Now::at(self.now);
        match read {
            Ok(bytes) => {
                if left == bytes {
                    self.payloads.swap_remove(index);
                }
                self.link.handle_taken(&now, id, bytes as u64);
            }
            Err(error) => {
                let (request, _) = self.payloads.swap_remove(index);
                self.fail(&request, error);
            }
        }
    }

    fn fail(&mut self, request: &TakeRequest, error: TakeError) {
        match error {
            TakeError::Broken { detail } => self.link.handle_bad_ticket(request.ticket, detail),
            TakeError::OutOfReach { detail } => {
                let now = Now::at(self.now);
                self.link.handle_take_failed(&now, request.id, detail);
            }
            error => panic!("{error}"),
        }
    }

    fn begin(&mut self, request: TakeRequest) {
        let taken = self
            .carriers
            .take(request.carrier, request.ticket, request.bytes);
        match taken {
            Ok(payload) => self.payloads.push((request, payload)),
            Err(error) => self.fail(&request, error),
        }
    }

    /// Drains what the link has to say
    fn settle(&mut self, input: &mut Input<'_>) {
        self.settle_operations();
        if input.flag() {
            self.write(u64::MAX);
            self.settle_operations();
        }
    }

    fn settle_operations(&mut self) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "it never settles");
            let mut is_idle = true;
            while let Some(request) = self.link.poll_take() {
                is_idle = false;
                self.begin(request);
            }
            while let Some(request) = self.link.poll_give() {
                is_idle = false;
                let given = self.carriers.give(request.segment, request.carrier);
                let given = given.map(|(carrier, ticket)| Given { carrier, ticket });
                self.link.handle_given(given);
            }
            while let Some((carrier, ticket)) = self.link.poll_offer_over() {
                self.carriers.handle_offer_over(carrier, ticket);
            }
            self.link.finish_close();
            while let Some(event) = self.link.poll_event() {
                is_idle = false;
                self.handle(event);
            }
            if is_idle {
                return;
            }
        }
    }

    fn handle(&mut self, event: LinkEvent<u64, u64>) {
        match event {
            LinkEvent::Closed(reason) => {
                assert!(!reason.to_string().is_empty());
                self.payloads.clear();
                self.carriers.clear();
                self.link.release_overtaken();
            }
            LinkEvent::Sent { token, .. } => {
                assert!(self.sends.remove(&token), "a send is over once");
            }
            LinkEvent::Received { token, result } => {
                assert!(self.recvs.remove(&token), "a receive is over once");
                if let Ok(delivery) = result
                    && self.deliveries.len() < DELIVERIES_MAX
                {
                    self.deliveries.push(delivery);
                }
            }
        }
    }

    fn check(&self) {
        let held = self.link.held();
        assert!(held.sends <= self.sends.len() && held.recvs <= self.recvs.len());
        if self.has_restored {
            return;
        }
        let most = self.limits.credit_messages + self.recvs.len() as u64;
        assert!(held.arrivals as u64 <= most + RECVS_OVER, "{held:?}");
        let statistics = self.pool.statistics();
        let messages = self.limits.recvs_max + DELIVERIES_MAX + 1;
        let most = messages as u64 * self.limits.message_bytes_max
            + self.limits.credit_bytes
            + self
                .limits
                .early_accept_bytes_max
                .max(self.limits.message_bytes_max);
        // Blocks are rounded up by at most a quarter, or to a page.
        assert!(statistics.live_bytes as u64 <= 2 * most, "{statistics:?}");
    }

    fn operation(&mut self) -> u64 {
        self.next_operation += 1;
        self.next_operation
    }
}

/// A carrier with a peer that lies: what is under a ticket depends on the ticket alone
struct Liar {
    kind: CarrierKind,
}

impl Carrier for Liar {
    fn kind(&self) -> CarrierKind {
        self.kind
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |kind| !kind.is_device()
    }

    fn give(&mut self, segment: &Segment, is_asked: bool) -> Option<u64> {
        let is_lease = self.kind == CarrierKind::Lease;
        (is_lease && (is_asked || matches!(segment, Segment::Exported(_)))).then_some(1)
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        let detail = "as the ticket says".to_owned();
        match ticket % 4 {
            0 => Err(TakeError::Broken { detail }),
            1 => Err(TakeError::OutOfReach { detail }),
            _ => Ok(Box::new(Lie { ticket, bytes })),
        }
    }
}

struct Lie {
    ticket: u64,
    bytes: u64,
}

impl Payload for Lie {
    fn adopt(&mut self) -> Result<Option<PoolBuf>, TakeError> {
        Ok(None)
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        if self.ticket % 8 == 3 {
            return Err(TakeError::OutOfReach {
                detail: "it is gone".to_owned(),
            });
        }
        let mut read = 0;
        for target in targets {
            target.fill(8);
            read += target.len();
        }
        assert!(read as u64 <= self.bytes, "more is read than was announced");
        Ok(read)
    }
}

fn some_kind(input: &mut Input<'_>) -> MessageKind {
    match input.below(3) {
        0 => MessageKind::Untagged,
        tag => MessageKind::Tagged(Tag(tag as u64)),
    }
}

struct NoMeter;

impl Meter for NoMeter {
    fn begin(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64, _is_on_device: bool) {}
    fn stored(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64, _is_lent: bool) {}
    fn received(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64) {}
    fn received_inline(&mut self, _bytes: u64) {}
    fn discard(&mut self, _now: &Now, _arrival: ArrivalId) {}
    fn stop(&mut self) {}
}

/// Deliveries that may still go back
const DELIVERIES_MAX: usize = 4;

/// Receives that are cancelled, whose message is still coming
const RECVS_OVER: u64 = 8;

/// Far more than anything leads to
const ROUNDS_MAX: usize = 100_000;
