//! A byte ring with one producer and one consumer, which may be in two processes
//!
//! `head` counts the bytes ever written and `tail` the bytes ever read; both are 64-bit, free
//! running, and reduced modulo the capacity (a power of two) only to find a place. Each side stores
//! its own index and reads the other's, on a line of its own, and re-reads the other's only when
//! the ring looks full or empty: Lamport's queue with the cached indices of FastForward and
//! MCRingBuffer (P. Lee, T. Bu, G. Chandranmenon, "A lock-free, cache-efficient shared ring
//! buffer", ANCS 2009).
//!
//! # Trust
//!
//! The peer may lie, die or stop at any instant. Its index is checked each time it is read, and our
//! own index is kept in private memory: what a peer overwrites there is written again, never read.
//! The worst a peer can do is to send bytes of its choice, or none. Bytes are copied once, out of
//! the ring, before any code looks at them; nothing here points into the ring.
//!
//! # Sleeping
//!
//! A ring has no doorbell. A side that finds it empty (or full) calls `arm` and sleeps if that
//! returns true; the other calls `take_peer_waiting` after each write (or read) and notifies a
//! doorbell of the driver's choice if that returns true. Both do a store, a sequentially consistent fence and a load,
//! so one of them sees the other (Dekker's handshake): either the sleeper sees the bytes and does
//! not sleep, or the writer sees the flag and notifies.

mod consumer;
mod control;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg_attr(loom, path = "ring/memory_loom.rs")]
mod memory;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;

use thiserror::Error;

pub use self::consumer::Consumer;
pub(crate) use self::control::Control;
pub(crate) use self::memory::RingMemory;
pub use self::producer::Producer;

/// Bytes of a long write that are published first, so that the peer copies at the same time
///
/// Each next step is twice as long: the peer, who has to fetch every line, is the slower one and
/// seldom waits for it, and each step costs it one look at the index, which has to come from the
/// other CPU too. 4 and 16 KiB were as fast, equal steps of 4 or 8 KiB were slower.
pub const PUBLISH_BYTES_FIRST: usize = 8 * 1024;

/// Most bytes copied before they are published
pub const PUBLISH_BYTES_MAX: usize = 64 * 1024;

/// Why a ring cannot be used any more
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RingError {
    /// Peer's fault: it published an index that no honest peer could have. No retry helps
    ///
    /// An index is impossible if it would leave less than nothing or more than `capacity` bytes in
    /// the ring, or if it went backwards.
    #[error("peer corrupted the ring: head {head}, tail {tail}, capacity {capacity} bytes")]
    Corrupt {
        /// Bytes ever written, as the producer says
        head: u64,
        /// Bytes ever read, as the consumer says
        tail: u64,
        /// Capacity of the ring, in bytes
        capacity: u64,
    },
}
