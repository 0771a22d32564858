//! A process at its limit of open descriptors: typed errors, nothing lost that was there, and all
//! of it back when there is room again.
//!
//! In a program of its own, one test at a time, since the limit is that of the whole process.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backhaul::{
    ConnectError, Context, ContextError, Endpoint, LaneKind, ListenError, Listener, Tag, TagMask,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::manual_peer::doorbell;
use backhaul_testkit::raw::{RawPeer, hand_over};
use backhaul_testkit::{Finish, Harness, Spin, assert_matches, run, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn strangers_that_take_every_descriptor_end_nothing() {
    on_every_lane(
        "strangers_that_take_every_descriptor_end_nothing",
        |harness| {
            let far = harness.context_with(|config| {
                config.handshake_timeout = Duration::from_millis(300);
            });
            let near = harness.context();
            let listener = far.listen(LOOPBACK).unwrap();
            let address = listener.local_address();
            let old = harness.connect(&near, &listener);
            // Both ends of each are in this process, so the listener cannot accept the last ones.
            let mut strangers = Vec::new();
            let error = loop {
                match TcpStream::connect(address) {
                    Ok(stranger) => strangers.push(stranger),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.raw_os_error(), Some(EMFILE));
            assert!(strangers.len() > 10);
            exchange(&old);
            // Half of them stay, and say nothing; who was accepted is given up in time. (All of them
            // could hold every descriptor at this end, so that none were left for the other.)
            let count = strangers.len() as u64;
            strangers.truncate(strangers.len() / 2);
            wait_until(|| listener.statistics().rejected == count);
            exchange(&old);
            exchange(&harness.connect(&near, &listener));
            drop(strangers);
        },
    );
}

#[test]
fn a_connect_without_descriptors_is_an_error_and_can_be_repeated() {
    on_every_lane(
        "a_connect_without_descriptors_is_an_error_and_can_be_repeated",
        |harness| {
            let (near, far) = (harness.context(), harness.context());
            let listener = far.listen(LOOPBACK).unwrap();
            let address = listener.local_address().to_string();
            let old = harness.connect(&near, &listener);
            let taken = take_all_but(0);
            assert_matches!(
                near.connect(&address).done().unwrap_err(),
                ConnectError::Io { source, .. } if source.raw_os_error() == Some(EMFILE)
            );
            assert_matches!(
                far.listen(LOOPBACK).unwrap_err(),
                ListenError::Io { source, .. } if source.raw_os_error() == Some(EMFILE)
            );
            exchange(&old);
            drop(taken);
            exchange(&harness.connect(&near, &listener));
        },
    );
}

#[test]
fn a_context_without_descriptors_is_an_error() {
    let _turn = turn();
    let _limit = Limit::lower();
    for free in 0..2 {
        let taken = take_all_but(free);
        assert_matches!(
            Context::new(backhaul::Config::default()).unwrap_err(),
            ContextError::Io { source } if source.raw_os_error() == Some(EMFILE)
        );
        drop(taken);
    }
    Context::new(backhaul::Config::default()).unwrap();
}

#[test]
fn a_listener_that_found_no_descriptor_for_shared_memory_is_followed_by_one_that_does() {
    on_lanes("shm", &[LaneKind::Shm], |harness| {
        let (near, far) = (harness.context(), harness.context());
        let taken = take_all_but(1);
        let listener = far.listen(LOOPBACK).unwrap();
        drop(taken);
        let (near_end, far_end) = connect_anyhow(&near, &listener);
        assert_eq!(near_end.lane(), LaneKind::Tcp);
        let reason = far_end.info().reason;
        assert!(reason.contains("no bootstrap socket"), "{reason}");
        // The bootstrap socket belongs to the context.
        let another = far.listen(LOOPBACK).unwrap();
        harness.connect(&near, &another);
        harness.connect(&near, &listener);
    });
}

/// However many descriptors are left, two contexts of this process meet, and at once: on shared
/// memory if that is possible on both sides, else on tcp with the reason. A fall-back that waits
/// for the handshake to time out would be ended by the watchdog.
#[test]
fn too_few_descriptors_for_shared_memory_fall_back_to_tcp_at_once() {
    on_lanes("fall_back", &[LaneKind::Shm], |harness| {
        let context =
            || harness.context_with(|config| config.handshake_timeout = Duration::from_secs(3600));
        let (near, far) = (context(), context());
        let listener = far.listen(LOOPBACK).unwrap();
        exchange(&harness.connect(&near, &listener));
        let mut reasons = Vec::new();
        let mut lanes = Vec::new();
        // A socket for each side is the least.
        for free in 2..14 {
            let taken = take_all_but(free);
            let pair = connect_anyhow(&near, &listener);
            let [info, far_info] = [pair.0.info(), pair.1.info()];
            assert_eq!(info.lane, far_info.lane);
            assert_eq!(why_this_lane(&info.reason), why_this_lane(&far_info.reason));
            exchange(&pair);
            drop((pair, taken));
            lanes.push(info.lane);
            reasons.push(info.reason);
            // The listener may have rested.
            exchange(&connect_on_shm(&near, &listener));
        }
        // Two sockets, two memories, two doorbells, and the bootstrap socket at both ends; four of
        // them are received, and two may have been closed by then.
        for (free, lane) in (2..).zip(lanes) {
            match lane {
                LaneKind::Shm => assert!(free >= 10, "{free}"),
                LaneKind::Inproc
                | LaneKind::Ucx
                | LaneKind::Tcp
                | LaneKind::Tls
                | LaneKind::Experimental => assert!(free < 12, "{free}"),
            }
        }
        for (free, reason) in (2..7).zip(reasons) {
            assert!(reason.contains("Too many open files"), "{free}: {reason}");
        }
    });
}

#[test]
fn an_acceptor_without_descriptors_for_an_offer_answers_tcp_with_the_reason() {
    on_lanes("acceptor", &[LaneKind::Shm], |harness| {
        let far = harness.context_with(|config| {
            config.handshake_timeout = Duration::from_secs(3600);
        });
        let listener = far.listen(LOOPBACK).unwrap();
        let cannot_accept = "the socket for its offer cannot be accepted: Too many open files";
        for (free, expected) in [
            (0, cannot_accept),
            // One goes to accept, another to see that no further peer is there.
            (2, "no descriptors left in this process: 1 of 4"),
            (4, "no descriptors left in this process: 3 of 4"),
        ] {
            let accept = listener.accept();
            let doorbell = doorbell();
            let mut kept = None;
            let (peer, lane, reason) =
                RawPeer::shake_hands_over(listener.local_address(), LaneKind::Shm, |hello| {
                    // One is for the peer's end of the bootstrap socket.
                    let taken = take_all_but(free + 1);
                    let offered = [doorbell.as_fd(); 4];
                    let socket = hand_over(&hello.unix_name, &hello.nonce, &offered);
                    kept = Some((taken, socket));
                });
            assert_eq!(lane, LaneKind::Tcp);
            assert!(reason.contains(expected), "{free}: {reason}");
            let endpoint = accept.done().unwrap();
            assert_eq!(endpoint.info().reason, reason);
            drop((peer, kept));
            endpoint.watch_close().done().unwrap();
            // The listener and the bootstrap socket go on.
            exchange(&connect_on_shm(&harness.context(), &listener));
        }
    });
}

/// The part of a reason that both sides share: each adds why it cannot read the other's memory
fn why_this_lane(reason: &str) -> &str {
    reason.split("; single-copy: ").next().unwrap_or_default()
}

/// Connects, on whatever lane
fn connect_anyhow(near: &Context, listener: &Listener) -> (Endpoint, Endpoint) {
    let accept = listener.accept();
    let address = listener.local_address().to_string();
    let near = near.connect(&address).done().unwrap();
    (near, accept.done().unwrap())
}

/// Connects on shared memory, as soon as the bootstrap socket accepts again
fn connect_on_shm(near: &Context, listener: &Listener) -> (Endpoint, Endpoint) {
    let mut pair = None;
    wait_until(|| {
        let (near_end, far_end) = connect_anyhow(near, listener);
        if near_end.lane() == LaneKind::Shm {
            pair = Some((near_end, far_end));
            return true;
        }
        // Closed before the next comes, or there would be more and more.
        drop(near_end);
        far_end.watch_close().done().unwrap();
        false
    });
    pair.unwrap()
}

fn exchange((near, far): &(Endpoint, Endpoint)) {
    for (source, target) in [(near, far), (far, near)] {
        let posted = target.recv_message(Tag(1), TagMask::FULL);
        source.send(Tag(1), vec![7; 100_000]).done().unwrap();
        assert_eq!(posted.done().unwrap().segments[0][..], [7; 100_000]);
    }
}

/// Opens descriptors until there are none, and closes some
fn take_all_but(free: usize) -> Vec<File> {
    let mut taken = Vec::new();
    let mut quiet_since = Instant::now();
    // Descriptors that engines have still to close are taken, too: on a busy machine they come to
    // it late.
    while quiet_since.elapsed() < QUIET {
        while let Ok(file) = File::open("/dev/null") {
            taken.push(file);
            quiet_since = Instant::now();
        }
        std::thread::sleep(QUIET / 20);
    }
    taken.truncate(taken.len() - free);
    taken
}

/// How long no descriptor has been closed when all are taken to be
const QUIET: Duration = Duration::from_millis(100);

/// A lower limit of descriptors of this process, until dropped
struct Limit(Rlimit);

impl Limit {
    fn lower() -> Self {
        let before = getrlimit(Resource::Nofile);
        let lowered = Rlimit {
            current: Some(LIMIT),
            ..before
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

fn on_every_lane(name: &str, case: fn(&Harness)) {
    on_lanes(name, &LaneKind::DEFAULT, case);
}

fn on_lanes(name: &str, lanes: &[LaneKind], case: fn(&Harness)) {
    let _turn = turn();
    for &lane in lanes {
        for spin in [Spin::Polling, Spin::Sleeping] {
            let harness = Harness::of_lane(lane, spin)
                .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"));
            let _limit = Limit::lower();
            run(name, &harness, case);
        }
    }
}

fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Error of the system for a process at its limit
const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Enough for a few connections
const LIMIT: u64 = 256;
