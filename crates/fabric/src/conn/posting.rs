//! What callers post: sends and receives, past the queues where nothing keeps them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use backhaul_proto::{MessageKind, Selector};
use bytes::Bytes;

use super::link::{Outcome, Work};
use super::{Command, Conn, Target};
use crate::buffer::{Message, Received, RecvBuffer, Segments};
use crate::error::{RecvError, SendError};
use crate::request::{Request, Wakes};

impl Conn {
    /// Posts a send
    pub(crate) fn send(
        self: &Arc<Self>,
        kind: MessageKind,
        segments: Segments,
    ) -> Request<(), SendError> {
        if let [segment] = &segments[..]
            && self.send_at_once(kind, segment)
        {
            return Request::over(Ok(()));
        }
        self.post_send(kind, segments, false)
    }

    /// Posts a send of one segment, which is copied unless it goes at once
    pub(crate) fn send_copy(
        self: &Arc<Self>,
        kind: MessageKind,
        segment: &[u8],
    ) -> Request<(), SendError> {
        if self.send_at_once(kind, segment) {
            return Request::over(Ok(()));
        }
        let segments = Segments::from_iter([Bytes::copy_from_slice(segment)]);
        self.post_send(kind, segments, false)
    }

    /// Posts a send of memory that may be lent
    pub(crate) fn send_shared(
        self: &Arc<Self>,
        kind: MessageKind,
        segments: Segments,
    ) -> Request<(), SendError> {
        self.post_send(kind, segments, true)
    }

    /// Sends a message of one segment if nothing keeps it waiting, returning whether it is out
    fn send_at_once(&self, kind: MessageKind, segment: &[u8]) -> bool {
        let Some(mut link) = self.try_link() else {
            return false;
        };
        // What lies in the inbox comes first. Who leaves something there after this look comes
        // after us.
        let is_out = !self.dirty.load(Ordering::Relaxed) && link.send_at_once(self, kind, segment);
        drop(link);
        self.settle(Outcome::default());
        is_out
    }

    fn post_send(
        self: &Arc<Self>,
        kind: MessageKind,
        segments: Segments,
        shared: bool,
    ) -> Request<(), SendError> {
        let bytes = segments.iter().map(|segment| segment.len() as u64).sum();
        let command = |operation, completer| Command::Send {
            operation,
            kind,
            segments,
            bytes,
            shared,
            completer,
            started: (bytes >= TIMED_BYTES_MIN).then(Instant::now),
        };
        let Some(mut link) = self.try_link() else {
            let operation = self.next_operation();
            let (request, completer) = Request::pending(self.operation(operation));
            self.counters.posted_bytes.add(bytes);
            self.leave(command(operation, Some(completer)));
            return request;
        };
        // Most are over when the lane has taken them: only the others need what outlives this call.
        let mut wakes = Wakes::new();
        let outcome = link.advance(self, Some(command(0, None)), Work::SUBMIT, &mut wakes);
        let mut request = None;
        let over = link.take_posted(|| {
            let operation = self.next_operation();
            let (pending, completer) = Request::pending(self.operation(operation));
            request = Some(pending);
            (operation, completer)
        });
        drop(link);
        for waker in wakes {
            waker.wake();
        }
        self.settle(outcome);
        match (request, over) {
            (Some(request), _) => request,
            (None, Some(result)) => Request::over(result),
            (None, None) => unreachable!("a send is over or has a request"),
        }
    }

    /// Posts a receive into a buffer
    pub(crate) fn recv(
        self: &Arc<Self>,
        selector: Selector,
        mut buffer: Box<dyn RecvBuffer>,
    ) -> Request<Received, RecvError> {
        let bytes = buffer.as_mut_slice().len() as u64;
        let started = (bytes >= TIMED_BYTES_MIN).then(Instant::now);
        let operation = self.next_operation();
        let (request, completer) = Request::pending(self.operation(operation));
        self.post_recv(
            operation,
            selector,
            Target::Into(buffer, completer),
            started,
        );
        request
    }

    /// Posts a receive that allocates what it needs
    pub(crate) fn recv_message(
        self: &Arc<Self>,
        selector: Selector,
    ) -> Request<Message, RecvError> {
        let operation = self.next_operation();
        let (request, completer) = Request::pending(self.operation(operation));
        let target = Target::Allocate(completer);
        self.post_recv(operation, selector, target, Some(Instant::now()));
        request
    }

    fn post_recv(
        &self,
        operation: u64,
        selector: Selector,
        target: Target,
        started: Option<Instant>,
    ) {
        let link = self.try_link();
        if let Some(mut link) = link
            && !self.dirty.load(Ordering::Relaxed)
        {
            let mut wakes = Wakes::new();
            let outcome = link.post_recv(self, operation, selector, target, started, &mut wakes);
            drop(link);
            for waker in wakes {
                waker.wake();
            }
            self.settle(outcome);
            return;
        }
        self.submit(Command::Recv {
            operation,
            selector,
            target,
            started,
        });
    }
}

/// Shorter messages are not timed: to read a clock twice takes longer than to move them
const TIMED_BYTES_MIN: u64 = 4096;
