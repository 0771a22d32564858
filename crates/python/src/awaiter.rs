//! How a task of an event loop waits for a request: by `await`, or with the request as its coroutine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};

use crate::loops::LoopBridge;
use crate::request::Request;

/// The iterator behind `await request`
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Awaiter {
    pub(crate) request: Py<Request>,
    pub(crate) sleeper: Sleeper,
}

#[pymethods]
impl Awaiter {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.sleeper.next(py, self.request.get())
    }

    #[pyo3(signature = (kind, value = None, _traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.sleeper.throw(py, self.request.get(), kind, value)
    }

    fn close(&self, py: Python<'_>) {
        self.sleeper.close(py, self.request.get());
    }

    // A suspended task holds this, and its future holds the task. The task breaks the cycle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.request)?;
        self.sleeper.traverse(&visit)
    }
}

/// The tasks that have a request as their coroutine
///
/// A request is one operation and may be waited for by several tasks, so each has its own place.
#[derive(Default)]
pub(crate) struct Sleepers {
    by_task: Mutex<Vec<(Py<PyAny>, Arc<Sleeper>)>>,
}

impl Sleepers {
    /// As [`Sleeper::next`], for the running task
    pub(crate) fn next(&self, py: Python<'_>, request: &Request) -> PyResult<Py<PyAny>> {
        let task = current_task(py)?;
        let known = self.take(&task);
        let sleeper = known.unwrap_or_default();
        let outcome = sleeper.next(py, request);
        if outcome.is_ok() {
            self.lock().push((task.unbind(), sleeper));
        }
        outcome
    }

    /// As [`Sleeper::throw`], for the running task
    pub(crate) fn throw(
        &self,
        py: Python<'_>,
        request: &Request,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let sleeper = self.take(&current_task(py)?).unwrap_or_default();
        sleeper.throw(py, request, kind, value)
    }

    /// As [`Sleeper::close`], for all of them
    pub(crate) fn close(&self, py: Python<'_>, request: &Request) {
        let all = std::mem::take(&mut *self.lock());
        for (_, sleeper) in all {
            sleeper.close(py, request);
        }
    }

    // The tasks break the cycles.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(by_task) = self.by_task.try_lock() {
            for (task, sleeper) in &*by_task {
                visit.call(task)?;
                sleeper.traverse(visit)?;
            }
        }
        Ok(())
    }

    /// Takes out the place of a task
    fn take(&self, task: &Bound<'_, PyAny>) -> Option<Arc<Sleeper>> {
        let found = {
            let mut by_task = self.lock();
            let index = by_task.iter().position(|(other, _)| other.is(task))?;
            by_task.swap_remove(index)
        };
        // The task, which is running, is released outside the lock.
        Some(found.1)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Py<PyAny>, Arc<Sleeper>)>> {
        self.by_task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running task; None outside of one
fn current_task(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static CURRENT_TASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let current_task = CURRENT_TASK.import(py, "asyncio", "current_task")?;
    current_task.call0().or_else(|error| {
        // No loop runs; what is done needs none.
        if error.is_instance_of::<PyRuntimeError>(py) {
            Ok(py.None().into_bound(py))
        } else {
            Err(error)
        }
    })
}

/// Future that a task sleeps on, if it does
#[derive(Default)]
pub(crate) struct Sleeper {
    sleeping: Mutex<Option<Sleeping>>,
}

struct Sleeping {
    /// Iterator of the future that the loop watches
    future: Py<PyAny>,
    bridge: Py<LoopBridge>,
    ticket: u64,
}

impl Sleeper {
    /// Goes on until the operation is done: what the loop is to wait for, or `StopIteration`
    pub(crate) fn next(&self, py: Python<'_>, request: &Request) -> PyResult<Py<PyAny>> {
        let future = self
            .lock()
            .as_ref()
            .map(|sleeping| sleeping.future.clone_ref(py));
        let future = match future {
            Some(future) => future,
            None => {
                if request.poll(py)? {
                    return Err(finish(py, request));
                }
                let Some(sleeping) = Sleeping::begin(py, request)? else {
                    return Err(finish(py, request));
                };
                let future = sleeping.future.clone_ref(py);
                *self.lock() = Some(sleeping);
                future
            }
        };
        match future.call_method0(py, "__next__") {
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => Err(finish(py, request)),
            outcome => outcome,
        }
    }

    /// The task is being cancelled: so is the operation
    pub(crate) fn throw(
        &self,
        py: Python<'_>,
        request: &Request,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.close(py, request);
        let value = value.filter(|value| !value.is_none());
        Err(PyErr::from_value(value.unwrap_or(kind)))
    }

    /// The task is gone: the operation is cancelled
    pub(crate) fn close(&self, py: Python<'_>, request: &Request) {
        let sleeping = self.lock().take();
        if let Some(sleeping) = sleeping {
            sleeping.bridge.get().forget(sleeping.ticket);
            request.abandon(py);
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(sleeping) = self.sleeping.try_lock()
            && let Some(sleeping) = &*sleeping
        {
            visit.call(&sleeping.future)?;
            visit.call(&sleeping.bridge)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sleeping>> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleeping {
    /// Makes a future that the loop settles when the operation is done; `None` if it is
    fn begin(py: Python<'_>, request: &Request) -> PyResult<Option<Self>> {
        static SETTLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (event_loop, bridge) = LoopBridge::running(py)?;
        let future = event_loop.call_method0("create_future")?;
        let settle = SETTLE
            .import(py, "backhaul._loops", "settle")?
            .call1((&future,))?;
        let (waker, ticket) = bridge.get().waker(settle.unbind());
        bridge.get().join(request);
        if !request.add_waker(waker) {
            bridge.get().forget(ticket);
            return Ok(None);
        }
        Ok(Some(Self {
            future: future.call_method0("__await__")?.unbind(),
            bridge,
            ticket,
        }))
    }
}

fn finish(py: Python<'_>, request: &Request) -> PyErr {
    match request.repeat_outcome(py) {
        Ok(value) => PyStopIteration::new_err((value,)),
        Err(error) => error,
    }
}
