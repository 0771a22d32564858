//! The whole protocol on a simulated network: two connections, lanes with latency and partial
//! writes, a workload drawn from a seed, and faults at every step.
//!
//! A failure prints its seed; `BACKHAUL_SIMULATION_SEED=<seed> cargo test -p backhaul-proto` runs
//! only that one.

mod lane;
mod model;
mod node;
mod rng;
mod world;

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
            eprintln!("failed with BACKHAUL_SIMULATION_SEED={seed}, fault {fault:?}");
        }
    }
}

/// Seeds to run: those given, or the one asked for
fn seeds(count: u64) -> std::ops::Range<u64> {
    match env::var("BACKHAUL_SIMULATION_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("the seed is a number");
            seed..seed + 1
        }
        Err(_) => 0..count,
    }
}

#[test]
fn every_message_arrives_once_in_order_and_unchanged() {
    let (mut received, mut truncated, mut requested, mut cancelled, mut lent) = (0, 0, 0, 0, 0);
    for seed in seeds(1000) {
        let _replay = Replay { seed, fault: None };
        let mut world = World::new(seed, 400, seed % 4 == 0);
        world.run();
        for tally in world.tally() {
            received += tally.received;
            truncated += tally.truncated;
            requested += tally.requested;
            cancelled += tally.cancelled;
            lent += tally.lent;
        }
    }
    // The workload does what it is there for.
    for count in [received, truncated, requested, cancelled, lent] {
        assert!(
            count > 0,
            "{received} {truncated} {requested} {cancelled} {lent}"
        );
    }
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
