//! How long it takes to find out what a machine is made of
//!
//! `cargo bench -p backhaul-topology --bench readers`. The first figure is of the machine that runs
//! it, with the driver if there is one; the others are of recorded ones.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]
#![allow(clippy::unwrap_used, reason = "a failed step ends the measurement")]

use std::hint::black_box;

use backhaul_topology::read::{DiscoverOptions, discover, parse};
use criterion::{Criterion, criterion_group, criterion_main};

criterion_group!(benches, this_machine, texts);
criterion_main!(benches);

const TABLE: &str = include_str!("../tests/fixtures/dgx-a100.nvidia-smi.txt");
const XML: &str = include_str!("../tests/fixtures/dgx-a100.hwloc.xml");
const JSON: &str = include_str!("../tests/fixtures/dgx-a100.hwloc.json");

fn this_machine(criterion: &mut Criterion) {
    for nvml in [true, false] {
        let options = DiscoverOptions { root: None, nvml };
        let name = if nvml {
            "discover"
        } else {
            "discover without NVML"
        };
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| black_box(discover(&options).unwrap()));
        });
    }
}

fn texts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("DGX A100");
    for (name, text) in [("nvidia-smi", TABLE), ("hwloc XML", XML), ("JSON", JSON)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(parse(text, None).unwrap()));
        });
    }
    group.finish();
}
