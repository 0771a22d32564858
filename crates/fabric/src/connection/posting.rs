//! Posting of sends and receives by callers, past the queues where nothing keeps them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use backhaul_proto::{MessageKind, Selector, Tag, TagMask};
use bytes::Bytes;
use smallvec::SmallVec;

use super::Conn;
use super::port::{Command, Outcome, RecvCompleter, RecvToken, SendToken, Work};
use crate::error::{RecvError, SendError};
use crate::link::{Delivery, LinkEvent, Now, Recv, Send};
use crate::memory::{Message, Received, RecvBuffer, Segment, Segments};
use crate::request::{Progress, Request, WakeList};

impl Conn {
    /// Posts a send
    pub(crate) fn send(
        self: &Arc<Self>,
        kind: MessageKind,
        segments: Segments,
    ) -> Request<(), SendError> {
        if self.traits.looks_are_free && self.send_inline(kind, &segments) {
            return Request::over(Ok(()));
        }
        self.post_send(kind, segments)
    }

    /// Posts a send of one segment, which is copied unless it goes by the inline path
    pub(crate) fn send_copy(
        self: &Arc<Self>,
        kind: MessageKind,
        segment: &[u8],
    ) -> Request<(), SendError> {
        if self.traits.looks_are_free && self.send_parts(kind, &[segment]) {
            return Request::over(Ok(()));
        }
        let segments = Segments::from_iter([Bytes::copy_from_slice(segment)]);
        self.post_send(kind, segments)
    }

    /// Sends a message if nothing keeps it waiting, returning whether it is out
    fn send_inline(&self, kind: MessageKind, segments: &Segments) -> bool {
        if segments.len() > INLINE_SEGMENTS_MAX {
            return false;
        }
        let parts: Option<SmallVec<[&[u8]; 4]>> = segments
            .iter()
            .map(|segment| segment.host().map(|bytes| &bytes[..]))
            .collect();
        let Some(parts) = parts else {
            return false;
        };
        segments.bytes() <= self.eager_bytes_max && self.send_parts(kind, &parts)
    }

    fn send_parts(&self, kind: MessageKind, parts: &[&[u8]]) -> bool {
        let Some(mut port) = self.try_port() else {
            return false;
        };
        // The commands in the inbox come first. A command that is left there after this look comes
        // after this message.
        let is_out = !self.dirty.load(Ordering::Relaxed)
            && if let [part] = parts {
                port.send_inline(kind, &[part.len() as u64], parts)
            } else {
                let sizes: SmallVec<[u64; 4]> =
                    parts.iter().map(|part| part.len() as u64).collect();
                port.send_inline(kind, &sizes, parts)
            };
        drop(port);
        self.settle(Outcome::default());
        is_out
    }

    fn post_send(
        self: &Arc<Self>,
        kind: MessageKind,
        segments: Segments,
    ) -> Request<(), SendError> {
        let bytes = segments.bytes();
        let mut send = Send {
            operation: None,
            kind,
            segments,
            token: SendToken {
                completer: None,
                started: (bytes >= TIMED_BYTES_MIN).then(Instant::now),
            },
        };
        let Some(mut port) = self.try_port() else {
            let operation = self.next_operation();
            send.operation = Some(operation);
            let (request, completer) = Request::pending(self.operation(operation));
            send.token.completer = Some(completer);
            self.counters.posted_bytes.add(bytes);
            self.leave(Command::Send(send));
            return request;
        };
        // Most are over when the lane has taken them: only the others need a completer.
        let mut wakes = WakeList::new();
        self.take_commands(&mut port, &mut wakes);
        let id = port.post_send(send);
        let outcome = self.work_within(&mut port, Work::SUBMIT);
        let over = self.dispatch_posted(&mut port, &mut wakes);
        let request = over.map_or_else(
            || {
                let id = id.expect("a send that is refused is over");
                let operation = self.next_operation();
                let (request, completer) = Request::pending(self.operation(operation));
                port.link.name_send(id, operation).completer = Some(completer);
                request
            },
            Request::over,
        );
        drop(port);
        for waker in wakes {
            waker.wake();
        }
        self.settle(outcome);
        request
    }

    /// As [`Conn::dispatch`], returning what became of the send that has no completer yet
    fn dispatch_posted(
        &self,
        port: &mut super::Port,
        wakes: &mut WakeList,
    ) -> Option<Result<(), SendError>> {
        let mut over = None;
        while let Some(event) = port.poll_event() {
            match event {
                LinkEvent::Sent { token, result } if token.completer.is_none() => {
                    self.count_sent(&token, &result);
                    over = Some(result);
                }
                other => self.dispatch_one(port, other, wakes),
            }
        }
        over
    }

    /// Posts a receive into a buffer
    pub(crate) fn recv(
        self: &Arc<Self>,
        selector: Selector,
        mut buffer: Box<dyn RecvBuffer>,
    ) -> Request<Received, RecvError> {
        let bytes = buffer.memory().len() as u64;
        let operation = self.next_operation();
        let (request, completer) = Request::pending(self.operation(operation));
        self.post_recv(Recv {
            operation,
            selector,
            buffer: Some(buffer),
            token: RecvToken {
                completer: RecvCompleter::Into(completer),
                started: (bytes >= TIMED_BYTES_MIN).then(Instant::now),
            },
        });
        request.giving_back(|driver, received| driver.restore(Delivery::from(received)))
    }

    /// Posts a receive that allocates what it needs
    pub(crate) fn recv_message(
        self: &Arc<Self>,
        selector: Selector,
    ) -> Request<Message, RecvError> {
        let operation = self.next_operation();
        let (request, completer) = Request::pending(self.operation(operation));
        let token = RecvToken {
            completer: RecvCompleter::Allocate(completer),
            started: Some(Instant::now()),
        };
        self.post_recv(Recv {
            operation,
            selector,
            buffer: None,
            token,
        });
        request.giving_back(|driver, message| driver.restore(Delivery::from(message)))
    }

    /// The tagged message that a receive would take now: its tag and size
    pub(crate) fn probe(&self, tag: Tag, mask: TagMask) -> Option<(Tag, u64)> {
        // Bytes that have arrived count, though no thread has looked at the lane since.
        Progress::step(self);
        self.with_port(|port| port.link.probe(tag, mask))
    }

    fn post_recv(&self, recv: Recv<RecvToken>) {
        let Some(mut port) = self.try_port() else {
            self.leave(Command::Recv(recv));
            return;
        };
        let mut wakes = WakeList::new();
        let took_any = self.take_commands(&mut port, &mut wakes);
        let waits = if self.is_tapped.load(Ordering::SeqCst) {
            self.handle(&mut port, Command::Recv(recv), &mut wakes);
            false
        } else {
            port.link.post_recv(&Now::lazy(), recv)
        };
        // It works on the link only if that led to anything, or what others left there may have.
        let outcome = if waits && !took_any {
            Outcome::default()
        } else {
            self.work_within(&mut port, Work::SUBMIT)
        };
        self.dispatch(&mut port, &mut wakes);
        drop(port);
        for waker in wakes {
            waker.wake();
        }
        self.settle(outcome);
    }
}

/// Shorter messages are not timed: to read a clock twice takes longer than to move them
const TIMED_BYTES_MIN: u64 = 4096;

/// A message of more segments does not take the inline path
const INLINE_SEGMENTS_MAX: usize = 16;

const _: () = assert!(size_of::<Segment>() <= 64);
