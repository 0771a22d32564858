//! In which order messages are received.

use backhaul::{Bytes, Endpoint, Request, SendError, Tag, TagMask};

use crate::{Finish, Harness, pattern};

/// Short and long messages of one tag stay in order, whether posted before or after arrival
pub fn messages_of_one_tag_arrive_in_the_order_sent(harness: &Harness) {
    let pair = harness.pair();
    let posted: Vec<_> = (0..COUNT / 2)
        .map(|_| pair.far.recv_message(Tag(1), TagMask::FULL))
        .collect();
    let sends = send_all(&pair.near, |_| Tag(1));
    let later = (0..COUNT / 2).map(|_| pair.far.recv_message(Tag(1), TagMask::FULL));
    for (seed, request) in posted.into_iter().chain(later).enumerate() {
        let message = request.done().unwrap();
        check(seed as u64, &message.segments[0]);
    }
    finish(sends);
}

/// Tags are independent, each with its own order
pub fn messages_of_many_tags_keep_the_order_of_each(harness: &Harness) {
    const TAGS: u64 = 7;
    let pair = harness.pair();
    let sends = send_all(&pair.near, |seed| Tag(seed % TAGS));
    for tag in (0..TAGS).rev() {
        for seed in (0..COUNT).filter(|seed| seed % TAGS == tag) {
            let buffer = vec![0; size(seed)];
            let received = pair.far.recv(Tag(tag), TagMask::FULL, buffer).done();
            let received = received.unwrap();
            assert_eq!(received.tag, Tag(tag));
            check(seed, &received.into_buffer::<Vec<u8>>().unwrap());
        }
    }
    finish(sends);
}

/// Receives for any tag get everything as it was sent
pub fn a_wildcard_sees_the_order_of_sending(harness: &Harness) {
    let pair = harness.pair();
    let sends = send_all(&pair.near, |seed| Tag(seed * 31 % 8));
    for seed in 0..COUNT {
        let message = pair.far.recv_message(Tag(0), TagMask::ANY).done().unwrap();
        assert_eq!(message.tag, Some(Tag(seed * 31 % 8)));
        check(seed, &message.segments[0]);
    }
    finish(sends);
}

/// A long message followed by a short one of the same tag meets the first receive
pub fn a_long_message_is_not_overtaken_on_its_tag(harness: &Harness) {
    const LONG: usize = 3 << 20;
    let pair = harness.pair();
    for early in [true, false] {
        let post = |bytes| pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
        let posted = early.then(|| (post(LONG), post(8)));
        let long = pair.near.send(Tag(1), pattern::make(1, LONG));
        let short = pair.near.send(Tag(1), pattern::make(2, 8));
        let (first, second) = posted.unwrap_or_else(|| (post(LONG), post(8)));
        let second = second.done().unwrap();
        assert_eq!(second.bytes, 8);
        pattern::check(2, &second.into_buffer::<Vec<u8>>().unwrap());
        let first = first.done().unwrap();
        assert_eq!(first.bytes, LONG);
        pattern::check(1, &first.into_buffer::<Vec<u8>>().unwrap());
        long.done().unwrap();
        short.done().unwrap();
    }
}

/// The untagged stream is a queue
pub fn untagged_messages_arrive_in_the_order_sent(harness: &Harness) {
    let pair = harness.pair();
    let posted: Vec<_> = (0..COUNT / 2).map(|_| pair.far.recv_frames()).collect();
    let sends: Vec<_> = (0..COUNT)
        .map(|seed| {
            let payload = Bytes::from(pattern::make(seed, size(seed)));
            pair.near.send_frames([payload].into_iter().collect())
        })
        .collect();
    let later = (0..COUNT / 2).map(|_| pair.far.recv_frames());
    for (seed, request) in posted.into_iter().chain(later).enumerate() {
        let message = request.done().unwrap();
        assert_eq!((message.tag, message.segments.len()), (None, 1));
        check(seed as u64, &message.segments[0]);
    }
    finish(sends);
}

/// The directions do not disturb each other
pub fn both_directions_keep_their_order(harness: &Harness) {
    let pair = harness.pair();
    let there = send_all(&pair.near, |_| Tag(1));
    let back = send_all(&pair.far, |_| Tag(1));
    for seed in 0..COUNT {
        for side in [&pair.near, &pair.far] {
            let message = side.recv_message(Tag(1), TagMask::FULL).done().unwrap();
            check(seed, &message.segments[0]);
        }
    }
    finish(there);
    finish(back);
}

fn send_all(from: &Endpoint, tag: impl Fn(u64) -> Tag) -> Vec<Request<(), SendError>> {
    (0..COUNT)
        .map(|seed| from.send(tag(seed), pattern::make(seed, size(seed))))
        .collect()
}

fn finish(sends: Vec<Request<(), SendError>>) {
    for send in sends {
        send.done().unwrap();
    }
}

#[track_caller]
fn check(seed: u64, memory: &[u8]) {
    assert_eq!(memory.len(), size(seed), "message {seed}");
    pattern::check(seed, memory);
}

/// Sizes that mix both protocols
fn size(seed: u64) -> usize {
    match seed % 5 {
        0 => 0,
        1 => 8,
        2 => 3000 + seed as usize,
        3 => (64 << 10) + 1 + seed as usize,
        _ => 1 + seed as usize,
    }
}

/// Messages per direction; even
const COUNT: u64 = 200;
