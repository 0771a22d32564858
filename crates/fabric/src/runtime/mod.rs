//! The runtime of a context: one thread, what it watches, and when it looks.

mod engine;
mod sleep;
mod sources;
mod spin;
mod timers;
mod warning;
mod watch;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use backhaul_shm::doorbell::Doorbell;
pub(crate) use engine::{Engine, EngineGuard};
pub(crate) use sleep::sleep_on;
pub(crate) use sources::{Source, SourceId};
pub(crate) use spin::{Look, SpinPolicy};
pub(crate) use warning::RepeatedWarning;
pub use watch::LoopWatch;
pub(crate) use watch::{Member, MemberId};

/// Locks a mutex whose data is valid even if a holder panicked
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
