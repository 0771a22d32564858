//! Work that only a thread of Python can do, left by threads that must not run Python.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use pyo3::prelude::*;

use crate::buffer;
use crate::logs;
use crate::loops::Bell;

thread_local! {
    /// How many calls from Python this thread is in; each tends to what is due as it ends
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Bells of the event loops in use
static BELLS: Mutex<Vec<Weak<Bell>>> = Mutex::new(Vec::new());

/// Something was left to do since somebody looked
static DUE: AtomicBool = AtomicBool::new(false);

/// Runs the body of a call from Python and then tends to what is due
pub(crate) fn call<T>(py: Python<'_>, body: impl FnOnce() -> T) -> T {
    CALLS.set(CALLS.get() + 1);
    let result = body();
    CALLS.set(CALLS.get() - 1);
    tend(py);
    result
}

/// Does what was left to do
pub(crate) fn tend(py: Python<'_>) {
    // Nothing is due at most times, and to find that out must not cost locks.
    if !DUE.load(Ordering::Relaxed) || !DUE.swap(false, Ordering::AcqRel) {
        return;
    }
    buffer::release_buried(py);
    logs::write_out(py);
}

/// Says that something is due; the event loops are woken unless this thread will tend to it
///
/// All of them, because any one may be stopped or busy.
pub(crate) fn ask() {
    // After what is due was put where `tend` finds it.
    DUE.store(true, Ordering::Release);
    if CALLS.get() > 0 {
        return;
    }
    let bells = BELLS.lock().unwrap_or_else(PoisonError::into_inner);
    for bell in bells.iter().filter_map(Weak::upgrade) {
        bell.ring();
    }
}

/// Adds the bell of an event loop to those that may be asked
pub(crate) fn add_bell(bell: Weak<Bell>) {
    let mut bells = BELLS.lock().unwrap_or_else(PoisonError::into_inner);
    bells.retain(|bell| bell.strong_count() > 0);
    bells.push(bell);
}
