//! The conformance suite on the inproc lane.

mod polling {
    backhaul_testkit::conformance!(Inproc, Polling);
}
mod sleeping {
    backhaul_testkit::conformance!(Inproc, Sleeping);
}
