//! The conformance suite on the tcp lane.

mod polling {
    backhaul_testkit::conformance!(Tcp, Polling);
}
mod sleeping {
    backhaul_testkit::conformance!(Tcp, Sleeping);
}
