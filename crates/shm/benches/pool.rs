//! Buffers of the pool, fresh and recycled, each written once as a receiver does
//!
//! `cargo bench -p backhaul-shm --bench pool`.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]
#![allow(clippy::unwrap_used, reason = "a failed step ends the measurement")]

use std::hint::black_box;

use backhaul_shm::pool::Pool;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

criterion_group!(benches, take_and_drop, take_fill_and_drop, take_many);
criterion_main!(benches);

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 64 << 20];

fn take_and_drop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("take_and_drop");
    for (name, pool) in pools() {
        for bytes in SIZES {
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| black_box(pool.take(bytes).unwrap()));
            });
        }
    }
    group.finish();
}

fn take_fill_and_drop(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("take_fill_and_drop");
    for (name, pool) in pools() {
        for bytes in SIZES {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(name, bytes), |bencher| {
                bencher.iter(|| {
                    let mut buffer = pool.take(bytes).unwrap();
                    buffer.fill(1);
                    black_box(buffer)
                });
            });
        }
    }
    group.finish();
}

/// The segments of one message: each taken alone, and all at once
fn take_many(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("take_many");
    for (name, pool) in pools() {
        for count in [1, 3, 1000, 65_536] {
            let sizes = vec![64; count];
            group.throughput(Throughput::Elements(count as u64));
            group.bench_function(
                BenchmarkId::new(format!("{name}, alone"), count),
                |bencher| {
                    let take = |bytes: &u64| pool.take(*bytes as usize).unwrap();
                    bencher.iter(|| black_box(sizes.iter().map(take).collect::<Vec<_>>()));
                },
            );
            group.bench_function(
                BenchmarkId::new(format!("{name}, at once"), count),
                |bencher| {
                    bencher.iter(|| black_box(pool.take_many(&sizes).unwrap()));
                },
            );
        }
    }
    group.finish();
}

/// One that keeps nothing and one that keeps everything
fn pools() -> [(&'static str, Pool); 2] {
    [("fresh", Pool::new(0)), ("recycled", Pool::new(usize::MAX))]
}
