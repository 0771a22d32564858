//! The way in: bytes from the lane become frame headers and fill the memory of messages.
//!
//! Payload goes from the lane straight to where it stays. Only what a read brings beyond the
//! payload, usually the next header, passes through a small staging buffer.

use std::io::IoSliceMut;
use std::time::Instant;

use backhaul_proto::{ArrivalId, Incoming as Announced, RecvId, SegmentBytes, Store};
use backhaul_shm::pool::{Pool, PoolBuf};
use slab::Slab;
use smallvec::SmallVec;

use super::ending::LinkError;
use super::link::Link;
use super::operations::RecvOperation;
use super::{Conn, Target};
use crate::courier::Loan;
use crate::lane::{Lane, Moved};
use crate::request::Wakes;

/// Messages on their way in, and what of the stream has been read ahead
pub(super) struct Incoming {
    /// Memory of messages that are not complete or not received, by arrival id
    pub(super) arrivals: Vec<Option<Arrival>>,
    /// The frame whose payload comes next in the stream
    pub(super) payload: Option<Payload>,
    staging: Box<[u8]>,
    /// Part of `staging` that holds bytes of the stream
    staged: std::ops::Range<usize>,
    /// Where payload goes that nobody wants
    scratch: Vec<u8>,
}

pub(super) struct Arrival {
    pub(super) memory: Memory,
    /// Bytes of the message that are there
    filled: usize,
    /// First segment that is not full, and how much of it is
    pub(super) cursor: (usize, usize),
}

pub(super) enum Memory {
    /// The buffer of a posted receive
    Into(RecvId),
    /// Memory of its own
    Segments(Segments),
    /// There was none: the bytes are dropped and the receive will fail
    Missing,
}

/// Segments of a message, made when their bytes come: some may be lent instead
pub(super) struct Segments {
    /// Those of which bytes have come
    pub(super) here: Vec<PoolBuf>,
    pub(super) sizes: SegmentBytes,
}

/// Payload of a frame that has not come completely
pub(super) struct Payload {
    pub(super) arrival: ArrivalId,
    pub(super) left: usize,
    /// Memory of the peer that holds it; else it comes on the lane
    pub(super) lent: Option<Loan>,
}

impl Incoming {
    /// Starts with bytes of the stream that were read before
    pub(super) fn new(staged: &[u8]) -> Self {
        let mut staging = vec![0; STAGING_BYTES.max(staged.len())].into_boxed_slice();
        staging[..staged.len()].copy_from_slice(staged);
        Self {
            arrivals: Vec::new(),
            payload: None,
            staging,
            staged: 0..staged.len(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn is_midway(&self) -> bool {
        self.payload.is_some()
    }

    /// Readies memory for a message that is about to come
    pub(super) fn prepare(
        &mut self,
        arrival: ArrivalId,
        segment_bytes: SegmentBytes,
        store: Store,
        recvs: &Slab<RecvOperation>,
    ) {
        let memory = match store {
            Store::Into(recv) if matches!(recvs[recv.0].target, Target::Into(..)) => {
                Memory::Into(recv)
            }
            Store::Into(_) | Store::Allocate => Memory::Segments(Segments {
                here: Vec::with_capacity(segment_bytes.len()),
                sizes: segment_bytes,
            }),
            Store::Discard => return,
        };
        let index = arrival.0;
        if index >= self.arrivals.len() {
            self.arrivals.resize_with(index + 1, || None);
        }
        self.arrivals[index] = Some(Arrival {
            memory,
            filled: 0,
            cursor: (0, 0),
        });
    }

    /// Takes a complete message: its segments, unless it lies in the receive's own buffer
    ///
    /// `Err` if there was no memory for it.
    pub(super) fn take(
        &mut self,
        arrival: ArrivalId,
        pool: &Pool,
    ) -> Result<Option<Vec<PoolBuf>>, NoMemory> {
        match self.arrivals[arrival.0]
            .take()
            .map(|arrival| arrival.memory)
        {
            Some(Memory::Into(_)) => Ok(None),
            Some(Memory::Segments(mut segments)) => {
                // Those behind the last byte are empty.
                segments.make_up_to(segments.sizes.len(), pool)?;
                Ok(Some(segments.here))
            }
            Some(Memory::Missing) | None => Err(NoMemory),
        }
    }

    /// Drops what there is of a message
    pub(super) fn discard(&mut self, arrival: ArrivalId) {
        if let Some(slot) = self.arrivals.get_mut(arrival.0) {
            *slot = None;
        }
    }

    /// Nothing more will come: what is half there never completes
    pub(super) fn stop(&mut self) {
        self.payload = None;
        self.staged = 0..0;
        for slot in &mut self.arrivals {
            slot.take_if(|arrival| !arrival.is_complete());
        }
    }

    /// Where the next `bytes` bytes of the stream are in the staging buffer, if all have come
    pub(super) fn staged(&self, bytes: u64) -> Option<std::ops::Range<usize>> {
        let bytes = to_usize(bytes).filter(|bytes| *bytes <= self.staged.len())?;
        Some(self.staged.start..self.staged.start + bytes)
    }

    pub(super) fn staging(&self) -> &[u8] {
        &self.staging
    }

    /// Moves on in the staging buffer
    pub(super) fn consume(&mut self, bytes: usize) {
        self.staged.start += bytes;
    }

    /// Fills the payload that is due from the staging buffer, returning how much
    fn fill_from_staging(&mut self, recvs: &mut Slab<RecvOperation>, pool: &Pool) -> usize {
        let Some(payload) = &mut self.payload else {
            return 0;
        };
        if payload.lent.is_some() {
            return 0;
        }
        let bytes = payload.left.min(self.staged.len());
        if bytes == 0 {
            return 0;
        }
        let mut source = &self.staging[self.staged.start..self.staged.start + bytes];
        if let Some(Some(arrival)) = self.arrivals.get_mut(payload.arrival.0) {
            while !source.is_empty() {
                let mut targets = Targets::new();
                let room = arrival.targets(recvs, pool, source.len(), &mut targets);
                if room == 0 {
                    break;
                }
                for mut target in targets {
                    let (now, rest) = source.split_at(target.len());
                    target.copy_from_slice(now);
                    source = rest;
                }
                arrival.advance(room);
            }
        }
        self.staged.start += bytes;
        payload.left -= bytes;
        bytes
    }
}

impl Arrival {
    /// Collects the memory where the next `bytes` go, or their beginning, returning how much
    ///
    /// 0 if there is none.
    pub(super) fn targets<'a>(
        &'a mut self,
        recvs: &'a mut Slab<RecvOperation>,
        pool: &Pool,
        bytes: usize,
        targets: &mut Targets<'a>,
    ) -> usize {
        if self.make_room(pool, bytes).is_err() {
            self.memory = Memory::Missing;
        }
        match &mut self.memory {
            Memory::Into(recv) => match &mut recvs[recv.0].target {
                Target::Into(buffer, _) => {
                    let memory = &mut buffer.as_mut_slice()[self.filled..self.filled + bytes];
                    targets.push(IoSliceMut::new(memory));
                    bytes
                }
                Target::Allocate(_) => unreachable!("only a receive with a buffer is filled"),
            },
            Memory::Segments(segments) => {
                let (segment, mut offset) = self.cursor;
                let mut left = bytes;
                for segment in &mut segments.here[segment..] {
                    if left == 0 || targets.len() == TARGETS_MAX - 1 {
                        break;
                    }
                    let take = left.min(segment.len() - offset);
                    if take > 0 {
                        targets.push(IoSliceMut::new(&mut segment[offset..offset + take]));
                    }
                    left -= take;
                    offset = 0;
                }
                bytes - left
            }
            Memory::Missing => 0,
        }
    }

    /// Makes the segments that the next `bytes` go to
    fn make_room(&mut self, pool: &Pool, bytes: usize) -> Result<(), NoMemory> {
        let Memory::Segments(segments) = &mut self.memory else {
            return Ok(());
        };
        let (mut segment, offset) = self.cursor;
        let mut room = 0;
        while room < offset + bytes {
            room += to_usize(segments.sizes[segment]).ok_or(NoMemory)?;
            segment += 1;
        }
        segments.make_up_to(segment, pool)
    }

    fn is_complete(&self) -> bool {
        match &self.memory {
            Memory::Segments(segments) => self.filled as u64 == segments.sizes.iter().sum(),
            // Its receive has been told.
            Memory::Into(_) => false,
            Memory::Missing => true,
        }
    }

    /// Counts bytes as filled
    pub(super) fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
        if let Memory::Segments(segments) = &self.memory {
            let (mut segment, mut offset) = self.cursor;
            let mut left = bytes;
            while left > 0 {
                let take = left.min(segments.here[segment].len() - offset);
                left -= take;
                offset += take;
                if offset == segments.here[segment].len() {
                    segment += 1;
                    offset = 0;
                }
            }
            self.cursor = (segment, offset);
        }
    }
}

impl Segments {
    /// Makes those before `count` that are not here
    pub(super) fn make_up_to(&mut self, count: usize, pool: &Pool) -> Result<(), NoMemory> {
        for &bytes in &self.sizes[self.here.len().min(count)..count] {
            let bytes = to_usize(bytes).ok_or(NoMemory)?;
            self.here.push(pool.take(bytes).map_err(|_| NoMemory)?);
        }
        Ok(())
    }
}

fn to_usize(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()
}

impl Link {
    /// Takes some of what has arrived, returning how many bytes the lane gave
    pub(super) fn read_some(&mut self, conn: &Conn, wakes: &mut Wakes) -> Result<usize, LinkError> {
        let mut total = 0;
        while total < READ_BYTES_MAX {
            self.handle_staged(conn, wakes)?;
            let bytes = self.read_lane()?;
            if bytes == 0 {
                break;
            }
            total += bytes;
            if self
                .incoming
                .payload
                .as_ref()
                .is_some_and(|payload| payload.left == 0)
            {
                self.finish_payload(conn, wakes);
            }
            if self.is_drained() {
                break;
            }
        }
        self.handle_staged(conn, wakes)?;
        Ok(total)
    }

    /// Whether another read would find nothing, without asking
    pub(super) fn is_drained(&self) -> bool {
        // What is lent does not come on the lane.
        let lent = matches!(&self.incoming.payload, Some(payload) if payload.lent.is_some());
        !lent && self.lane.as_ref().is_some_and(Lane::is_drained)
    }

    /// Works through the staging buffer: headers, and payload behind them
    fn handle_staged(&mut self, conn: &Conn, wakes: &mut Wakes) -> Result<(), LinkError> {
        loop {
            if self.lane.is_none() {
                return Ok(());
            }
            if self.incoming.payload.is_some() {
                self.incoming
                    .fill_from_staging(&mut self.recvs, &self.memory.pool);
                if self
                    .incoming
                    .payload
                    .as_ref()
                    .is_some_and(|payload| payload.left > 0)
                {
                    return Ok(());
                }
                self.finish_payload(conn, wakes);
                continue;
            }
            let staged = self.incoming.staged.clone();
            if staged.is_empty() {
                return Ok(());
            }
            let (used, frame) = self
                .decoder
                .handle(&self.limits, &self.incoming.staging[staged])?;
            self.incoming.staged.start += used;
            let Some(frame) = frame else {
                continue;
            };
            if self.deliver_at_once(conn, &frame, wakes)? {
                continue;
            }
            let now = self.now();
            let announced = self.proto.handle_frame(now, frame)?;
            // What is to be prepared for the payload comes first.
            self.handle_events(conn, wakes);
            match announced {
                Announced::Control => {}
                Announced::Payload { arrival, bytes } => {
                    self.inflow.announce(arrival, bytes, false);
                    self.incoming.payload = Some(Payload {
                        arrival,
                        left: usize::try_from(bytes).expect("checked against the limits"),
                        lent: None,
                    });
                }
                Announced::Leased {
                    arrival,
                    bytes,
                    ticket,
                } => {
                    self.inflow.announce(arrival, bytes, true);
                    self.take_loan(arrival, bytes, ticket)?;
                }
            }
        }
    }

    /// The payload of a frame is there
    fn finish_payload(&mut self, conn: &Conn, wakes: &mut Wakes) {
        if let Some(Payload { arrival, lent, .. }) = self.incoming.payload.take() {
            // First: who sees the message complete may ask whether what was lent is back.
            drop(lent);
            self.inflow.stored(arrival);
            let now = self.now();
            self.proto.handle_payload(now, arrival);
            self.handle_events(conn, wakes);
        }
    }

    /// Reads once: into the message that is due, and behind it into the staging buffer
    fn read_lane(&mut self) -> Result<usize, LinkError> {
        let Some(lane) = &mut self.lane else {
            return Ok(0);
        };
        if matches!(&self.incoming.payload, Some(payload) if payload.lent.is_some()) {
            return self.read_lent();
        }
        let incoming = &mut self.incoming;
        let mut targets = Targets::new();
        let mut due = 0;
        let mut wanted = 0;
        if let Some(payload) = &mut incoming.payload {
            wanted = payload.left;
            let arrival = incoming
                .arrivals
                .get_mut(payload.arrival.0)
                .and_then(Option::as_mut)
                .filter(|arrival| !matches!(arrival.memory, Memory::Missing));
            if let Some(arrival) = arrival {
                due = arrival.targets(&mut self.recvs, &self.memory.pool, wanted, &mut targets);
            }
            if targets.is_empty() {
                incoming.scratch.resize(SCRATCH_BYTES, 0);
                due = wanted.min(SCRATCH_BYTES);
                targets.push(IoSliceMut::new(&mut incoming.scratch[..due]));
            }
        }
        if due == wanted {
            targets.push(IoSliceMut::new(&mut incoming.staging));
        }
        let bytes = match lane.read(&mut targets)? {
            Moved::Bytes(bytes) => bytes,
            Moved::Blocked => return Ok(0),
            Moved::End => return Err(LinkError::End),
        };
        drop(targets);
        let of_payload = bytes.min(due);
        if let Some(payload) = &mut incoming.payload {
            payload.left -= of_payload;
            if payload.left > 0 {
                let now = Instant::now();
                self.proto.handle_activity(now);
            }
            if let Some(Some(arrival)) = incoming.arrivals.get_mut(payload.arrival.0) {
                arrival.advance(of_payload);
            }
        }
        incoming.staged = 0..bytes - of_payload;
        Ok(bytes)
    }
}

/// Pieces of memory that one read fills
pub(super) type Targets<'a> = SmallVec<[IoSliceMut<'a>; TARGETS_MAX]>;

/// There was no memory for a message
#[derive(Clone, Copy, Debug)]
pub(super) struct NoMemory;

/// Holds the headers, and the small messages, that one read brings
const STAGING_BYTES: usize = 16 << 10;

/// Pieces of memory filled by one read
const TARGETS_MAX: usize = 32;

/// Bytes dropped at a time
const SCRATCH_BYTES: usize = 64 << 10;

/// Bytes taken from the lane before it is the writer's turn again
pub(super) const READ_BYTES_MAX: usize = 256 << 10;
