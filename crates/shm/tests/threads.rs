//! Two threads at one channel, who sleep and wake each other
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{IoSlice, IoSliceMut};
use std::thread;

use backhaul_shm::channel;
use backhaul_shm::ring::{Consumer, Producer};

const TOTAL_BYTES: usize = 24 << 20;

#[test]
fn sleeping_sides_of_a_shared_segment_lose_no_byte_and_no_wake_up() {
    for capacity in [4096, 1 << 16] {
        let (creator, fd) = channel::create(capacity).unwrap();
        let attacher = channel::attach(fd).unwrap();
        stream(creator.producer, attacher.consumer);
    }
}

#[test]
fn channel_within_a_process_streams_both_ways_at_once() {
    let (left, right) = channel::in_process(1 << 15).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| stream(left.producer, right.consumer));
        stream(right.producer, left.consumer);
    });
}

/// Streams bytes in chunks of changing sizes; a parked thread is the sleeper, `unpark` the doorbell
fn stream(mut producer: Producer, mut consumer: Consumer) {
    let reader = thread::current();
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut sizes = Sizes(1);
            let mut sent = 0;
            while sent < TOTAL_BYTES {
                let bytes: Vec<u8> = (sent..TOTAL_BYTES.min(sent + sizes.next()))
                    .map(byte_at)
                    .collect();
                let (front, back) = bytes.split_at(bytes.len() / 3);
                let slices = [front, back].map(IoSlice::new);
                let written = producer.write_vectored(&slices).unwrap();
                sent += written;
                if written > 0 {
                    if producer.take_peer_waiting() {
                        reader.unpark();
                    }
                } else if producer.arm().unwrap() {
                    thread::park();
                    producer.disarm();
                }
            }
        });
        let mut sizes = Sizes(2);
        let mut received = 0;
        while received < TOTAL_BYTES {
            let mut bytes = vec![0; sizes.next()];
            let (front, back) = bytes.split_at_mut(sizes.next().min(1));
            let read = consumer
                .read_vectored(&mut [IoSliceMut::new(front), IoSliceMut::new(back)])
                .unwrap();
            assert!(
                bytes[..read]
                    .iter()
                    .copied()
                    .eq((received..received + read).map(byte_at))
            );
            received += read;
            if read > 0 {
                if consumer.take_peer_waiting() {
                    writer.thread().unpark();
                }
            } else if consumer.arm().unwrap() {
                thread::park();
                consumer.disarm();
            }
        }
        assert_eq!(consumer.available(), Ok(0));
    });
}

/// Repeats at no power of two, so that a wrap-around in the wrong place shows
fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

/// Chunk sizes from 1 to 10,000 bytes, most of them small, by Marsaglia's xorshift
struct Sizes(u32);

impl Sizes {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        let most = if self.0 & 3 == 0 { 10_000 } else { 100 };
        1 + (self.0 >> 2) as usize % most
    }
}
