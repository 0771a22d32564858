//! To cancel an operation costs the same however many others wait.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use backhaul::{Endpoint, Request, Tag, TagMask};
use backhaul_testkit::{Finish, Harness, LaneKind, Spin};
use rustix::time::{ClockId, clock_gettime};

/// The time that the CPUs have worked for this process: other processes do not count
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

/// Cancels requests, the last one first, returning the CPU time that this took
fn cancelled<T, E: std::fmt::Debug>(requests: Vec<Request<T, E>>) -> Duration {
    let began = cpu_time();
    for request in requests.iter().rev() {
        request.cancel();
    }
    for request in requests {
        assert!(request.done().is_err(), "it was cancelled");
    }
    cpu_time() - began
}

fn cancelled_receives(far: &Endpoint, count: u64) -> Duration {
    let receives = (0..count).map(|tag| far.recv_message(Tag(tag), TagMask::FULL));
    cancelled(receives.collect())
}

fn cancelled_sends(near: &Endpoint, count: u64) -> Duration {
    let sends = (0..count).map(|tag| near.send_copy(Tag(1 << 32 | tag), b"waits"));
    cancelled(sends.collect())
}

#[test]
fn the_time_to_cancel_grows_with_what_is_cancelled_alone() {
    for lane in [LaneKind::Inproc, LaneKind::Tcp] {
        let pair = Harness::of_lane(lane, Spin::Sleeping).pair();
        // The peer takes no more until it has a receive for one.
        for _ in 0..CREDIT {
            pair.near.send_copy(Tag(1 << 32), b"taken").detach();
        }
        for cancelled in [
            &|count| cancelled_receives(&pair.far, count) as Duration,
            &|count| cancelled_sends(&pair.near, count),
        ] as [&dyn Fn(u64) -> Duration; 2]
        {
            let least = |count| (0..3).map(|_| cancelled(count)).min().unwrap();
            let (few, many) = (least(FEW), least(FEW * TIMES));
            let growth = many.as_secs_f64() / few.as_secs_f64();
            // It is near TIMES, and near its square where each cancel looks at all that wait.
            assert!(
                growth < f64::from(5 * TIMES as u32),
                "{lane:?}: {few:?} for {FEW}, {many:?} for {TIMES} times as many"
            );
        }
    }
}

/// More messages than a peer takes before it has a receive for one
const CREDIT: u64 = 4500;

const FEW: u64 = 1500;
const TIMES: u64 = 30;
