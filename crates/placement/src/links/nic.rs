//! How long a message would have taken alone: one clock for each NIC.
//!
//! Messages that come through one NIC at a time share it, and each sees a part of what it can do. So
//! time is divided equally: among all messages that come through the NIC, and among those of one
//! host, which share what lies before it. A message is taken to have shared one or the other only as
//! far as what was seen is consistent with that:
//!
//! - who got much less than an equal part was held up elsewhere: by its own host, else by itself;
//! - no host is said to be faster than all together were.
//!
//! So an estimate is never above what came through the NIC in that time, and a slow host is not
//! blamed, nor praised, for a fast one beside it. Where a message is alone, nothing is changed. A
//! host whose own limit is just an equal part cannot be recognised: it is praised until it is
//! alone.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use super::busy_clock::BusyClock;

/// Arrivals through one NIC
///
/// `P` names the host that sends. Bounded by what is on its way.
#[derive(Debug)]
pub struct NicClock<P> {
    /// Divides time among all messages
    clock: BusyClock,
    bytes: u64,
    peers: HashMap<P, Peer>,
}

/// Arrivals from one host
#[derive(Debug)]
struct Peer {
    /// Divides time among its messages
    clock: BusyClock,
    bytes: u64,
}

/// State of the NIC when a message began
#[derive(Clone, Copy, Debug)]
pub struct Begun<P> {
    peer: P,
    at: Instant,
    nic: Reading,
    of_peer: Reading,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    share: Duration,
    bytes: u64,
}

/// Times of a message
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// From its beginning to its end, with the other messages
    pub elapsed: Duration,
    /// How many times as long that was as it would have been alone; 1 or more
    pub factor: f64,
}

impl Alone {
    /// Seconds that it would have taken alone
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.elapsed.as_secs_f64() / self.factor
    }
}

impl<P: Copy + Eq + Hash> NicClock<P> {
    /// A NIC through which nothing comes
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            clock: BusyClock::new(now),
            bytes: 0,
            peers: HashMap::new(),
        }
    }

    /// A message begins; what is returned belongs to [`NicClock::end`]
    pub fn begin(&mut self, now: Instant, peer: P) -> Begun<P> {
        let of_peer = self.peers.entry(peer).or_insert_with(|| Peer {
            clock: BusyClock::new(now),
            bytes: 0,
        });
        Begun {
            peer,
            at: now,
            nic: Reading {
                share: self.clock.begin(now),
                bytes: self.bytes,
            },
            of_peer: Reading {
                share: of_peer.clock.begin(now),
                bytes: of_peer.bytes,
            },
        }
    }

    /// Some bytes of a message have come
    pub fn moved(&mut self, begun: &Begun<P>, bytes: u64) {
        self.bytes += bytes;
        if let Some(peer) = self.peers.get_mut(&begun.peer) {
            peer.bytes += bytes;
        }
    }

    /// A message that moved so many bytes in all is there, or will not come
    ///
    /// # Panics
    ///
    /// If it has not begun here.
    pub fn end(&mut self, now: Instant, begun: &Begun<P>, bytes: u64) -> Alone {
        let peer = self.peers.get_mut(&begun.peer).expect("it has begun");
        let elapsed = now.saturating_duration_since(begun.at);
        let part_of_host = peer.clock.end(now, begun.of_peer.share);
        let host_bytes = peer.bytes - begun.of_peer.bytes;
        let part = self.clock.end(now, begun.nic.share);
        let all_bytes = self.bytes - begun.nic.bytes;
        if peer.clock.active() == 0 {
            self.peers.remove(&begun.peer);
        }
        let factor = shared(elapsed, part, bytes, all_bytes)
            .or_else(|| shared(elapsed, part_of_host, bytes, host_bytes))
            .unwrap_or(1.0);
        Alone { elapsed, factor }
    }

    /// Hosts that are sending
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }
}

/// How many times as long one took because it shared with others; `None` if that was not what held it
/// up
///
/// `part` is its part of the time that elapsed, `bytes` its part of `all_bytes`.
fn shared(elapsed: Duration, part: Duration, bytes: u64, all_bytes: u64) -> Option<f64> {
    if part.is_zero() || bytes == 0 {
        return None;
    }
    let sharers = elapsed.as_secs_f64() / part.as_secs_f64();
    let of_all = all_bytes as f64 / bytes as f64;
    (of_all <= EQUAL_ENOUGH * sharers).then(|| sharers.min(of_all).max(1.0))
}

/// A host that gets less than an equal part by more than this is not held up by those beside it
const EQUAL_ENOUGH: f64 = 1.5;
