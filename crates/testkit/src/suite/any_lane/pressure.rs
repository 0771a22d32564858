//! Full queues and slow receivers: senders are held back, nothing grows, nothing is stuck.

use backhaul::{Bytes, Endpoint, RecvError, RecvRefused, SendError, SendRefused, Tag, TagMask};

use crate::{Finish, Harness, assert_matches, pattern, wait_until};

/// Both sides send everything before they receive anything
pub fn a_flood_from_both_sides_does_not_deadlock(harness: &Harness) {
    const COUNT: u64 = 400;
    let pair = harness.pair();
    let side = |endpoint: &Endpoint| {
        let sends: Vec<_> = (0..COUNT)
            .map(|seed| endpoint.send(Tag(1), pattern::make(seed, flood_bytes(seed))))
            .collect();
        for seed in 0..COUNT {
            let buffer = vec![0; flood_bytes(seed)];
            let received = endpoint.recv(Tag(1), TagMask::FULL, buffer).done();
            let buffer = received.unwrap().into_buffer::<Vec<u8>>().unwrap();
            pattern::check(seed, &buffer);
        }
        for send in sends {
            send.done().unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| side(&pair.near));
        side(&pair.far);
    });
    assert_eq!(pair.near.queued_bytes(), 0);
}

/// The same with windows so small that credit runs out all the time
pub fn a_flood_through_the_smallest_windows_does_not_deadlock(harness: &Harness) {
    let pair = harness.pair_with(|config| {
        config.ring_bytes = 4096;
        config.limits.credit_messages = 4;
        config.limits.credit_bytes = 1000;
        config.limits.eager_bytes_max = 1000;
        config.limits.data_chunk_bytes = 700;
    });
    let (near, far) = (&pair.near, &pair.far);
    let side = |endpoint: &Endpoint| {
        let sends: Vec<_> = (0..200)
            .map(|seed| {
                let payload = Bytes::from(pattern::make(seed, seed as usize * 37 % 3000));
                if seed % 2 == 0 {
                    endpoint.send(Tag(1), payload)
                } else {
                    endpoint.send_frames([payload].into_iter().collect())
                }
            })
            .collect();
        for seed in 0..200 {
            let request = if seed % 2 == 0 {
                endpoint.recv_message(Tag(1), TagMask::FULL)
            } else {
                endpoint.recv_frames()
            };
            pattern::check(seed, &request.done().unwrap().segments[0]);
        }
        for send in sends {
            send.done().unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| side(near));
        side(far);
    });
}

/// One more than the queue holds is refused, and when there is room again it goes on
pub fn a_full_send_queue_refuses(harness: &Harness) {
    const MAX: usize = 16;
    let pair = harness.pair_with(|config| {
        config.limits.sends_max = MAX;
        config.limits.credit_messages = 4;
    });
    let mut sends = Vec::new();
    let refused = loop {
        let request = pair
            .near
            .send(Tag(1), pattern::make(sends.len() as u64, 100));
        // A refusal comes immediately; others complete or wait.
        request.step();
        if request.is_done() {
            match request.take().unwrap() {
                Ok(()) => sends.push(None),
                Err(error) => break error,
            }
        } else {
            sends.push(Some(request));
        }
        assert!(sends.len() <= MAX + 4, "the bound of the queue is kept");
    };
    assert_matches!(
        refused,
        SendError::Refused(SendRefused::QueueFull { max: MAX })
    );
    assert_eq!(sends.len(), MAX + 4);
    for (seed, send) in sends.into_iter().enumerate() {
        let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        pattern::check(seed as u64, &message.segments[0]);
        if let Some(send) = send {
            send.done().unwrap();
        }
    }
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    pair.near
        .send(Tag(1), pattern::make(1, 100))
        .done()
        .unwrap();
    pattern::check(1, &posted.done().unwrap().segments[0]);
}

/// The queue of receives has a bound too
pub fn a_full_receive_queue_refuses(harness: &Harness) {
    let pair = harness.pair_with(|config| config.limits.recvs_max = 8);
    let posted: Vec<_> = (0..8)
        .map(|_| pair.far.recv_message(Tag(1), TagMask::FULL))
        .collect();
    let ninth = pair.far.recv_message(Tag(1), TagMask::FULL);
    assert_matches!(
        ninth.done().unwrap_err(),
        RecvError::Refused(RecvRefused::QueueFull { max: 8 })
    );
    for seed in 0..8 {
        pair.near
            .send(Tag(1), pattern::make(seed, 10))
            .done()
            .unwrap();
    }
    for (seed, request) in posted.into_iter().enumerate() {
        pattern::check(seed as u64, &request.done().unwrap().segments[0]);
    }
}

/// A side that receives nothing stores no more than its windows allow
pub fn a_peer_that_receives_nothing_stores_a_bounded_amount(harness: &Harness) {
    const COUNT: u64 = 500;
    const BYTES: usize = 10_000;
    let window = 100_000;
    let pair = harness.pair_with(|config| {
        config.limits.credit_bytes = window;
        config.limits.eager_bytes_max = 20_000;
        config.limits.early_accept_bytes_max = 1 << 20;
    });
    let tagged: Vec<_> = (0..COUNT)
        .map(|seed| pair.near.send(Tag(1), pattern::make(seed, BYTES)))
        .collect();
    let untagged: Vec<_> = (0..8)
        .map(|seed| {
            let payload = Bytes::from(pattern::make(seed, 300_000));
            pair.near.send_frames([payload].into_iter().collect())
        })
        .collect();
    // Until the window is full.
    wait_until(|| {
        let protocol = pair.far.info().protocol;
        protocol.is_some_and(|protocol| protocol.unexpected_bytes >= window - BYTES as u64)
    });
    for _ in 0..100 {
        if let Some(protocol) = pair.far.info().protocol {
            assert!(protocol.unexpected_bytes <= window + (1 << 20));
        }
        let stored = pair.far_context.pool_statistics().live_bytes as u64;
        assert!(stored <= 2 * (window + (1 << 20)), "{stored} bytes stored");
        std::thread::yield_now();
    }
    assert!(pair.near.queued_bytes() > 0);
    for seed in 0..COUNT {
        let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        pattern::check(seed, &message.segments[0]);
    }
    for seed in 0..8 {
        let message = pair.far.recv_frames().done().unwrap();
        pattern::check(seed, &message.segments[0]);
    }
    for send in tagged.into_iter().chain(untagged) {
        send.done().unwrap();
    }
}

/// Long messages without a receive do not hold up those that have one
pub fn short_messages_pass_long_ones_that_wait(harness: &Harness) {
    let pair = harness.pair();
    let stuck: Vec<_> = (0..10)
        .map(|seed| pair.near.send(Tag(seed), pattern::make(seed, 1 << 20)))
        .collect();
    for seed in 0..100 {
        let request = pair.far.recv_message(Tag(99), TagMask::FULL);
        let send = pair.near.send(Tag(99), pattern::make(seed, 100));
        pattern::check(seed, &request.done().unwrap().segments[0]);
        send.done().unwrap();
    }
    for (tag, send) in stuck.into_iter().enumerate().rev() {
        assert!(!send.is_done());
        let tag = tag as u64;
        let message = pair.far.recv_message(Tag(tag), TagMask::FULL).done();
        pattern::check(tag, &message.unwrap().segments[0]);
        send.done().unwrap();
    }
}

/// The counts are those of the messages that moved
pub fn statistics_count_messages_and_bytes(harness: &Harness) {
    let pair = harness.pair();
    let sizes = [0, 5, 100_000];
    for bytes in sizes {
        let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
        pair.near.send(Tag(1), vec![1; bytes]).done().unwrap();
        posted.done().unwrap();
    }
    let near = pair.near.statistics();
    assert_eq!((near.sent_messages, near.sent_bytes), (3, 100_005));
    assert_eq!((near.received_messages, near.queued_bytes), (0, 0));
    let far = pair.far.statistics();
    assert_eq!((far.received_messages, far.received_bytes), (3, 100_005));
    assert_eq!((far.sent_messages, far.lane), (0, harness.lane));
}

fn flood_bytes(seed: u64) -> usize {
    match seed % 4 {
        0 => 300_000,
        1 => 64 << 10,
        _ => 1000,
    }
}
