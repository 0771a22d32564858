//! Cost of a short message in Rust: one-way latency between two processes on each lane, the work of
//! both sides in one thread, where nothing waits (for callgrind), and the machine's part of the
//! latency: how long a CPU takes to see what another has written.
//!
//! ```text
//! cargo bench -p backhaul --bench ping_pong
//! cargo bench -p backhaul --bench ping_pong -- work 100000   # under valgrind --tool=callgrind
//! ```

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backhaul::{Config, Context, Endpoint, LaneKind, Tag, TagMask};

const ROUNDS: usize = 200_000;
const WARM_UP: usize = 20_000;
const TAG: Tag = Tag(1);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo", address, lane] => echo(address, lane.parse().unwrap()),
        ["work", rounds] => work(rounds.parse().unwrap()),
        ["flag"] => flag(),
        ["latency", lane] => latency(lane.parse().unwrap()),
        _ => {
            flag();
            for lane in [LaneKind::Shm, LaneKind::Tcp] {
                latency(lane);
            }
            work(ROUNDS);
        }
    }
}

fn context(lane: LaneKind) -> Context {
    let mut config = Config::default();
    config.lanes = vec![lane];
    Context::new(config).unwrap()
}

/// Ping-pong of 8 bytes with a process of its own
fn latency(lane: LaneKind) {
    let context = context(lane);
    let listener = context.listen("127.0.0.1:0").unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["echo", &listener.local_address().to_string(), lane.name()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let endpoint = listener.accept().wait(None).unwrap().unwrap();
    let mut buffer = vec![0_u8; 8];
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let started = Instant::now();
        let posted = endpoint.recv(TAG, TagMask::FULL, buffer);
        endpoint.send(TAG, &b"12345678"[..]).detach();
        let received = posted.wait(None).unwrap().unwrap();
        buffer = received.into_buffer().unwrap();
        if round >= WARM_UP {
            times.push(started.elapsed());
        }
    }
    endpoint.close().wait(Some(Duration::from_secs(5)));
    child.wait().unwrap();
    report(lane.name(), times);
}

/// Ping-pong between two threads with nothing but a word for each: no message can be faster
fn flag() {
    #[repr(align(128))]
    struct Word(AtomicU64);
    let [ping, pong] = [Word(AtomicU64::new(0)), Word(AtomicU64::new(0))];
    let wait = |word: &Word, value| {
        while word.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    let rounds = (WARM_UP + ROUNDS) as u64;
    let mut times = Vec::with_capacity(ROUNDS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                wait(&ping, round);
                pong.0.store(round, Ordering::Release);
            }
        });
        for round in 1..=rounds {
            let started = Instant::now();
            ping.0.store(round, Ordering::Release);
            wait(&pong, round);
            if round > WARM_UP as u64 {
                times.push(started.elapsed());
            }
        }
    });
    report("flag", times);
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let half_us = |share: usize| times[times.len() * share / 100].as_nanos() as f64 / 2000.0;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{name:>4}: one-way p50 {:.3} us, p99 {:.3} us",
        half_us(50),
        half_us(99)
    )
    .unwrap();
}

fn echo(address: &str, lane: LaneKind) {
    let endpoint = context(lane).connect(address).wait(None).unwrap().unwrap();
    let mut buffer = vec![0_u8; 8];
    for _ in 0..WARM_UP + ROUNDS {
        let posted = endpoint.recv(TAG, TagMask::FULL, buffer);
        buffer = posted.wait(None).unwrap().unwrap().into_buffer().unwrap();
        endpoint.send(TAG, &b"12345678"[..]).detach();
    }
    endpoint.watch_close().wait(Some(Duration::from_secs(5)));
}

/// A round trip of 8 bytes with both ends in this thread
fn work(rounds: usize) {
    let near = context(LaneKind::Shm);
    let far = context(LaneKind::Shm);
    let listener = near.listen("127.0.0.1:0").unwrap();
    let connect = far.connect(&listener.local_address().to_string());
    let ends = [
        listener.accept().wait(None).unwrap().unwrap(),
        connect.wait(None).unwrap().unwrap(),
    ];
    let mut buffers = [vec![0_u8; 8], vec![0_u8; 8]];
    let started = Instant::now();
    for _ in 0..rounds {
        for (from, to) in [(0, 1), (1, 0)] {
            let buffer = std::mem::take(&mut buffers[to]);
            buffers[to] = hop(&ends[from], &ends[to], buffer);
        }
    }
    let each = started.elapsed().as_nanos() as f64 / rounds as f64 / 2000.0;
    let mut out = std::io::stdout();
    writeln!(out, "work of both sides for a message: {each:.3} us").unwrap();
}

fn hop(from: &Endpoint, to: &Endpoint, buffer: Vec<u8>) -> Vec<u8> {
    let posted = to.recv(TAG, TagMask::FULL, buffer);
    from.send(TAG, &b"12345678"[..]).detach();
    while !posted.step() {}
    posted.take().unwrap().unwrap().into_buffer().unwrap()
}
