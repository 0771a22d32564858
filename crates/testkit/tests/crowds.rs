//! Connections without number: their resources are back when they are gone, and they keep no peer
//! out.
//!
//! In a program of its own, one test at a time, since it counts what the whole process has. The large
//! crowds are for a machine with little else to do: `cargo test --release -p backhaul-testkit --test
//! crowds -- --ignored --nocapture`, which prints what it measured. On a busy machine run the program it
//! names under `chrt -f 10`, as root: what waits for a CPU is not what is measured.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use backhaul::{Context, LaneKind, Listener, Secret, Tag, TagMask};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::resources::{descriptors, resident_bytes, threads};
use backhaul_testkit::{Finish, Harness, Spin, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Peers that come, say something and go, and other programs that come and go
#[test]
fn what_comes_and_goes_leaves_nothing() {
    let _turn = turn();
    come_and_go(400);
}

/// The same with 10,000 of each, on each lane
#[test]
#[ignore = "takes a minute: run it with --ignored"]
fn ten_thousand_come_and_go_and_leave_nothing() {
    let _turn = turn();
    come_and_go(10_000);
}

/// Silent connections delay a new peer by no more than 100 ms, in the median of five crowds
#[test]
#[ignore = "measures time, on a machine with little else to do: run it with --ignored"]
fn silent_strangers_delay_a_new_peer_by_at_most_100_ms() {
    const STRANGERS: usize = 4500;
    let _turn = turn();
    allow_descriptors(2 * STRANGERS as u64 + 500);
    for secret in [None, Some(Secret::new(&[7; 16]).unwrap())] {
        let harness = Harness::of_lane(LaneKind::Tcp, Spin::Sleeping);
        let make = || harness.context_with(|config| config.secret = secret.clone());
        let delays = (0..5).map(|_| {
            let host = make();
            let listener = host.listen(LOOPBACK).unwrap();
            let alone = time_to_connect(&make(), &listener);
            let strangers: Vec<_> = (0..STRANGERS)
                .map(|_| TcpStream::connect(listener.local_address()).unwrap())
                .collect();
            let among = time_to_connect(&make(), &listener);
            println!(
                "{STRANGERS} silent strangers, secret {}: a new peer took {among:?}, alone {alone:?}",
                secret.is_some(),
            );
            drop(strangers);
            among.saturating_sub(alone)
        });
        let mut delays: Vec<_> = delays.collect();
        delays.sort();
        assert!(delays[2] <= Duration::from_millis(100), "{delays:?}");
    }
}

fn come_and_go(count: usize) {
    let lanes = [LaneKind::Tcp, LaneKind::Shm, LaneKind::Inproc];
    for lane in lanes {
        let harness = Harness::of_lane(lane, Spin::Sleeping);
        let name = format!("{count} peers that come and go on {lane}");
        let (host, guest) = (harness.context(), harness.context());
        let listener = host.listen(LOOPBACK).unwrap();
        let visit = || {
            let (near, far) = harness.connect(&guest, &listener);
            near.send(Tag(1), &b"here"[..]).done().unwrap();
            let message = far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
            assert_eq!(message.segments[0][..], *b"here");
            near.close().done().unwrap();
            drop(TcpStream::connect(listener.local_address()).unwrap());
        };
        // Resources that are taken once, by the first connection, and that allocators keep.
        (0..count / 4).for_each(|_| visit());
        let before = settled(&listener);
        (0..count).for_each(|_| visit());
        let after = settled(&listener);
        println!("{name}: descriptors, threads, resident bytes {before:?} -> {after:?}");
        assert_eq!(before.0, after.0, "{name}: descriptors");
        assert_eq!(before.1, after.1, "{name}: threads");
        // Of each, less than anything that is kept of a connection.
        let grown = after.2.saturating_sub(before.2);
        assert!(grown < 2 << 20, "{name}: {grown} bytes grown");
        let statistics = listener.statistics();
        assert_eq!(statistics.handshakes, 0);
        assert_eq!(statistics.accepted, (count / 4 + count) as u64);
    }
}

/// Descriptors, threads and resident bytes once nothing is under way
fn settled(listener: &Listener) -> (usize, usize, usize) {
    wait_until(|| listener.statistics().handshakes == 0);
    let mut last = (descriptors(), threads());
    // The end of the last connections is heard by the engine.
    let mut since = Instant::now();
    wait_until(|| {
        let now = (descriptors(), threads());
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(200)
    });
    (last.0, last.1, resident_bytes())
}

/// How long a peer takes to be one
fn time_to_connect(context: &Context, listener: &Listener) -> Duration {
    let accept = listener.accept();
    let start = Instant::now();
    let near = context.connect(&listener.local_address().to_string());
    let near = near.done().unwrap();
    let elapsed = start.elapsed();
    accept.done().unwrap();
    drop(near);
    elapsed
}

fn allow_descriptors(count: u64) {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: Some(count),
        ..before
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}
