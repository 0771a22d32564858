//! The conformance suite on the tcp lane.

mod polling {
    backhaul_testkit::conformance!(Tcp, Polling);
    backhaul_testkit::conformance_between_processes!(backhaul_testkit::harness_of_lane!(
        Tcp, Polling
    ));
}
mod sleeping {
    backhaul_testkit::conformance!(Tcp, Sleeping);
    backhaul_testkit::conformance_between_processes!(backhaul_testkit::harness_of_lane!(
        Tcp, Sleeping
    ));
}
