//! Time to ask for a link, and to learn of one: `cargo bench -p backhaul-placement`

use std::hint::black_box;
use std::time::{Duration, Instant};

use backhaul_placement::links::{
    Estimator, LinkTable, Memory, NicClock, Prior, Priors, Report, Traffic, WorkerId,
};
use criterion::{Criterion, criterion_group, criterion_main};

/// Workers of a large cluster
const WORKERS: usize = 1000;

const PRIOR: Prior = Prior {
    bytes_per_s: 1e8,
    latency_s: 1e-5,
};

fn table() -> (LinkTable, Vec<WorkerId>) {
    let priors = Priors {
        same_host: PRIOR,
        other_host: PRIOR,
        device: PRIOR,
    };
    let mut table = LinkTable::new(priors, 16384);
    let workers = (0..WORKERS)
        .map(|n| table.add_worker(&format!("w{n}"), &format!("p{n}"), &format!("h{}", n / 8)))
        .collect();
    let mut estimator = Estimator::default();
    for _ in 0..6 {
        let _ = estimator.handle_message(Memory::Host, 4 << 20, 0, 0.01);
    }
    let said: Vec<_> = estimator.estimates().collect();
    for receiver in 0..WORKERS {
        for step in 1..16 {
            let sender = format!("p{}", (receiver * 7 + step * 61) % WORKERS);
            let receiver = format!("p{receiver}");
            let _ = table.handle_report(Report {
                receiver: &receiver,
                sender: &sender,
                sender_host: "",
                lane: "tcp",
                traffic: Traffic::default(),
                said: &said,
            });
        }
    }
    (table, workers)
}

fn links(criterion: &mut Criterion) {
    let (table, workers) = table();
    let mut next = 0_usize;
    criterion.bench_function("seconds, of any two of 1,000 workers", |bencher| {
        bencher.iter(|| {
            next = (next * 1_103_515_245 + 12_345) % (WORKERS * WORKERS);
            let (one, other) = (workers[next / WORKERS], workers[next % WORKERS]);
            table.seconds(one, other, black_box(5_000_000), Memory::Host)
        });
    });
    let met = (workers[61], workers[0]);
    criterion.bench_function("seconds, of a pair that has met", |bencher| {
        bencher.iter(|| table.seconds(met.0, met.1, black_box(5_000_000), Memory::Host));
    });
    let mut estimator = Estimator::default();
    let now = Instant::now();
    let mut clock = NicClock::new(now);
    criterion.bench_function("a message, from its beginning to its end", |bencher| {
        bencher.iter(|| {
            let begun = clock.begin(now, 7_u32);
            clock.moved(&begun, 1 << 20);
            let alone = clock.end(now + Duration::from_millis(1), &begun, 1 << 20);
            estimator.handle_message(Memory::Host, 1 << 20, 0, alone.seconds())
        });
    });
}

criterion_group!(benches, links);
criterion_main!(benches);
