//! The locks and atomics of the standard library; models have loom's in their place (`crates/wakeups`).

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
