//! Deferred work: what only a thread of Python can do, left by threads that must not run Python.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use backhaul_sys::forks::PerProcess;
use pyo3::prelude::*;

use crate::buffer;
use crate::device;
use crate::logs;
use crate::loops::Completions;

thread_local! {
    /// How many calls from Python this thread is in; each runs what is due as it ends
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Event loops in use
static LOOPS: PerProcess<Mutex<Vec<Weak<Completions>>>> = PerProcess::new();

/// Something was deferred since the last look
static DUE: AtomicBool = AtomicBool::new(false);

/// Runs the body of a call from Python, and then what is due
pub(crate) fn call<T>(py: Python<'_>, body: impl FnOnce() -> T) -> T {
    let call = Call::begin();
    let result = body();
    drop(call);
    run(py);
    result
}

/// A call that this thread is in; over also when its body panics
struct Call;

impl Call {
    fn begin() -> Self {
        CALLS.set(CALLS.get() + 1);
        Self
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

/// Runs what was deferred
pub(crate) fn run(py: Python<'_>) {
    // Nothing is due at most times, and to find that out must not cost locks.
    if !DUE.load(Ordering::Relaxed) || !DUE.swap(false, Ordering::AcqRel) {
        return;
    }
    buffer::release_pending(py);
    device::release_pending(py);
    logs::write_out(py);
}

/// Says that something is due; the event loops are woken unless this thread will run it
///
/// All of them, because any one may be stopped or busy.
pub(crate) fn ask() {
    // After what is due was put where `run` finds it.
    DUE.store(true, Ordering::Release);
    if CALLS.get() > 0 {
        return;
    }
    let loops = LOOPS.value().lock().unwrap_or_else(PoisonError::into_inner);
    for completions in loops.iter().filter_map(Weak::upgrade) {
        completions.call();
    }
}

/// Adds an event loop to those that may be asked
pub(crate) fn add_loop(completions: Weak<Completions>) {
    let mut loops = LOOPS.value().lock().unwrap_or_else(PoisonError::into_inner);
    loops.retain(|completions| completions.strong_count() > 0);
    loops.push(completions);
}
