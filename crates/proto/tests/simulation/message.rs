//! Messages of the workload, and the memory that both sides reach.

use std::cell::RefCell;
use std::rc::Rc;

use backhaul_proto::{Device, MemoryKind, MessageKind, Offer, SegmentSource, Span, Tag, Vendor};

use crate::rng::Rng;

/// Messages that one side has started, in order
pub(crate) type Journal = Rc<RefCell<Vec<Message>>>;

/// Bytes that one side lets the other have beside the lane, by ticket or token
pub(crate) type Shared = Rc<RefCell<Vec<Vec<u8>>>>;

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    pub(crate) segment_bytes: Vec<u64>,
    pub(crate) content: Vec<u8>,
    /// Parts that a carrier may bring
    pub(crate) spans: Vec<Span>,
    /// Where the segments lie, if that is sent
    pub(crate) sources: Vec<SegmentSource>,
    pub(crate) announce: bool,
}

impl Message {
    /// A message of any layout; what is offered of it goes to `shared`
    pub(crate) fn any(rng: &mut Rng, bytes: u64, seed: u64, shared: &Shared) -> Self {
        let mut noise = Rng::new(seed);
        let content = (0..bytes).map(|_| noise.next() as u8).collect();
        let kind = if rng.chance(40) {
            MessageKind::Untagged
        } else {
            MessageKind::Tagged(Tag(rng.below(4)))
        };
        let mut message = Self {
            kind,
            segment_bytes: any_segments(rng, bytes),
            content,
            spans: Vec::new(),
            sources: Vec::new(),
            announce: rng.chance(10),
        };
        message.spans = every_other_segment(&message.segment_bytes);
        let offer_percent = rng.pick(&[100, 50, 0]);
        if rng.chance(50) {
            message.add_sources(rng, offer_percent, shared);
        }
        message
    }

    /// Returns whether the receiver may fetch all of its bytes
    pub(crate) fn may_be_fetched(segment_bytes: &[u64], sources: &[SegmentSource]) -> bool {
        let mut segments = segment_bytes.iter().zip(sources);
        !sources.is_empty() && segments.all(|(bytes, source)| *bytes == 0 || source.offer.is_some())
    }

    fn add_sources(&mut self, rng: &mut Rng, offer_percent: u64, shared: &Shared) {
        let mut offset = 0;
        for &bytes in &self.segment_bytes {
            let end = offset + bytes as usize;
            let offer = rng.chance(offer_percent).then(|| {
                let mut shared = shared.borrow_mut();
                shared.push(self.content[offset..end].to_vec());
                let token = shared.len() as u64 - 1;
                Offer {
                    carrier: carrier_of(token),
                    token,
                }
            });
            let memory = rng.pick(&[MemoryKind::Host, DEVICE]);
            self.sources.push(SegmentSource { memory, offer });
            offset = end;
        }
    }
}

/// The carrier that brings what a ticket or token is for
pub(crate) fn carrier_of(ticket: u64) -> u8 {
    1 + (ticket % 3) as u8
}

fn any_segments(rng: &mut Rng, mut left_bytes: u64) -> Vec<u64> {
    let mut segment_bytes = Vec::new();
    let segments = if left_bytes == 0 && rng.chance(50) {
        0
    } else {
        rng.pick(&[1, 1, 1, 2, 3, 5, 6, 41, 130, 199])
    };
    for index in 0..segments {
        let bytes = if index + 1 == segments {
            left_bytes
        } else {
            rng.below(left_bytes / 2 + 1)
        };
        left_bytes -= bytes;
        segment_bytes.push(bytes);
    }
    segment_bytes
}

/// Every other segment that has bytes
fn every_other_segment(segment_bytes: &[u64]) -> Vec<Span> {
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

const DEVICE: MemoryKind = MemoryKind::Device(Device {
    vendor: Vendor::Experimental,
    ordinal: 7,
});
