//! Actions of the sides, drawn at random: sends, receives, cancels, and steps of their lanes.

use backhaul::seams::{Recv, Send};
use backhaul::{Bytes, RecvBuffer, Segment, Segments, Tag, TagMask};
use backhaul_proto::{MessageKind, Selector};

use super::World;
use crate::random::Random;
use crate::sim::model::{Part, content};

impl World {
    /// Does something random
    pub(super) fn act(&mut self) {
        let side = self.random.below(2);
        match self.random.below(20) {
            0..4 => self.send(side),
            4..7 => {
                let selector = self.some_selector();
                let buffer = self.some_buffer();
                self.post(side, selector, buffer);
            }
            7 => self.cancel(side),
            8 => self.restore(side),
            9 => self.advance(),
            10..13 => {
                let bytes = self.some_bytes();
                self.with(side, |node, around| node.write(bytes, around));
            }
            13..16 => {
                let bytes = self.some_bytes();
                self.with(side, |node, around| node.read(bytes, around));
            }
            16..18 => {
                self.with(side, |node, around| node.take(around));
            }
            _ => {
                self.pump();
            }
        }
        if !self.is_faulty {
            self.check_credit();
        }
    }

    fn send(&mut self, side: usize) {
        let kind = match self.random.below(4) {
            0 => MessageKind::Untagged,
            _ => MessageKind::Tagged(Tag(self.random.below(3) as u64)),
        };
        let parts = self.some_parts();
        let seed = self.directions[side].next_seed();
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        let content = content(seed, 0, bytes);
        let operation = self.nodes[side].operation();
        self.directions[side].send(operation, kind, parts.clone());
        let is_host = parts.iter().all(|part| !part.is_device);
        if is_host && self.random.below(2) == 0 {
            let sizes: Vec<u64> = parts.iter().map(|part| part.bytes as u64).collect();
            let is_out = self.with(side, |node, around| {
                let is_out = node.send_inline(kind, &sizes, &content, around);
                if is_out {
                    around.sends.sent(operation, &Ok(()), true);
                }
                is_out
            });
            if is_out {
                return;
            }
        }
        let segments = self.segments(side, &parts, &content);
        self.with(side, |node, around| {
            let sources = node.offers(&segments);
            node.link.post_send(
                Send {
                    operation: Some(operation),
                    kind,
                    segments,
                    token: operation,
                },
                sources,
            );
            node.settle_with(around, Some(operation));
        });
    }

    fn segments(&mut self, side: usize, parts: &[Part], content: &[u8]) -> Segments {
        let mut at = 0;
        parts
            .iter()
            .map(|part| {
                let bytes = &content[at..at + part.bytes];
                at += part.bytes;
                if part.is_device {
                    return Segment::Device(self.device.upload(bytes));
                }
                let memory = match self.random.below(2) {
                    0 => self.nodes[side].exchange.lend(bytes.to_vec()),
                    _ => Bytes::copy_from_slice(bytes),
                };
                match self.random.below(2) {
                    0 => Segment::Private(memory),
                    _ => Segment::Exported(memory),
                }
            })
            .collect()
    }

    pub(super) fn post(
        &mut self,
        side: usize,
        selector: Selector,
        buffer: Option<Box<dyn RecvBuffer>>,
    ) {
        let mut buffer = buffer;
        let (mut capacity, mut is_device) = (None, false);
        if let Some(buffer) = &mut buffer {
            let memory = buffer.memory();
            capacity = Some(memory.len());
            is_device = memory.kind().is_device();
        }
        let has_device_carrier = self.has_device_carrier;
        let operation = self.nodes[side].operation();
        self.with(side, |node, around| {
            if is_device && !has_device_carrier {
                around.recvs.post_refused(operation, selector, capacity);
            } else {
                around.recvs.post(operation, selector, capacity, is_device);
            }
            node.link.post_recv(
                &around.now(),
                Recv {
                    operation,
                    selector,
                    buffer,
                    token: operation,
                },
            );
            node.settle_with(around, Some(operation));
        });
    }

    fn cancel(&mut self, side: usize) {
        let nth = self.random.below(100);
        let operation = if self.random.below(3) == 0 {
            self.directions[side].some_send(nth)
        } else {
            let recv = self.directions[1 - side].some_recv(nth);
            let fills = recv.is_some_and(|recv| self.directions[1 - side].fills_device(recv));
            self.directions[1 - side].losses += usize::from(fills);
            recv
        };
        if let Some(operation) = operation {
            self.with(side, |node, around| {
                node.link.cancel(&around.now(), operation);
                node.settle(around);
            });
        }
    }

    fn restore(&mut self, side: usize) {
        let count = self.nodes[side].deliveries.len();
        if count == 0 || self.wires.iter().any(|wire| wire.is_corrupt) {
            return;
        }
        let index = self.random.below(count);
        self.with(side, |node, around| {
            let delivery = node.deliveries.swap_remove(index);
            around.recvs.restore(delivery.message);
            node.link.restore(&around.now(), delivery);
            node.settle(around);
        });
    }

    fn some_bytes(&mut self) -> usize {
        let most = *self.random.choose(&[1, 40, 1000, 1 << 20]);
        1 + self.random.below(most)
    }

    fn some_parts(&mut self) -> Vec<Part> {
        let count = *self.random.choose(&[1, 1, 1, 0, 2, 5]);
        let has_devices = self.random.below(4) == 0;
        let is_device = |random: &mut Random| has_devices && random.below(3) > 0;
        (0..count)
            .map(|_| Part {
                bytes: match self.random.below(6) {
                    0 => 0,
                    1 => self.random.below(6000),
                    2 => 300 + self.random.below(4),
                    _ => self.random.below(200),
                },
                is_device: is_device(&mut self.random),
            })
            .collect()
    }

    fn some_selector(&mut self) -> Selector {
        if self.random.below(4) == 0 {
            return Selector::Untagged;
        }
        Selector::Tagged {
            tag: Tag(self.random.below(3) as u64),
            mask: *self
                .random
                .choose(&[TagMask::FULL, TagMask::ANY, TagMask(1)]),
        }
    }

    fn some_buffer(&mut self) -> Option<Box<dyn RecvBuffer>> {
        let bytes = *self.random.choose(&[0, 100, 310, 10_000, 40_000]);
        match self.random.below(8) {
            0..4 => None,
            4 => Some(Box::new(self.device.upload(&vec![0; bytes]))),
            _ => Some(Box::new(vec![0; bytes])),
        }
    }
}
