//! The link that production runs, under simulated lanes, carriers, faults and time.
//!
//! `BACKHAUL_SIM_SEEDS` says how many seeds are tried, `BACKHAUL_SIM_SEED` names one.

use std::sync::atomic::{AtomicU64, Ordering};

use backhaul_testkit::sim;
use backhaul_testkit::watchdog::Watchdog;

#[test]
fn every_run_is_as_the_model_says() {
    if let Some(seed) = number("BACKHAUL_SIM_SEED") {
        return sim::run(seed);
    }
    let seeds = number("BACKHAUL_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let take = || next.fetch_add(BATCH, Ordering::Relaxed);
                while let Some(first) = Some(take()).filter(|first| *first < seeds) {
                    let _watchdog = Watchdog::start("simulation");
                    (first..seeds.min(first + BATCH)).for_each(sim::run);
                }
            });
        }
    });
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, got {text:?}")),
    )
}

const SEEDS: u64 = 400;

/// Runs under one watchdog
const BATCH: u64 = 50;
