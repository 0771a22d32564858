//! The lane over UCX between two processes: one-way latency of 8 bytes, and the rate of messages of
//! 1 MiB, a window of them under way, each received in memory of its own.
//!
//! ```text
//! export BACKHAUL_LIBUCP=.venv/lib/python3.11/site-packages/libucx/lib/libucp.so
//! UCX_TLS=posix,cma cargo bench -p backhaul --bench ucx
//! UCX_TLS=tcp       cargo bench -p backhaul --bench ucx
//! ```
//!
//! To be held against `ucx_perftest -t ucp_am_lat` and `ucp_am_bw` with the same `UCX_TLS`.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::VecDeque;
use std::env;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backhaul::{Bytes, Config, Context, Endpoint, LaneKind, Tag, TagMask};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let lane = env::var("BACKHAUL_BENCH_LANE").map_or(LaneKind::Ucx, |lane| lane.parse().unwrap());
    if let ["serve", address] = arguments[..] {
        let endpoint = context(lane).connect(address).wait(None).unwrap().unwrap();
        echo(&endpoint);
        for _ in 0..ROUNDS {
            receive(&endpoint);
        }
        endpoint.watch_close().wait(Some(Duration::from_secs(5)));
        return;
    }
    let context = context(lane);
    let listener = context.listen("127.0.0.1:0").unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["serve", &listener.local_address().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let endpoint = listener.accept().wait(None).unwrap().unwrap();
    let (p50, p99) = latency(&endpoint);
    let mut rates: Vec<f64> = (0..ROUNDS).map(|_| send(&endpoint)).collect();
    rates.sort_unstable_by(f64::total_cmp);
    let mut out = std::io::stdout();
    writeln!(
        out,
        "8 B: one-way p50 {p50:.2} us, p99 {p99:.2} us; 1 MiB: median {:.2} GB/s ({:.2} to {:.2})",
        rates[ROUNDS / 2],
        rates[0],
        rates[ROUNDS - 1],
    )
    .unwrap();
    endpoint.close().wait(Some(Duration::from_secs(5)));
    child.wait().unwrap();
}

fn context(lane: LaneKind) -> Context {
    let mut config = Config::default();
    config.lanes = vec![lane];
    Context::new(config).unwrap()
}

/// One-way times, in microseconds
fn latency(endpoint: &Endpoint) -> (f64, f64) {
    let mut buffer = vec![0_u8; 8];
    let mut times = Vec::with_capacity(TRIPS);
    for trip in 0..TRIPS + TRIPS / 10 {
        let started = Instant::now();
        let posted = endpoint.recv(TAG, TagMask::FULL, buffer);
        endpoint.send(TAG, &b"12345678"[..]).detach();
        buffer = posted.wait(None).unwrap().unwrap().into_buffer().unwrap();
        if trip >= TRIPS / 10 {
            times.push(started.elapsed());
        }
    }
    times.sort_unstable();
    let half_us = |share: usize| times[times.len() * share / 100].as_nanos() as f64 / 2000.0;
    (half_us(50), half_us(99))
}

fn echo(endpoint: &Endpoint) {
    let mut buffer = vec![0_u8; 8];
    for _ in 0..TRIPS + TRIPS / 10 {
        let posted = endpoint.recv(TAG, TagMask::FULL, buffer);
        buffer = posted.wait(None).unwrap().unwrap().into_buffer().unwrap();
        endpoint.send(TAG, &b"12345678"[..]).detach();
    }
}

/// Sends messages, returning how fast they went until the peer had them, in GB/s
fn send(endpoint: &Endpoint) -> f64 {
    let payload = Bytes::from(vec![7; BYTES]);
    let done = endpoint.recv(TAG, TagMask::FULL, vec![0; 8]);
    let mut sends = VecDeque::new();
    let started = Instant::now();
    for _ in 0..MESSAGES {
        if sends.len() == WINDOW {
            let oldest: backhaul::Request<_, _> = sends.pop_front().unwrap();
            oldest.wait(None).unwrap().unwrap();
        }
        sends.push_back(endpoint.send(TAG, payload.clone()));
    }
    for send in sends {
        send.wait(None).unwrap().unwrap();
    }
    done.wait(None).unwrap().unwrap();
    (MESSAGES * BYTES) as f64 / started.elapsed().as_secs_f64() / 1e9
}

fn receive(endpoint: &Endpoint) {
    let mut posted: VecDeque<_> = (0..WINDOW)
        .map(|_| endpoint.recv_message(TAG, TagMask::FULL))
        .collect();
    for message in 0..MESSAGES {
        posted.pop_front().unwrap().wait(None).unwrap().unwrap();
        if message + WINDOW < MESSAGES {
            posted.push_back(endpoint.recv_message(TAG, TagMask::FULL));
        }
    }
    endpoint
        .send(TAG, &b"received"[..])
        .wait(None)
        .unwrap()
        .unwrap();
}

const TAG: Tag = Tag(1);
const TRIPS: usize = 50_000;
const BYTES: usize = 1 << 20;
const MESSAGES: usize = 1000;
const WINDOW: usize = 8;
const ROUNDS: usize = 9;
