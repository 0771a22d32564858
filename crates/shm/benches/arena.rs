//! Blocks of the arena, fresh and recycled, and what it costs a peer to get one
//!
//! `cargo bench -p backhaul-shm --bench arena`. Exporter and importer are one
//! process: the kernel does the same for them as for two.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]
#![allow(clippy::unwrap_used, reason = "a failed step ends the measurement")]

use std::hint::black_box;
use std::sync::Arc;

use backhaul_shm::arena::{Arena, ArenaBuf, ArenaConfig};
use backhaul_shm::completion::{CompletionTable, table_in_process};
use backhaul_shm::leased::{Leased, read_leased};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

criterion_group!(
    benches,
    allocate_and_free,
    fill,
    grow,
    deliver,
    overwrite,
    copy_on_write
);
criterion_main!(benches);

const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20];

/// A block that is there already, not touched
fn allocate_and_free(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_and_free");
    let arena = arena(usize::MAX);
    for bytes in SIZES {
        group.bench_function(BenchmarkId::new("arena", bytes), |bencher| {
            bencher.iter(|| black_box(arena.take(bytes).unwrap()));
        });
        group.bench_function(BenchmarkId::new("malloc", bytes), |bencher| {
            bencher.iter(|| black_box(Vec::<u8>::with_capacity(bytes)));
        });
    }
    group.finish();
}

/// Memory written once: from `malloc`, from an arena that keeps nothing, and from one that keeps
/// all
fn fill(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fill");
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("malloc", bytes), |bencher| {
            bencher.iter(|| {
                let mut buffer = Vec::with_capacity(bytes);
                buffer.resize(bytes, 1_u8);
                black_box(buffer)
            });
        });
        for (name, cached_bytes_max) in [("fresh", 0), ("recycled", usize::MAX)] {
            let arena = arena(cached_bytes_max);
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    let mut buffer = arena.take(bytes).unwrap();
                    buffer.fill(1);
                    black_box(buffer)
                });
            });
        }
    }
    group.finish();
}

/// A process that comes to hold 128 MiB, in blocks of a size, fills them once and lets them go
fn grow(criterion: &mut Criterion) {
    const TOTAL_BYTES: usize = 128 << 20;
    let mut group = criterion.benchmark_group("grow");
    group.throughput(Throughput::Bytes(TOTAL_BYTES as u64));
    for bytes in [256 << 10, 1 << 20, 4 << 20, 32 << 20] {
        let count = TOTAL_BYTES / bytes;
        group.bench_function(BenchmarkId::new("malloc", bytes), |bencher| {
            bencher.iter(|| black_box((0..count).map(|_| vec![1_u8; bytes]).collect::<Vec<_>>()));
        });
        group.bench_function(BenchmarkId::new("arena", bytes), |bencher| {
            bencher.iter(|| {
                let arena = arena(usize::MAX);
                let mut buffers: Vec<_> = (0..count).map(|_| arena.take(bytes).unwrap()).collect();
                buffers.iter_mut().for_each(|buffer| buffer.fill(1));
                drop(black_box(buffers));
                arena.trim(0);
            });
        });
    }
    group.finish();
}

/// From one side's block to bytes that the other has read: leased and mapped, leased and copied,
/// and copied from memory to memory, without anything between
fn deliver(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("deliver");
    let arena = arena(usize::MAX);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let (mut exporter, importer) = table_in_process().unwrap();
        let mut block = arena.take(bytes).unwrap();
        block.fill(1);
        group.bench_function(BenchmarkId::new("map", bytes), |bencher| {
            bencher.iter(|| drop(map(&block, &mut exporter, &importer)));
        });
        group.bench_function(BenchmarkId::new("map and touch", bytes), |bencher| {
            bencher.iter(|| touch(&map(&block, &mut exporter, &importer)));
        });
        let mut target = arena.take(bytes).unwrap();
        group.bench_function(BenchmarkId::new("read and touch", bytes), |bencher| {
            bencher.iter(|| {
                let lease = block.lease().unwrap();
                read_leased(lease.descriptor(), lease.offset(), &mut target).unwrap();
                touch(&target)
            });
        });
        group.bench_function(BenchmarkId::new("memcpy and touch", bytes), |bencher| {
            bencher.iter(|| {
                target.copy_from_slice(&block);
                touch(&target)
            });
        });
    }
    group.finish();
}

/// A receiver that changes every byte: of its private pages, and of a copy
fn overwrite(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("overwrite");
    let arena = arena(usize::MAX);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let (mut exporter, importer) = table_in_process().unwrap();
        let mut block = arena.take(bytes).unwrap();
        block.fill(1);
        group.bench_function(BenchmarkId::new("map", bytes), |bencher| {
            bencher.iter(|| map(&block, &mut exporter, &importer).fill(2));
        });
        group.bench_function(BenchmarkId::new("read", bytes), |bencher| {
            bencher.iter(|| {
                let lease = block.lease().unwrap();
                let mut target = arena.take(bytes).unwrap();
                read_leased(lease.descriptor(), lease.offset(), &mut target).unwrap();
                target.fill(2);
                black_box(target)
            });
        });
    }
    group.finish();
}

/// The life of a block that its owner fills, and reads after it was leased; with and without a lease
fn copy_on_write(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy_on_write");
    let arena = arena(usize::MAX);
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        for (name, is_leased, is_read) in [
            ("take, fill, free", false, false),
            ("take, fill, lease, free", true, false),
            ("take, fill, touch, free", false, true),
            ("take, fill, lease, touch, free", true, true),
        ] {
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    let mut block = arena.take(bytes).unwrap();
                    block.fill(1);
                    let lease = is_leased.then(|| block.lease().unwrap());
                    if is_read {
                        touch(&block);
                    }
                    drop(lease);
                });
            });
        }
    }
    group.finish();
}

fn map(block: &ArenaBuf, exporter: &mut CompletionTable, importer: &CompletionTable) -> Leased {
    exporter.exported.sweep();
    let lease = block.lease().unwrap();
    let fd = lease.descriptor().try_clone_to_owned().unwrap();
    let (offset, bytes) = (lease.offset(), lease.bytes());
    let ticket = exporter.exported.issue(lease).unwrap();
    let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    Leased::map(fd, offset, bytes, false, receipt).unwrap()
}

/// Reads a byte of every page
fn touch(bytes: &[u8]) -> u64 {
    let sum = bytes
        .iter()
        .step_by(4096)
        .map(|byte| u64::from(*byte))
        .sum();
    black_box(sum)
}

fn arena(cached_bytes_max: usize) -> Arena {
    Arena::new(ArenaConfig {
        cached_bytes_max,
        ..ArenaConfig::default()
    })
}
