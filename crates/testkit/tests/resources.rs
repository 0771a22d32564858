//! Nothing is left behind: descriptors and memory over many rounds, on every lane.
//!
//! In a program of its own, one test at a time, since it counts what the whole process holds.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backhaul::{Bytes, CloseReason, Config, Context, LaneKind, Tag, TagMask};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::peer::Scenario;
use backhaul_testkit::raw::RawPeer;
use backhaul_testkit::resources::{assert_leaves_nothing, resident_bytes};
use backhaul_testkit::{Finish, Harness, Spin, assert_matches, pattern, run, wait_until};

#[test]
fn connections_that_close_leave_nothing() {
    on_every_lane("connections_that_close_leave_nothing", |harness| {
        let (near, far) = (harness.context(), harness.context());
        let listener = far.listen(LOOPBACK).unwrap();
        assert_leaves_nothing(100, || {
            let (near, far) = harness.connect(&near, &listener);
            let posted = far.recv_message(Tag(1), TagMask::FULL);
            let send = near.send(Tag(1), pattern::make(1, 200_000));
            pattern::check(1, &posted.done().unwrap().segments[0]);
            send.done().unwrap();
            near.close().done().unwrap();
            far.watch_close().done().unwrap();
        });
    });
}

#[test]
fn connections_that_are_dropped_leave_nothing() {
    on_every_lane("connections_that_are_dropped_leave_nothing", |harness| {
        let (near, far) = (harness.context(), harness.context());
        let listener = far.listen(LOOPBACK).unwrap();
        assert_leaves_nothing(100, || {
            let (near, far) = harness.connect(&near, &listener);
            // Unexpected, waiting for credit, half received, never received.
            near.send(Tag(2), vec![0; 50_000]).detach();
            near.send(Tag(3), vec![0; 300_000]).detach();
            near.send(Tag(1), vec![0; 3_000_000]).detach();
            let posted = far.recv(Tag(1), TagMask::FULL, vec![0; 3_000_000]);
            let never = far.recv_message(Tag(9), TagMask::FULL);
            posted.step();
            drop(near);
            never.done().unwrap_err();
        });
    });
}

#[test]
fn contexts_leave_nothing() {
    on_every_lane("contexts_leave_nothing", |harness| {
        assert_leaves_nothing(30, || {
            let pair = harness.pair();
            let listener = pair.far_context.listen(LOOPBACK).unwrap();
            let accept = listener.accept();
            pair.near.send(Tag(1), vec![0; 100]).done().unwrap();
            drop(accept);
        });
    });
}

#[test]
fn connects_that_were_given_up_leave_nothing() {
    on_every_lane("connects_that_were_given_up_leave_nothing", |harness| {
        let (near, far) = (harness.context(), harness.context());
        let listener = far.listen(LOOPBACK).unwrap();
        let address = listener.local_address().to_string();
        assert_leaves_nothing(100, || {
            for _ in 0..3 {
                drop(near.connect(&address));
            }
            let connect = near.connect(&address);
            connect.wait_done(Some(Duration::from_micros(100)));
            drop(connect);
            wait_until(|| {
                let statistics = listener.statistics();
                if statistics.waiting > 0 {
                    drop(listener.accept().done());
                }
                statistics.handshakes == 0
            });
        });
        // The last may still be on their way when they are counted.
        wait_until(|| {
            if listener.statistics().waiting > 0 {
                drop(listener.accept().done());
            }
            listener.statistics().handshakes == 0
        });
    });
}

#[test]
fn strangers_leave_nothing() {
    on_every_lane("strangers_leave_nothing", |harness| {
        let context = harness.context();
        let listener = context.listen(LOOPBACK).unwrap();
        assert_leaves_nothing(100, || {
            let before = listener.statistics().rejected;
            let mut peer = RawPeer::connect(listener.local_address());
            peer.say(b"GET / HTTP/1.1\r\n\r\n");
            peer.hear_out();
            drop(RawPeer::connect(listener.local_address()));
            wait_until(|| listener.statistics().rejected == before + 2);
            let accept = listener.accept();
            let mut peer = RawPeer::shake_hands(listener.local_address());
            let endpoint = accept.done().unwrap();
            peer.say(&[0xff; 100]);
            endpoint.watch_close().done().unwrap();
        });
    });
}

#[test]
fn killed_processes_leave_nothing() {
    between_processes("killed_processes_leave_nothing", |harness| {
        let context = harness.context();
        for scenario in [Scenario::Idle, Scenario::FloodLong, Scenario::Flood] {
            assert_leaves_nothing(8, || {
                let (mut process, endpoint) = harness.peer_process(&context, scenario);
                let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
                let stuck = endpoint.send(Tag(1), vec![0; 1 << 20]);
                process.kill();
                stuck.done().unwrap_err();
                let _ = posted.done();
                assert_matches!(
                    endpoint.watch_close().done().unwrap(),
                    CloseReason::PeerGone { .. }
                );
            });
        }
    });
}

#[test]
fn a_stopped_peer_costs_no_more_than_was_posted() {
    between_processes("a_stopped_peer_costs_no_more_than_was_posted", |harness| {
        let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Sink);
        process.stop();
        let before = resident_bytes();
        let payload = Bytes::from(vec![7; 4 << 20]);
        let short = payload.slice(..60_000);
        let sends: Vec<_> = (0..1000)
            .flat_map(|_| {
                [
                    endpoint.send(Tag(1), payload.clone()),
                    endpoint.send(Tag(1), short.clone()),
                ]
            })
            .collect();
        assert!(!sends[1999].wait_done(Some(Duration::from_millis(100))));
        // Four gigabytes are posted; they are shared, and nothing copies them on the way.
        assert!(endpoint.queued_bytes() > 3 << 30);
        let grown = resident_bytes().saturating_sub(before);
        assert!(
            grown < 32 << 20,
            "{grown} bytes for a peer that reads nothing"
        );
        process.kill();
        for send in sends {
            let _ = send.done();
        }
        assert_eq!(endpoint.queued_bytes(), 0);
    });
}

#[test]
fn a_receiver_that_never_receives_keeps_the_memory_of_both_bounded() {
    let name = "a_receiver_that_never_receives_keeps_the_memory_of_both_bounded";
    on_every_lane(name, |harness| {
        let pair = harness.pair();
        let before = resident_bytes();
        let payload = Bytes::from(vec![7; 60_000]);
        let sends: Vec<_> = (0..20_000)
            .map(|_| pair.near.send(Tag(1), payload.clone()))
            .collect();
        assert!(!sends[19_999].wait_done(Some(Duration::from_millis(100))));
        let window = Config::default().limits.credit_bytes as usize;
        let grown = resident_bytes().saturating_sub(before);
        let allowed = 2 * window + (32 << 20);
        assert!(
            grown < allowed,
            "{grown} bytes for a peer that receives nothing"
        );
        let stored = pair.far_context.pool_statistics().live_bytes;
        assert!(stored <= 2 * window, "{stored} bytes stored");
    });
}

#[test]
fn memory_of_received_messages_returns_to_the_pool() {
    on_every_lane(
        "memory_of_received_messages_returns_to_the_pool",
        |harness| {
            let pair = harness.pair();
            let cached = harness.config().pool_cached_bytes_max;
            for round in 0..20 {
                let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
                let send = pair.near.send(Tag(1), pattern::make(round, 10 << 20));
                pattern::check(round, &posted.done().unwrap().segments[0]);
                send.done().unwrap();
            }
            let statistics = pair.far_context.pool_statistics();
            assert_eq!(statistics.live_bytes, 0);
            assert!(statistics.cached_bytes <= cached);
            assert!(statistics.peak_bytes < 40 << 20, "{statistics:?}");
        },
    );
}

fn on_every_lane(name: &str, case: fn(&Harness)) {
    on_lanes(name, &LaneKind::DEFAULT, case);
}

fn between_processes(name: &str, case: fn(&Harness)) {
    on_lanes(name, &[LaneKind::Shm, LaneKind::Tcp], case);
}

fn on_lanes(name: &str, lanes: &[LaneKind], case: fn(&Harness)) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // Descriptors that the process opens once, with any test.
    drop(Context::new(Config::default()).unwrap());
    for &lane in lanes {
        for spin in [Spin::Polling, Spin::Sleeping] {
            let harness = Harness::of_lane(lane, spin)
                .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"));
            run(name, &harness, case);
        }
    }
}
