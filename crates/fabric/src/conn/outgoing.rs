//! The way out: frames that the protocol has handed over and the lane has not taken yet.

use std::collections::VecDeque;
use std::io::IoSlice;

use backhaul_proto::{PayloadRange, SendId, Transmit};
use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use super::Conn;
use super::ending::LinkError;
use super::link::Link;
use crate::lane::Moved;
use crate::request::Wakes;

/// Frames on their way to the lane, in order
#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<OutgoingFrame>,
    /// Bytes of `frames` that the lane has not taken
    bytes: usize,
}

struct OutgoingFrame {
    header: SmallVec<[u8; 64]>,
    /// Bytes of `header` that the lane has taken
    header_taken: usize,
    /// What is left of the payload; the first part may be begun
    payload: SmallVec<[Bytes; 2]>,
    /// Parts of `payload` that the lane has taken
    payload_taken: usize,
    /// The send that is complete when this frame has left
    completes: Option<SendId>,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn is_midway(&self) -> bool {
        !self.frames.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}

impl Link {
    /// Writes what the lane takes, up to [`WRITE_BYTES_MAX`], returning how much that was
    pub(super) fn write_some(
        &mut self,
        conn: &Conn,
        wakes: &mut Wakes,
    ) -> Result<usize, LinkError> {
        // At the end the sends are gone, though the protocol still has frames of them.
        if self.lane.is_none() {
            return Ok(0);
        }
        self.refill();
        if self.outgoing.frames.is_empty() {
            return Ok(0);
        }
        let Some(lane) = &mut self.lane else {
            return Ok(0);
        };
        let mut slices: SmallVec<[IoSlice<'_>; 16]> = SmallVec::new();
        'frames: for frame in &self.outgoing.frames {
            if frame.header_taken < frame.header.len() {
                slices.push(IoSlice::new(&frame.header[frame.header_taken..]));
            }
            for part in &frame.payload[frame.payload_taken..] {
                if slices.len() >= SLICES_MAX {
                    break 'frames;
                }
                slices.push(IoSlice::new(part));
            }
        }
        match lane.write(&slices)? {
            Moved::Bytes(bytes) => {
                drop(slices);
                self.retire(conn, bytes, wakes);
                Ok(bytes)
            }
            Moved::Blocked => Ok(0),
            Moved::End => Err(LinkError::End),
        }
    }

    /// Takes frames from the protocol, enough for one write
    fn refill(&mut self) {
        while self.outgoing.bytes < WRITE_BYTES_MAX && self.outgoing.frames.len() < FRAMES_MAX {
            let (sends, courier) = (&self.sends, &self.memory.courier);
            let mut lend = |range: PayloadRange| {
                let memory = whole_segment(&sends[range.send.0].segments, range)?;
                courier.as_ref()?.lend(memory)
            };
            let Some(transmit) = self.proto.poll_transmit_lending(&mut lend) else {
                return;
            };
            let frame = self.outgoing_frame(transmit);
            self.outgoing.bytes += frame.left();
            self.outgoing.frames.push_back(frame);
        }
    }

    fn outgoing_frame(&self, transmit: Transmit) -> OutgoingFrame {
        let mut payload = SmallVec::new();
        if let Some(range) = &transmit.payload {
            let segments = &self.sends[range.send.0].segments;
            let mut skip = to_usize(range.offset);
            let mut left = to_usize(range.bytes);
            for segment in segments {
                if skip >= segment.len() {
                    skip -= segment.len();
                    continue;
                }
                let take = left.min(segment.len() - skip);
                if take > 0 {
                    payload.push(segment.slice(skip..skip + take));
                }
                skip = 0;
                left -= take;
                if left == 0 {
                    break;
                }
            }
        }
        OutgoingFrame {
            header: transmit.header,
            header_taken: 0,
            payload,
            payload_taken: 0,
            completes: transmit.completes,
        }
    }

    /// Drops what the lane has taken and completes the sends that are out
    fn retire(&mut self, conn: &Conn, mut taken: usize, wakes: &mut Wakes) {
        self.outgoing.bytes -= taken;
        while let Some(frame) = self.outgoing.frames.front_mut() {
            if !frame.take(&mut taken) {
                return;
            }
            let completes = frame.completes;
            // With its hold on the memory of the message.
            self.outgoing.frames.pop_front();
            if let Some(send) = completes {
                self.complete_send(conn, send, wakes);
            }
        }
    }
}

impl OutgoingFrame {
    fn left(&self) -> usize {
        let payload: usize = self.payload.iter().map(Bytes::len).sum();
        self.header.len() - self.header_taken + payload
    }

    /// Takes up to `taken` bytes off the front, returning whether nothing is left
    fn take(&mut self, taken: &mut usize) -> bool {
        let header = (*taken).min(self.header.len() - self.header_taken);
        self.header_taken += header;
        *taken -= header;
        while let Some(part) = self.payload.get_mut(self.payload_taken) {
            let bytes = (*taken).min(part.len());
            part.advance(bytes);
            *taken -= bytes;
            if !part.is_empty() {
                return false;
            }
            self.payload_taken += 1;
        }
        self.header_taken == self.header.len()
    }
}

/// The segment that a range covers
fn whole_segment(segments: &[Bytes], range: PayloadRange) -> Option<&[u8]> {
    let mut offset = 0;
    segments.iter().map(|segment| &**segment).find(|segment| {
        let start = offset;
        offset += segment.len() as u64;
        start == range.offset && segment.len() as u64 == range.bytes
    })
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("ranges lie within segments in memory")
}

/// Bytes taken from the protocol ahead of the lane, and at most offered to it at once
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Frames taken from the protocol ahead of the lane
const FRAMES_MAX: usize = 64;

/// Parts offered to the lane at once; the kernel takes up to 1024 (`UIO_MAXIOV`)
const SLICES_MAX: usize = 256;
