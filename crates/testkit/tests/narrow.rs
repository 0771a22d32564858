//! Suite of any lane, on one that is configured here: shared memory with rings of one page,
//! where every message is in pieces and every sender waits.

use backhaul_testkit::{Harness, LaneKind, Spin};

/// A harness that is filled in, as for a lane that is made elsewhere
fn narrow(spin: Spin) -> Harness {
    Harness {
        configure: |config| {
            config.lanes = vec![LaneKind::Shm];
            config.ring_bytes = 4096;
        },
        ..Harness::of_lane(LaneKind::Shm, spin)
    }
}

mod polling {
    backhaul_testkit::conformance_of_any_lane!(crate::narrow(backhaul_testkit::Spin::Polling));
}
mod sleeping {
    backhaul_testkit::conformance_of_any_lane!(crate::narrow(backhaul_testkit::Spin::Sleeping));
}
