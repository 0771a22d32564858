//! The conformance suite on the shm lane.

mod polling {
    backhaul_testkit::conformance!(Shm, Polling);
}
mod sleeping {
    backhaul_testkit::conformance!(Shm, Sleeping);
}
