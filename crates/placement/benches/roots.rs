//! Time of a plan of roots, by number of workers: `cargo bench -p backhaul-placement --bench roots`

use std::hint::black_box;

use backhaul_placement::cost::HostLinks;
use backhaul_placement::roots::{Graph, Kinds, Target, choose};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Roots that are combined with those half of all later
const PAIRS: u32 = 10_000;
const WORKERS_OF_HOST: u32 = 8;

fn pairs() -> Graph {
    let mut places = vec![-1; 2 * PAIRS as usize];
    let mut needs = vec![0; 2 * PAIRS as usize];
    for pair in 0..PAIRS {
        places.push(-2);
        needs.extend([2, pair, pair + PAIRS]);
    }
    Graph::read(&places, &needs).unwrap_or_else(|error| panic!("{error}"))
}

fn plans(criterion: &mut Criterion) {
    let graph = pairs();
    let of = vec![0; graph.len()];
    let kinds = Kinds {
        of: &of,
        table: &[(0.01, 1e6)],
    };
    let mut group = criterion.benchmark_group("plan");
    group.throughput(Throughput::Elements(graph.len() as u64));
    group.sample_size(10);
    for workers in [64, 1000] {
        let mut links = HostLinks::default();
        let targets: Vec<Target> = (0..workers)
            .map(|worker| {
                let worker = links
                    .add_worker(worker / WORKERS_OF_HOST)
                    .unwrap_or_else(|error| panic!("{error}"));
                Target {
                    worker,
                    share: 2.0,
                    roots_max: f64::INFINITY,
                    memory_bytes: f64::INFINITY,
                }
            })
            .collect();
        group.bench_function(format!("{workers} workers"), |bencher| {
            bencher.iter(|| black_box(choose(&graph, kinds, &targets, &links)));
        });
    }
}

criterion_group!(benches, plans);
criterion_main!(benches);
