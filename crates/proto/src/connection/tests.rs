//! Two connections that speak to each other: credit for messages of many segments

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;

use super::*;
use crate::decoder::FrameDecoder;
use crate::ids::{Tag, TagMask};

const ANY: Selector = Selector::Tagged {
    tag: Tag(0),
    mask: TagMask::ANY,
};

/// Hands every frame of one end to the other until neither has one, returning how many there were
fn exchange(ends: &mut [Connection; 2], limits: &[Limits; 2], now: Instant) -> usize {
    let mut frames = 0;
    loop {
        let before = frames;
        for from in 0..2 {
            while let Some(outgoing) = ends[from].poll_transmit() {
                let Outgoing::Frame(transmit) = outgoing else {
                    panic!("no carrier was offered anything");
                };
                frames += 1;
                let to = 1 - from;
                let decoded = FrameDecoder::new().handle(&limits[to], &transmit.header);
                let (used, frame) = decoded.unwrap();
                assert_eq!(used, transmit.header.len());
                let incoming = ends[to].handle_frame(now, frame.unwrap()).unwrap();
                if let Incoming::Payload { arrival, bytes } = incoming {
                    assert_eq!(transmit.payload.map(|payload| payload.bytes), Some(bytes));
                    ends[to].handle_payload(now, arrival);
                }
            }
        }
        if frames == before {
            return frames;
        }
    }
}

/// Accepts what asks, and counts the receives that are over
fn drain(end: &mut Connection) -> usize {
    let mut received = 0;
    while let Some(event) = end.poll_event() {
        match event {
            Event::Prepare {
                arrival,
                asks: true,
                ..
            } => end.accept(arrival, 0, 0),
            Event::RecvComplete { .. } => received += 1,
            _ => {}
        }
    }
    received
}

/// Credit for messages that one of so many segments takes
fn cost(segments: usize, window: u64) -> u64 {
    (1 + segments as u64 / 64).min((window / 4).max(1))
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let messages = prop_oneof![1_u64..10, Just(64)];
    let bytes = prop_oneof![Just(0_u64), 0_u64..1000, Just(100_000)];
    (messages, bytes).prop_map(|(credit_messages, credit_bytes)| Limits {
        credit_messages,
        credit_bytes,
        data_chunk_bytes: 500,
        ..Limits::default()
    })
}

fn any_message() -> impl Strategy<Value = Vec<u64>> {
    let segments = prop_oneof![0_usize..4, 0_usize..300, Just(3000)];
    (segments, 0_u64..3).prop_map(|(segments, bytes)| vec![bytes; segments])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// One receive at a time is posted; each gets its message, and the next ones come while there
    /// is room for them
    #[test]
    fn every_receive_gets_a_message_whatever_the_segments_cost(
        limits in [any_limits(), any_limits()],
        messages in [
            proptest::collection::vec(any_message(), 0..30),
            proptest::collection::vec(any_message(), 0..30),
        ],
    ) {
        let now = Instant::now();
        let end = |this: usize, other: usize| {
            Connection::new(limits[this].clone(), limits[other].announced(), now)
        };
        let mut ends = [end(0, 1), end(1, 0)];
        for (end, messages) in ends.iter_mut().zip(&messages) {
            for (id, segment_bytes) in messages.iter().enumerate() {
                let kind = MessageKind::Tagged(Tag(id as u64));
                end.send(SendId(id), kind, segment_bytes).unwrap();
            }
        }
        for (to, messages) in [(1, &messages[0]), (0, &messages[1])] {
            for recv in 0..messages.len() {
                ends[to].post_recv(RecvId(recv), ANY, Capacity::Allocate).unwrap();
                let mut received = 0;
                loop {
                    received += drain(&mut ends[to]);
                    prop_assert_eq!(drain(&mut ends[1 - to]), 0);
                    if exchange(&mut ends, &limits, now) == 0 {
                        break;
                    }
                }
                prop_assert_eq!(received, 1, "receive {} of {}", recv, messages.len());
                let started = messages.len() - ends[1 - to].statistics().sends_queued;
                let window = limits[to].credit_messages;
                let costs = messages.iter().map(|segments| cost(segments.len(), window));
                let costs: Vec<u64> = costs.collect();
                let held: u64 = costs[recv + 1..started].iter().sum();
                prop_assert!(held <= window);
                if let Some(next) = costs.get(started) {
                    // For one that costs more, less than a quarter is granted where a receive waits.
                    let deferred = if *next == 1 { 0 } else { window / 4 - 1 };
                    prop_assert!(held + next + deferred > window, "room, but not granted");
                }
            }
        }
        for end in &ends {
            prop_assert!(end.is_flushed());
        }
    }
}
