//! Receives that are given up: a request that is dropped or cancelled before its result was taken
//! leaves the message, whole and in its place in the order of sending, for the next receive.

use std::time::Duration;

use backhaul::{Bytes, Endpoint, Message, Received, RecvError, Request, SendError, Tag, TagMask};

use crate::executor::give_up_after;
use crate::lending::BLOCK_BYTES;
use crate::{Finish, Harness, Pair, pattern, wait_until};

/// A receive dropped after each number of polls takes its message or leaves it for the next
pub fn a_receive_dropped_at_any_await_leaves_its_message(harness: &Harness) {
    let pair = harness.pair();
    for way in Way::ALL {
        for bytes in SIZES {
            for is_sent_first in [true, false] {
                for polls in 0..POLLS_MAX {
                    let send = || way.send(&pair.near, polls as u64, bytes);
                    let sent = is_sent_first.then(send);
                    let taken = match way.post(&pair.far, bytes) {
                        Posted::Into(request) => {
                            pollster::block_on(give_up_after(request, polls)).map(into_bytes)
                        }
                        Posted::Message(request) => {
                            pollster::block_on(give_up_after(request, polls)).map(message_bytes)
                        }
                    };
                    let sent = sent.unwrap_or_else(send);
                    let is_over = taken.is_some();
                    let got = taken.unwrap_or_else(|| way.next(&pair.far, bytes));
                    check(polls as u64, bytes, &got);
                    sent.done().unwrap();
                    if is_over {
                        break;
                    }
                }
            }
        }
    }
    assert_nothing_left(&pair);
}

/// A result that no caller took is none; the next receive gets the message
pub fn a_receive_dropped_when_it_is_over_leaves_its_message(harness: &Harness) {
    let pair = harness.pair();
    for (first, next) in WAYS {
        for bytes in SIZES {
            for cancels in [true, false] {
                let posted = first.post(&pair.far, bytes);
                let sent = first.send(&pair.near, 7, bytes);
                posted.wait_done();
                if cancels {
                    posted.cancel();
                }
                drop(posted);
                check(7, bytes, &next.next(&pair.far, bytes));
                sent.done().unwrap();
            }
        }
    }
    assert_nothing_left(&pair);
}

/// With any part of the message there by then
pub fn a_receive_dropped_in_the_middle_of_its_message_leaves_it_whole(harness: &Harness) {
    let pair = harness.pair();
    for (first, next) in WAYS {
        for steps in [0, 1, 2, 4, 9] {
            for cancels in [true, false] {
                let sent = first.send(&pair.near, steps, LONG_BYTES);
                let posted = first.post(&pair.far, LONG_BYTES);
                while !posted.step() {
                    let protocol = pair.far.info().protocol;
                    if protocol.is_some_and(|protocol| protocol.recvs_posted == 0) {
                        break;
                    }
                }
                for _ in 0..steps {
                    posted.step();
                }
                if cancels {
                    posted.cancel();
                }
                drop(posted);
                // Others are not held up by what was left.
                let other = pair.far.recv_message(Tag(2), TagMask::FULL);
                let behind = pair.near.send(Tag(2), pattern::make(2, 100));
                pattern::check(2, &other.done().unwrap().segments[0]);
                behind.done().unwrap();
                check(steps, LONG_BYTES, &next.next(&pair.far, LONG_BYTES));
                sent.done().unwrap();
            }
        }
    }
    assert_nothing_left(&pair);
}

/// In whichever order the receives are dropped
pub fn messages_are_left_in_the_order_of_sending(harness: &Harness) {
    let pair = harness.pair();
    let bytes = |seed: u64| SIZES[seed as usize % SIZES.len()];
    for (first, next) in WAYS {
        for dropped in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let sends: Vec<_> = (0..6)
                .map(|seed| first.send(&pair.near, seed, bytes(seed)))
                .collect();
            let mut posted: Vec<_> = (0..4)
                .map(|seed| Some(first.post(&pair.far, bytes(seed))))
                .collect();
            for request in posted.iter().flatten() {
                request.wait_done();
            }
            for index in dropped {
                posted[index] = None;
            }
            for seed in [0, 1, 2] {
                check(seed, bytes(seed), &next.next(&pair.far, bytes(seed)));
            }
            // It was not given up, so its message is not there for others.
            check(3, bytes(3), &posted.pop().flatten().unwrap().take());
            for seed in [4, 5] {
                check(seed, bytes(seed), &next.next(&pair.far, bytes(seed)));
            }
            for send in sends {
                send.done().unwrap();
            }
        }
    }
    assert_nothing_left(&pair);
}

/// A receive posted before the other was dropped is the next
pub fn a_message_that_is_left_goes_to_the_receive_that_waits_for_it(harness: &Harness) {
    let pair = harness.pair();
    for (first, next) in WAYS {
        for bytes in SIZES {
            for waits in [true, false] {
                let given_up = first.post(&pair.far, bytes);
                let waiting = next.post(&pair.far, bytes);
                let sent = first.send(&pair.near, 5, bytes);
                if waits {
                    given_up.wait_done();
                }
                drop(given_up);
                check(5, bytes, &waiting.take());
                sent.done().unwrap();
            }
        }
    }
    assert_nothing_left(&pair);
}

/// It takes no credit and no memory more each time
pub fn a_message_may_be_left_many_times(harness: &Harness) {
    let pair = harness.pair();
    for way in Way::ALL {
        for bytes in SIZES {
            let sent = way.send(&pair.near, 1, bytes);
            for _ in 0..200 {
                let posted = way.post(&pair.far, bytes);
                posted.wait_done();
                drop(posted);
            }
            check(1, bytes, &way.next(&pair.far, bytes));
            sent.done().unwrap();
        }
    }
    assert_nothing_left(&pair);
}

/// Short timeouts, against a sender of numbered messages
pub fn receives_that_time_out_lose_nothing(harness: &Harness) {
    const COUNT: u64 = 300;
    let bytes = |seed: u64| [8, 200_000, 0, 70_000, 1 << 20][seed as usize % 5];
    for way in Way::ALL {
        let pair = harness.pair();
        std::thread::scope(|scope| {
            let near = &pair.near;
            scope.spawn(move || {
                for seed in 0..COUNT {
                    way.send(near, seed, bytes(seed)).done().unwrap();
                }
            });
            for seed in 0..COUNT {
                let mut timeout = Duration::from_micros(1 + seed % 50);
                let got = loop {
                    let posted = way.post(&pair.far, bytes(seed));
                    if let Some(got) = posted.take_within(timeout) {
                        break got;
                    }
                    // A receive may need longer than the first of them.
                    timeout += Duration::from_micros(1);
                };
                check(seed, bytes(seed), &got);
            }
        });
        assert_nothing_left(&pair);
    }
}

/// A message that was left before the sender closes, aborts or goes is still there
pub fn messages_that_are_left_outlive_the_end_of_their_sender(harness: &Harness) {
    for way in Way::ALL {
        for bytes in SIZES {
            for end in ENDS {
                let pair = harness.pair();
                let posted = way.post(&pair.far, bytes);
                let sent = way.send(&pair.near, 3, bytes);
                posted.wait_done();
                sent.done().unwrap();
                drop(posted);
                end(&pair.near);
                pair.far.watch_close().done().unwrap();
                check(3, bytes, &way.next(&pair.far, bytes));
            }
        }
    }
}

/// A result is there though the sender is not, and may be left as well
pub fn a_receive_dropped_after_the_end_of_its_sender_leaves_its_message(harness: &Harness) {
    for way in Way::ALL {
        for bytes in SIZES {
            for end in ENDS {
                let pair = harness.pair();
                let posted = way.post(&pair.far, bytes);
                let sent = way.send(&pair.near, 4, bytes);
                posted.wait_done();
                sent.done().unwrap();
                end(&pair.near);
                pair.far.watch_close().done().unwrap();
                drop(posted);
                check(4, bytes, &way.next(&pair.far, bytes));
            }
        }
    }
}

/// Lent memory is left as it is, and goes back when its receiver is done
pub fn lent_messages_that_are_left_stay_lent_until_they_are_received(harness: &Harness) {
    let lending = harness.lending();
    let (near, far) = (&lending.pair.near, &lending.pair.far);
    for way in Way::ALL {
        for polls in 0..10 {
            let sent = way.send_shared(near, [lending.block(9), lending.block(10)]);
            let posted = way.post(far, 2 * BLOCK_BYTES);
            for _ in 0..polls {
                posted.step();
            }
            if polls == 9 {
                posted.wait_done();
            }
            drop(posted);
            let got = way.next(far, 2 * BLOCK_BYTES);
            check(9, BLOCK_BYTES, &got[..BLOCK_BYTES]);
            check(10, BLOCK_BYTES, &got[BLOCK_BYTES..]);
            sent.done().unwrap();
            lending.assert_blocks(0, 0, 0);
        }
    }
}

/// No receive takes them, so they go back to their exporter
pub fn lent_messages_that_are_left_and_never_received_return_with_the_endpoint(harness: &Harness) {
    for way in Way::ALL {
        let lending = harness.lending();
        let (near, far) = (&lending.pair.near, &lending.pair.far);
        let posted = way.post(far, BLOCK_BYTES);
        let sent = way.send_shared(near, [lending.block(9)]);
        posted.wait_done();
        sent.done().unwrap();
        drop(posted);
        let arena = lending.arena.clone();
        drop(lending);
        wait_until(|| arena.statistics().live_bytes == 0 && arena.statistics().leased_bytes == 0);
    }
}

/// Only a detached receive drops a message that no caller saw
pub fn a_detached_receive_takes_its_message(harness: &Harness) {
    let pair = harness.pair();
    for way in Way::ALL {
        for bytes in SIZES {
            match way.post(&pair.far, bytes) {
                Posted::Into(request) => request.detach(),
                Posted::Message(request) => request.detach(),
            }
            let sends = [1, 2].map(|seed| way.send(&pair.near, seed, bytes));
            check(2, bytes, &way.next(&pair.far, bytes));
            for send in sends {
                send.done().unwrap();
            }
        }
    }
    assert_nothing_left(&pair);
}

/// A way to receive a message, and to send what it receives
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Into a buffer, by tag
    Into,
    /// Into memory that is allocated, by tag
    Message,
    /// Into memory that is allocated, untagged
    Frames,
}

/// A receive in flight
enum Posted {
    Into(Request<Received, RecvError>),
    Message(Request<Message, RecvError>),
}

impl Way {
    const ALL: [Self; 3] = [Self::Into, Self::Message, Self::Frames];

    fn send(self, from: &Endpoint, seed: u64, bytes: usize) -> Request<(), SendError> {
        let payload = Bytes::from(pattern::make(seed, bytes));
        match self {
            Self::Into | Self::Message => from.send(Tag(1), payload),
            Self::Frames => from.send_frames([payload].into_iter().collect()),
        }
    }

    fn send_shared(
        self,
        from: &Endpoint,
        segments: impl IntoIterator<Item = Bytes>,
    ) -> Request<(), SendError> {
        let segments = segments.into_iter().collect();
        match self {
            Self::Into | Self::Message => from.send_segments_shared(Tag(1), segments),
            Self::Frames => from.send_frames_shared(segments),
        }
    }

    fn post(self, to: &Endpoint, bytes: usize) -> Posted {
        match self {
            Self::Into => Posted::Into(to.recv(Tag(1), TagMask::FULL, vec![0; bytes])),
            Self::Message => Posted::Message(to.recv_message(Tag(1), TagMask::FULL)),
            Self::Frames => Posted::Message(to.recv_frames()),
        }
    }

    /// Receives what is left
    fn next(self, to: &Endpoint, bytes: usize) -> Vec<u8> {
        self.post(to, bytes).take()
    }
}

impl Posted {
    fn wait_done(&self) {
        let is_done = match self {
            Self::Into(request) => request.wait_done(None),
            Self::Message(request) => request.wait_done(None),
        };
        assert!(is_done);
    }

    fn step(&self) -> bool {
        match self {
            Self::Into(request) => request.step(),
            Self::Message(request) => request.step(),
        }
    }

    fn cancel(&self) {
        match self {
            Self::Into(request) => request.cancel(),
            Self::Message(request) => request.cancel(),
        }
    }

    fn take(self) -> Vec<u8> {
        match self {
            Self::Into(request) => into_bytes(request.done()),
            Self::Message(request) => message_bytes(request.done()),
        }
    }

    fn take_within(self, timeout: Duration) -> Option<Vec<u8>> {
        match self {
            Self::Into(request) => request.wait(Some(timeout)).map(into_bytes),
            Self::Message(request) => request.wait(Some(timeout)).map(message_bytes),
        }
    }
}

fn into_bytes(outcome: Result<Received, RecvError>) -> Vec<u8> {
    let received = outcome.unwrap();
    let bytes = received.bytes;
    let mut buffer = received.into_buffer::<Vec<u8>>().unwrap();
    buffer.truncate(bytes);
    buffer
}

fn message_bytes(outcome: Result<Message, RecvError>) -> Vec<u8> {
    let message = outcome.unwrap();
    message
        .segments
        .iter()
        .flat_map(|part| part.to_vec())
        .collect()
}

#[track_caller]
fn check(seed: u64, bytes: usize, got: &[u8]) {
    assert_eq!(got.len(), bytes, "another message than number {seed}");
    pattern::check(seed, got);
}

#[track_caller]
fn assert_nothing_left(pair: &Pair) {
    let probe = pair.far.recv_message(Tag(0), TagMask::ANY);
    let send = pair.near.send(Tag(9), pattern::make(9, 9));
    assert_eq!(probe.done().unwrap().tag, Some(Tag(9)));
    send.done().unwrap();
    let probe = pair.far.recv_frames();
    let send = pair
        .near
        .send_frames([Bytes::from_static(b"last")].into_iter().collect());
    assert_eq!(probe.done().unwrap().segments[0][..], *b"last");
    send.done().unwrap();
    if let Some(protocol) = pair.far.info().protocol {
        let left = (protocol.unexpected_messages, protocol.recvs_posted);
        assert_eq!(left, (0, 0));
    }
}

/// How a sender ends
const ENDS: [fn(&Endpoint); 2] = [
    |endpoint| {
        endpoint.close().done().unwrap();
    },
    Endpoint::abort,
];

/// How a message is received first, and then by the next
const WAYS: [(Way, Way); 5] = [
    (Way::Into, Way::Into),
    (Way::Into, Way::Message),
    (Way::Message, Way::Into),
    (Way::Message, Way::Message),
    (Way::Frames, Way::Frames),
];

/// Eager, long, and longer than a slice of work
const SIZES: [usize; 3] = [500, 200_000, 3 << 20];

/// Longer than what a lane holds
const LONG_BYTES: usize = 8 << 20;

/// Gives up on giving up
const POLLS_MAX: usize = 40;
