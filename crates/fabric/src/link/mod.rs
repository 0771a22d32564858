//! The link: one connection as a state machine, without locks, sockets or a clock.
//!
//! Commands go in (`post_send`, `post_recv`, `cancel`, `close` …), and what the lane, the carriers
//! and time bring (`handle_*`); what comes out is asked for: bytes to write (`write_slices`), memory
//! to read into (`read_targets`), payload for carriers (`poll_give`, `poll_take`), the next deadline
//! (`poll_timeout`) and what became of operations (`poll_event`). A driver reads, handles, drains and
//! writes; after any call that changes something it drains `poll_give`, `poll_take` and `poll_event`
//! to `None`. The link never calls its driver, nor the driver's holder.
//!
//! It joins the protocol core, which decides what is sent and what matches, with the memory of
//! messages: [`inbound`] and [`arrival`] are its way in, [`outbound`] its way out, [`carried`] what
//! comes beside the lane, [`operations`] what becomes of sends and receives, [`offers`] what of offers, [`ending`] its end.

mod arrival;
mod carried;
mod ending;
mod event;
mod inbound;
mod offers;
mod operations;
mod outbound;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::{
    ArrivalId, CarrierKind, Connection, ConnectionStatistics, Event, FrameDecoder, Limits,
    MemoryKind, SegmentBytes, SourceTable, Store, Tag, TagMask,
};
use backhaul_shm::pool::Pool;
use slab::Slab;
use smallvec::SmallVec;

use self::arrival::{Arrival, Cursor, Memory, Missing, Timed, copy_to_buffer};
use self::carried::Takes;
use self::inbound::{Arrivals, Inbound, Place};
use self::operations::{Operations, RecvOperation, SendOperation};
use self::outbound::Outbound;
use crate::carrier::{Announcing, CHOICE_BYTES_MIN, InPlace, Way, Ways};
use crate::error::CloseReason;
use crate::memory::{DeviceAllocator, RecvMemory, Segments};
use crate::statistics::Counters;

pub use self::carried::{TakeId, TakeRequest, TakeTarget};
pub use self::event::{Content, Delivery, LinkEvent, MessageMemory, Meter, Now, Recv, Send};
pub use self::outbound::GiveRequest;

/// Pieces of memory that one read fills
pub type ReadTargets<'a> = arrival::Targets<'a>;

/// One connection as a state machine
///
/// `S` and `R` go in with sends and receives and come back with their outcome.
pub struct Link<S, R> {
    core: Connection,
    limits: Limits,
    decoder: FrameDecoder,
    peer: SocketAddr,
    inbound: Inbound,
    arrivals: Arrivals,
    takes: Takes,
    outbound: Outbound,
    sends: Slab<SendOperation<S>>,
    /// Bytes of the sends that the peer may be fetching
    offered_bytes: u64,
    recvs: Slab<RecvOperation<R>>,
    /// Sends and receives that may be cancelled, by number
    operations: Operations,
    memory: LinkMemory,
    ways: Ways,
    /// When the last message whose way is timed was in its place
    last_in_place: Option<Instant>,
    announcing: Announcing,
    events: VecDeque<LinkEvent<S, R>>,
    meter: Box<dyn Meter>,
    counters: Arc<Counters>,
    /// When a graceful close gives up
    linger_until: Option<Instant>,
    /// Why the link has ended
    ended: Option<CloseReason>,
    /// Memory of the sends that the end has overtaken: the peer may be reading it until the holder,
    /// which gets the end reported first, has released the connection
    overtaken: Vec<Segments>,
    /// Offers whose end a carrier is to learn
    offers_over: VecDeque<(u8, u64)>,
    started: Instant,
}

/// How much a link holds
///
/// Once it has ended and its events are polled, all of it is zero but the arrivals: messages that
/// came whole before the end can still be received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Held {
    /// Sends that are not over
    pub sends: usize,
    /// Receives that are not over
    pub recvs: usize,
    /// Messages that have come, or are coming, and that no receive has
    pub arrivals: usize,
    /// Payload that carriers are to bring
    pub takes: usize,
    /// Frames that the lane has not taken
    pub frames: usize,
    /// Events that were not polled
    pub events: usize,
}

/// Parts of a link
pub struct LinkParts {
    /// The protocol core, both sides with their credit
    pub core: Connection,
    /// The limits of this side
    pub limits: Limits,
    /// Address of the peer, for reports
    pub peer: SocketAddr,
    /// Bytes of the lane that were read before
    pub staged: Vec<u8>,
    /// Where memory for messages comes from
    pub memory: LinkMemory,
    /// Measures what comes
    pub meter: Box<dyn Meter>,
    /// Counts what comes and goes
    pub counters: Arc<Counters>,
    /// The time
    pub now: Instant,
}

/// Where memory for messages comes from, and which carriers there are for it
#[derive(Clone)]
pub struct LinkMemory {
    /// Memory of the host
    pub pool: Pool,
    /// Memory of devices
    pub device_allocator: Option<Arc<dyn DeviceAllocator>>,
    /// The carriers that both sides have
    pub carriers: SmallVec<[CarrierReach; 2]>,
    /// Shorter segments are not given to a carrier
    pub give_bytes_min: usize,
}

/// A carrier, and the memory that it reaches
#[derive(Clone, Copy, Debug)]
pub struct CarrierReach {
    /// Which carrier
    pub kind: CarrierKind,
    /// Test by which it accepts a kind of memory
    pub takes: fn(MemoryKind) -> bool,
}

impl LinkMemory {
    /// Returns whether a carrier of that number was agreed on
    fn knows(&self, carrier: u8) -> bool {
        self.carriers
            .iter()
            .any(|reach| reach.kind.code() == carrier)
    }

    /// Returns whether the lane, or a carrier, reaches memory of a kind
    fn reaches(&self, memory: MemoryKind) -> bool {
        !memory.is_device() || self.carriers.iter().any(|reach| (reach.takes)(memory))
    }

    /// Returns whether a carrier may be asked to take so many bytes of the host
    fn may_give(&self, bytes: u64) -> bool {
        let mut kinds = self.carriers.iter().map(|reach| reach.kind);
        bytes >= self.give_bytes_min as u64
            && kinds.any(|kind| {
                let takes_offers_only = [
                    CarrierKind::SingleCopy,
                    CarrierKind::Ucx,
                    CarrierKind::UcxCuda,
                ];
                !takes_offers_only.contains(&kind)
            })
    }

    /// Returns whether a carrier lets the receiver fetch by itself
    fn may_fetch(&self) -> bool {
        let mut kinds = self.carriers.iter().map(|reach| reach.kind);
        kinds.any(|kind| kind != CarrierKind::Lease)
    }

    fn carriers_text(&self) -> String {
        if self.carriers.is_empty() {
            return "this lane has no carriers".to_owned();
        }
        let names: Vec<_> = self
            .carriers
            .iter()
            .map(|reach| reach.kind.name())
            .collect();
        format!("the carriers of this lane are {}", names.join(", "))
    }
}

impl<S, R> Link<S, R> {
    /// Joins the parts of a connection whose handshake is over
    #[must_use]
    pub fn new(parts: LinkParts) -> Self {
        Self {
            core: parts.core,
            decoder: FrameDecoder::default(),
            peer: parts.peer,
            inbound: Inbound::new(&parts.staged),
            arrivals: Arrivals::default(),
            takes: Takes::default(),
            outbound: Outbound::default(),
            sends: Slab::new(),
            offered_bytes: 0,
            recvs: Slab::new(),
            operations: Operations::default(),
            ways: Ways::new(parts.limits.eager_bytes_max),
            last_in_place: None,
            announcing: Announcing::default(),
            memory: parts.memory,
            limits: parts.limits,
            events: VecDeque::new(),
            meter: parts.meter,
            counters: parts.counters,
            linger_until: None,
            ended: None,
            overtaken: Vec::new(),
            offers_over: VecDeque::new(),
            started: parts.now,
        }
    }

    /// Returns the next event
    pub fn poll_event(&mut self) -> Option<LinkEvent<S, R>> {
        self.events.pop_front()
    }

    /// Releases the memory of sends that the end of the link has overtaken
    ///
    /// To be called on [`LinkEvent::Closed`], before further events are polled and after the peer can
    /// see that the connection has ended: until then it may be reading that memory by itself, and
    /// would take what it finds there for the message.
    pub fn release_overtaken(&mut self) {
        self.overtaken = Vec::new();
    }

    /// Returns whether a message is half sent or half received
    pub fn is_partial(&self) -> bool {
        self.inbound.is_partial() || !self.outbound.is_empty() || !self.takes.is_empty()
    }

    /// Returns whether the lane has not taken all that it was offered
    pub fn is_blocked(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// Returns whether nothing can be moved until the peer has done something
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        !self.is_partial()
    }

    /// Bytes of sends that the peer may be fetching by itself: nothing moves here meanwhile
    #[inline]
    pub fn offered_bytes(&self) -> u64 {
        self.offered_bytes
    }

    /// Chooses whether a message is announced with offers of its memory, if a carrier makes any
    pub fn choose_offers(&mut self, bytes: u64) -> bool {
        if !self.memory.may_fetch() {
            return false;
        }
        let advice = self.core.announce_advice_bytes();
        bytes > self.limits.eager_bytes_max || self.announcing.choose(bytes, advice)
    }

    /// Returns whether the next message is one to announce, if it has so many bytes: then it does
    /// not go on the inline path
    #[inline]
    pub fn would_offer(&self, bytes: u64) -> bool {
        bytes >= CHOICE_BYTES_MIN && self.memory.may_fetch() && {
            let advice = self.core.announce_advice_bytes();
            bytes > self.limits.eager_bytes_max || self.announcing.peek(bytes, advice)
        }
    }

    /// Handles that a message of so many bytes went on the inline path
    #[inline]
    pub fn handle_not_offered(&mut self, bytes: u64) {
        if self.memory.may_fetch() {
            self.announcing.count(bytes);
        }
    }

    /// By which ways long messages come, and how fast they were
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// How much the link holds, for tests and reports
    pub fn held(&self) -> Held {
        Held {
            sends: self.sends.len(),
            recvs: self.recvs.len(),
            arrivals: self.arrivals.len(),
            takes: self.takes.len(),
            frames: self.outbound.len(),
            events: self.events.len(),
        }
    }

    /// The tagged message that a receive would take now
    pub fn probe(&self, tag: Tag, mask: TagMask) -> Option<(Tag, u64)> {
        self.core.probe(tag, mask)
    }

    /// A snapshot for reports
    pub fn statistics(&self) -> ConnectionStatistics {
        self.core.statistics()
    }

    /// Handles what the protocol reports
    fn handle_events(&mut self, now: &Now) {
        while let Some(event) = self.core.poll_event() {
            match event {
                Event::Prepare {
                    arrival,
                    segment_bytes,
                    sources,
                    store,
                    asks,
                } => self.prepare(now, arrival, (segment_bytes, sources), store, asks),
                Event::RecvComplete {
                    recv,
                    arrival,
                    kind,
                    message,
                    bytes,
                } => {
                    self.meter.received(now, arrival, bytes);
                    let memory = match self.arrivals.take(arrival) {
                        Place::Whole(segment) => {
                            let is_copied = copy_to_buffer(&segment, &mut self.recvs[recv.0]);
                            Ok((!is_copied).then(|| MessageMemory::of_host(segment)))
                        }
                        Place::Arrival(arrival) => {
                            if arrival.copy_out(&mut self.recvs[recv.0]) {
                                Ok(None)
                            } else {
                                arrival.into_memory(&self.memory.pool)
                            }
                        }
                        Place::Vacant => Err(Missing::OutOfMemory),
                    };
                    self.complete_recv(recv, kind, message, bytes, memory);
                }
                Event::RecvTruncated {
                    recv,
                    arrival,
                    message_bytes,
                    capacity_bytes,
                } => {
                    self.arrivals.take(arrival);
                    self.meter.discard(now, arrival);
                    let error = crate::error::RecvError::Truncated {
                        message_bytes,
                        capacity_bytes,
                    };
                    self.fail_recv(recv.0, error);
                }
                Event::SendComplete { send } => self.complete_send(send),
                // The others fail with the link, which ends next.
                Event::RecvClosed { .. } if !self.is_closing() => {}
                Event::RecvClosed { recv } => {
                    let reason = CloseReason::Peer { peer: self.peer };
                    self.fail_recv(recv.0, reason.into());
                }
                // A close of this side goes on until all that was sent before is out.
                Event::PeerClosed if self.is_closing() => {}
                Event::PeerClosed => self.finish_close(),
            }
        }
    }

    /// Readies memory for a message, and says how its bytes are to come
    fn prepare(
        &mut self,
        now: &Now,
        id: ArrivalId,
        (sizes, sources): (SegmentBytes, Option<SourceTable>),
        store: Store,
        asks: bool,
    ) {
        let bytes: u64 = sizes.iter().sum();
        let memory = match store {
            Store::Discard => return,
            Store::Allocate => Arrival::segments(sizes.len()),
            Store::Into(recv) => match &mut self.recvs[recv.0].buffer {
                None => Arrival::segments(sizes.len()),
                Some(buffer) => match buffer.memory() {
                    RecvMemory::Host(_) => Memory::Into(recv),
                    RecvMemory::Device(_) if is_all_on_devices(sources.as_ref()) => {
                        Memory::Into(recv)
                    }
                    RecvMemory::Device(device) if asks => {
                        Memory::Missing(Missing::host_message(device))
                    }
                    // Its receive gets the result in the end: until then the message may go to
                    // another.
                    RecvMemory::Device(_) => Arrival::segments(sizes.len()),
                },
            },
        };
        let next = Cursor::begin(&sizes);
        let mut arrival = Arrival {
            memory,
            sizes,
            sources,
            bytes,
            filled_bytes: 0,
            next,
            way: None,
            is_announced: asks,
        };
        if asks && let Some(missing) = self.without_place(&arrival) {
            arrival.memory = Memory::Missing(missing);
        }
        // After the end no bytes come.
        let is_wanted = self.is_open();
        if is_wanted {
            let is_on_device = arrival.device().is_some();
            self.meter.begin(now, id, bytes, is_on_device);
        }
        if !asks {
            if bytes >= CHOICE_BYTES_MIN && self.memory.may_fetch() {
                arrival.way = Some(Timed {
                    way: Way::Lane,
                    since: now.get(),
                    untimed_bytes: self.inbound.staged_bytes(),
                });
            }
            self.arrivals.insert(id, arrival);
            return;
        }
        if !is_wanted {
            self.arrivals.insert(id, arrival);
            self.core.accept(id, 0, 0);
            return;
        }
        if matches!(arrival.memory, Memory::Missing(_)) {
            self.arrivals.insert(id, arrival);
            self.core.skip(id);
            return;
        }
        let way = self.choose_way(&arrival);
        arrival.way = way.map(|way| Timed {
            way,
            since: now.get(),
            untimed_bytes: 0,
        });
        self.arrivals.insert(id, arrival);
        let advice = self.advice_bytes();
        match way {
            Some(Way::Fetch) => self.begin_fetch(id),
            Some(Way::CopyAndLend) => self.core.accept(id, CarrierKind::Lease.code(), advice),
            Some(Way::Lane) | None => self.core.accept(id, 0, advice),
        }
    }

    /// Notes how long the bytes of a message took, once the last of them is in its place
    fn record_way(&mut self, now: &Now, arrival: ArrivalId) {
        let Some(arrival) = self.arrivals.get_mut(arrival) else {
            return;
        };
        if arrival.filled_bytes < arrival.bytes {
            return;
        }
        let Some(timed) = arrival.way.take() else {
            return;
        };
        // Earlier messages kept it waiting, whichever way they came.
        let at = now.get();
        let last = self.last_in_place.replace(at);
        let since = last.map_or(timed.since, |last| timed.since.max(last));
        let timed_bytes = arrival.bytes.saturating_sub(timed.untimed_bytes);
        if timed_bytes > 0 {
            let took = at.saturating_duration_since(since);
            let message = InPlace {
                bytes: arrival.bytes,
                is_announced: arrival.is_announced,
                took: took.mul_f64(arrival.bytes as f64 / timed_bytes as f64),
                since_last: last.map(|last| at.saturating_duration_since(last)),
            };
            self.ways.handle_in_place(timed.way, &message);
        }
    }

    /// Returns the advice to the peer about announcing messages; 0 is none
    fn advice_bytes(&self) -> u64 {
        self.ways.advice_bytes().unwrap_or(0)
    }

    /// Why a message that is announced has no place here, if it has none
    fn without_place(&self, arrival: &Arrival) -> Option<Missing> {
        let Memory::Segments(_) = arrival.memory else {
            return None;
        };
        let mut devices = arrival.sources.iter().flatten();
        let source = devices.find(|source| source.memory.is_device())?;
        let detail = match &self.memory.device_allocator {
            Some(_) if self.memory.reaches(source.memory) => return None,
            Some(_) => self.memory.carriers_text(),
            None => "the context has no allocator for it".to_owned(),
        };
        Some(Missing::NoPlace {
            memory: source.memory,
            detail,
        })
    }

    /// How the bytes of a message are to come, where there is a choice
    fn choose_way(&mut self, arrival: &Arrival) -> Option<Way> {
        let sources = arrival.sources.as_ref()?;
        let known = |source: &backhaul_proto::SegmentSource| {
            let offer = source
                .offer
                .filter(|offer| self.memory.knows(offer.carrier));
            offer.is_some()
        };
        if arrival.sizes.len() > OFFERS_MAX {
            return None;
        }
        let mut pieces = arrival.sizes.iter().zip(sources);
        if !pieces.all(|(size, source)| *size == 0 || known(source)) {
            return None;
        }
        let may_lend = matches!(arrival.memory, Memory::Segments(_))
            && arrival.sizes.len() == 1
            && self.memory.may_give(arrival.bytes);
        if sources.iter().any(|source| source.memory.is_device()) {
            // Its sender keeps it until it is fetched; else it would have to copy it first.
            return Some(Way::Fetch);
        }
        // The peer's memory is pinned for it already, and nothing else is as fast over a network.
        let mut carriers = sources.iter().flat_map(|source| source.offer);
        let is_ucx = carriers.all(|offer| offer.carrier == CarrierKind::Ucx.code());
        if is_ucx && arrival.bytes > self.limits.eager_bytes_max {
            return Some(Way::Fetch);
        }
        Some(self.ways.choose(arrival.bytes, may_lend))
    }
}

/// Segments of a message that are offered, or fetched: each is a call of the system
pub(crate) const OFFERS_MAX: usize = 64;

fn is_all_on_devices(sources: Option<&SourceTable>) -> bool {
    sources.is_some_and(|sources| sources.iter().all(|source| source.memory.is_device()))
}

impl<S, R> std::fmt::Debug for Link<S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
