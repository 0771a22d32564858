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

criterion_group!(benches, take_and_drop, take_fill_and_drop);
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

/// One that keeps nothing and one that keeps everything
fn pools() -> [(&'static str, Pool); 2] {
    [("fresh", Pool::new(0)), ("recycled", Pool::new(usize::MAX))]
}
