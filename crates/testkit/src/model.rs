//! Expected results of a direction of a connection, found by a naive model.
//!
//! Operations are random and their timing is not known, but their matching is: receives prefer
//! the message sent first and messages the receive posted first, so there is one matching, which
//! the simplest algorithm finds too. Operations that were cancelled in time do not take part.

use std::time::Duration;

use backhaul::{Endpoint, Message, Received, RecvError, Request, SendError, Tag, TagMask};
use bytes::Bytes;

use crate::random::Random;
use crate::{Finish, pattern};

/// One direction of a connection and all that was asked of it
#[derive(Debug)]
pub struct Direction<'a> {
    from: &'a Endpoint,
    to: &'a Endpoint,
    sends: Vec<SendOperation>,
    recvs: Vec<RecvOperation>,
}

#[derive(Debug)]
struct SendOperation {
    /// `None` for an untagged message
    tag: Option<Tag>,
    /// Sizes of the segments, in bytes
    layout: Vec<usize>,
    request: Request<(), SendError>,
}

#[derive(Debug)]
struct RecvOperation {
    /// `None` for an untagged message
    selector: Option<(Tag, TagMask)>,
    request: RecvRequest,
}

#[derive(Debug)]
enum RecvRequest {
    /// Into a buffer of so many bytes
    Into(usize, Request<Received, RecvError>),
    Allocate(Request<Message, RecvError>),
    /// Its outcome was looked at before the end
    Over(Message),
}

/// Result of a receive
#[derive(Debug)]
enum Outcome {
    Cancelled,
    Filled(Received),
    Allocated(Message),
    Truncated { message_bytes: u64 },
}

impl<'a> Direction<'a> {
    /// A direction of which nothing was asked
    pub fn new(from: &'a Endpoint, to: &'a Endpoint) -> Self {
        Self {
            from,
            to,
            sends: Vec::new(),
            recvs: Vec::new(),
        }
    }

    /// Does something random
    pub fn act(&mut self, random: &mut Random) {
        match random.below(12) {
            0..4 => self.send_random(random),
            4..8 => self.post_random(random),
            8 if !self.recvs.is_empty() => {
                let index = random.below(self.recvs.len());
                self.recvs[index].cancel();
            }
            9 if !self.sends.is_empty() => {
                let index = random.below(self.sends.len());
                self.sends[index].request.cancel();
            }
            10 => {
                if let Some(send) = self.sends.last() {
                    send.request.step();
                }
            }
            _ => std::thread::yield_now(),
        }
    }

    /// Finishes everything and checks it against the model
    ///
    /// # Panics
    ///
    /// If anything is not as the model says.
    pub fn finish(mut self) {
        for recv in &self.recvs {
            recv.cancel();
        }
        for recv in &self.recvs {
            recv.wait();
        }
        // The rest is received by wildcards, up to a last message of each kind.
        self.send(Some(LAST), vec![0]);
        self.send(None, vec![0; LAST_SEGMENTS]);
        let any = Some((LAST, TagMask::ANY));
        let mut tagged = Some(self.to.recv_message(LAST, TagMask::ANY));
        let mut untagged = Some(self.to.recv_frames());
        // Both at once: messages of one kind may hold the credit that the other needs.
        while tagged.is_some() || untagged.is_some() {
            if let Some(message) = take_done(&mut tagged) {
                if message.tag != Some(LAST) {
                    tagged = Some(self.to.recv_message(LAST, TagMask::ANY));
                }
                self.record(any, message);
            }
            if let Some(message) = take_done(&mut untagged) {
                if message.segments.len() != LAST_SEGMENTS {
                    untagged = Some(self.to.recv_frames());
                }
                self.record(None, message);
            }
        }
        self.check();
    }

    fn record(&mut self, selector: Option<(Tag, TagMask)>, message: Message) {
        self.recvs.push(RecvOperation {
            selector,
            request: RecvRequest::Over(message),
        });
    }

    fn check(self) {
        let mut messages: Vec<Option<(usize, SendOperation)>> = Vec::new();
        for (seed, send) in self.sends.into_iter().enumerate() {
            match send.request.done() {
                Ok(()) => messages.push(Some((seed, send))),
                Err(SendError::Cancelled) => {}
                Err(error) => panic!("send {seed}: {error}"),
            }
        }
        let outcomes: Vec<_> = self
            .recvs
            .into_iter()
            .map(|recv| (recv.selector, recv.outcome()))
            .collect();
        let is_cancelled =
            |(_, (_, outcome)): &(_, (_, Outcome))| matches!(outcome, Outcome::Cancelled);
        // A message that a cancelled receive had met went to another, when is not known: then only
        // the message itself tells which it is.
        let is_ordered = !outcomes.iter().any(is_cancelled);
        let (truncated, whole): (Vec<_>, Vec<_>) = outcomes
            .into_iter()
            .enumerate()
            .filter(|(_, outcome)| !is_cancelled(outcome))
            .partition(|(_, (_, (_, outcome)))| {
                !is_ordered && matches!(outcome, Outcome::Truncated { .. })
            });
        // Of those that differ by their size alone, any will do.
        for (number, (selector, (capacity, outcome))) in whole.into_iter().chain(truncated) {
            let met = messages.iter_mut().find(|message| {
                message.as_ref().is_some_and(|(seed, send)| {
                    send.is_for(selector) && (is_ordered || send.is_seen_in(*seed, &outcome))
                })
            });
            let Some((seed, send)) = met.and_then(Option::take) else {
                panic!("receive {number} got {outcome:?}, but nothing was sent for it");
            };
            send.check(seed, capacity, &outcome);
        }
        let left: Vec<_> = messages.into_iter().flatten().collect();
        assert!(left.is_empty(), "never received: {left:?}");
    }

    fn send_random(&mut self, random: &mut Random) {
        let segments = *random.choose(&[1, 1, 1, 0, 2, 4]);
        let layout = (0..segments)
            .map(|_| match random.below(8) {
                0 => 0,
                1 => random.below(200_000),
                2 => 20_000 + random.below(3),
                _ => random.below(2000),
            })
            .collect();
        let tag = (random.below(4) > 0).then(|| Tag(random.below(4) as u64));
        self.send(tag, layout);
    }

    fn send(&mut self, tag: Option<Tag>, layout: Vec<usize>) {
        let seed = self.sends.len() as u64;
        let mut payload = Bytes::from(pattern::make(seed, layout.iter().sum()));
        let segments = layout
            .iter()
            .map(|&bytes| payload.split_to(bytes))
            .collect();
        let request = match tag {
            Some(tag) => self.from.send_segments(tag, segments),
            None => self.from.send_frames(segments),
        };
        self.sends.push(SendOperation {
            tag,
            layout,
            request,
        });
    }

    fn post_random(&mut self, random: &mut Random) {
        if random.below(4) == 0 {
            let request = RecvRequest::Allocate(self.to.recv_frames());
            return self.recvs.push(RecvOperation {
                selector: None,
                request,
            });
        }
        let tag = Tag(random.below(4) as u64);
        let mask = *random.choose(&[TagMask::FULL, TagMask::ANY, TagMask(1), TagMask(2)]);
        let request = if random.below(2) == 0 {
            RecvRequest::Allocate(self.to.recv_message(tag, mask))
        } else {
            let bytes = *random.choose(&[0, 1000, 30_000, 400_000]);
            RecvRequest::Into(bytes, self.to.recv(tag, mask, vec![0; bytes]))
        };
        self.recvs.push(RecvOperation {
            selector: Some((tag, mask)),
            request,
        });
    }
}

impl SendOperation {
    fn is_for(&self, selector: Option<(Tag, TagMask)>) -> bool {
        match (self.tag, selector) {
            (Some(sent), Some((tag, mask))) => (sent.0 ^ tag.0) & mask.0 == 0,
            (None, None) => true,
            _ => false,
        }
    }

    /// Returns whether the message of a receive may be this one
    fn is_seen_in(&self, seed: usize, outcome: &Outcome) -> bool {
        let bytes: usize = self.layout.iter().sum();
        let starts_as =
            |memory: &[u8]| memory[..8.min(bytes)] == pattern::make(seed as u64, 8.min(bytes));
        match outcome {
            Outcome::Filled(received) => {
                let buffer: &dyn std::any::Any = &*received.buffer;
                let buffer = buffer.downcast_ref::<Vec<u8>>().unwrap();
                (Some(received.tag), received.bytes) == (self.tag, bytes) && starts_as(buffer)
            }
            Outcome::Allocated(message) => {
                let layout = message.segments.iter().map(|part| part.len());
                let first = message
                    .segments
                    .iter()
                    .flat_map(|part| part.iter().copied());
                let first: Vec<u8> = first.take(8).collect();
                message.tag == self.tag
                    && (layout.eq(self.layout.iter().copied())
                        // It went through a buffer, which knows of no segments.
                        || message.segments.len() == 1 && message.segments[0].len() == bytes)
                    && starts_as(&first)
            }
            Outcome::Truncated { message_bytes } => *message_bytes == bytes as u64,
            Outcome::Cancelled => false,
        }
    }

    /// Checks what a receive that meets this message got
    fn check(&self, seed: usize, capacity: Option<usize>, outcome: &Outcome) {
        let bytes: usize = self.layout.iter().sum();
        match outcome {
            Outcome::Filled(received) => {
                assert_eq!((Some(received.tag), received.bytes), (self.tag, bytes));
                let buffer: &dyn std::any::Any = &*received.buffer;
                let buffer = buffer.downcast_ref::<Vec<u8>>().unwrap();
                pattern::check(seed as u64, &buffer[..bytes]);
            }
            Outcome::Allocated(message) => {
                assert_eq!(message.tag, self.tag, "message {seed}");
                let layout: Vec<usize> = message.segments.iter().map(|part| part.len()).collect();
                assert!(layout == self.layout || layout == [bytes], "message {seed}");
                let mut at = 0;
                for segment in &message.segments {
                    pattern::check_at(seed as u64, at, segment);
                    at += segment.len();
                }
            }
            Outcome::Truncated { message_bytes } => {
                assert_eq!(*message_bytes, bytes as u64, "message {seed}");
                assert!(capacity.is_some_and(|capacity| capacity < bytes));
            }
            Outcome::Cancelled => unreachable!("cancelled receives take no part"),
        }
    }
}

impl RecvOperation {
    fn cancel(&self) {
        match &self.request {
            RecvRequest::Into(_, request) => request.cancel(),
            RecvRequest::Allocate(request) => request.cancel(),
            RecvRequest::Over(_) => {}
        }
    }

    fn wait(&self) {
        match &self.request {
            RecvRequest::Into(_, request) => request.wait_done(None),
            RecvRequest::Allocate(request) => request.wait_done(None),
            RecvRequest::Over(_) => true,
        };
    }

    /// The size of the buffer, if there is one, and what became of it
    fn outcome(self) -> (Option<usize>, Outcome) {
        let (capacity, outcome) = match self.request {
            RecvRequest::Into(capacity, request) => {
                (Some(capacity), request.done().map(Outcome::Filled))
            }
            RecvRequest::Allocate(request) => (None, request.done().map(Outcome::Allocated)),
            RecvRequest::Over(message) => (None, Ok(Outcome::Allocated(message))),
        };
        let outcome = outcome.unwrap_or_else(|error| match error {
            RecvError::Cancelled => Outcome::Cancelled,
            RecvError::Truncated { message_bytes, .. } => Outcome::Truncated { message_bytes },
            error => panic!("{error}"),
        });
        (capacity, outcome)
    }
}

/// Takes the message of a request if it comes soon
fn take_done(request: &mut Option<Request<Message, RecvError>>) -> Option<Message> {
    let outcome = request.as_ref()?.wait(Some(Duration::from_millis(1)))?;
    *request = None;
    Some(outcome.unwrap())
}

/// Tag of the last message of a direction
const LAST: Tag = Tag(1 << 63);

/// Segments of the last untagged message of a direction; others have fewer
const LAST_SEGMENTS: usize = 9;
