//! Many endpoints, many threads.

use std::sync::Arc;

use backhaul::{Tag, TagMask};

use crate::harness::LOOPBACK;
use crate::{Finish, Harness, pattern};

/// Threads that share one endpoint, each with tags of its own
pub fn several_threads_share_one_endpoint(harness: &Harness) {
    const THREADS: u64 = 6;
    let pair = harness.pair();
    std::thread::scope(|scope| {
        for tag in 0..THREADS {
            let (near, far) = (&pair.near, &pair.far);
            scope.spawn(move || {
                for round in 0..100 {
                    let bytes = sizes(round);
                    let payload = pattern::make(tag, bytes);
                    near.send(Tag(tag), payload).done().unwrap();
                    let request = near.recv(Tag(tag), TagMask::FULL, vec![0; bytes]);
                    let received = request.done().unwrap();
                    pattern::check(tag, &received.into_buffer::<Vec<u8>>().unwrap());
                }
            });
            scope.spawn(move || {
                for _ in 0..100 {
                    let message = far.recv_message(Tag(tag), TagMask::FULL).done().unwrap();
                    let payload = message.segments[0].to_vec();
                    far.send(Tag(tag), payload).done().unwrap();
                }
            });
        }
    });
}

/// One thread sends, several receive the same tag: each message goes to exactly one
pub fn receivers_that_compete_get_each_message_once(harness: &Harness) {
    const COUNT: u64 = 600;
    let pair = Arc::new(harness.pair());
    let receivers: Vec<_> = (0..4)
        .map(|_| {
            let pair = Arc::clone(&pair);
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                loop {
                    let request = pair.far.recv(Tag(1), TagMask::FULL, vec![0; 8]);
                    let received = request.done().unwrap();
                    if received.bytes == 0 {
                        return seen;
                    }
                    let buffer = received.into_buffer::<Vec<u8>>().unwrap();
                    seen.push(u64::from_le_bytes(buffer.try_into().unwrap()));
                }
            })
        })
        .collect();
    for number in 0..COUNT {
        let payload = number.to_le_bytes().to_vec();
        pair.near.send(Tag(1), payload).done().unwrap();
    }
    for _ in 0..receivers.len() {
        pair.near.send(Tag(1), Vec::new()).done().unwrap();
    }
    let mut seen = Vec::new();
    for receiver in receivers {
        let part = receiver.join().unwrap();
        assert!(part.is_sorted(), "each receiver sees its part in order");
        seen.extend(part);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..COUNT));
}

/// Many connections of one context, all in use at once
pub fn many_endpoints_work_at_once(harness: &Harness) {
    const COUNT: u64 = 60;
    let (near_context, far_context) = (harness.context(), harness.context());
    let listener = far_context.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let connects: Vec<_> = (0..COUNT).map(|_| near_context.connect(&address)).collect();
    let accepts: Vec<_> = (0..COUNT).map(|_| listener.accept()).collect();
    let near: Vec<_> = connects
        .into_iter()
        .map(|request| request.done().unwrap())
        .collect();
    let far: Vec<_> = accepts
        .into_iter()
        .map(|request| request.done().unwrap())
        .collect();
    assert_eq!(listener.statistics().accepted, COUNT);
    let sends: Vec<_> = near
        .iter()
        .zip(0_u64..)
        .flat_map(|(endpoint, seed)| {
            harness.assert_lane(endpoint);
            let mut payload = seed.to_le_bytes().to_vec();
            payload.extend(pattern::make(seed, 100_000));
            [
                endpoint.send(Tag(1), seed.to_le_bytes().to_vec()),
                endpoint.send(Tag(2), payload),
            ]
        })
        .collect();
    let mut seen = Vec::new();
    for endpoint in &far {
        harness.assert_lane(endpoint);
        let short = endpoint.recv_message(Tag(1), TagMask::FULL).done().unwrap();
        let long = endpoint.recv_message(Tag(2), TagMask::FULL).done().unwrap();
        let (number, payload) = long.segments[0].split_at(8);
        assert_eq!(short.segments[0][..], *number);
        let seed = u64::from_le_bytes(number.try_into().unwrap());
        pattern::check(seed, payload);
        seen.push(seed);
    }
    for send in sends {
        send.done().unwrap();
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..COUNT));
}

/// Connections come and go from several threads while others work
pub fn connections_come_and_go_while_others_work(harness: &Harness) {
    let (near_context, far_context) = (harness.context(), harness.context());
    let steady = harness.pair_of(near_context.clone(), far_context.clone());
    let listener = far_context.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..25 {
                    let endpoint = near_context.connect(&address).done().unwrap();
                    let reply = endpoint.recv_message(Tag(1), TagMask::FULL);
                    let payload = pattern::make(round, 2000);
                    endpoint.send(Tag(1), payload).done().unwrap();
                    pattern::check(round, &reply.done().unwrap().segments[0]);
                    if round % 2 == 0 {
                        endpoint.close().done().unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                let endpoint = listener.accept().done().unwrap();
                let message = endpoint.recv_message(Tag(1), TagMask::FULL).done().unwrap();
                let payload = message.segments[0].to_vec();
                endpoint.send(Tag(1), payload).done().unwrap();
                endpoint.watch_close().done().unwrap();
            }
        });
        for round in 0..200 {
            let posted = steady.far.recv_message(Tag(1), TagMask::FULL);
            let send = steady.near.send(Tag(1), pattern::make(round, 5000));
            pattern::check(round, &posted.done().unwrap().segments[0]);
            send.done().unwrap();
        }
    });
}

fn sizes(round: u64) -> usize {
    [8, 3000, 0, 100_000][round as usize % 4]
}
