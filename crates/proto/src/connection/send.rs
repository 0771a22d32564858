//! The sending half: messages wait for credit, start in order, and long ones follow in pieces.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::event::{Give, Given, HeaderBytes, Outgoing, PayloadRange, Span, Transmit};
use crate::credit::{Cost, SendCredit};
use crate::decoder::SegmentBytes;
use crate::error::{ProtocolError, SendRefused};
use crate::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use crate::ids::{MessageKind, SendId};
use crate::limits::{Limits, PeerLimits};
use crate::memory::{SOURCE_ENTRY_BYTES, SegmentSource, Sources};
use crate::queue::{Notes, Queue, Ticket};

/// Ways that are open to a message that does not go eagerly
#[derive(Clone, Copy, Debug, Default)]
pub struct Long<'a> {
    /// Parts that a carrier may bring, in ascending order and apart; for each of them
    /// [`Outgoing::Give`] asks once the peer has accepted the message
    pub spans: &'a [Span],
    /// Where each segment lies; empty if they all lie in the host's memory and none is offered
    pub sources: &'a [SegmentSource],
    /// True if the message is announced however short it is, unless it is empty
    pub announce: bool,
}

/// Messages on their way to the peer
///
/// A send is in exactly one of `queued`, `requested` and `streaming`, and in that order.
#[derive(Debug)]
pub(super) struct SendHalf {
    credit: SendCredit,
    /// Sends of which the peer knows nothing, oldest first; they start strictly in this order
    queued: Queue<Queued>,
    /// Where each send was put in `queued`, which may be over
    tickets: Notes<Ticket>,
    /// Sends that wait for the peer to accept or skip them, by message number
    requested: BTreeMap<u64, Requested>,
    /// Sends that the peer has accepted; they take turns, the front is next
    streaming: VecDeque<Streaming>,
    /// The front of `streaming` waits for the answer to an [`Outgoing::Give`]
    is_giving: bool,
    /// Number of the next message to start
    next_message: u64,
    /// Bytes of starts that may still go before the next piece of a long message
    start_budget_bytes: u64,
    close: Close,
    /// From how many bytes on the peer wants messages announced that it can fetch
    announce_advice_bytes: Option<u64>,
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
    spans: Spans,
    sources: Sources,
    announce: bool,
}

/// Parts of a message that a carrier may bring, in order and apart
type Spans = SmallVec<[Span; 1]>;

#[derive(Debug)]
struct Requested {
    send: SendId,
    bytes: u64,
    spans: Spans,
    /// The receiver may fetch the bytes
    is_offered: bool,
}

#[derive(Debug)]
struct Streaming {
    message: u64,
    send: SendId,
    bytes: u64,
    /// Bytes handed out; below `bytes`
    sent_bytes: u64,
    /// Spans that lie behind `sent_bytes`
    spans: Spans,
    /// The carrier that the receiver prefers, or 0
    carrier: u8,
    /// Part of the first span that a carrier has taken
    given: Option<Given>,
    /// End of the last span that no carrier took
    lane_until: u64,
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
        let chunk_bytes_max = limits.data_chunk_bytes.min(peer.data_chunk_bytes).max(1);
        Self {
            credit: SendCredit::new(peer.credit_messages, peer.credit_bytes),
            queued: Queue::default(),
            tickets: Notes::default(),
            requested: BTreeMap::new(),
            streaming: VecDeque::new(),
            is_giving: false,
            next_message: 0,
            start_budget_bytes: chunk_bytes_max,
            close: Close::Open,
            announce_advice_bytes: None,
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
        long: &Long<'_>,
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
        let ticket = self.queued.push_back(Queued {
            send,
            kind,
            segment_bytes: SmallVec::from_slice(segment_bytes),
            bytes,
            spans: SmallVec::from_slice(long.spans),
            sources: SmallVec::from_slice(long.sources),
            announce: long.announce,
        });
        self.tickets.put(send.0, ticket);
        Ok(())
    }

    /// Takes back a send of which the peer knows nothing
    pub(super) fn cancel(&mut self, send: SendId) -> bool {
        let ticket = self.tickets.get(send.0);
        ticket.is_some_and(|ticket| self.queued.take(ticket).is_some())
    }

    pub(super) fn close(&mut self) {
        if self.close == Close::Open {
            self.close = Close::Asked;
        }
    }

    pub(super) fn handle_credit(&mut self, messages: u64, bytes: u64) {
        self.credit.handle_grant(messages, bytes);
    }

    pub(super) fn handle_accept(&mut self, header: &FrameHeader) -> Result<(), ProtocolError> {
        let FrameHeader {
            message, carrier, ..
        } = *header;
        let requested = self.take_requested(message, FrameKind::Accept)?;
        self.handle_advice(header.tag);
        self.streaming.push_back(Streaming {
            message,
            send: requested.send,
            bytes: requested.bytes,
            sent_bytes: 0,
            spans: requested.spans,
            carrier,
            given: None,
            lane_until: 0,
        });
        Ok(())
    }

    /// Handles that the peer does not want a message, returning the send, which is done
    pub(super) fn handle_skip(&mut self, message: u64) -> Result<SendId, ProtocolError> {
        let requested = self.take_requested(message, FrameKind::Skip)?;
        Ok(requested.send)
    }

    /// Handles that the peer has fetched a message, returning the send, which is done
    pub(super) fn handle_fetched(&mut self, header: &FrameHeader) -> Result<SendId, ProtocolError> {
        let message = header.message;
        let requested = self.take_requested(message, FrameKind::Fetched)?;
        if !requested.is_offered {
            return Err(ProtocolError::NotAwaited {
                kind: FrameKind::Fetched.code(),
                message,
            });
        }
        self.handle_advice(header.tag);
        Ok(requested.send)
    }

    fn handle_advice(&mut self, advice_bytes: u64) {
        if advice_bytes > 0 {
            self.announce_advice_bytes = Some(advice_bytes);
        }
    }

    pub(super) const fn announce_advice_bytes(&self) -> Option<u64> {
        self.announce_advice_bytes
    }

    /// The next frame of a message, or the Close after all of them
    ///
    /// Starts and pieces of long messages share the lane by bytes: between two pieces, as many
    /// bytes of starts go as one piece has.
    pub(super) fn poll_transmit(&mut self) -> Option<Outgoing> {
        assert!(!self.is_giving, "what was asked for is answered first");
        let next = self.queued.front().map(|queued| self.start_of(queued));
        let may_start = next.is_some_and(|(_, cost)| self.credit.allows(cost));
        if !self.streaming.is_empty() && (!may_start || self.start_budget_bytes == 0) {
            return self.poll_piece();
        }
        if may_start {
            return self.transmit_start().map(Outgoing::Frame);
        }
        if self.close == Close::Asked && self.is_drained() {
            self.close = Close::Sent;
            let header = FrameHeader::bare(FrameKind::Close, 0);
            return Some(Outgoing::Frame(Transmit::control(header)));
        }
        None
    }

    /// Returns whether anything waits that credit, or an answer, may release; `false` is certain
    #[inline]
    pub(super) fn may_transmit(&self) -> bool {
        !self.queued.is_empty() || !self.streaming.is_empty() || self.close == Close::Asked
    }

    /// Says what came of the last [`Outgoing::Give`]
    pub(super) fn given(&mut self, given: Option<Given>) {
        assert!(
            std::mem::replace(&mut self.is_giving, false),
            "an answer belongs to a question"
        );
        let streaming = self.streaming.front_mut().expect("it asked");
        streaming.given(given);
    }

    /// Returns whether every send is done, and the Close is out if one was asked for
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

    /// How a message would start now, and what it costs
    fn start_of(&self, queued: &Queued) -> (FrameKind, Cost) {
        let segments = segment_count(&queued.segment_bytes);
        let cost = self.credit.cost_of_eager(queued.bytes, segments);
        // A request of no bytes is not allowed on the wire.
        let may_go = queued.bytes == 0
            || (!queued.announce
                && queued.bytes <= self.eager_bytes_max
                && self.credit.allows(cost));
        if may_go {
            (FrameKind::Eager, cost)
        } else {
            (FrameKind::Request, self.credit.cost_of_request(segments))
        }
    }

    fn transmit_start(&mut self) -> Option<Transmit> {
        let queued = self.queued.pop_front()?;
        let (kind, cost) = self.start_of(&queued);
        let is_eager = kind == FrameKind::Eager;
        let segments = segment_count(&queued.segment_bytes);
        let mut header = self.start(kind, queued.kind, segments, queued.bytes, cost);
        let message = header.message;
        header.has_sources = !is_eager && !queued.sources.is_empty();
        let header = if header.has_sources {
            encode_sources(&header, &queued.segment_bytes, &queued.sources)
        } else {
            encode_start(&header, &queued.segment_bytes)
        };
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
                    spans: queued.spans,
                    is_offered: queued.sources.iter().any(|source| source.offer.is_some()),
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

    /// Starts an eager message, if nothing goes before it and the peer lets us
    pub(super) fn start_inline(
        &mut self,
        kind: MessageKind,
        segment_bytes: &[u64],
    ) -> Option<HeaderBytes> {
        let is_next = self.close == Close::Open
            && self.queued.is_empty()
            && (self.streaming.is_empty() || self.start_budget_bytes > 0);
        if !is_next || segment_bytes.len() > self.segments_max as usize {
            return None;
        }
        let bytes_max = self.eager_bytes_max.min(self.message_bytes_max);
        let bytes = segment_bytes
            .iter()
            .try_fold(0_u64, |sum_bytes, bytes| sum_bytes.checked_add(*bytes))
            .filter(|bytes| *bytes <= bytes_max)?;
        let segments = segment_count(segment_bytes);
        let cost = self.credit.cost_of_eager(bytes, segments);
        if !self.credit.allows(cost) {
            return None;
        }
        let header = self.start(FrameKind::Eager, kind, segments, bytes, cost);
        let header = encode_start(&header, segment_bytes);
        let frame_bytes = header.len() as u64 + bytes;
        self.start_budget_bytes = self.start_budget_bytes.saturating_sub(frame_bytes);
        Some(header)
    }

    /// Numbers the next message and takes credit for it, returning the header of its first frame
    fn start(
        &mut self,
        frame: FrameKind,
        kind: MessageKind,
        segments: u32,
        bytes: u64,
        cost: Cost,
    ) -> FrameHeader {
        self.credit.take(cost);
        let message = self.next_message;
        self.next_message += 1;
        let (untagged, tag) = match kind {
            MessageKind::Tagged(tag) => (false, tag.0),
            MessageKind::Untagged => (true, 0),
        };
        FrameHeader {
            untagged,
            segment_count: segments,
            tag,
            payload_bytes: bytes,
            ..FrameHeader::bare(frame, message)
        }
    }

    /// The next piece of a long message, or the question whether a carrier brings it
    fn poll_piece(&mut self) -> Option<Outgoing> {
        let streaming = self.streaming.front()?;
        if let Some(give) = streaming.give() {
            self.is_giving = true;
            return Some(Outgoing::Give(give));
        }
        let mut streaming = self.streaming.pop_front()?;
        self.start_budget_bytes = self.chunk_bytes_max;
        let (header, payload) = streaming.next_piece(self.chunk_bytes_max);
        streaming.sent_bytes += header.payload_bytes;
        let transmit = Transmit {
            payload,
            completes: (streaming.sent_bytes == streaming.bytes).then_some(streaming.send),
            ..Transmit::control(header)
        };
        if transmit.completes.is_none() {
            self.streaming.push_back(streaming);
        }
        Some(Outgoing::Frame(transmit))
    }
}

impl Streaming {
    /// The part that begins here, if a carrier may bring it
    fn give(&self) -> Option<Give> {
        let span = self.spans.first()?;
        if span.offset != self.sent_bytes || self.given.is_some() {
            return None;
        }
        Some(Give {
            range: PayloadRange::new(self.send, span.offset, span.bytes)?,
            carrier: self.carrier,
        })
    }

    /// Notes what came of the question
    fn given(&mut self, given: Option<Given>) {
        match given {
            Some(given) => self.given = Some(given),
            // Asked once: what no carrier takes goes on the lane.
            None => {
                let span = self.spans.remove(0);
                // Not beyond it: the next part is to begin where a piece begins.
                self.lane_until = span.offset + span.bytes;
            }
        }
    }

    /// The frame of the next bytes: all that a carrier brings, else data
    fn next_piece(&mut self, chunk_bytes_max: u64) -> (FrameHeader, Option<PayloadRange>) {
        let offset = self.sent_bytes;
        if let Some(given) = self.given.take() {
            let span = self.spans.remove(0);
            let header = FrameHeader {
                carrier: given.carrier,
                tag: given.ticket,
                payload_bytes: span.bytes,
                ..FrameHeader::bare(FrameKind::Carried, self.message)
            };
            return (header, None);
        }
        let mut end = self.bytes;
        if let Some(span) = self.spans.first() {
            end = end.min(span.offset);
        }
        if self.lane_until > offset {
            end = end.min(self.lane_until);
        }
        let bytes = (end - offset).min(chunk_bytes_max);
        let header = FrameHeader {
            payload_bytes: bytes,
            ..FrameHeader::bare(FrameKind::Data, self.message)
        };
        (header, PayloadRange::new(self.send, offset, bytes))
    }
}

fn segment_count(segment_bytes: &[u64]) -> u32 {
    u32::try_from(segment_bytes.len()).expect("checked against segments_max")
}

/// A header with its segment table, which a single segment does not need
#[inline]
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

/// A header with a segment table that says where each segment lies
pub(crate) fn encode_sources(
    header: &FrameHeader,
    segment_bytes: &[u64],
    sources: &[SegmentSource],
) -> HeaderBytes {
    let mut encoded = HeaderBytes::from_slice(&header.encode());
    encoded.reserve_exact(segment_bytes.len() * SOURCE_ENTRY_BYTES);
    for (bytes, source) in segment_bytes.iter().zip(sources) {
        encoded.extend_from_slice(&source.encode(*bytes));
    }
    encoded
}

#[cfg(test)]
mod tests;
