//! The way in: bytes from the lane become frame headers and fill the memory of messages.
//!
//! Payload goes from the lane straight to where it stays. Only what a read brings beyond the
//! payload, usually the next header, passes through a small staging buffer.

use std::io::IoSliceMut;
use std::time::Instant;

use backhaul_proto::{ArrivalId, Incoming as Announced, RecvId, Store};
use backhaul_shm::pool::{Pool, PoolBuf};
use slab::Slab;
use smallvec::SmallVec;

use super::ending::LinkError;
use super::link::{Link, RecvOperation};
use super::{Conn, Target};
use crate::lane::{Lane, Moved};
use crate::request::Wakes;

/// Messages on their way in, and what of the stream has been read ahead
pub(super) struct Incoming {
    /// Memory of messages that are not complete or not received, by arrival id
    arrivals: Vec<Option<Arrival>>,
    /// The frame whose payload comes next in the stream
    payload: Option<Payload>,
    staging: Box<[u8]>,
    /// Part of `staging` that holds bytes of the stream
    staged: std::ops::Range<usize>,
    /// Where payload goes that nobody wants
    scratch: Vec<u8>,
}

struct Arrival {
    memory: Memory,
    /// Bytes of the message that are there
    filled: usize,
    /// First segment that is not full, and how much of it is
    cursor: (usize, usize),
}

enum Memory {
    /// The buffer of a posted receive
    Into(RecvId),
    /// Memory of its own
    Segments(Vec<PoolBuf>),
    /// There was none: the bytes are dropped and the receive will fail
    Missing,
}

/// Payload of a frame that has not come completely
struct Payload {
    arrival: ArrivalId,
    left: usize,
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
        segment_bytes: &[u64],
        store: Store,
        recvs: &Slab<RecvOperation>,
        pool: &Pool,
    ) {
        let memory = match store {
            Store::Into(recv) if matches!(recvs[recv.0].target, Target::Into(..)) => {
                Memory::Into(recv)
            }
            Store::Into(_) | Store::Allocate => segment_bytes
                .iter()
                .map(|&bytes| {
                    usize::try_from(bytes)
                        .ok()
                        .and_then(|bytes| pool.take(bytes).ok())
                })
                .collect::<Option<Vec<_>>>()
                .map_or(Memory::Missing, Memory::Segments),
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
    pub(super) fn take(&mut self, arrival: ArrivalId) -> Result<Option<Vec<PoolBuf>>, NoMemory> {
        match self.arrivals[arrival.0]
            .take()
            .map(|arrival| arrival.memory)
        {
            Some(Memory::Into(_)) => Ok(None),
            Some(Memory::Segments(segments)) => Ok(Some(segments)),
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
    }

    /// Fills the payload that is due from the staging buffer, returning how much
    fn fill_from_staging(&mut self, recvs: &mut Slab<RecvOperation>) -> usize {
        let Some(payload) = &mut self.payload else {
            return 0;
        };
        let bytes = payload.left.min(self.staged.len());
        if bytes == 0 {
            return 0;
        }
        let mut source = &self.staging[self.staged.start..self.staged.start + bytes];
        if let Some(Some(arrival)) = self.arrivals.get_mut(payload.arrival.0) {
            while !source.is_empty() {
                let mut targets = Targets::new();
                let room = arrival.targets(recvs, source.len(), &mut targets);
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
    fn targets<'a>(
        &'a mut self,
        recvs: &'a mut Slab<RecvOperation>,
        bytes: usize,
        targets: &mut Targets<'a>,
    ) -> usize {
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
                for segment in &mut segments[segment..] {
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

    /// Counts bytes as filled
    fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
        if let Memory::Segments(segments) = &self.memory {
            let (mut segment, mut offset) = self.cursor;
            let mut left = bytes;
            while left > 0 {
                let take = left.min(segments[segment].len() - offset);
                left -= take;
                offset += take;
                if offset == segments[segment].len() {
                    segment += 1;
                    offset = 0;
                }
            }
            self.cursor = (segment, offset);
        }
    }
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
            if self.lane.as_ref().is_some_and(Lane::is_drained) {
                break;
            }
        }
        self.handle_staged(conn, wakes)?;
        Ok(total)
    }

    /// Works through the staging buffer: headers, and payload behind them
    fn handle_staged(&mut self, conn: &Conn, wakes: &mut Wakes) -> Result<(), LinkError> {
        loop {
            if self.lane.is_none() {
                return Ok(());
            }
            if self.incoming.payload.is_some() {
                self.incoming.fill_from_staging(&mut self.recvs);
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
            let announced = self.proto.handle_frame(Instant::now(), frame)?;
            if let Announced::Payload { arrival, bytes } = announced {
                self.incoming.payload = Some(Payload {
                    arrival,
                    left: usize::try_from(bytes).expect("checked against the limits"),
                });
            }
            self.handle_events(conn, wakes);
        }
    }

    /// The payload of a frame is there
    fn finish_payload(&mut self, conn: &Conn, wakes: &mut Wakes) {
        if let Some(payload) = self.incoming.payload.take() {
            self.proto.handle_payload(Instant::now(), payload.arrival);
            self.handle_events(conn, wakes);
        }
    }

    /// Reads once: into the message that is due, and behind it into the staging buffer
    fn read_lane(&mut self) -> Result<usize, LinkError> {
        let Some(lane) = &mut self.lane else {
            return Ok(0);
        };
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
                due = arrival.targets(&mut self.recvs, wanted, &mut targets);
            } else {
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
                self.proto.handle_activity(Instant::now());
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
type Targets<'a> = SmallVec<[IoSliceMut<'a>; TARGETS_MAX]>;

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
const READ_BYTES_MAX: usize = 256 << 10;
