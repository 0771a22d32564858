//! What two processes on one host share: byte rings, channels and pooled receive buffers
//!
//! - [`ring`]: a single-producer single-consumer byte ring whose peer may lie, crash or stop at
//!   any instant.
//! - [`channel`]: two rings, one each way, in one sealed memfd.
//! - [`pool`]: recycled private buffers for what was received.
//!
//! Nothing here waits, wakes or spawns: [`ring::Producer::arm`] and
//! [`ring::Consumer::take_peer_waiting`] say when to sleep and when to ring a doorbell; the doorbell
//! belongs to the driver.

// Under loom only the ring is built, and only its tests construct one.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
pub mod pool;
pub mod ring;
#[cfg(not(loom))]
mod size_class;
mod sync;
