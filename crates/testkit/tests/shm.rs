//! The conformance suite on the shm lane.

mod polling {
    backhaul_testkit::conformance!(Shm, Polling);
    backhaul_testkit::conformance_between_processes!(backhaul_testkit::harness_of_lane!(
        Shm, Polling
    ));
}
mod sleeping {
    backhaul_testkit::conformance!(Shm, Sleeping);
    backhaul_testkit::conformance_between_processes!(backhaul_testkit::harness_of_lane!(
        Shm, Sleeping
    ));
}
