//! Sends and receives: how they are posted, withdrawn and what becomes of them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use backhaul_proto::{
    Capacity, Long, MemoryKind, MessageKind, Posted, RecvId, RecvRefused, SegmentSource, Selector,
    SendId, SendRefused, Sources, Span, Withdrawn,
};
use smallvec::SmallVec;

use super::Link;
use super::arrival::{Arrival, Memory, Missing, SegmentMemory, copy_into};
use super::event::{Content, Delivery, LinkEvent, MessageMemory, Now, Recv, Send};
use super::offers::kept_offers;
use crate::error::{RecvError, SendError};
use crate::memory::{RecvBuffer, Segments};

/// A send that is not over
#[derive(Debug)]
pub(super) struct SendOperation<S> {
    operation: Option<u64>,
    pub(super) segments: Segments,
    bytes: u64,
    /// Part of `bytes` that the peer may fetch by itself
    offered_bytes: u64,
    /// Tickets of offers for which a carrier keeps something
    offers: SmallVec<[(u8, u64); 1]>,
    token: S,
}

/// A receive that is not over
pub(super) struct RecvOperation<R> {
    operation: u64,
    pub(super) buffer: Option<Box<dyn RecvBuffer>>,
    /// Kind of memory of `buffer`
    kind: MemoryKind,
    is_untagged: bool,
    token: R,
}

/// An operation that is not over and may be cancelled, by its place
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Send(usize),
    Recv(usize),
}

/// Operations by the numbers that their holder gave them, each to one
pub(super) type Operations = HashMap<u64, Operation, BuildHasherDefault<NumberHasher>>;

/// Hashes numbers that are counted up, and that no peer chooses
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The map looks at the lowest bits and at the highest: the product is good at the top alone.
        self.0.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(GOLDEN_RATIO);
    }
}

impl<S, R> Link<S, R> {
    /// Posts a send, returning its place as long as it is not over
    ///
    /// `sources` says how the receiver may fetch the segments, or is empty.
    pub fn post_send(&mut self, send: Send<S>, sources: Sources) -> Option<usize> {
        let kind = send.kind;
        let bytes = send.segments.bytes();
        self.counters.queued_bytes.bump(bytes);
        let mut send = SendOperation {
            operation: send.operation,
            segments: send.segments,
            bytes,
            offered_bytes: 0,
            offers: kept_offers(&sources).collect(),
            token: send.token,
        };
        if !self.is_open() || self.is_closing() {
            let reason = self.close_reason();
            self.finish_send(send, Err(reason.into()));
            return None;
        }
        let sources = match self.with_devices(&send.segments, sources) {
            Ok(sources) => sources,
            Err(refused) => {
                self.finish_send(send, Err(refused.into()));
                return None;
            }
        };
        let sizes: SmallVec<[u64; 8]> = segment_sizes(&send.segments);
        let spans = self.spans(&send.segments);
        let long = Long {
            spans: &spans,
            sources: &sources,
            announce: !sources.is_empty(),
        };
        if sources.iter().any(|source| source.offer.is_some()) {
            send.offered_bytes = bytes;
            self.offered_bytes += bytes;
        }
        let operation = send.operation;
        let id = self.sends.insert(send);
        match self.core.send_long(SendId(id), kind, &sizes, &long) {
            Ok(()) => {
                self.operations
                    .extend(operation.map(|operation| (operation, Operation::Send(id))));
                Some(id)
            }
            Err(refused) => {
                let send = self.sends.remove(id);
                self.finish_send(send, Err(refused.into()));
                None
            }
        }
    }

    /// Refuses a send: its memory is not what it is said to be
    pub fn refuse_send(&mut self, send: Send<S>, refused: SendRefused) {
        let bytes = send.segments.bytes();
        self.counters.queued_bytes.bump(bytes);
        let send = SendOperation {
            operation: send.operation,
            segments: send.segments,
            bytes,
            offered_bytes: 0,
            offers: SmallVec::new(),
            token: send.token,
        };
        self.finish_send(send, Err(refused.into()));
    }

    /// Gives a send that is not over the name to cancel it with, returning what comes back with it
    ///
    /// # Panics
    ///
    /// If it is over.
    pub fn name_send(&mut self, id: usize, operation: u64) -> &mut S {
        let send = &mut self.sends[id];
        send.operation = Some(operation);
        self.operations.insert(operation, Operation::Send(id));
        &mut send.token
    }

    /// Posts a receive, returning whether it waits and nothing else has changed
    pub fn post_recv(&mut self, now: &Now, recv: Recv<R>) -> bool {
        let Recv {
            operation,
            selector,
            mut buffer,
            token,
        } = recv;
        let (mut capacity, mut kind) = (Capacity::Allocate, MemoryKind::Host);
        if let Some(buffer) = &mut buffer {
            let memory = buffer.memory();
            (capacity, kind) = (Capacity::Into(memory.len() as u64), memory.kind());
        }
        let id = self.recvs.insert(RecvOperation {
            operation,
            buffer,
            kind,
            is_untagged: matches!(selector, Selector::Untagged),
            token,
        });
        if !self.memory.reaches(kind) {
            let detail = self.memory.carriers_text();
            let refused = RecvRefused::NoCarrier {
                memory: kind,
                detail,
            };
            self.fail_recv(id, refused.into());
            return false;
        }
        match self.core.post_recv(RecvId(id), selector, capacity) {
            Err(RecvRefused::Closed) => {
                let reason = self.close_reason();
                self.fail_recv(id, reason.into());
            }
            Err(refused) => self.fail_recv(id, refused.into()),
            Ok(Posted::Waits) if self.is_open() => {
                self.operations.insert(operation, Operation::Recv(id));
                return true;
            }
            Ok(_) => self.handle_events(now),
        }
        let is_it = |recv: &RecvOperation<R>| recv.operation == operation;
        if !self.recvs.get(id).is_some_and(is_it) {
            return false;
        }
        if self.is_open() {
            self.operations.insert(operation, Operation::Recv(id));
        } else {
            // After the end, only what arrived before it can be received.
            self.core.withdraw_recv(RecvId(id));
            let reason = self.close_reason();
            self.fail_recv(id, reason.into());
        }
        false
    }

    /// Withdraws a send of which nothing has left, or a receive; another one ends as if not
    ///
    /// A message that the receive has met stays for other receives, in its place in the order.
    pub fn cancel(&mut self, now: &Now, operation: u64) {
        match self.operations.get(&operation) {
            None => {}
            Some(&Operation::Send(id)) => self.cancel_send(id),
            Some(&Operation::Recv(id)) => self.cancel_recv(now, id),
        }
    }

    fn cancel_send(&mut self, id: usize) {
        if self.core.cancel_send(SendId(id)) {
            let send = self.take_send(id);
            self.finish_send(send, Err(SendError::Cancelled));
        }
    }

    fn cancel_recv(&mut self, now: &Now, id: usize) {
        if self.withdraw_recv(id) {
            self.fail_recv(id, RecvError::Cancelled);
            // Another receive may have got the message.
            self.handle_events(now);
        }
    }

    /// Withdraws a receive from the protocol, with a message that it has met; `false`: it is over
    fn withdraw_recv(&mut self, id: usize) -> bool {
        match self.core.withdraw_recv(RecvId(id)) {
            Withdrawn::No => return false,
            Withdrawn::Waiting => {}
            Withdrawn::Met(arrival) => {
                if let Some(arrival) = self.arrivals.get_mut(arrival) {
                    arrival.move_out(&mut self.recvs, &self.memory.pool);
                }
            }
        }
        true
    }

    /// Forgets a send that is over
    fn take_send(&mut self, id: usize) -> SendOperation<S> {
        let send = self.sends.remove(id);
        if let Some(operation) = send.operation {
            self.operations.remove(&operation);
        }
        send
    }

    /// Forgets a receive that is over
    fn take_recv(&mut self, id: usize) -> RecvOperation<R> {
        let recv = self.recvs.remove(id);
        self.operations.remove(&recv.operation);
        recv
    }

    /// Takes back the receives of untagged messages, with the names of their operations, in order
    ///
    /// A message that one of them has met stays for other receives, in its place in the order.
    pub fn withdraw_untagged(&mut self, now: &Now) -> Vec<(u64, R)> {
        let recvs = self.recvs.iter();
        let untagged = recvs.filter(|(_, recv)| recv.is_untagged && recv.buffer.is_none());
        let mut ids: Vec<_> = untagged.map(|(id, recv)| (recv.operation, id)).collect();
        ids.sort_unstable();
        let mut withdrawn = Vec::new();
        for (operation, id) in ids {
            if self.withdraw_recv(id) {
                withdrawn.push((operation, self.take_recv(id).token));
            }
        }
        self.handle_events(now);
        withdrawn
    }

    /// Takes back a message that was not looked at: another receive gets it, in its order
    pub fn restore(&mut self, now: &Now, mut delivery: Delivery) {
        let device_bytes = delivery.device_bytes();
        self.counters.received_device_bytes.lower(device_bytes);
        let Delivery {
            kind,
            message,
            bytes,
            content,
        } = delivery;
        let memory = match content {
            Content::Segments(memory) => own_memory(memory),
            Content::Into(mut buffer) => match buffer.memory() {
                crate::memory::RecvMemory::Host(host) => {
                    let taken = self.memory.pool.take(host.len().min(bytes as usize));
                    taken.map_or(Memory::Missing(Missing::OutOfMemory), |mut own| {
                        let length = own.len();
                        own.copy_from_slice(&host[..length]);
                        Memory::Segments(vec![Some(SegmentMemory::Host(own))])
                    })
                }
                // The memory itself, which its owner keeps.
                crate::memory::RecvMemory::Device(device) => {
                    let device = device.slice(0, bytes as usize);
                    Memory::Segments(vec![Some(SegmentMemory::Device(device))])
                }
            },
        };
        let sizes = match &memory {
            Memory::Segments(segments) => segments.iter().map(segment_bytes).collect(),
            _ => backhaul_proto::SegmentBytes::new(),
        };
        self.counters.received_messages.lower(1);
        self.counters.received_bytes.lower(bytes);
        let arrival = self.core.restore(message, kind, bytes);
        self.arrivals
            .insert(arrival, Arrival::here(memory, sizes, bytes));
        self.handle_events(now);
    }

    /// A receive has its message
    pub(super) fn complete_recv(
        &mut self,
        recv: RecvId,
        kind: MessageKind,
        message: u64,
        bytes: u64,
        memory: Result<Option<MessageMemory>, Missing>,
    ) {
        match memory {
            Ok(memory) => self.finish_recv(recv, kind, message, bytes, memory),
            Err(missing) => self.fail_recv(recv.0, missing.into_error(bytes)),
        }
    }

    /// Hands a message over to its receive, whose buffer has it unless it is in `memory`
    pub(super) fn finish_recv(
        &mut self,
        recv: RecvId,
        kind: MessageKind,
        message: u64,
        bytes: u64,
        memory: Option<MessageMemory>,
    ) {
        let recv = self.take_recv(recv.0);
        let content = match (recv.buffer, memory) {
            (None, memory) => Content::Segments(memory.unwrap_or_default()),
            (Some(buffer), None) => Content::Into(buffer),
            (Some(mut buffer), Some(memory)) => match copy_into(&memory, buffer.memory()) {
                Ok(()) => Content::Into(buffer),
                Err((memory, detail)) => {
                    drop(buffer);
                    let refused = RecvRefused::NoCarrier { memory, detail };
                    self.events.push_back(LinkEvent::Received {
                        token: recv.token,
                        result: Err(refused.into()),
                    });
                    return;
                }
            },
        };
        self.counters.received_messages.bump(1);
        self.counters.received_bytes.bump(bytes);
        let mut delivery = Delivery {
            kind,
            message,
            bytes,
            content,
        };
        if recv.kind.is_device() || delivery.content.has_device_segments() {
            let device_bytes = delivery.device_bytes();
            self.counters.received_device_bytes.bump(device_bytes);
        }
        self.events.push_back(LinkEvent::Received {
            token: recv.token,
            result: Ok(delivery),
        });
    }

    pub(super) fn fail_recv(&mut self, id: usize, error: RecvError) {
        let recv = self.take_recv(id);
        // Before the event: its receiver may use the memory again.
        drop(recv.buffer);
        self.events.push_back(LinkEvent::Received {
            token: recv.token,
            result: Err(error),
        });
    }

    /// Completes a send whose last byte has left
    pub(super) fn complete_send(&mut self, send: SendId) {
        let send = self.take_send(send.0);
        self.counters.sent_messages.bump(1);
        self.counters.sent_bytes.bump(send.bytes);
        let device_bytes = send.segments.device_bytes();
        self.counters.sent_device_bytes.bump(device_bytes);
        self.finish_send(send, Ok(()));
    }

    /// Says what has become of a send
    pub(super) fn finish_send(&mut self, send: SendOperation<S>, result: Result<(), SendError>) {
        self.counters.queued_bytes.lower(send.bytes);
        self.offered_bytes -= send.offered_bytes;
        self.offers_over.extend(send.offers);
        // Before the event: its receiver may use the memory again.
        drop(send.segments);
        self.events.push_back(LinkEvent::Sent {
            token: send.token,
            result,
        });
    }

    /// The segments that a carrier may bring once the message is accepted, as parts of the message
    fn spans(&self, segments: &Segments) -> SmallVec<[Span; 2]> {
        let mut spans = SmallVec::new();
        let mut offset = 0;
        for segment in segments.iter() {
            let bytes = segment.len() as u64;
            let is_wanted = match segment.kind() {
                MemoryKind::Host => self.memory.may_give(bytes),
                MemoryKind::Device(_) => true,
            };
            if bytes > 0 && is_wanted {
                spans.push(Span { offset, bytes });
            }
            offset += bytes;
        }
        spans
    }

    /// Says of each segment where it lies, if one of them lies in memory of a device
    fn with_devices(
        &self,
        segments: &Segments,
        mut sources: Sources,
    ) -> Result<Sources, SendRefused> {
        let mut devices = segments.iter().map(super::super::memory::Segment::kind);
        let Some(memory) = devices.find(|kind| kind.is_device()) else {
            return Ok(sources);
        };
        if !self.memory.reaches(memory) {
            return Err(SendRefused::NoCarrier {
                memory,
                detail: self.memory.carriers_text(),
            });
        }
        sources.resize(segments.len(), SegmentSource::default());
        for (source, segment) in sources.iter_mut().zip(segments.iter()) {
            source.memory = segment.kind();
        }
        Ok(sources)
    }
}

/// 2⁶⁴ divided by the golden ratio: multiples of it are spread evenly
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

impl Missing {
    fn into_error(self, message_bytes: u64) -> RecvError {
        match self {
            Self::OutOfMemory => RecvError::OutOfMemory { message_bytes },
            Self::NoPlace { memory, detail } => RecvRefused::NoCarrier { memory, detail }.into(),
        }
    }
}

pub(super) fn segment_sizes<A: smallvec::Array<Item = u64>>(segments: &Segments) -> SmallVec<A> {
    segments
        .iter()
        .map(|segment| segment.len() as u64)
        .collect()
}

/// Returns the memory that was handed over, as the memory of an arrival again
pub(super) fn own_memory(memory: MessageMemory) -> Memory {
    let host = memory.host.into_iter();
    let mut segments: Vec<_> = host.map(|host| Some(SegmentMemory::Host(host))).collect();
    for (index, device) in memory.device {
        segments[index] = Some(SegmentMemory::Device(device));
    }
    Memory::Segments(segments)
}

fn segment_bytes(segment: &Option<SegmentMemory>) -> u64 {
    match segment {
        Some(SegmentMemory::Host(memory)) => memory.len() as u64,
        Some(SegmentMemory::Device(memory)) => memory.len() as u64,
        None => 0,
    }
}
