//! What Python has of a task, beside its state.

use backhaul_dask::worker::TaskId;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Python's side of one task
#[derive(Default)]
pub(super) struct Extra {
    /// None once the task is forgotten and its event is over
    pub(super) key: Option<Py<PyAny>>,
    pub(super) run_spec: Option<Py<PyAny>>,
    pub(super) annotations: Option<Py<PyAny>>,
    pub(super) span_id: Option<Py<PyAny>>,
    pub(super) kind: Option<Py<PyAny>>,
    /// Times of its runs, and of storing what they gave: the action, from when, until when
    pub(super) startstops: Vec<(&'static str, f64, f64)>,
    /// Exception, traceback and their texts
    pub(super) error: Option<Py<PyTuple>>,
    /// The view of it that somebody has asked for
    pub(super) view: Option<Py<PyAny>>,
    /// Whether neither data nor thread of it can be there
    pub(super) is_purged: bool,
}

/// Python's side of all tasks, by number
#[derive(Default)]
pub(super) struct Extras(Vec<Extra>);

impl Extras {
    /// Begins with a task
    pub(super) fn begin(&mut self, task: TaskId, key: Py<PyAny>) {
        if self.0.len() <= task.index() {
            self.0.resize_with(task.index() + 1, Extra::default);
        }
        self.0[task.index()] = Extra {
            key: Some(key),
            ..Extra::default()
        };
    }

    pub(super) fn of(&self, task: TaskId) -> &Extra {
        &self.0[task.index()]
    }

    pub(super) fn of_mut(&mut self, task: TaskId) -> &mut Extra {
        &mut self.0[task.index()]
    }
}
