//! The ring between two threads, copies into and out of buffers included
//!
//! `cargo bench -p backhaul-shm --bench ring`. One side of each pair is an echo or a drain on a
//! thread of its own that polls and never sleeps, so these are the costs of the ring, not of wake-ups.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]
#![allow(clippy::unwrap_used, reason = "a failed step ends the measurement")]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use backhaul_shm::channel::{self, Duplex};
use backhaul_shm::ring::{Consumer, Producer};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

criterion_group!(benches, round_trip, stream);
criterion_main!(benches);

/// There and back: twice the one-way latency
fn round_trip(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round_trip");
    for bytes in [8, 1 << 20] {
        with_peer(1 << 20, echo, |near| {
            let mut buffer = vec![0; bytes];
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter(|| {
                    write_and_read(near, bytes, &mut buffer);
                });
            });
        });
    }
    group.finish();
}

/// One way, acknowledged by 8 bytes once a message is there
fn stream(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("stream");
    for message_bytes in [1 << 20, 16 << 20] {
        group.throughput(Throughput::Bytes(message_bytes as u64));
        for capacity_log2 in 16..=22 {
            let capacity = 1 << capacity_log2;
            let peer = move |far: &mut Duplex, stop: &AtomicBool| {
                let mut buffer = vec![0; message_bytes];
                while read_all(&mut far.consumer, &mut buffer, stop) {
                    write_all(&mut far.producer, &[0; 8]);
                }
            };
            with_peer(capacity, peer, |near| {
                let message = vec![1; message_bytes];
                let id = BenchmarkId::new(format!("{}KiB", message_bytes >> 10), capacity >> 10);
                group.bench_function(id, |bencher| {
                    bencher.iter(|| {
                        write_all(&mut near.producer, &message);
                        read_all(&mut near.consumer, &mut [0; 8], &AtomicBool::new(false));
                    });
                });
            });
        }
    }
    group.finish();
}

fn with_peer(
    capacity: usize,
    peer: impl FnOnce(&mut Duplex, &AtomicBool) + Send,
    measure: impl FnOnce(&mut Duplex),
) {
    let (mut near, fd) = channel::create(capacity).unwrap();
    let mut far = channel::attach(fd).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| peer(&mut far, &stop));
        measure(&mut near);
        stop.store(true, Ordering::Relaxed);
    });
}

fn echo(far: &mut Duplex, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    let mut idle = 0;
    while !stop.load(Ordering::Relaxed) {
        let read = far.consumer.read(&mut buffer).unwrap();
        write_all(&mut far.producer, &buffer[..read]);
        pause(&mut idle, read);
    }
}

/// Writes a message while taking in the echo of its beginning
fn write_and_read(near: &mut Duplex, bytes: usize, buffer: &mut [u8]) {
    let message = vec![1; bytes];
    let (mut sent, mut received, mut idle) = (0, 0, 0);
    while received < bytes {
        let end = bytes.min(sent + (64 << 10));
        sent += near.producer.write(&message[sent..end]).unwrap();
        let read = near.consumer.read(&mut buffer[received..]).unwrap();
        received += read;
        pause(&mut idle, read);
    }
}

fn write_all(producer: &mut Producer, mut bytes: &[u8]) {
    let mut idle = 0;
    while !bytes.is_empty() {
        let written = producer.write(bytes).unwrap();
        bytes = &bytes[written..];
        // As a driver does after each write.
        producer.take_peer_waiting();
        pause(&mut idle, written);
    }
}

fn read_all(consumer: &mut Consumer, mut buffer: &mut [u8], stop: &AtomicBool) -> bool {
    let mut idle = 0;
    while !buffer.is_empty() {
        let read = consumer.read(buffer).unwrap();
        buffer = &mut buffer[read..];
        consumer.take_peer_waiting();
        if read == 0 && stop.load(Ordering::Relaxed) {
            return false;
        }
        pause(&mut idle, read);
    }
    true
}

/// Polls on, but leaves the processor to others where there are more threads than processors
fn pause(idle: &mut u32, moved_bytes: usize) {
    *idle = if moved_bytes == 0 { *idle + 1 } else { 0 };
    match *idle {
        0 => {}
        1..200 => spin_loop(),
        _ => thread::yield_now(),
    }
}
