//! The way out: frames that the protocol has handed over and the lane has not taken yet.

use std::collections::VecDeque;
use std::io::IoSlice;

use backhaul_proto::{
    Give, Given, HEADER_BYTES, MessageKind, Outgoing, PayloadRange, SendId, Transmit,
};
use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use super::Link;
use super::operations::segment_sizes;
use crate::memory::{Segment, Segments};

/// Frames on their way to the lane, in order
#[derive(Default)]
pub(super) struct Outbound {
    frames: VecDeque<OutgoingFrame>,
    /// Bytes of `frames` that the lane has not taken
    bytes: usize,
    /// Payload that the protocol offers to a carrier, and whose answer it awaits
    giving: Option<Give>,
    /// Bytes that the lane is to be offered at once, where that is more than usual
    wanted_bytes: usize,
}

struct OutgoingFrame {
    header: SmallVec<[u8; 64]>,
    /// Bytes of `header` that the lane has taken
    header_taken: usize,
    /// Rest of the payload; the first part may be begun
    payload: SmallVec<[Bytes; 2]>,
    /// Parts of `payload` that the lane has taken
    payload_taken: usize,
    /// The send that is complete when this frame has left
    completes: Option<SendId>,
}

impl Outbound {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A segment that the holder of the link is to hand to a carrier
#[derive(Debug)]
pub struct GiveRequest<'a> {
    /// The segment
    pub segment: &'a Segment,
    /// Number of the carrier that the receiver asks for; 0 if it has no preference
    pub carrier: u8,
}

impl<S, R> Link<S, R> {
    /// Starts a short message, if nothing keeps it waiting; the holder then writes the header that
    /// is returned and the bytes, all at once
    pub fn send_inline(
        &mut self,
        kind: MessageKind,
        segment_bytes: &[u64],
    ) -> Option<backhaul_proto::HeaderBytes> {
        let header = self.core.send_inline(kind, segment_bytes)?;
        self.counters.sent_messages.bump(1);
        self.counters.sent_bytes.bump(segment_bytes.iter().sum());
        Some(header)
    }

    /// How many bytes the first frame of such a message has; `None` if it cannot go that way
    pub fn inline_frame_bytes(&self, segments: usize, payload_bytes: u64) -> Option<usize> {
        if self.is_closing() || !self.is_open() || !self.outbound.is_empty() {
            return None;
        }
        let table = match segments {
            1 => 0,
            _ => segments * size_of::<u64>(),
        };
        Some(HEADER_BYTES + table + usize::try_from(payload_bytes).ok()?)
    }

    /// Returns whether there may be something for the lane or for a carrier; `false` is certain
    #[inline]
    pub fn may_write(&self) -> bool {
        !self.outbound.is_empty() || self.core.may_transmit()
    }

    /// A segment to be handed to a carrier; [`Link::handle_given`] is due next
    pub fn poll_give(&mut self) -> Option<GiveRequest<'_>> {
        self.refill();
        let give = self.outbound.giving?;
        let segments = &self.sends[give.range.send.0].segments;
        Some(GiveRequest {
            segment: whole_segment(segments, give.range),
            carrier: give.carrier,
        })
    }

    /// Says what came of [`Link::poll_give`]; with `None` the segment goes on the lane
    ///
    /// A segment in memory of a device cannot: then the link ends.
    pub fn handle_given(&mut self, given: Option<Given>) {
        let Some(give) = self.outbound.giving.take() else {
            return;
        };
        let segments = &self.sends[give.range.send.0].segments;
        let memory = whole_segment(segments, give.range).kind();
        if given.is_none() && memory.is_device() {
            self.fail_for_system(&format!("no carrier took {memory} that had been announced"));
            return;
        }
        self.core.given(given);
    }

    /// Has the lane offered so many bytes at once from now on, if that is more than usual
    pub fn offer_at_least(&mut self, bytes: usize) {
        self.outbound.wanted_bytes = bytes;
    }

    /// Collects what the lane is to take next
    pub fn write_slices<'a>(&'a mut self, slices: &mut SmallVec<[IoSlice<'a>; 16]>) {
        self.refill();
        'frames: for frame in &self.outbound.frames {
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
    }

    /// Handles that the lane has taken so many bytes of [`Link::write_slices`]
    pub fn handle_written(&mut self, mut taken: usize) {
        self.outbound.bytes -= taken;
        while let Some(frame) = self.outbound.frames.front_mut() {
            if !frame.take(&mut taken) {
                return;
            }
            let completes = frame.completes;
            // This drops its reference to the memory of the message, before the send completes.
            self.outbound.frames.pop_front();
            if let Some(send) = completes {
                self.complete_send(send);
            }
        }
    }

    /// Takes frames from the protocol, enough for one write
    fn refill(&mut self) {
        // At the end the sends are gone, though the protocol still has frames of them.
        while self.is_open()
            && self.outbound.giving.is_none()
            && self.outbound.bytes < self.outbound.wanted_bytes.max(WRITE_BYTES_MAX)
            && self.outbound.frames.len() < FRAMES_MAX
        {
            match self.core.poll_transmit() {
                None => return,
                Some(Outgoing::Give(give)) => self.outbound.giving = Some(give),
                Some(Outgoing::Frame(transmit)) => {
                    let frame = self.outgoing_frame(transmit);
                    self.outbound.bytes += frame.left();
                    self.outbound.frames.push_back(frame);
                }
            }
        }
    }

    fn outgoing_frame(&self, transmit: Transmit) -> OutgoingFrame {
        let mut payload = SmallVec::new();
        if let Some(range) = &transmit.payload {
            let mut skip = to_usize(range.offset);
            let mut left = to_usize(range.bytes);
            for segment in self.sends[range.send.0].segments.iter() {
                if skip >= segment.len() {
                    skip -= segment.len();
                    continue;
                }
                let take = left.min(segment.len() - skip);
                if take > 0 {
                    let host = segment.host();
                    let host = host.expect("memory of a device is given to a carrier");
                    payload.push(host.slice(skip..skip + take));
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
fn whole_segment(segments: &Segments, range: PayloadRange) -> &Segment {
    let sizes: SmallVec<[u64; 8]> = segment_sizes(segments);
    let mut offset = 0;
    let index = sizes.iter().position(|bytes| {
        let start = offset;
        offset += bytes;
        start == range.offset && *bytes == range.bytes
    });
    &segments[index.expect("a part that may be given is one segment")]
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("ranges lie within segments in memory")
}

/// Bytes taken from the protocol ahead of the lane, and at most offered to it at once, unless the lane
/// wants more
const WRITE_BYTES_MAX: usize = 256 << 10;

/// Frames taken from the protocol ahead of the lane
const FRAMES_MAX: usize = 64;

/// Parts offered to the lane at once; the kernel takes up to 1024 (`UIO_MAXIOV`)
const SLICES_MAX: usize = 256;
