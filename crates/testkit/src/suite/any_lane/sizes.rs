//! Messages of every size.

use std::sync::{Mutex, PoisonError};

use backhaul::{Config, Tag, TagMask};

use crate::{Finish, Harness, Pair, Spin, pattern};

/// No bytes, but a message
pub fn empty_messages_arrive(harness: &Harness) {
    let pair = harness.pair();
    let posted = pair.far.recv(Tag(1), TagMask::FULL, vec![7; 4]);
    pair.near.send(Tag(1), Vec::new()).done().unwrap();
    let received = posted.done().unwrap();
    assert_eq!((received.tag, received.bytes), (Tag(1), 0));
    assert_eq!(received.into_buffer::<Vec<u8>>().unwrap(), [7; 4]);
    for _ in 0..100 {
        pair.near.send(Tag(1), Vec::new()).done().unwrap();
    }
    for _ in 0..100 {
        let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        assert_eq!(message.segments.len(), 1);
        assert!(message.segments[0].is_empty());
    }
}

/// One below, at, and one above every size at which something changes
pub fn sizes_around_every_threshold_arrive_whole(harness: &Harness) {
    let change = |config: &mut Config| {
        config.limits.eager_bytes_max = 20_000;
        config.limits.data_chunk_bytes = 100_000;
        config.ring_bytes = 1 << 18;
    };
    let config = harness.config_with(change);
    let thresholds = [
        1,
        64,
        4096,
        16 << 10,
        config.limits.eager_bytes_max as usize,
        64 << 10,
        config.limits.data_chunk_bytes as usize,
        2 * config.limits.data_chunk_bytes as usize,
        256 << 10,
        config.ring_bytes - HEADER_BYTES,
        config.ring_bytes,
        2 * config.ring_bytes,
        1 << 20,
    ];
    let sizes = thresholds.into_iter().flat_map(|size| size - 1..=size + 1);
    round_trips(&harness.pair_with(change), sizes);
}

/// However small the ring, everything gets through
pub fn a_ring_of_one_page_carries_everything(harness: &Harness) {
    let pair = harness.pair_with(|config| config.ring_bytes = 4096);
    let around = [4096 - 64, 4096 - 32, 4096, 8192, 65_536, 300_000];
    let sizes = around.into_iter().flat_map(|size| size - 1..=size + 1);
    round_trips(&pair, sizes);
}

/// The bytes behind the message are not touched
pub fn a_buffer_longer_than_the_message_keeps_its_rest(harness: &Harness) {
    let pair = harness.pair();
    for bytes in [5, 100_000] {
        for early in [true, false] {
            let post = || pair.far.recv(Tag(1), TagMask::FULL, vec![0xee; 200_000]);
            let posted = early.then(post);
            let send = pair.near.send(Tag(1), pattern::make(3, bytes));
            let received = posted.unwrap_or_else(post).done().unwrap();
            assert_eq!(received.bytes, bytes);
            let buffer = received.into_buffer::<Vec<u8>>().unwrap();
            assert_eq!(buffer.len(), 200_000);
            pattern::check(3, &buffer[..bytes]);
            assert!(buffer[bytes..].iter().all(|&byte| byte == 0xee));
            send.done().unwrap();
        }
    }
}

/// Far more than any buffer on the way
pub fn a_huge_message_arrives(harness: &Harness) {
    let gib = 1 << 30;
    let mut config = Config::default();
    (harness.configure)(&mut config);
    // Once for each lane: it takes seconds. In pieces of a page the sides take 262,144 turns, which on
    // a busy machine, where each turn may wait for a processor, takes minutes.
    let bytes = match harness.spin {
        Spin::Polling if config.ring_bytes > 4096 => gib,
        Spin::Polling | Spin::Sleeping => gib / 8,
    };
    // Two buffers of this size are enough for a machine.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = harness.pair();
    let posted = pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
    let send = pair.near.send(Tag(1), pattern::make(11, bytes));
    let received = posted.done().unwrap();
    send.done().unwrap();
    assert_eq!(received.bytes, bytes);
    pattern::check(11, &received.into_buffer::<Vec<u8>>().unwrap());
}

/// Sends each size with the receive posted before and after, into a buffer and allocated
fn round_trips(pair: &Pair, sizes: impl Iterator<Item = usize>) {
    let Pair { near, far, .. } = pair;
    for bytes in sizes {
        for early in [true, false] {
            let post = || far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
            let posted = early.then(post);
            let send = near.send(Tag(1), pattern::make(bytes as u64, bytes));
            let received = posted.unwrap_or_else(post).done().unwrap();
            assert_eq!(received.bytes, bytes);
            pattern::check(bytes as u64, &received.into_buffer::<Vec<u8>>().unwrap());
            send.done().unwrap();

            let post = || far.recv_message(Tag(1), TagMask::FULL);
            let posted = early.then(post);
            let send = near.send(Tag(1), pattern::make(bytes as u64, bytes));
            let message = posted.unwrap_or_else(post).done().unwrap();
            assert_eq!(message.segments[0].len(), bytes);
            pattern::check(bytes as u64, &message.segments[0]);
            send.done().unwrap();
        }
    }
}

/// Bytes before the payload of a message, where a frame just fits what carries it
const HEADER_BYTES: usize = 32;
