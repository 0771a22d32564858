//! The conformance suite on the tls lane, with one thread for a connection and with another that helps.

use backhaul_testkit::{Harness, LaneKind, Spin, tls};

macro_rules! on_tls {
    ($harness:expr) => {
        backhaul_testkit::conformance_of_any_lane!($harness);
        backhaul_testkit::conformance_between_processes!($harness);
    };
}

mod polling {
    on_tls!(crate::alone(crate::Spin::Polling));
}
mod sleeping {
    on_tls!(crate::alone(crate::Spin::Sleeping));
}
mod helped {
    on_tls!(crate::helped(crate::Spin::Polling));
}

fn alone(spin: Spin) -> Harness {
    Harness::of_lane(LaneKind::Tls, spin)
        .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"))
}

fn helped(spin: Spin) -> Harness {
    Harness {
        configure: tls::configure_helped,
        ..alone(spin)
    }
}
