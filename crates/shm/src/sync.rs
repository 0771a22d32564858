//! The atomics of the standard library, or loom's while it explores
//!
//! Under `--cfg loom` only [`crate::ring`] and [`crate::completion`] are built, on heap memory; see
//! `ring/memory_loom.rs` and `completion/words_loom.rs`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
