//! The transport conformance suite: what every lane must do, and how it is tried.
//!
//! A case is a function of a [`Harness`], which makes connected endpoints on one lane; the cases
//! are in [`suite`], by subject, in two parts:
//!
//! - [`suite::any_lane`]: what holds for any lane and any carrier. A case sees what a user of the
//!   crate `backhaul` sees, no more, and asks the harness for what the lane can do.
//!   [`conformance_of_any_lane!`] makes a test of each, and [`conformance_between_processes!`] of
//!   those that need a second process, which runs the peer program of this crate. Both are given
//!   an expression that makes a harness, so a lane that is made elsewhere can be held to them.
//! - [`suite::our_frames`]: what concerns our frames, handshake, rings and leases, which peers
//!   speak by hand ([`raw`], [`manual_peer`]), and the choice among the lanes of this crate.
//!   [`conformance_of_our_frames!`] makes a test of each.
//!
//! [`conformance!`] makes both parts for a lane of this crate. Each is tried twice: with callers
//! that poll before they sleep, and with callers that sleep at once, as on a machine with one
//! core, where every doorbell counts.
//!
//! A test that hangs is ended by its [`Watchdog`](watchdog::Watchdog), with its name; no test
//! asserts how long something takes.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod executor;
pub mod fake_cuda;
pub mod harness;
pub mod lease_model;
pub mod lending;
pub mod manual_peer;
pub mod model;
pub mod pattern;
pub mod peer;
pub mod process;
pub mod random;
pub mod raw;
pub mod resources;
pub mod sim;
pub mod suite;
pub mod tls;
pub mod toy;
pub mod ucx;
pub mod watchdog;

pub use backhaul::LaneKind;
pub use harness::{Harness, Pair, Spin};

use std::time::Duration;

use backhaul::Request;

/// Runs a case under a watchdog, unless its harness lacks something here
pub fn run(name: &str, harness: &Harness, case: fn(&Harness)) {
    let name = format!("{}/{:?}: {name}", harness.lane, harness.spin);
    if let Some(why) = &harness.skipped {
        println!("{name} is skipped: {why}");
        return;
    }
    let _watchdog = watchdog::Watchdog::start(&name);
    case(harness);
}

/// Waiting without end, for tests, which have a watchdog
pub trait Finish<T, E> {
    /// The result, however long it takes
    ///
    /// # Errors
    ///
    /// Error of the request.
    fn done(&self) -> Result<T, E>;
}

impl<T, E> Finish<T, E> for Request<T, E> {
    fn done(&self) -> Result<T, E> {
        self.wait(None).expect("no time limit")
    }
}

/// Waits for something that no request reports
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Asserts that a value becomes what is expected, within some thousand looks
///
/// Memory that a peer has returned is freed by the thread that notices it first, outside its locks:
/// for a moment another thread still counts it.
#[track_caller]
pub fn assert_becomes<T: PartialEq + std::fmt::Debug>(mut found: impl FnMut() -> T, expected: &T) {
    for _ in 0..20_000 {
        if found() == *expected {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(found(), *expected);
}

/// Asserts that a value matches a pattern, showing it if not
#[macro_export]
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match $value {
            $pattern $(if $guard)? => {}
            ref other => panic!(
                "expected {}, got {other:?}",
                stringify!($pattern $(if $guard)?)
            ),
        }
    };
}
