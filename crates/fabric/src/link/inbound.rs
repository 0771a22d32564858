//! The way in: bytes from the lane become frames and fill the memory of messages.
//!
//! Payload goes from the lane straight to where it stays. Only what a read brings beyond the
//! payload, usually the next header, passes through a small staging buffer.

use std::io::IoSliceMut;

use backhaul_proto::{ArrivalId, Frame, HEADER_BYTES, Incoming, Inline, SegmentBytes};
use backhaul_shm::pool::{Pool, PoolBuf};

use super::Link;
use super::arrival::{Arrival, Cursor, Memory, Missing, Targets, to_usize};
use super::ending::LinkError;
use super::event::{MessageMemory, Now};
use super::operations::own_memory;
use crate::memory::RecvMemory;

/// Read-ahead part of the stream, and the element that comes next in it
pub(super) struct Inbound {
    /// The frame whose payload comes next in the stream
    payload: Option<Payload>,
    staging: Box<[u8]>,
    /// Part of `staging` that holds bytes of the stream
    staged: std::ops::Range<usize>,
    /// Memory for payload that no receive wants
    scratch: Vec<u8>,
    /// Bytes that the targets of the next read hold for the payload
    due: usize,
}

/// Payload of a frame that has not come completely
struct Payload {
    arrival: ArrivalId,
    at: Cursor,
    bytes: u64,
    left: usize,
}

/// The messages on their way in, by id
///
/// There may be as many as the peer has credit for, and in a stream each place is used in turn: so a
/// place is small, and what is on its way has its state elsewhere.
#[derive(Default)]
pub(super) struct Arrivals(Vec<Place>);

/// A message on its way in, or here
#[derive(Default)]
pub(super) enum Place {
    /// None
    #[default]
    Vacant,
    /// A message of one segment that came whole
    Whole(PoolBuf),
    /// Any other
    Arrival(Box<Arrival>),
}

impl Arrivals {
    pub(super) fn insert(&mut self, id: ArrivalId, arrival: Arrival) {
        self.put(id, Place::Arrival(Box::new(arrival)));
    }

    fn put(&mut self, id: ArrivalId, place: Place) {
        if id.0 >= self.0.len() {
            self.0.resize_with(id.0 + 1, Place::default);
        }
        self.0[id.0] = place;
    }

    pub(super) fn get(&self, id: ArrivalId) -> Option<&Arrival> {
        match self.0.get(id.0) {
            Some(Place::Arrival(arrival)) => Some(arrival),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, id: ArrivalId) -> Option<&mut Arrival> {
        match self.0.get_mut(id.0) {
            Some(Place::Arrival(arrival)) => Some(arrival),
            _ => None,
        }
    }

    pub(super) fn take(&mut self, id: ArrivalId) -> Place {
        self.0.get_mut(id.0).map(std::mem::take).unwrap_or_default()
    }

    /// How many there are
    pub(super) fn len(&self) -> usize {
        let places = self.0.iter();
        places
            .filter(|place| !matches!(place, Place::Vacant))
            .count()
    }

    /// Drops what is not complete: the rest never comes
    pub(super) fn drop_incomplete(&mut self) {
        for place in &mut self.0 {
            if matches!(place, Place::Arrival(arrival) if !arrival.is_complete()) {
                *place = Place::Vacant;
            }
        }
    }
}

impl Inbound {
    /// Starts with bytes of the stream that were read before
    pub(super) fn new(staged: &[u8]) -> Self {
        let mut staging = vec![0; STAGING_BYTES.max(staged.len())].into_boxed_slice();
        staging[..staged.len()].copy_from_slice(staged);
        Self {
            payload: None,
            staging,
            staged: 0..staged.len(),
            scratch: Vec::new(),
            due: 0,
        }
    }

    pub(super) fn is_partial(&self) -> bool {
        self.payload.is_some()
    }

    /// How many bytes have been read ahead
    pub(super) fn staged_bytes(&self) -> u64 {
        self.staged.len() as u64
    }

    /// Nothing more comes
    pub(super) fn stop(&mut self) {
        self.payload = None;
        self.staged = 0..0;
    }
}

impl<S, R> Link<S, R> {
    /// Collects the memory that the next bytes of the lane go to
    pub fn read_targets<'a>(&'a mut self, targets: &mut Targets<'a>) {
        let inbound = &mut self.inbound;
        let mut wanted = 0;
        let mut due = 0;
        if let Some(payload) = &inbound.payload {
            wanted = payload.left;
            if let Some(arrival) = self.arrivals.get_mut(payload.arrival) {
                let (recvs, pool) = (&mut self.recvs, &self.memory.pool);
                due = arrival.targets(recvs, pool, &payload.at, wanted, targets);
            }
            if due == 0 {
                due = wanted.min(SCRATCH_BYTES);
                inbound.scratch.resize(SCRATCH_BYTES, 0);
                targets.push(IoSliceMut::new(&mut inbound.scratch[..due]));
            }
        }
        inbound.due = due;
        if due == wanted {
            let staging = match due {
                0 => &mut inbound.staging[..],
                _ => &mut inbound.staging[..BEHIND_BYTES],
            };
            targets.push(IoSliceMut::new(staging));
        }
    }

    /// Handles that the lane has filled so many bytes of [`Link::read_targets`]
    pub fn handle_read(&mut self, now: &Now, bytes: usize) {
        let inbound = &mut self.inbound;
        let of_payload = bytes.min(inbound.due);
        inbound.staged = 0..bytes - of_payload;
        if of_payload > 0 {
            self.fill(of_payload);
            if self.inbound.is_partial() {
                self.core.handle_activity(now.get());
            }
        }
        self.handle_staged(now);
    }

    /// How many bytes come next that are of one payload, and nothing else
    pub fn payload_due(&self) -> usize {
        let payload = self.inbound.payload.as_ref();
        payload.map_or(0, |payload| payload.left)
    }

    /// Works through bytes that were read before the link was made
    pub fn handle_read_ahead(&mut self, now: &Now) {
        self.handle_staged(now);
    }

    /// Counts bytes of the payload as filled
    fn fill(&mut self, bytes: usize) {
        if let Some(payload) = &mut self.inbound.payload {
            payload.left -= bytes;
            if let Some(arrival) = self.arrivals.get_mut(payload.arrival) {
                arrival.filled_bytes += bytes as u64;
                payload.at.advance(&arrival.sizes, bytes as u64);
            }
        }
    }

    /// Works through the staging buffer: headers, and payload behind them
    fn handle_staged(&mut self, now: &Now) {
        if let Err(error) = self.try_handle_staged(now) {
            self.handle_error(error);
        }
    }

    fn try_handle_staged(&mut self, now: &Now) -> Result<(), LinkError> {
        loop {
            if !self.is_open() {
                return Ok(());
            }
            if let Some(payload) = &self.inbound.payload {
                if payload.left > 0 && !self.fill_from_staging() {
                    return Ok(());
                }
                if self
                    .inbound
                    .payload
                    .as_ref()
                    .is_some_and(|payload| payload.left == 0)
                {
                    self.finish_payload(now);
                }
                continue;
            }
            let staged = self.inbound.staged.clone();
            if staged.is_empty() {
                return Ok(());
            }
            let (used, frame) = self
                .decoder
                .handle(&self.limits, &self.inbound.staging[staged])?;
            self.inbound.staged.start += used;
            let Some(frame) = frame else {
                continue;
            };
            if self.receive_inline(now, &frame)? {
                continue;
            }
            let announced = self.core.handle_frame(self.time(now), frame)?;
            // Preparation for the payload comes first.
            self.handle_events(now);
            match announced {
                Incoming::Control => {}
                Incoming::Payload { arrival, bytes } => {
                    let at = self.announce(arrival, bytes);
                    self.inbound.payload = Some(Payload {
                        arrival,
                        at,
                        bytes,
                        left: to_usize(bytes),
                    });
                }
                Incoming::Carried {
                    arrival,
                    bytes,
                    carrier,
                    ticket,
                    ..
                } => {
                    let at = self.announce(arrival, bytes);
                    self.begin_take(arrival, at, bytes, carrier, ticket)?;
                }
            }
        }
    }

    /// Notes that a frame has announced the next bytes of a message, returning where they go
    fn announce(&mut self, arrival: ArrivalId, bytes: u64) -> Cursor {
        let Some(arrival) = self.arrivals.get_mut(arrival) else {
            return Cursor::default();
        };
        let at = arrival.next;
        arrival.next.advance(&arrival.sizes, bytes);
        at
    }

    /// Fills the payload that is due from the staging buffer, returning whether there was anything
    fn fill_from_staging(&mut self) -> bool {
        let inbound = &mut self.inbound;
        let Some(payload) = &mut inbound.payload else {
            return false;
        };
        let bytes = payload.left.min(inbound.staged.len());
        if bytes == 0 {
            return false;
        }
        let start = inbound.staged.start;
        let mut source = &inbound.staging[start..start + bytes];
        if let Some(arrival) = self.arrivals.get_mut(payload.arrival) {
            let (recvs, pool) = (&mut self.recvs, &self.memory.pool);
            while !source.is_empty() {
                let mut targets = Targets::new();
                let room = arrival.targets(recvs, pool, &payload.at, source.len(), &mut targets);
                if room == 0 {
                    break;
                }
                for mut target in targets {
                    let (now, rest) = source.split_at(target.len());
                    target.copy_from_slice(now);
                    source = rest;
                }
                arrival.filled_bytes += room as u64;
                payload.at.advance(&arrival.sizes, room as u64);
            }
        }
        inbound.staged.start += bytes;
        payload.left -= bytes;
        true
    }

    /// The payload of a frame is there
    fn finish_payload(&mut self, now: &Now) {
        if let Some(Payload { arrival, bytes, .. }) = self.inbound.payload.take() {
            self.record_way(now, arrival);
            self.meter.stored(now, arrival, bytes, false);
            self.core.handle_payload(self.time(now), arrival);
            self.handle_events(now);
        }
    }

    /// Delivers a message that is staged whole to a receive that waits for it, or keeps it for one
    ///
    /// Returns whether that was possible; else nothing has changed.
    fn receive_inline(&mut self, now: &Now, frame: &Frame) -> Result<bool, LinkError> {
        let bytes = frame.header.payload_bytes;
        let is_short = bytes <= self.inbound.staged.len() as u64;
        if !is_short || frame.segment_bytes.len() > INLINE_SEGMENTS_MAX {
            return Ok(false);
        }
        let time = self.time(now);
        let Some(inline) = self.core.handle_inline(time, frame)? else {
            return Ok(false);
        };
        let start = self.inbound.staged.start;
        let staged = &self.inbound.staging[start..start + to_usize(bytes)];
        let (recv, message) = match inline {
            Inline::Received { recv, message } => (recv, message),
            Inline::Kept { arrival } => {
                let kept = keep(&self.memory.pool, &frame.segment_bytes, staged);
                self.inbound.staged.start += to_usize(bytes);
                self.meter.begin(now, arrival, bytes, false);
                self.meter.stored(now, arrival, bytes, false);
                self.arrivals.put(arrival, kept);
                return Ok(true);
            }
        };
        let memory = match &mut self.recvs[recv.0].buffer {
            Some(buffer) => match buffer.memory() {
                RecvMemory::Host(host) => {
                    host[..staged.len()].copy_from_slice(staged);
                    Ok(None)
                }
                RecvMemory::Device(device) => Err(Missing::host_message(device)),
            },
            None => copied(&self.memory.pool, &frame.segment_bytes, staged).map(Some),
        };
        self.inbound.staged.start += to_usize(bytes);
        self.meter.received_inline(bytes);
        let kind = frame.header.message_kind();
        self.complete_recv(recv, kind, message, bytes, memory);
        Ok(true)
    }

    /// Returns the time, where that matters: without a keep-alive nothing depends on it
    pub(super) fn time(&self, now: &Now) -> std::time::Instant {
        if self.limits.keep_alive.is_some() {
            now.get()
        } else {
            self.started
        }
    }
}

/// Copies a short message to memory of its own, until a receive has it
fn keep(pool: &Pool, sizes: &SegmentBytes, bytes: &[u8]) -> Place {
    let memory = match sizes[..] {
        [size] => match pool.take(to_usize(size)) {
            Ok(mut memory) => {
                memory.copy_from_slice(bytes);
                return Place::Whole(memory);
            }
            Err(_) => Memory::Missing(Missing::OutOfMemory),
        },
        _ => copied(pool, sizes, bytes).map_or_else(Memory::Missing, own_memory),
    };
    let arrival = Arrival::here(memory, sizes.clone(), bytes.len() as u64);
    Place::Arrival(Box::new(arrival))
}

/// Copies short segments that lie one behind the other, each to memory of its own
fn copied(pool: &Pool, sizes: &[u64], mut bytes: &[u8]) -> Result<MessageMemory, Missing> {
    let mut host = match sizes {
        [size] => vec![
            pool.take(to_usize(*size))
                .map_err(|_| Missing::OutOfMemory)?,
        ],
        sizes => pool.take_many(sizes).map_err(|_| Missing::OutOfMemory)?,
    };
    for memory in &mut host {
        let (now, rest) = bytes.split_at(memory.len());
        memory.copy_from_slice(now);
        bytes = rest;
    }
    Ok(MessageMemory {
        host,
        device: Vec::new(),
    })
}

/// A frame that is looked for whole in the staging buffer has no more segments
const INLINE_SEGMENTS_MAX: usize = 16;

/// Holds the headers, and the small messages, that one read brings
const STAGING_BYTES: usize = 16 << 10;

const _: () = assert!(STAGING_BYTES > HEADER_BYTES);

/// Part of it that is offered behind the rest of a payload, where another like it often follows: what
/// is staged of that is copied twice
const BEHIND_BYTES: usize = 1 << 10;

/// Bytes dropped at a time
const SCRATCH_BYTES: usize = 64 << 10;
