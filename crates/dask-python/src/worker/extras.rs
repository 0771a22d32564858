//! Python's objects of a task, kept beside its state.

use backhaul_dask::worker::TaskId;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// Python's side of one task
#[derive(Default)]
pub(super) struct Extra {
    /// None once the task is forgotten and its event is over
    pub(super) key: Option<Py<PyAny>>,
    pub(super) run_spec: Option<Py<PyAny>>,
    pub(super) annotations: Option<Py<PyAny>>,
    pub(super) span_id: Option<Py<PyAny>>,
    pub(super) kind: Option<Py<PyAny>>,
    /// Actions that took its time: its runs, and storing their results
    pub(super) startstops: Vec<Times>,
    /// Exception, traceback and their texts
    pub(super) error: Option<Py<PyTuple>>,
    /// The view of it that a program has asked for
    pub(super) view: Option<Py<PyAny>>,
    /// True if neither data nor thread of it can be there
    pub(super) is_purged: bool,
}

/// An action that took a task's time
pub(super) enum Times {
    /// The action, from when, until when
    Spent(&'static str, f64, f64),
    /// As Python has it
    Given(Py<PyAny>),
}

impl Times {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Spent(action, start_s, stop_s) => Self::Spent(action, *start_s, *stop_s),
            Self::Given(times) => Self::Given(times.clone_ref(py)),
        }
    }
}

impl Extra {
    /// A copy of what took its time
    pub(super) fn times(&self, py: Python<'_>) -> Vec<Times> {
        let times = self.startstops.iter();
        times.map(|times| times.clone_ref(py)).collect()
    }
}

/// Times of a task as Dask has them
pub(super) fn startstops_of<'py>(py: Python<'py>, times: &[Times]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for times in times {
        match times {
            Times::Spent(action, start_s, stop_s) => {
                let each = PyDict::new(py);
                each.set_item("action", action)?;
                each.set_item("start", start_s)?;
                each.set_item("stop", stop_s)?;
                list.append(each)?;
            }
            Times::Given(times) => list.append(times)?,
        }
    }
    Ok(list)
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

    /// Views of tasks, which refer to who has the state
    pub(super) fn views(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.0.iter().filter_map(|extra| extra.view.as_ref())
    }

    /// Releases all views
    pub(super) fn drop_views(&mut self) -> Vec<Py<PyAny>> {
        self.0
            .iter_mut()
            .filter_map(|extra| extra.view.take())
            .collect()
    }

    pub(super) fn of(&self, task: TaskId) -> &Extra {
        &self.0[task.index()]
    }

    pub(super) fn of_mut(&mut self, task: TaskId) -> &mut Extra {
        &mut self.0[task.index()]
    }
}
