//! Partitioning, scatter and assembly of two million rows: `cargo bench -p backhaul-exchange`

use std::hint::black_box;

use backhaul_exchange::{
    Block, Column, Join, JoinKind, Kind, Partitioning, Scratch, Target, assemble,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ROWS: usize = 2_000_000;

fn kernels(criterion: &mut Criterion) {
    let keys: Vec<u8> = (0..ROWS as i64)
        .flat_map(|row| (row.wrapping_mul(0x9E37_79B9) % 1_000_003).to_le_bytes())
        .collect();
    let columns = [
        Column::Fixed {
            kind: Kind::Int(8),
            values: &keys,
        },
        Column::Fixed {
            kind: Kind::Float(8),
            values: &keys,
        },
    ];
    let mut group = criterion.benchmark_group("two columns of eight bytes");
    group
        .throughput(Throughput::Elements(ROWS as u64))
        .sample_size(10);
    for partitions in [4, 20, 40, 200, 1000] {
        let partition = || {
            Partitioning::by_keys(&columns[..1], ROWS, partitions, None)
                .unwrap_or_else(|error| panic!("{error}"))
        };
        group.bench_function(format!("hash, {partitions} partitions"), |bencher| {
            bencher.iter(|| black_box(partition()));
        });
        let partitioning = partition();
        let layout = partitioning
            .layout(&columns)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut block = vec![0; layout.bytes()];
        group.bench_function(format!("scatter, {partitions} partitions"), |bencher| {
            bencher.iter(|| {
                partitioning
                    .write(&layout, &columns, black_box(&mut block))
                    .unwrap_or_else(|error| panic!("{error}"));
            });
        });
        // The filter may leave the scatter out.
        partitioning
            .write(&layout, &columns, &mut block)
            .unwrap_or_else(|error| panic!("{error}"));
        let blocks = [Block::read(&block).unwrap_or_else(|error| panic!("{error}"))];
        let mut targets = vec![[0; 16].repeat(ROWS); 1];
        group.bench_function(format!("assemble, {partitions} partitions"), |bencher| {
            bencher.iter(|| {
                for slot in 0..partitions {
                    let rows = blocks[0].piece(slot).map_or(0, |rows| rows.len());
                    let (keys, values) = targets[0][..rows * 16].split_at_mut(rows * 8);
                    let mut targets = [Target::Fixed(keys), Target::Fixed(values)];
                    assemble(&blocks, slot, &mut targets).unwrap_or_else(|error| panic!("{error}"));
                }
            });
        });
        let mut scratch = Scratch::default();
        group.bench_function(
            format!("join with itself, {partitions} partitions"),
            |bencher| {
                bencher.iter(|| {
                    for slot in 0..partitions {
                        Join::new(
                            &blocks,
                            &blocks,
                            slot,
                            [&[0], &[0]],
                            JoinKind::Inner,
                            &mut scratch,
                        )
                        .map(black_box)
                        .unwrap_or_else(|error| panic!("{error}"));
                    }
                });
            },
        );
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
