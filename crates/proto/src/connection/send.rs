//! The sending half: messages wait for credit, start in order, and long ones follow in pieces.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::event::{HeaderBytes, PayloadRange, Span, Transmit};
use crate::credit::SendCredit;
use crate::decoder::SegmentBytes;
use crate::error::{ProtocolError, SendRefused};
use crate::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use crate::ids::{MessageKind, SendId};
use crate::limits::{Limits, PeerLimits};

/// Messages on their way to the peer
///
/// A send is in exactly one of `queued`, `requested` and `streaming`, and in that order.
#[derive(Debug)]
pub(super) struct SendHalf {
    credit: SendCredit,
    /// Sends of which the peer knows nothing, oldest first; they start strictly in this order
    queued: VecDeque<Queued>,
    /// Sends that wait for the peer to accept or skip them, by message number
    requested: BTreeMap<u64, Requested>,
    /// Sends that the peer has accepted; they take turns, the front is next
    streaming: VecDeque<Streaming>,
    /// Number of the next message to start
    next_message: u64,
    /// Bytes of starts that may still go before the next piece of a long message
    start_budget_bytes: u64,
    close: Close,
    eager_bytes_max: u64,
    message_bytes_max: u64,
    segments_max: u32,
    sends_max: usize,
    /// Never 0
    chunk_bytes_max: u64,
}

#[derive(Debug)]
struct Queued {
    send: SendId,
    kind: MessageKind,
    segment_bytes: SegmentBytes,
    /// Sum of `segment_bytes`
    bytes: u64,
    lendable: Spans,
}

/// Parts of a message that may be lent instead of sent, in order and apart
type Spans = SmallVec<[Span; 1]>;

#[derive(Debug)]
struct Requested {
    send: SendId,
    bytes: u64,
    lendable: Spans,
}

#[derive(Debug)]
struct Streaming {
    message: u64,
    send: SendId,
    bytes: u64,
    /// Bytes handed out; below `bytes`
    sent_bytes: u64,
    /// Those that lie behind `sent_bytes`
    lendable: Spans,
}

/// How far the end of sending is
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Close {
    Open,
    /// No new sends; the Close frame goes out after those there are
    Asked,
    Sent,
}

impl SendHalf {
    pub(super) fn new(limits: &Limits, peer: PeerLimits) -> Self {
        let chunk_bytes_max = limits.data_chunk_bytes.max(1);
        Self {
            credit: SendCredit::new(peer.credit_messages, peer.credit_bytes),
            queued: VecDeque::new(),
            requested: BTreeMap::new(),
            streaming: VecDeque::new(),
            next_message: 0,
            start_budget_bytes: chunk_bytes_max,
            close: Close::Open,
            eager_bytes_max: limits.eager_bytes_max,
            message_bytes_max: limits.message_bytes_max.min(peer.message_bytes_max),
            segments_max: limits.segments_max.min(peer.segments_max),
            sends_max: limits.sends_max,
            chunk_bytes_max,
        }
    }

    pub(super) fn send(
        &mut self,
        send: SendId,
        kind: MessageKind,
        segment_bytes: &[u64],
        lendable: &[Span],
    ) -> Result<(), SendRefused> {
        if self.close != Close::Open {
            return Err(SendRefused::Closed);
        }
        if segment_bytes.len() > self.segments_max as usize {
            return Err(SendRefused::TooManySegments {
                segments: segment_bytes.len(),
                max: self.segments_max,
            });
        }
        let sum_bytes = segment_bytes
            .iter()
            .try_fold(0_u64, |sum_bytes, bytes| sum_bytes.checked_add(*bytes));
        let bytes = sum_bytes.unwrap_or(u64::MAX);
        if sum_bytes.is_none() || bytes > self.message_bytes_max {
            return Err(SendRefused::TooLarge {
                bytes,
                max: self.message_bytes_max,
            });
        }
        if self.queued.len() >= self.sends_max {
            return Err(SendRefused::QueueFull {
                max: self.sends_max,
            });
        }
        self.queued.push_back(Queued {
            send,
            kind,
            segment_bytes: SmallVec::from_slice(segment_bytes),
            bytes,
            lendable: SmallVec::from_slice(lendable),
        });
        Ok(())
    }

    /// Takes back a send of which the peer knows nothing; linear in the number of those
    pub(super) fn cancel(&mut self, send: SendId) -> bool {
        let index = self.queued.iter().position(|queued| queued.send == send);
        index.and_then(|index| self.queued.remove(index)).is_some()
    }

    pub(super) fn close(&mut self) {
        if self.close == Close::Open {
            self.close = Close::Asked;
        }
    }

    pub(super) fn handle_credit(&mut self, messages: u64, bytes: u64) {
        self.credit.handle_grant(messages, bytes);
    }

    pub(super) fn handle_accept(&mut self, message: u64) -> Result<(), ProtocolError> {
        let requested = self.take_requested(message, FrameKind::Accept)?;
        self.streaming.push_back(Streaming {
            message,
            send: requested.send,
            bytes: requested.bytes,
            sent_bytes: 0,
            lendable: requested.lendable,
        });
        Ok(())
    }

    /// Handles that the peer does not want a message, returning the send, which is done
    pub(super) fn handle_skip(&mut self, message: u64) -> Result<SendId, ProtocolError> {
        let requested = self.take_requested(message, FrameKind::Skip)?;
        Ok(requested.send)
    }

    /// The next frame of a message, or the Close after all of them
    ///
    /// Starts and pieces of long messages share the lane by bytes: between two pieces, as many
    /// bytes of starts go as one piece has. `lend` is asked for each part that may be lent, and
    /// gives its ticket, or `None` if it must be sent.
    pub(super) fn poll_transmit(
        &mut self,
        lend: &mut dyn FnMut(PayloadRange) -> Option<u64>,
    ) -> Option<Transmit> {
        let may_start = !self.queued.is_empty() && self.credit.messages_left() > 0;
        if !self.streaming.is_empty() && (!may_start || self.start_budget_bytes == 0) {
            return self.transmit_chunk(lend);
        }
        if may_start {
            return self.transmit_start();
        }
        if self.close == Close::Asked && self.is_drained() {
            self.close = Close::Sent;
            return Some(Transmit::control(FrameHeader::bare(FrameKind::Close, 0)));
        }
        None
    }

    /// Whether every send is done, and the Close is out if one was asked for
    pub(super) fn is_flushed(&self) -> bool {
        self.is_drained() && self.close != Close::Asked
    }

    pub(super) fn queued_len(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn rendezvous_len(&self) -> usize {
        self.requested.len() + self.streaming.len()
    }

    pub(super) const fn credit(&self) -> &SendCredit {
        &self.credit
    }

    fn is_drained(&self) -> bool {
        self.queued.is_empty() && self.requested.is_empty() && self.streaming.is_empty()
    }

    fn take_requested(
        &mut self,
        message: u64,
        kind: FrameKind,
    ) -> Result<Requested, ProtocolError> {
        self.requested
            .remove(&message)
            .ok_or_else(|| ProtocolError::NotAwaited {
                kind: kind.code(),
                message,
            })
    }

    fn transmit_start(&mut self) -> Option<Transmit> {
        let queued = self.queued.pop_front()?;
        let is_eager =
            queued.bytes <= self.eager_bytes_max && queued.bytes <= self.credit.bytes_left();
        let kind = if is_eager {
            FrameKind::Eager
        } else {
            FrameKind::Request
        };
        let header = self.start(kind, queued.kind, queued.segment_bytes.len(), queued.bytes);
        let message = header.message;
        let header = encode_start(&header, &queued.segment_bytes);
        let mut frame_bytes = header.len() as u64;
        let mut payload = None;
        if is_eager {
            frame_bytes += queued.bytes;
            payload = PayloadRange::new(queued.send, 0, queued.bytes);
        } else {
            self.requested.insert(
                message,
                Requested {
                    send: queued.send,
                    bytes: queued.bytes,
                    lendable: queued.lendable,
                },
            );
        }
        self.start_budget_bytes = self.start_budget_bytes.saturating_sub(frame_bytes);
        Some(Transmit {
            header,
            payload,
            completes: is_eager.then_some(queued.send),
        })
    }

    /// Starts an eager message of one segment, if nothing goes before it and the peer lets us
    pub(super) fn start_at_once(
        &mut self,
        kind: MessageKind,
        bytes: u64,
    ) -> Option<[u8; HEADER_BYTES]> {
        let is_next = self.close == Close::Open
            && self.queued.is_empty()
            && (self.streaming.is_empty() || self.start_budget_bytes > 0);
        let is_allowed = self.credit.messages_left() > 0
            && bytes <= self.eager_bytes_max.min(self.message_bytes_max)
            && bytes <= self.credit.bytes_left()
            && self.segments_max > 0;
        if !is_next || !is_allowed {
            return None;
        }
        let header = self.start(FrameKind::Eager, kind, 1, bytes);
        let frame_bytes = HEADER_BYTES as u64 + bytes;
        self.start_budget_bytes = self.start_budget_bytes.saturating_sub(frame_bytes);
        Some(header.encode())
    }

    /// Numbers the next message and takes credit for it, returning the header of its first frame
    fn start(
        &mut self,
        frame: FrameKind,
        kind: MessageKind,
        segments: usize,
        bytes: u64,
    ) -> FrameHeader {
        self.credit
            .take(if frame == FrameKind::Eager { bytes } else { 0 });
        let message = self.next_message;
        self.next_message += 1;
        let (untagged, tag) = match kind {
            MessageKind::Tagged(tag) => (false, tag.0),
            MessageKind::Untagged => (true, 0),
        };
        FrameHeader {
            kind: frame,
            untagged,
            segment_count: u32::try_from(segments).expect("checked against segments_max"),
            message,
            tag,
            payload_bytes: bytes,
        }
    }

    fn transmit_chunk(
        &mut self,
        lend: &mut dyn FnMut(PayloadRange) -> Option<u64>,
    ) -> Option<Transmit> {
        let mut streaming = self.streaming.pop_front()?;
        self.start_budget_bytes = self.chunk_bytes_max;
        let (header, payload) = streaming.next_piece(self.chunk_bytes_max, lend);
        streaming.sent_bytes += header.payload_bytes;
        let transmit = Transmit {
            payload,
            completes: (streaming.sent_bytes == streaming.bytes).then_some(streaming.send),
            ..Transmit::control(header)
        };
        if transmit.completes.is_none() {
            self.streaming.push_back(streaming);
        }
        Some(transmit)
    }
}

impl Streaming {
    /// The frame of the next bytes: a lease of all that lies in one span, else data
    fn next_piece(
        &mut self,
        chunk_bytes_max: u64,
        lend: &mut dyn FnMut(PayloadRange) -> Option<u64>,
    ) -> (FrameHeader, Option<PayloadRange>) {
        let offset = self.sent_bytes;
        let mut bytes_max = (self.bytes - offset).min(chunk_bytes_max);
        if let Some(&span) = self.lendable.first() {
            if span.offset > offset {
                bytes_max = bytes_max.min(span.offset - offset);
            } else {
                // Asked once: what is not lent is sent.
                self.lendable.remove(0);
                let range = PayloadRange::new(self.send, offset, span.bytes);
                if let Some(ticket) = range.and_then(lend) {
                    let header = FrameHeader {
                        tag: ticket,
                        payload_bytes: span.bytes,
                        ..FrameHeader::bare(FrameKind::Lease, self.message)
                    };
                    return (header, None);
                }
                // Not beyond the span: the next one is to begin where a piece begins.
                bytes_max = bytes_max.min(span.bytes);
            }
        }
        let header = FrameHeader {
            payload_bytes: bytes_max,
            ..FrameHeader::bare(FrameKind::Data, self.message)
        };
        (header, PayloadRange::new(self.send, offset, bytes_max))
    }
}

/// A header with its segment table, which a single segment does not need
pub(crate) fn encode_start(header: &FrameHeader, segment_bytes: &[u64]) -> HeaderBytes {
    let mut encoded = HeaderBytes::from_slice(&header.encode());
    if segment_bytes.len() != 1 {
        encoded.reserve_exact(size_of_val(segment_bytes));
        for bytes in segment_bytes {
            encoded.extend_from_slice(&bytes.to_le_bytes());
        }
    }
    debug_assert!(encoded.len() >= HEADER_BYTES);
    encoded
}

#[cfg(test)]
mod tests;
