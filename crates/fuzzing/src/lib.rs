//! Targets for fuzzing: each gets the bytes of an untrusted peer.
//!
//! A *target* takes any bytes, feeds them to production code as a peer, a file or a text would, and
//! panics where that code does what it must not: it panics itself, holds more than its limits allow,
//! works without end, gives other results for the same bytes in other pieces, or does not read back
//! what it has written. The package `fuzz` runs them under libFuzzer; the test `corpus` replays the
//! inputs in `fuzz/corpus` on every run of the tests, so what was found stays found.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a target fails"
)]

mod input;
mod targets;

pub use input::Input;

/// Feeds the bytes of an untrusted peer to some part of the production code
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its corpus
    pub name: &'static str,
    /// Runs it
    pub run: fn(&[u8]),
}

impl Target {
    /// The target of that name
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// All targets
pub const TARGETS: &[Target] = targets::ALL;
