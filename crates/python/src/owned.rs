//! Values that belong to the process that made them, and are out of reach of its forks.
//!
//! A fork copies memory but not threads, and shares descriptors: in the child no thread drives the
//! engine, yet whatever is done to sockets, rings and epoll is done to the parent's. So there
//! nothing is done, not even cleaning up.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors;

/// How many forks lead from the process that loaded the module to this one
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Something that only the process that made it may use or drop
pub(crate) struct Owned<T> {
    /// `None` once it is dropped
    value: Option<T>,
    /// Value of [`FORKS`] in its process
    forks: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// Returns whether this is another process than the one that made it
    pub(crate) fn is_foreign(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses what must not be done in another process
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<&T> {
        if self.is_foreign() {
            return Err(errors::forked(py));
        }
        Ok(self)
    }

    /// Takes the value out, to be disposed of; `None` in another process
    pub(crate) fn give_up(&mut self) -> Option<T> {
        let value = self.value.take()?;
        if self.is_foreign() {
            std::mem::forget(value);
            return None;
        }
        Some(value)
    }
}

/// To look at what does not change; whatever has an effect goes through [`Owned::check`]
impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is taken only by drop")
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        drop(self.give_up());
    }
}

/// Has the interpreter tell us of forks
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let options = pyo3::types::PyDict::new(py);
    options.set_item("after_in_child", wrap_pyfunction!(count_fork, py)?)?;
    py.import("os")?
        .call_method("register_at_fork", (), Some(&options))?;
    Ok(())
}

#[pyfunction]
fn count_fork() {
    // There is one thread, so nothing to order with.
    FORKS.fetch_add(1, Ordering::Relaxed);
}
