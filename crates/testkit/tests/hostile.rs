//! Costs that a peer may cause: time, memory, descriptors, address space.
//!
//! In a program of its own, one test at a time, since it counts what the whole process takes.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backhaul::{
    Bytes, CloseReason, Config, ConnectError, Context, Endpoint, LaneKind, Listener, Segments, Tag,
    TagMask,
};
use backhaul_proto::{FrameHeader, FrameKind};
use backhaul_shm::{channel, completion};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::manual_peer::doorbell;
use backhaul_testkit::peer::{Scenario, TINY_MESSAGES, TINY_SEGMENTS};
use backhaul_testkit::raw::{RawPeer, hand_over};
use backhaul_testkit::resources::{descriptors, resident_bytes};
use backhaul_testkit::{Finish, Harness, Spin, assert_matches, pattern, run, wait_until};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustix::pipe::pipe;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// As many segments in one message as in many: the same work
#[test]
fn a_message_of_many_tiny_segments_costs_what_its_segments_cost() {
    const MANY: usize = 1 << 20;
    const FEW: usize = 1 << 14;
    let name = "a_message_of_many_tiny_segments_costs_what_its_segments_cost";
    on_lanes(name, &LaneKind::DEFAULT, |harness| {
        for eager in [false, true] {
            let pair = harness.pair_with(|config| {
                config.limits.segments_max = MANY as u32;
                // Bookkeeping of segments is charged too.
                config.limits.credit_bytes = 1 << 30;
                config.limits.eager_bytes_max = if eager { 1 << 30 } else { 0 };
            });
            let deliver = |segments: usize| {
                let payload = Bytes::from(pattern::make(1, segments));
                let cut = (0..segments).map(|at| payload.slice(at..=at));
                let posted = pair.far.recv(Tag(1), TagMask::FULL, vec![0; segments]);
                let send = pair.near.send_segments(Tag(1), cut.clone().collect());
                assert_eq!(posted.done().unwrap().bytes, segments);
                send.done().unwrap();
                let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
                let send = pair.near.send_segments(Tag(1), cut.collect());
                assert_eq!(posted.done().unwrap().segments.len(), segments);
                send.done().unwrap();
            };
            deliver(FEW);
            let few = cpu_time(|| (0..MANY / FEW).for_each(|_| deliver(FEW)));
            let many = cpu_time(|| deliver(MANY));
            // Quadratic would be 64 times as much, or more.
            assert!(many < 8 * few, "{many:?} in one message, {few:?} in many");
        }
    });
}

/// Messages that wait for a receive are bounded in memory, not only in payload
#[test]
fn early_messages_of_many_segments_hold_no_more_memory_than_credit_grants() {
    const SEGMENTS: u32 = 4096;
    const MESSAGES: u64 = 800;
    let name = "early_messages_of_many_segments_hold_no_more_memory_than_credit_grants";
    on_lanes(name, &[LaneKind::Tcp], |harness| {
        let kinds = [
            (FrameKind::Eager, false, 0),
            (FrameKind::Eager, true, 0),
            (FrameKind::Eager, false, 1),
            (FrameKind::Request, false, 1),
            (FrameKind::Request, true, 1),
        ];
        for (kind, untagged, segment_bytes) in kinds {
            let context = harness.context();
            let listener = context.listen(LOOPBACK).unwrap();
            let accept = listener.accept();
            let mut peer = RawPeer::shake_hands(listener.local_address());
            let endpoint = accept.done().unwrap();
            // A side that does not read holds the peer up, which is as good as to end it.
            let patience = Some(Duration::from_secs(2));
            peer.socket.set_write_timeout(patience).unwrap();
            let before = resident_bytes();
            let mut is_held_up = false;
            for message in 0..MESSAGES {
                let bytes = u64::from(SEGMENTS) * segment_bytes;
                let header = FrameHeader {
                    untagged,
                    segment_count: SEGMENTS,
                    tag: u64::from(!untagged),
                    payload_bytes: bytes,
                    ..FrameHeader::bare(kind, message)
                };
                let mut frame = header.encode().to_vec();
                frame.extend((0..SEGMENTS).flat_map(|_| segment_bytes.to_le_bytes()));
                if kind == FrameKind::Eager {
                    frame.resize(frame.len() + bytes as usize, 7);
                }
                if let Err(error) = peer.socket.write_all(&frame) {
                    is_held_up = error.kind() == ErrorKind::WouldBlock;
                    break;
                }
            }
            if !is_held_up {
                peer.finish();
                endpoint.watch_close().done().unwrap();
            }
            let grown = resident_bytes().saturating_sub(before);
            assert!(
                grown < MEMORY_BYTES_MAX,
                "{grown} bytes for early messages of {kind:?}, untagged {untagged}, in segments of {segment_bytes}"
            );
        }
    });
}

/// An honest peer's messages wait with it until there is room, and then arrive
#[test]
fn an_honest_flood_of_tiny_segments_waits_at_its_sender() {
    let name = "an_honest_flood_of_tiny_segments_waits_at_its_sender";
    on_lanes(name, &[LaneKind::Shm, LaneKind::Tcp], |harness| {
        let context = harness.context();
        let (_process, endpoint) = harness.peer_process(&context, Scenario::SendTiny);
        let before = resident_bytes();
        // All are here, or no more come.
        let (mut last, mut same) = (0, 0);
        wait_until(|| {
            // Unknown while another thread works with it.
            let Some(protocol) = endpoint.info().protocol else {
                return false;
            };
            let now = protocol.unexpected_messages;
            same = if now == last { same + 1 } else { 0 };
            last = now;
            now == TINY_MESSAGES || same > 500
        });
        let grown = resident_bytes().saturating_sub(before);
        assert!(
            grown < MEMORY_BYTES_MAX,
            "{grown} bytes for {last} messages that wait"
        );
        for _ in 0..TINY_MESSAGES {
            let message = endpoint.recv_message(Tag(1), TagMask::FULL).done().unwrap();
            assert_eq!(message.segments.len(), TINY_SEGMENTS);
        }
    });
}

/// Memory that is not there fails a message or a connection, never a process
#[test]
fn a_process_under_a_limit_of_memory_is_not_aborted_by_its_peer() {
    let name = "a_process_under_a_limit_of_memory_is_not_aborted_by_its_peer";
    on_lanes(name, &[LaneKind::Shm, LaneKind::Tcp], |harness| {
        for segments in [1 << 16, 1 << 10, 1] {
            let context = harness.context();
            let (mut process, endpoint) = harness.peer_process(&context, Scenario::Confined);
            let empty: Segments = (0..segments).map(|_| Bytes::new()).collect();
            let sends: Vec<_> = (0..500)
                .map(|_| endpoint.send_segments(Tag(1), empty.clone()))
                .collect();
            // The peer need not take them all.
            sends[499].wait_done(Some(Duration::from_secs(1)));
            drop(sends);
            endpoint.abort();
            assert!(process.wait(), "it ended in another way than by itself");
        }
    });
}

/// A peer that is gone, or has a doorbell that is none, leaves the engine asleep
#[test]
fn a_dead_doorbell_costs_no_time() {
    on_lanes(
        "a_dead_doorbell_costs_no_time",
        &[LaneKind::Shm],
        |harness| {
            let dead: [fn() -> OwnedFd; 2] = [
                // The other end of each is closed.
                || pipe().unwrap().0,
                || pipe().unwrap().1,
            ];
            for make in dead {
                for is_theirs in [true, false] {
                    let context = harness.context();
                    let listener = context.listen(LOOPBACK).unwrap();
                    let (_rings, memory) = channel::create(1 << 16).unwrap();
                    let (_table, table_memory) = completion::create_table().unwrap();
                    let doorbells = if is_theirs {
                        [make(), doorbell()]
                    } else {
                        [doorbell(), make()]
                    };
                    let accept = listener.accept();
                    let (_peer, ..) = RawPeer::shake_hands_over(
                        listener.local_address(),
                        LaneKind::Shm,
                        |hello| {
                            let all = [&memory, &table_memory, &doorbells[0], &doorbells[1]];
                            hand_over(&hello.unix_name, &hello.nonce, &all.map(AsFd::as_fd));
                        },
                    );
                    let endpoint = accept.done().unwrap();
                    let idle = Duration::from_millis(300);
                    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
                    let used = cpu_time(|| assert!(!posted.wait_done(Some(idle))));
                    assert!(used < idle / 3, "{used:?} of {idle:?}");
                }
            }
        },
    );
}

/// However few descriptors are left: what works goes on, what is new fails with its reason or goes
/// over TCP, and when there are some again all is well
#[test]
fn an_engine_outlives_a_want_of_descriptors() {
    let name = "an_engine_outlives_a_want_of_descriptors";
    on_lanes(name, &LaneKind::DEFAULT, |harness| {
        let pair = harness.pair();
        let listener = pair.far_context.listen(LOOPBACK).unwrap();
        let address = listener.local_address().to_string();
        for spare in (0..24).rev() {
            let limit = descriptors() as u64 + spare;
            let outcome = with_descriptors(limit, || {
                let outcome = pair.near_context.connect(&address);
                let outcome = outcome.wait(Some(Duration::from_secs(300)));
                exchange(&pair.near, &pair.far);
                exchange(&pair.far, &pair.near);
                outcome.expect("a connect has an outcome")
            });
            match outcome {
                Ok(near) => exchange(&near, &accept_of(&listener, &near)),
                Err(error) => assert!(
                    !matches!(error, ConnectError::Cancelled { .. }),
                    "nobody cancelled it"
                ),
            }
        }
        // The bootstrap socket rests for a moment when it could not accept; peers use tcp until then.
        wait_until(|| {
            let near = harness.context().connect(&address).done().unwrap();
            exchange(&near, &accept_of(&listener, &near));
            near.lane() == harness.lane
        });
    });
}

/// No peer says anything on connections without number, and those that are there do not notice
#[test]
fn silent_strangers_that_take_all_descriptors_end_nothing() {
    let name = "silent_strangers_that_take_all_descriptors_end_nothing";
    on_lanes(name, &[LaneKind::Tcp], |harness| {
        let pair = harness.pair();
        let context = harness.context();
        let listener = context.listen(LOOPBACK).unwrap();
        let (near, far) = harness.connect(&pair.near_context, &listener);
        let strangers: Vec<_> = (0..100)
            .map(|_| {
                let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
                socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
            })
            .collect();
        with_descriptors(descriptors() as u64 + 60, || {
            for stranger in &strangers {
                connect(stranger, &listener.local_address()).unwrap();
            }
            exchange(&near, &far);
            exchange(&pair.near, &pair.far);
        });
        drop(strangers);
        let address = listener.local_address().to_string();
        let near = pair.near_context.connect(&address).done().unwrap();
        let far = accept_of(&listener, &near);
        exchange(&near, &far);
        near.close().done().unwrap();
        assert_matches!(far.watch_close().done().unwrap(), CloseReason::Peer { .. });
    });
}

/// The other end of a connection, past those of which the connect failed
fn accept_of(listener: &Listener, near: &Endpoint) -> Endpoint {
    loop {
        let far = listener.accept().done().unwrap();
        if far.peer_address() == near.local_address() {
            return far;
        }
    }
}

fn exchange(from: &Endpoint, to: &Endpoint) {
    for bytes in [100, 300_000] {
        let posted = to.recv_message(Tag(1), TagMask::FULL);
        let send = from.send(Tag(1), pattern::make(1, bytes));
        pattern::check(1, &posted.done().unwrap().segments[0]);
        send.done().unwrap();
    }
}

/// Time of all CPUs that this process takes for something
fn cpu_time(work: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
    let before = now();
    work();
    now().saturating_sub(before)
}

/// Runs something while this process may have only so many descriptors
fn with_descriptors<T>(most: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(most),
        ..before
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let result = work();
    setrlimit(Resource::Nofile, before).unwrap();
    result
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

/// Far above what credit grants by default, 4 MiB, and far below what these messages could hold
const MEMORY_BYTES_MAX: usize = 64 << 20;
