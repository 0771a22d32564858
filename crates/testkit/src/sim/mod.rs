//! A simulator for the link that production runs: two of them, joined by simulated lanes and
//! carriers, under a clock that is given.
//!
//! A [`run`] is decided by its seed alone: sizes and limits, commands of both sides, how much each
//! read and write moves, how long bytes and payloads take, and the fault that strikes in the middle.
//! Everything is checked against a naive model (`model`): content and order of what is received,
//! that nothing is lost or doubled, also when receives are cancelled and deliveries go back, that
//! each operation ends once, that an end is said before what fails for it and leaves nothing behind,
//! that credit is kept to, and that what does not move waits for a caller.

mod carrier;
mod lane;
mod model;
mod node;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use world::World;

/// Runs what a seed says, from the first byte to the end of both sides
///
/// # Panics
///
/// If anything is not as the model says; the seed is printed.
pub fn run(seed: u64) {
    let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
    if let Err(panic) = outcome {
        eprintln!("the simulation of seed {seed} failed: BACKHAUL_SIM_SEED={seed} runs it again");
        resume_unwind(panic);
    }
}
