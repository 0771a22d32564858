//! The logs of a state machine: kept as values, and converted to Python's when a program reads
//! them.

use std::collections::VecDeque;

use backhaul_dask::worker::State;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// The last entries, as many as there are places
pub(super) struct Ring<T> {
    entries: VecDeque<T>,
    places: usize,
}

impl<T> Ring<T> {
    pub(super) fn new(places: Option<usize>) -> Self {
        Self {
            entries: VecDeque::new(),
            places: places.unwrap_or(usize::MAX),
        }
    }

    /// Adds one; gives the oldest, if there is no place for it any more
    pub(super) fn push(&mut self, entry: T) -> Option<T> {
        self.entries.push_back(entry);
        if self.entries.len() > self.places {
            self.entries.pop_front()
        } else {
            None
        }
    }

    pub(super) fn take(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.entries)
    }
}

/// A line of the log
pub(super) struct Entry {
    pub(super) what: What,
    pub(super) stimulus_id: Py<PyAny>,
    pub(super) time_s: f64,
}

/// Content of a line
pub(super) enum What {
    /// Something of a task, which was in a state
    TaskWas(Py<PyAny>, &'static str, State),
    /// Something of a task
    Task(Py<PyAny>, &'static str),
    /// Something first, and then what it is of
    Of(&'static str, Py<PyAny>),
    /// Keys that are fetched, and the peer
    Gather(Py<PyAny>, Py<PyAny>),
    Transition {
        key: Py<PyAny>,
        start: State,
        finish: State,
        end: State,
        found: Vec<(Py<PyAny>, State)>,
    },
    /// A line that Python has made
    Made(Py<PyAny>),
}

impl Entry {
    pub(super) fn render<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stimulus_id = self.stimulus_id.bind(py);
        let time_s = self.time_s;
        let tuple = match &self.what {
            What::TaskWas(key, what, state) => {
                (key, *what, state.name(), stimulus_id, time_s).into_pyobject(py)?
            }
            What::Task(key, what) => {
                return Ok((key, *what, stimulus_id, time_s)
                    .into_pyobject(py)?
                    .into_any());
            }
            What::Of(what, of) => {
                return Ok((*what, of, stimulus_id, time_s)
                    .into_pyobject(py)?
                    .into_any());
            }
            What::Gather(peer, keys) => {
                ("gather-dependencies", peer, keys, stimulus_id, time_s).into_pyobject(py)?
            }
            What::Transition {
                key,
                start,
                finish,
                end,
                found,
            } => {
                let recommended = PyDict::new(py);
                for (key, state) in found {
                    recommended.set_item(key, state.name())?;
                }
                let states = (start.name(), finish.name(), end.name());
                let line = (
                    key,
                    states.0,
                    states.1,
                    states.2,
                    recommended,
                    stimulus_id,
                    time_s,
                );
                return Ok(line.into_pyobject(py)?.into_any());
            }
            What::Made(line) => return Ok(line.bind(py).clone()),
        };
        Ok(tuple.into_any())
    }
}

/// An event, as the log of stimuli keeps it
pub(super) enum Stimulus {
    /// Made already
    Event(Py<PyAny>),
    /// The message that asks for a task, without what is to be run
    Compute(Py<PyAny>, f64),
    /// A run that has ended well: key, run, start, stop, size, class, id of the event
    Success(Py<PyTuple>, f64),
    /// Keys that are freed, and the id of the event
    Free(Py<PyAny>, Py<PyAny>, f64),
}

impl Stimulus {
    /// Returns the parts of an event for Python: its kind, its fields, and when it was handled
    pub(super) fn render<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match self {
            Self::Event(event) => ("event", event, None::<f64>).into_pyobject(py),
            Self::Compute(message, handled_s) => {
                ("compute-task", message, handled_s).into_pyobject(py)
            }
            Self::Success(done, handled_s) => ("success", done, handled_s).into_pyobject(py),
            Self::Free(keys, stimulus_id, handled_s) => {
                ("free-keys", (keys, stimulus_id), handled_s).into_pyobject(py)
            }
        }
    }
}

/// All entries of a log, rendered; the log is empty then
pub(super) fn rendered<'py, T>(
    py: Python<'py>,
    ring: &mut Ring<T>,
    render: impl Fn(&T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for entry in ring.take() {
        list.append(render(&entry)?)?;
    }
    Ok(list)
}
