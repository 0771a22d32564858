//! The conformance suite on the lane over UCX, where there is a libucp.

use backhaul_testkit::ucx::Transport;
use backhaul_testkit::{Harness, Spin};

fn over(transport: Transport, spin: Spin) -> Harness {
    Harness::over_ucx(transport, spin)
        .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"))
}

mod tcp {
    mod polling {
        backhaul_testkit::conformance_of_any_lane!(crate::over(
            backhaul_testkit::ucx::Transport::Tcp,
            backhaul_testkit::Spin::Polling
        ));
        mod between_processes {
            backhaul_testkit::conformance_between_processes!(crate::over(
                backhaul_testkit::ucx::Transport::Tcp,
                backhaul_testkit::Spin::Polling
            ));
        }
    }
    mod sleeping {
        backhaul_testkit::conformance_of_any_lane!(crate::over(
            backhaul_testkit::ucx::Transport::Tcp,
            backhaul_testkit::Spin::Sleeping
        ));
        mod between_processes {
            backhaul_testkit::conformance_between_processes!(crate::over(
                backhaul_testkit::ucx::Transport::Tcp,
                backhaul_testkit::Spin::Sleeping
            ));
        }
    }
}
mod posix {
    mod polling {
        backhaul_testkit::conformance_of_any_lane!(crate::over(
            backhaul_testkit::ucx::Transport::Posix,
            backhaul_testkit::Spin::Polling
        ));
        mod between_processes {
            backhaul_testkit::conformance_between_processes!(crate::over(
                backhaul_testkit::ucx::Transport::Posix,
                backhaul_testkit::Spin::Polling
            ));
        }
    }
    mod sleeping {
        backhaul_testkit::conformance_of_any_lane!(crate::over(
            backhaul_testkit::ucx::Transport::Posix,
            backhaul_testkit::Spin::Sleeping
        ));
        mod between_processes {
            backhaul_testkit::conformance_between_processes!(crate::over(
                backhaul_testkit::ucx::Transport::Posix,
                backhaul_testkit::Spin::Sleeping
            ));
        }
    }
}
