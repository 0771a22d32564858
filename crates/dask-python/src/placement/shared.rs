//! State that threads of Python share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// State behind a lock: a thread that comes while another is at it waits, with the GIL and without
///
/// A thread that has locked it runs no Python: arguments are read before, and results become
/// objects after. A finalizer that ran in between would wait for its own thread.
#[derive(Default)]
pub(crate) struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Mutex::new(state))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
