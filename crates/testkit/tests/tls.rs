//! The conformance suite on the tls lane.

macro_rules! on_tls {
    ($spin:ident) => {
        backhaul_testkit::conformance_of_any_lane!(backhaul_testkit::harness_of_lane!(Tls, $spin));
        backhaul_testkit::conformance_between_processes!(backhaul_testkit::harness_of_lane!(
            Tls, $spin
        ));
    };
}

mod polling {
    on_tls!(Polling);
}
mod sleeping {
    on_tls!(Sleeping);
}
