//! Sends and receives of callers: how they are posted, cancelled and told what came of them.

use std::time::Instant;

use backhaul_proto::{Capacity, MessageKind, Posted, RecvId, Selector, SendId, Span};
use backhaul_shm::pool::PoolBuf;

use super::incoming::NoMemory;
use super::link::Link;
use super::{Conn, Target};
use crate::buffer::{Message, Received, Segments};
use crate::error::{RecvError, SendError};
use crate::request::{Completer, Wakes};

/// A send that is not complete
pub(super) struct SendOperation {
    pub(super) operation: u64,
    pub(super) segments: Segments,
    pub(super) bytes: u64,
    /// `None` while it is being posted: most sends are over by the end of that
    pub(super) completer: Option<Completer<(), SendError>>,
    pub(super) started: Option<Instant>,
}

/// What has become of the send that is being posted
#[derive(Debug, Default)]
pub(super) enum Posting {
    /// There is none, or it has gone to where its completer is
    #[default]
    None,
    /// It is a live send, which wants a completer
    Pending(usize),
    /// It has ended
    Over(Result<(), SendError>),
}

/// A receive that is not complete
pub(super) struct RecvOperation {
    operation: u64,
    pub(super) target: Target,
    started: Option<Instant>,
}

impl Link {
    /// Posts a receive, returning whether it waits and nothing else has changed
    pub(super) fn handle_recv(
        &mut self,
        conn: &Conn,
        operation: u64,
        selector: Selector,
        mut target: Target,
        started: Option<Instant>,
        wakes: &mut Wakes,
    ) -> bool {
        let capacity = target.capacity();
        let id = self.recvs.insert(RecvOperation {
            operation,
            target,
            started,
        });
        match self.proto.post_recv(RecvId(id), selector, capacity) {
            Err(backhaul_proto::RecvRefused::Closed) => {
                let reason = self.close_reason(conn);
                self.fail_recv(id, reason.into(), wakes);
            }
            Err(refused) => self.fail_recv(id, refused.into(), wakes),
            Ok(Posted::Waits) if self.lane.is_some() => return true,
            Ok(_) => self.handle_events(conn, wakes),
        }
        // After the end, only what arrived before it can be received.
        if self.lane.is_none()
            && self
                .recvs
                .get(id)
                .is_some_and(|recv| recv.operation == operation)
        {
            self.proto.cancel_recv(RecvId(id));
            let reason = self.close_reason(conn);
            self.fail_recv(id, reason.into(), wakes);
        }
        false
    }

    pub(super) fn post_send(
        &mut self,
        conn: &Conn,
        kind: MessageKind,
        send: SendOperation,
        shared: bool,
        wakes: &mut Wakes,
    ) {
        if self.lane.is_none() || self.linger_until.is_some() {
            let reason = self.close_reason(conn);
            return self.finish_send(conn, send, Err(reason.into()), wakes);
        }
        let lengths: smallvec::SmallVec<[u64; 8]> = send
            .segments
            .iter()
            .map(|segment| segment.len() as u64)
            .collect();
        let lendable = if shared && self.memory.courier.is_some() {
            spans(&lengths, self.memory.lease_bytes_min)
        } else {
            smallvec::SmallVec::new()
        };
        let is_posting = send.completer.is_none();
        let id = self.sends.insert(send);
        if is_posting {
            self.posting = Posting::Pending(id);
        }
        if let Err(refused) = self
            .proto
            .send_lendable(SendId(id), kind, &lengths, &lendable)
        {
            let send = self.sends.remove(id);
            self.finish_send(conn, send, Err(refused.into()), wakes);
        }
    }

    pub(super) fn cancel(&mut self, conn: &Conn, operation: u64, wakes: &mut Wakes) {
        let send = self
            .sends
            .iter()
            .find(|(_, send)| send.operation == operation)
            .map(|(id, _)| id);
        if let Some(id) = send {
            if self.proto.cancel_send(SendId(id)) {
                let send = self.sends.remove(id);
                self.finish_send(conn, send, Err(SendError::Cancelled), wakes);
            }
            return;
        }
        let recv = self
            .recvs
            .iter()
            .find(|(_, recv)| recv.operation == operation)
            .map(|(id, _)| id);
        if let Some(id) = recv
            && self.proto.cancel_recv(RecvId(id))
        {
            self.fail_recv(id, RecvError::Cancelled, wakes);
        }
    }

    pub(super) fn complete_recv(
        &mut self,
        conn: &Conn,
        recv: RecvId,
        kind: MessageKind,
        bytes: u64,
        segments: Result<Option<Vec<PoolBuf>>, NoMemory>,
        wakes: &mut Wakes,
    ) {
        let recv = self.recvs.remove(recv.0);
        let segments = match segments {
            Ok(segments) => segments,
            Err(NoMemory) => {
                let error = RecvError::OutOfMemory {
                    message_bytes: bytes,
                };
                return recv.target.fail(error, wakes);
            }
        };
        self.finish_recv(conn, recv, kind, bytes, segments, wakes);
    }

    /// Hands a message over to its receive, whose buffer has it unless it is in `segments`
    pub(super) fn finish_recv(
        &mut self,
        conn: &Conn,
        recv: RecvOperation,
        kind: MessageKind,
        bytes: u64,
        segments: Option<Vec<PoolBuf>>,
        wakes: &mut Wakes,
    ) {
        conn.counters.received_messages.bump(1);
        conn.counters.received_bytes.bump(bytes);
        if let Some(started) = recv.started {
            conn.counters.recv_time_ns.bump(nanos_since(started));
        }
        let tag = match kind {
            MessageKind::Tagged(tag) => Some(tag),
            MessageKind::Untagged => None,
        };
        match recv.target {
            Target::Allocate(completer) => {
                let segments = segments.unwrap_or_default();
                completer.complete(Ok(Message { tag, segments }), wakes);
            }
            Target::Into(mut buffer, completer) => {
                if let Some(segments) = segments {
                    let mut at = 0;
                    for segment in &segments {
                        buffer.as_mut_slice()[at..at + segment.len()].copy_from_slice(segment);
                        at += segment.len();
                    }
                }
                let received = Received {
                    tag: tag.unwrap_or(backhaul_proto::Tag(0)),
                    bytes: usize::try_from(bytes).expect("it fits the buffer"),
                    buffer,
                };
                completer.complete(Ok(received), wakes);
            }
        }
    }

    /// Completes a send whose last byte has left
    pub(super) fn complete_send(&mut self, conn: &Conn, send: SendId, wakes: &mut Wakes) {
        let send = self.sends.remove(send.0);
        conn.counters.sent_messages.bump(1);
        conn.counters.sent_bytes.bump(send.bytes);
        if let Some(started) = send.started {
            conn.counters.send_time_ns.bump(nanos_since(started));
        }
        self.finish_send(conn, send, Ok(()), wakes);
    }

    /// Tells whoever posted a send what has become of it
    pub(super) fn finish_send(
        &mut self,
        conn: &Conn,
        send: SendOperation,
        result: Result<(), SendError>,
        wakes: &mut Wakes,
    ) {
        conn.counters.queued_bytes.lower(send.bytes);
        // First: who sees the send done may use the memory.
        drop(send.segments);
        match send.completer {
            Some(completer) => completer.complete(result, wakes),
            None => self.posting = Posting::Over(result),
        }
    }

    /// What has become of the send that was posted by the last call of [`Link::advance`]
    ///
    /// If it is not over, `pend` makes a completer and names the operation.
    pub(super) fn take_posted(
        &mut self,
        pend: impl FnOnce() -> (u64, Completer<(), SendError>),
    ) -> Option<Result<(), SendError>> {
        match std::mem::take(&mut self.posting) {
            Posting::Over(result) => Some(result),
            Posting::Pending(id) => {
                let (operation, completer) = pend();
                let send = &mut self.sends[id];
                send.operation = operation;
                send.completer = Some(completer);
                None
            }
            Posting::None => unreachable!("a send was posted"),
        }
    }

    pub(super) fn fail_recv(&mut self, id: usize, error: RecvError, wakes: &mut Wakes) {
        self.recvs.remove(id).target.fail(error, wakes);
    }
}

impl Target {
    fn capacity(&mut self) -> Capacity {
        match self {
            Self::Into(buffer, _) => Capacity::Into(buffer.as_mut_slice().len() as u64),
            Self::Allocate(_) => Capacity::Allocate,
        }
    }

    fn fail(self, error: RecvError, wakes: &mut Wakes) {
        match self {
            Self::Into(buffer, completer) => {
                drop(buffer);
                completer.complete(Err(error), wakes);
            }
            Self::Allocate(completer) => completer.complete(Err(error), wakes),
        }
    }
}

/// The segments of at least `bytes_min` bytes, as parts of the message
fn spans(lengths: &[u64], bytes_min: usize) -> smallvec::SmallVec<[Span; 2]> {
    let mut offset = 0;
    let mut spans = smallvec::SmallVec::new();
    for &bytes in lengths {
        if bytes > 0 && bytes >= bytes_min as u64 {
            spans.push(Span { offset, bytes });
        }
        offset += bytes;
    }
    spans
}

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
