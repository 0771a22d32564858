//! Runs a target of `backhaul-fuzzing` by its name.

#![forbid(unsafe_code)]

use backhaul_fuzzing::Target;

/// Runs one input
///
/// # Panics
///
/// If the target finds something, or there is none of that name.
pub fn run(name: &str, data: &[u8]) {
    let target = Target::named(name).expect("the target of each program exists");
    (target.run)(data);
}
