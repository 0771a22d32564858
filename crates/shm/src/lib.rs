//! Memory that two processes on one host share: byte rings, channels, recycled memory and leases on
//! it
//!
//! - [`ring`]: a single-producer single-consumer byte ring whose peer may lie, crash or stop at
//!   any instant.
//! - [`channel`]: two rings, one each way, in one sealed memfd.
//! - [`pool`]: recycled private buffers for what was received.
//! - [`arena`]: recycled memory that peers may map, block by block, and the leases they hold on it.
//! - [`leased`]: a peer's leased bytes, mapped or copied.
//! - [`peer_memory`]: another process's memory, read where it lies.
//! - [`completion`]: which leases have been returned, without a system call.
//! - [`doorbell`]: wakes a sleeping peer.
//!
//! Nothing here waits, wakes or spawns, but for a thread that `children.rs` needs while a forked
//! child has imported memory: [`ring::Producer::arm`] and
//! [`ring::Consumer::take_peer_waiting`] say when to sleep and when to notify a [`doorbell`], which
//! belongs to the driver.

// Under loom only the ring and the completion table are built, and only their tests construct one.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
mod children;
pub mod completion;
#[cfg(not(loom))]
pub mod doorbell;
mod fork;
#[cfg(not(loom))]
pub mod leased;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod memfd;
#[cfg(not(loom))]
pub mod peer_memory;
#[cfg(not(loom))]
pub mod pool;
pub mod ring;
#[cfg(not(loom))]
mod size_class;
mod sync;
