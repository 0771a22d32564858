//! Every interleaving, within bounds, of two threads at one ring
//!
//! `RUSTFLAGS='--cfg loom' cargo test -p backhaul-shm --release --lib loom`
//!
//! loom fails a model when two threads touch a byte without order between them, and when both sleep
//! for good: the wake-up that was lost.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use loom::sync::{Arc, Notify};

use super::{Consumer, Producer, RingMemory};

#[test]
fn bytes_arrive_in_order_through_a_ring_smaller_than_they_are() {
    explore(3, || stream(2, 5, 3, 2));
}

#[test]
fn single_bytes_never_lose_a_wake_up() {
    explore(3, || stream(1, 3, 1, 1));
}

#[test]
fn wake_up_is_seen_by_a_sleeper_who_found_nothing() {
    // Without a bound on preemption: one write against one announcement.
    explore(usize::MAX, || stream(4, 1, 1, 1));
}

#[test]
fn indices_wrap_at_the_end_of_64_bits() {
    explore(2, || stream_from(u64::MAX - 1, 2, 4, 2, 2));
}

/// Streams `total` bytes through a ring, in writes and reads of the given sizes, sleeping only when
/// the ring says so
fn stream(capacity_bytes: usize, total: u8, write_bytes: usize, read_bytes: usize) {
    stream_from(0, capacity_bytes, total, write_bytes, read_bytes);
}

fn stream_from(
    index: u64,
    capacity_bytes: usize,
    total: u8,
    write_bytes: usize,
    read_bytes: usize,
) {
    let (writing, reading) = RingMemory::pair_at(index, capacity_bytes);
    // SAFETY: each end is taken once.
    let (mut producer, mut consumer) =
        unsafe { (Producer::new(writing, index), Consumer::new(reading, index)) };
    let producer_doorbell = Arc::new(Notify::new());
    let consumer_doorbell = Arc::new(Notify::new());
    let (own_doorbell, peer_doorbell) = (
        Arc::clone(&producer_doorbell),
        Arc::clone(&consumer_doorbell),
    );
    let writer = loom::thread::spawn(move || {
        let bytes: Vec<u8> = (1..=total).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            let end = bytes.len().min(sent + write_bytes);
            let written = producer.write(&bytes[sent..end]).unwrap();
            sent += written;
            if written > 0 {
                if producer.take_peer_waiting() {
                    peer_doorbell.notify();
                }
            } else if producer.arm().unwrap() {
                own_doorbell.wait();
                producer.disarm();
            }
        }
    });
    let mut expected = 1;
    while expected <= total {
        let mut buffer = vec![0; read_bytes];
        let read = consumer.read(&mut buffer).unwrap();
        for byte in &buffer[..read] {
            assert_eq!(*byte, expected);
            expected += 1;
        }
        if read > 0 {
            if consumer.take_peer_waiting() {
                producer_doorbell.notify();
            }
        } else if consumer.arm().unwrap() {
            consumer_doorbell.wait();
            consumer.disarm();
        }
    }
    writer.join().unwrap();
}

fn explore(preemptions_max: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = (preemptions_max != usize::MAX).then_some(preemptions_max);
    builder.check(model);
}
