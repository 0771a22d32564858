//! Bounds of every queue and size, with the reason for each default.

use std::time::Duration;

/// Limits of this side for itself and its peer
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Longest message that is sent without asking, in bytes; longer ones ask for room first
    pub eager_bytes_max: u64,
    /// Bytes of eager messages that may wait here for a receive
    pub credit_bytes: u64,
    /// Messages of any size that may wait here for a receive
    pub credit_messages: u64,
    /// Longest message received, in bytes
    pub message_bytes_max: u64,
    /// Most segments of one message received
    pub segments_max: u32,
    /// Sends that may wait for credit; more are refused
    pub sends_max: usize,
    /// Receives that may wait for a message; more are refused
    pub recvs_max: usize,
    /// Longest piece of a message in one data frame, sent or received, in bytes; shorter frames may
    /// overtake there
    pub data_chunk_bytes: u64,
    /// Bytes of long untagged messages that are fetched before a receive asks for them
    pub early_accept_bytes_max: u64,
    /// Proof of life on an idle connection; `None` where the kernel reports a dead peer
    pub keep_alive: Option<KeepAlive>,
}

impl Limits {
    /// The part of the limits that the peer must know, as a Hello carries it
    #[must_use]
    pub const fn announced(&self) -> PeerLimits {
        PeerLimits {
            credit_bytes: self.credit_bytes,
            credit_messages: self.credit_messages,
            message_bytes_max: self.message_bytes_max,
            segments_max: self.segments_max,
            data_chunk_bytes: self.data_chunk_bytes,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Below, a round trip costs more than copying a message that has no receive yet.
            eager_bytes_max: 64 << 10,
            // 64 eager messages of full size: more than is in flight at 10 GB/s and 100 µs.
            credit_bytes: 4 << 20,
            // Bookkeeping of a message of few segments is about 100 bytes, so about 400 KiB; one of
            // many segments costs more than one (see `credit`).
            credit_messages: 4096,
            // More than messages have, and far below what overflows arithmetic on lengths.
            message_bytes_max: 64 << 30,
            // A table of 512 KiB; a Dask message has a few segments per array it carries.
            segments_max: 1 << 16,
            sends_max: 1 << 16,
            recvs_max: 1 << 16,
            // 25 µs at 10 GB/s: how long a short message waits behind a long one.
            data_chunk_bytes: 256 << 10,
            // A few chunks of a typical array, so that reading ahead hides a round trip.
            early_accept_bytes_max: 64 << 20,
            keep_alive: None,
        }
    }
}

/// Limits that the peer sets for this side, from its Hello
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerLimits {
    /// Bytes of eager messages that may wait there for a receive
    pub credit_bytes: u64,
    /// Messages that may wait there for a receive
    pub credit_messages: u64,
    /// Longest message it receives, in bytes
    pub message_bytes_max: u64,
    /// Most segments of one message it receives
    pub segments_max: u32,
    /// Longest piece of a message that it receives in one data frame, in bytes
    pub data_chunk_bytes: u64,
}

/// When to ask a silent peer for a sign of life, and when to give it up
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeepAlive {
    /// Silence after which the peer is asked, and asked again
    pub interval: Duration,
    /// Silence after which the peer counts as dead
    pub timeout: Duration,
}
