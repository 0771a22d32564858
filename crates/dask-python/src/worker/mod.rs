//! A worker's state in Rust as Python calls it: events in, instructions and attributes out.
//!
//! Keys, values, messages are Python's objects, kept beside the state by the number of their task.

mod events;
mod export;
mod extras;
mod import;
mod logs;
mod looks;
mod outside;
mod runs;
mod told;

use std::sync::{Mutex, MutexGuard, TryLockError};

use backhaul_dask::worker::{Limits, Refused, WorkerCore};
use pyo3::exceptions::{PyAssertionError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use outside::{Callables, Outside};

#[doc = stub_doc!("WorkerCore")]
#[pyclass(frozen, name = "WorkerCore", module = "backhaul._native")]
pub(crate) struct Core(Mutex<Inner>);

/// The state, and what Python has of it
struct Inner {
    core: WorkerCore,
    outside: Outside,
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (*, address, data, threads, callables, limits, places))]
    fn new(
        py: Python<'_>,
        address: String,
        data: Py<PyAny>,
        threads: Py<PyDict>,
        callables: &Bound<'_, PyDict>,
        limits: &Bound<'_, PyDict>,
        places: (Option<usize>, Option<usize>),
    ) -> PyResult<Self> {
        let (log_max, stimuli_max) = places;
        let callables = Callables::of(callables)?;
        let outside = Outside::new(py, address, data, threads, callables, log_max, stimuli_max);
        Ok(Self(Mutex::new(Inner {
            core: WorkerCore::new(limits_of(limits)?),
            outside,
        })))
    }

    /// Visits the objects that may refer back to this, through the owner of the state
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // An event that is at work on it is reached from a stack, so nothing is garbage.
        let Ok(inner) = self.0.try_lock() else {
            return Ok(());
        };
        inner
            .outside
            .extras
            .views()
            .try_for_each(|view| visit.call(view))
    }

    fn __clear__(&self) {
        let views = match self.0.try_lock() {
            Ok(mut inner) => inner.outside.extras.drop_views(),
            Err(_) => Vec::new(),
        };
        drop(views);
    }
}

impl Core {
    /// The state, unless an event is at work on it
    ///
    /// Calls of an event may run other Python code: a read by that code is refused.
    fn inner(&self) -> PyResult<MutexGuard<'_, Inner>> {
        match self.0.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "the state machine is handling an event",
            )),
        }
    }
}

fn limits_of(given: &Bound<'_, PyDict>) -> PyResult<Limits> {
    let number = |name: &str| -> PyResult<f64> {
        match given.get_item(name)? {
            Some(value) => value.extract(),
            None => Err(PyValueError::new_err(format!("{name} is missing"))),
        }
    };
    Ok(Limits {
        threads: number("threads")? as usize,
        transfers: number("transfers")?,
        throttle_bytes: number("throttle_bytes")?,
        incoming_bytes: number("incoming_bytes")?,
        message_bytes: number("message_bytes")?,
        default_bytes: number("default_bytes")? as i64,
    })
}

/// Makes the exception that Python raises where an event is refused
///
/// The caller makes Dask's own error of it, from the kind, the task's key, its state, and the state
/// that it was to go to.
fn refusal(py: Python<'_>, outside: &Outside, refused: Refused) -> PyErr {
    match refused {
        Refused::InvalidTransition {
            task,
            start,
            finish,
        } => {
            let told = (
                "invalid-transition",
                outside.key(py, task),
                start.name(),
                finish.name(),
            );
            PyRuntimeError::new_err(told)
        }
        Refused::Assertion(what) => PyAssertionError::new_err(what),
        Refused::ReplicaInUse { task, dependent } => {
            let told = (
                "replica-in-use",
                outside.key(py, task),
                outside.key(py, dependent),
            );
            PyRuntimeError::new_err(told)
        }
    }
}

/// A list of what each gives
fn listed<'py, T>(
    py: Python<'py>,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for item in items {
        list.append(each(item)?)?;
    }
    Ok(list)
}
