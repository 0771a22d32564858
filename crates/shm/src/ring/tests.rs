//! The ring against a queue, and against a peer that lies
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::{Consumer, PUBLISH_BYTES_FIRST, PUBLISH_BYTES_MAX, Producer, RingError, RingMemory};

#[test]
fn full_ring_takes_nothing_and_empty_ring_gives_nothing() {
    let (mut producer, mut consumer) = ring(8);
    assert_eq!(consumer.read(&mut [0; 4]), Ok(0));
    assert_eq!(producer.write(b"0123456789"), Ok(8));
    assert_eq!(producer.write(b"89"), Ok(0));
    assert_eq!(producer.free_bytes(), Ok(0));
    assert_eq!(consumer.available(), Ok(8));
    let mut buffer = [0; 10];
    assert_eq!(consumer.read(&mut buffer), Ok(8));
    assert_eq!(&buffer[..8], b"01234567");
    assert_eq!(producer.free_bytes(), Ok(8));
}

#[test]
fn long_write_is_published_in_steps() {
    let (mut producer, mut consumer) = ring(4 * PUBLISH_BYTES_MAX);
    let bytes = vec![7; PUBLISH_BYTES_MAX - 1];
    let slices = [&bytes[..], b"ab", b"c"].map(IoSlice::new);
    assert_eq!(producer.write_vectored(&slices), Ok(PUBLISH_BYTES_MAX + 2));
    assert_eq!(consumer.available(), Ok(PUBLISH_BYTES_MAX + 2));
}

#[test]
fn the_peer_is_told_of_a_long_write_early_and_then_in_growing_steps() {
    let (mut producer, mut consumer) = ring(8 * PUBLISH_BYTES_MAX);
    let long = vec![7; 3 * PUBLISH_BYTES_MAX];
    for _ in 0..2 {
        let (mut step_bytes, mut told) = (PUBLISH_BYTES_FIRST, 0);
        while told + step_bytes <= long.len() {
            told += step_bytes;
            producer.copy_in(&long[..step_bytes - 1]).unwrap();
            assert_eq!(consumer.available(), Ok(told - step_bytes));
            producer.copy_in(&[7]).unwrap();
            assert_eq!(consumer.available(), Ok(told));
            step_bytes = (2 * step_bytes).min(PUBLISH_BYTES_MAX);
        }
        // The next write begins anew.
        producer.write(b"x").unwrap();
        let mut buffer = vec![0; told + 1];
        assert_eq!(consumer.read(&mut buffer), Ok(told + 1));
        producer.write(b"").unwrap();
    }
}

#[test]
fn flag_is_taken_once_and_only_while_armed() {
    let (mut producer, mut consumer) = ring(8);
    assert!(!producer.take_peer_waiting());
    assert_eq!(consumer.arm(), Ok(true));
    assert!(producer.take_peer_waiting());
    assert!(!producer.take_peer_waiting());
    assert_eq!(consumer.arm(), Ok(true));
    consumer.disarm();
    assert!(!producer.take_peer_waiting());
    producer.write(b"x").unwrap();
    assert_eq!(consumer.arm(), Ok(false));
    assert!(!producer.take_peer_waiting());
}

#[test]
fn producer_arms_only_while_the_ring_is_full() {
    let (mut producer, mut consumer) = ring(8);
    assert_eq!(producer.arm(), Ok(false));
    producer.write(b"01234567").unwrap();
    assert_eq!(producer.arm(), Ok(true));
    // No space was made, so the doorbell is not notified.
    assert!(!consumer.take_peer_waiting());
    consumer.read(&mut [0]).unwrap();
    assert!(consumer.take_peer_waiting());
    assert_eq!(producer.arm(), Ok(false));
    consumer.read(&mut [0]).unwrap();
    assert!(!consumer.take_peer_waiting());
}

proptest! {
    #[test]
    fn ring_behaves_as_a_bounded_queue(
        capacity_log2 in 0_u32..8,
        start in prop_oneof![Just(0), Just(u64::MAX - 100), any::<u64>()],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let capacity = 1 << capacity_log2;
        let (mut producer, mut consumer) = ring_at(start, capacity);
        let mut model = VecDeque::new();
        let mut next = 0_u8;
        for step in steps {
            match step {
                Step::Write(pieces) => {
                    let bytes: Vec<Vec<u8>> = pieces
                        .iter()
                        .map(|bytes| (0..*bytes).map(|_| { next = next.wrapping_add(1); next }).collect())
                        .collect();
                    let slices: Vec<_> = bytes.iter().map(|bytes| IoSlice::new(bytes)).collect();
                    let free = capacity - model.len();
                    prop_assert_eq!(producer.free_bytes(), Ok(free));
                    let written = match &slices[..] {
                        [one] => producer.write(one),
                        several => producer.write_vectored(several),
                    }.unwrap();
                    let all = bytes.concat();
                    prop_assert_eq!(written, all.len().min(free));
                    model.extend(&all[..written]);
                }
                Step::Read(pieces) => {
                    let mut bytes: Vec<Vec<u8>> = pieces.iter().map(|bytes| vec![0; *bytes]).collect();
                    let mut buffers: Vec<_> = bytes.iter_mut().map(|bytes| IoSliceMut::new(bytes)).collect();
                    prop_assert_eq!(consumer.available(), Ok(model.len()));
                    let read = match &mut buffers[..] {
                        [one] => consumer.read(one),
                        several => consumer.read_vectored(several),
                    }.unwrap();
                    let all = bytes.concat();
                    prop_assert_eq!(read, all.len().min(model.len()));
                    let expected: Vec<u8> = model.drain(..read).collect();
                    prop_assert_eq!(&all[..read], expected);
                }
            }
        }
    }

    #[test]
    fn producer_refuses_every_tail_that_no_honest_consumer_could_publish(
        written in 0_u64..=16,
        read in 0_u64..=16,
        lie in prop_oneof![any::<u64>(), 0_u64..40],
    ) {
        let read = read.min(written);
        let (mut producer, peer) = producer_at(0);
        producer.write(&[1; 16][..written as usize]).unwrap();
        peer.control().tail.0.store(read, Ordering::Relaxed);
        prop_assert_eq!(producer.free_bytes(), Ok((16 - written + read) as usize));
        peer.control().tail.0.store(lie, Ordering::Relaxed);
        let result = producer.free_bytes();
        if (read..=written).contains(&lie) {
            prop_assert_eq!(result, Ok((16 - written + lie) as usize));
        } else {
            let refused = RingError::Corrupt { head: written, tail: lie, capacity: 16 };
            prop_assert_eq!(result, Err(refused));
            prop_assert_eq!(producer.arm(), Err(refused));
        }
    }

    #[test]
    fn consumer_refuses_every_head_that_no_honest_producer_could_publish(
        written in 0_u64..=16,
        read in 0_u64..=16,
        lie in prop_oneof![any::<u64>(), 0_u64..40],
    ) {
        let read = read.min(written);
        let (mut consumer, peer) = consumer_at(0);
        peer.control().head.0.store(written, Ordering::Relaxed);
        prop_assert_eq!(consumer.available(), Ok(written as usize));
        prop_assert_eq!(consumer.read(&mut [0; 16][..read as usize]), Ok(read as usize));
        peer.control().head.0.store(lie, Ordering::Relaxed);
        let result = consumer.available();
        if (written..=read + 16).contains(&lie) {
            prop_assert_eq!(result, Ok((lie - read) as usize));
        } else {
            let refused = RingError::Corrupt { head: lie, tail: read, capacity: 16 };
            prop_assert_eq!(result, Err(refused));
            prop_assert_eq!(consumer.arm(), Err(refused));
        }
    }

    #[test]
    fn own_index_overwritten_by_the_peer_is_not_believed(lie in any::<u64>()) {
        let (mut producer, peer) = producer_at(0);
        producer.write(b"0123456789").unwrap();
        peer.control().head.0.store(lie, Ordering::Relaxed);
        prop_assert_eq!(producer.free_bytes(), Ok(6));
        prop_assert_eq!(producer.write(b"abcdefghi"), Ok(6));
        // Published anew by that write.
        prop_assert_eq!(peer.control().head.0.load(Ordering::Relaxed), 16);

        let (mut consumer, peer) = consumer_at(0);
        peer.control().head.0.store(10, Ordering::Relaxed);
        consumer.read(&mut [0; 4]).unwrap();
        peer.control().tail.0.store(lie, Ordering::Relaxed);
        prop_assert_eq!(consumer.available(), Ok(6));
        prop_assert_eq!(consumer.read(&mut [0; 10]), Ok(6));
        prop_assert_eq!(peer.control().tail.0.load(Ordering::Relaxed), 10);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Read(Vec<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let pieces = || prop::collection::vec(0_usize..80, 0..4);
    prop_oneof![
        pieces().prop_map(Step::Write),
        pieces().prop_map(Step::Read)
    ]
}

fn ring(capacity_bytes: usize) -> (Producer, Consumer) {
    ring_at(0, capacity_bytes)
}

fn ring_at(index: u64, capacity_bytes: usize) -> (Producer, Consumer) {
    let (writing, reading) = RingMemory::pair_at(index, capacity_bytes);
    // SAFETY: each end is taken once.
    unsafe { (Producer::new(writing, index), Consumer::new(reading, index)) }
}

/// A producer at a ring of 16 bytes, and the view of a consumer who may lie
fn producer_at(index: u64) -> (Producer, RingMemory) {
    let (writing, peer) = RingMemory::pair_at(index, 16);
    // SAFETY: the only producer.
    (unsafe { Producer::new(writing, index) }, peer)
}

/// A consumer at a ring of 16 bytes, and the view of a producer who may lie
fn consumer_at(index: u64) -> (Consumer, RingMemory) {
    let (reading, peer) = RingMemory::pair_at(index, 16);
    // SAFETY: the only consumer.
    (unsafe { Consumer::new(reading, index) }, peer)
}
