//! The peer program: what the second process does, by the name of a scenario.
//!
//! Started as `PROGRAM SCENARIO ADDRESS LANE SPIN_US`, LANE being the name of the lane that results.
//! It connects, prints `ready` when it is
//! where the scenario wants it, and is usually killed there. It dies with the thread that started
//! it.

use std::collections::VecDeque;
use std::io::Write;
use std::time::Duration;

use backhaul::{
    Arena, ArenaConfig, Bytes, Config, Context, Endpoint, RecvError, Segments, Tag, TagMask,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::harness::config;
use crate::lending::{BLOCK_BYTES, block};
use crate::resources::address_bytes;
use crate::{Finish, Harness, Spin, pattern};

/// Work of a second process; the name is the argument of the program
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scenario {
    /// Connects and does nothing
    Idle,
    /// Posts receives for which nothing comes
    Posted,
    /// Sends [`SOME`] short messages, then waits
    SendSome,
    /// Sends short messages without end, numbered by their seed
    Flood,
    /// Sends messages of [`LONG_BYTES`] without end
    FloodLong,
    /// Receives without end
    Sink,
    /// Sends every message back
    Echo,
    /// Sends [`SOME`] messages of both kinds, closes, and exits
    Farewell,
    /// Exits without a word
    Leave,
    /// Receives long messages, answers each with a short one, and keeps the last [`HELD`]
    Borrow,
    /// Lends blocks without end, each freed at once
    Lend,
    /// Sends messages of many segments of one byte, then waits
    SendTiny,
    /// May have [`CONFINED_BYTES`] more of address space; receives nothing until the peer is gone
    Confined,
    /// As [`Borrow`](Self::Borrow) and [`Lend`](Self::Lend) at once
    Trade,
}

impl Scenario {
    const ALL: [Self; 14] = [
        Self::Idle,
        Self::Posted,
        Self::SendSome,
        Self::Flood,
        Self::FloodLong,
        Self::Sink,
        Self::Echo,
        Self::Farewell,
        Self::Leave,
        Self::Borrow,
        Self::Lend,
        Self::SendTiny,
        Self::Confined,
        Self::Trade,
    ];

    /// The argument of the program
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// Runs the program on the lanes of this crate
///
/// # Panics
///
/// As [`main_of`], and if there is no such lane.
pub fn main() {
    main_of(|lane| Harness::of_lane(lane.parse().unwrap(), Spin::Polling).configure);
}

/// Runs the program, given what makes the configuration of a lane by its name
///
/// # Panics
///
/// If the arguments are not as documented, or the test does something unexpected.
pub fn main_of(configure: impl FnOnce(&str) -> fn(&mut Config)) {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, address, lane, spin_us] = &arguments[..] else {
        panic!("expected SCENARIO ADDRESS LANE SPIN_US, got {arguments:?}");
    };
    let scenario = Scenario::ALL
        .into_iter()
        .find(|known| known.name() == *scenario)
        .unwrap_or_else(|| panic!("unknown scenario {scenario:?}"));
    let spin = Duration::from_micros(spin_us.parse().unwrap());
    let mut config = config(configure(lane), spin);
    let arena = Arena::new(ArenaConfig::default());
    if matches!(scenario, Scenario::Lend | Scenario::Trade) {
        config.arena = Some(arena.clone());
    }
    let context = Context::new(config).unwrap();
    let endpoint = context.connect(address).done().unwrap();
    play(scenario, &endpoint, &arena);
}

fn play(scenario: Scenario, endpoint: &Endpoint, arena: &Arena) {
    match scenario {
        Scenario::Idle => {
            ready();
            stay(endpoint);
        }
        Scenario::Posted => {
            let tagged = endpoint.recv(Tag(99), TagMask::FULL, vec![0; 1 << 20]);
            let frames = endpoint.recv_frames();
            ready();
            stay(endpoint);
            drop((tagged, frames));
        }
        Scenario::SendSome => {
            for seed in 0..SOME {
                let payload = pattern::make(seed, SHORT_BYTES);
                endpoint.send(Tag(1), payload).done().unwrap();
            }
            ready();
            stay(endpoint);
        }
        Scenario::Flood => flood(endpoint, SHORT_BYTES),
        Scenario::FloodLong => flood(endpoint, LONG_BYTES),
        Scenario::Sink => {
            ready();
            while endpoint.recv_message(Tag(1), TagMask::FULL).done().is_ok() {}
        }
        Scenario::Echo => {
            ready();
            while let Ok(message) = endpoint.recv_message(Tag(0), TagMask::ANY).done() {
                let payload = message.segments[0].to_vec();
                if endpoint.send(message.tag.unwrap(), payload).done().is_err() {
                    break;
                }
            }
        }
        Scenario::Farewell => {
            ready();
            for seed in 0..SOME {
                let payload = pattern::make(seed, SHORT_BYTES);
                endpoint.send(Tag(1), payload).detach();
            }
            for seed in 0..SOME_LONG {
                let payload = Bytes::from(pattern::make(seed, LONG_BYTES));
                let segments = [payload].into_iter().collect();
                endpoint.send_frames(segments).detach();
            }
            endpoint.close().done().unwrap();
        }
        Scenario::Leave => {
            ready();
            std::process::exit(0);
        }
        Scenario::Borrow => {
            ready();
            borrow(endpoint);
        }
        Scenario::Lend => {
            ready();
            lend(endpoint, arena);
        }
        Scenario::SendTiny => {
            let payload = Bytes::from(pattern::make(1, TINY_SEGMENTS));
            let segments: Segments = (0..TINY_SEGMENTS)
                .map(|at| payload.slice(at..=at))
                .collect();
            for _ in 0..TINY_MESSAGES {
                endpoint.send_segments(Tag(1), segments.clone()).detach();
            }
            ready();
            stay(endpoint);
        }
        Scenario::Confined => {
            let bytes = address_bytes() as u64 + CONFINED_BYTES;
            let limit = Rlimit {
                current: Some(bytes),
                ..getrlimit(Resource::As)
            };
            setrlimit(Resource::As, limit).unwrap();
            ready();
            stay(endpoint);
            let next = || endpoint.recv_message(Tag(1), TagMask::FULL).done();
            while let Ok(_) | Err(RecvError::OutOfMemory { .. }) = next() {}
        }
        Scenario::Trade => {
            ready();
            std::thread::scope(|scope| {
                scope.spawn(|| borrow(endpoint));
                lend(endpoint, arena);
            });
        }
    }
}

/// Keeps the last of what comes, which must be of the seed that its number says
fn borrow(endpoint: &Endpoint) {
    let mut held = VecDeque::new();
    for seed in 0.. {
        let Ok(message) = endpoint.recv_message(Tag(1), TagMask::FULL).done() else {
            return;
        };
        held.push_back((seed, message));
        if held.len() > HELD {
            held.pop_front();
        }
        for (seed, message) in &held {
            for segment in &message.segments {
                pattern::check(*seed, segment);
            }
        }
        if endpoint.send(Tag(2), &b"have it"[..]).done().is_err() {
            return;
        }
    }
}

/// Lends blocks of one message each, a few messages ahead
fn lend(endpoint: &Endpoint, arena: &Arena) {
    let mut sends = VecDeque::new();
    for seed in 0.. {
        let segments = [block(arena, seed, BLOCK_BYTES)].into_iter().collect();
        sends.push_back(endpoint.send_segments_shared(Tag(1), segments));
        if sends.len() > 8
            && let Some(send) = sends.pop_front()
            && send.done().is_err()
        {
            return;
        }
    }
}

/// Sends without end, a few messages ahead
fn flood(endpoint: &Endpoint, bytes: usize) {
    ready();
    let mut sends = VecDeque::new();
    for seed in 0.. {
        sends.push_back(endpoint.send(Tag(1), pattern::make(seed, bytes)));
        if sends.len() > 8
            && let Some(send) = sends.pop_front()
            && send.done().is_err()
        {
            return;
        }
    }
}

fn ready() {
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").unwrap();
    out.flush().unwrap();
}

fn stay(endpoint: &Endpoint) {
    endpoint.watch_close().done().unwrap();
}

/// Messages of the scenarios that send some
pub const SOME: u64 = 100;

/// Long messages of the scenario that says farewell
pub const SOME_LONG: u64 = 3;

/// Messages of the scenario that sends tiny segments
pub const TINY_MESSAGES: usize = 400;

/// Segments of each of them
pub const TINY_SEGMENTS: usize = 4096;

/// Address space that a confined process may take while it runs
pub const CONFINED_BYTES: u64 = 64 << 20;

/// Messages that a borrowing scenario keeps
pub const HELD: usize = 8;

/// Size of a short message, in bytes
pub const SHORT_BYTES: usize = 1000;

/// Size of a long message, in bytes
pub const LONG_BYTES: usize = 8 << 20;
