//! The whole protocol on a simulated network: two connections, lanes with latency and partial
//! writes, a workload drawn from a seed, and faults at every step.
//!
//! A failure prints its seed; `BACKHAUL_SIMULATION_SEED=<seed> cargo test -p backhaul-proto` runs
//! only that one.

mod lane;
mod message;
mod model;
mod node;
mod rng;
mod world;

use std::collections::BTreeMap;
use std::env;

use self::lane::Fate;
use self::world::{Fault, World};

/// Says how to run a case again, if it fails
struct Replay {
    seed: u64,
    fault: Option<Fault>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, fault } = self;
            eprintln!("failed with {SEED}={seed}, fault {fault:?}");
        }
    }
}

/// The seed that is asked for, alone
const SEED: &str = "BACKHAUL_SIMULATION_SEED";

fn is_replay() -> bool {
    env::var_os(SEED).is_some()
}

/// Seeds to run: those given, or the one asked for
fn seeds(count: u64) -> std::ops::Range<u64> {
    match env::var(SEED) {
        Ok(seed) => {
            let seed = seed.parse().expect("the seed is a number");
            seed..seed + 1
        }
        Err(_) => 0..count,
    }
}

#[test]
fn every_message_arrives_once_in_order_and_unchanged() {
    let mut happened = BTreeMap::new();
    for seed in seeds(1000) {
        let _replay = Replay { seed, fault: None };
        let mut world = World::new(seed, 400, seed % 4 == 0);
        world.run();
        for tally in world.tally() {
            for (name, count) in tally.counts() {
                *happened.entry(name).or_insert(0) += count;
            }
        }
    }
    // The workload does what it is there for.
    let never = happened.values().any(|count| *count == 0);
    assert!(!never || is_replay(), "{happened:?}");
}

#[test]
fn the_same_seed_runs_the_same_way() {
    for seed in seeds(20) {
        let _replay = Replay { seed, fault: None };
        let [first, second] = [(); 2].map(|()| {
            let mut world = World::new(seed, 300, true);
            (world.run(), world.tally())
        });
        assert_eq!(first, second);
    }
}

#[test]
fn a_cut_at_any_step_leaves_nothing_hanging() {
    faults_at_every_step(Fate::Cut);
}

#[test]
fn a_silent_peer_is_noticed_at_any_step_and_leaves_nothing_hanging() {
    faults_at_every_step(Fate::Vanish);
}

fn faults_at_every_step(fate: Fate) {
    for seed in seeds(8) {
        let mut struck = 0;
        for step in 0.. {
            let fault = Fault { step, fate };
            let _replay = Replay {
                seed,
                fault: Some(fault),
            };
            if !World::new(seed, 100, true).run_with(fault) {
                break;
            }
            struck += 1;
        }
        assert!(struck > 50, "only {struck} steps");
    }
}
