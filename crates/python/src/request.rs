//! `Request`: one operation in flight, to await or to block on.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::attention;
use crate::errors::{self, IntoException};
use crate::loops::LoopBridge;

/// One operation in flight
#[pyclass(frozen, module = "backhaul._native", generic)]
pub(crate) struct Request {
    pending: Box<dyn Pending>,
    outcome: Mutex<Option<PyResult<Py<PyAny>>>>,
}

/// A request of the fabric, without its types
trait Pending: Send + Sync {
    fn is_done(&self) -> bool;
    fn step(&self) -> bool;
    fn poll_inline(&self) -> bool;
    fn wait_done(&self, timeout: Duration) -> bool;
    fn set_waker(&self, waker: &Waker) -> bool;
    fn cancel(&self);
    /// The result, once
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

struct Typed<T, E, F> {
    /// `None` once it is dropped
    request: Option<backhaul::Request<T, E>>,
    /// Makes the Python object
    convert: F,
}

impl<T, E, F> Typed<T, E, F> {
    fn request(&self) -> &backhaul::Request<T, E> {
        self.request.as_ref().expect("it is taken only by drop")
    }
}

impl<T, E, F> Pending for Typed<T, E, F>
where
    T: Send,
    E: Send + Display + IntoException,
    F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync,
{
    fn is_done(&self) -> bool {
        self.request().is_done()
    }

    fn step(&self) -> bool {
        self.request().step()
    }

    fn poll_inline(&self) -> bool {
        self.request().poll_inline()
    }

    fn wait_done(&self, timeout: Duration) -> bool {
        self.request().wait_done(Some(timeout))
    }

    fn set_waker(&self, waker: &Waker) -> bool {
        self.request().set_waker(waker)
    }

    fn cancel(&self) {
        self.request().cancel();
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.request().take() {
            None => Err(errors::not_done(py)),
            Some(Ok(value)) => (self.convert)(py, value),
            Some(Err(error)) => Err(error.into_exception(py)),
        }
    }
}

impl<T, E, F> Drop for Typed<T, E, F> {
    fn drop(&mut self) {
        // In Python, an operation that nobody looks at goes on.
        if let Some(request) = self.request.take() {
            request.detach();
        }
    }
}

impl Request {
    pub(crate) fn new<T, E, F>(request: backhaul::Request<T, E>, convert: F) -> Self
    where
        T: Send + 'static,
        E: Send + Display + IntoException + 'static,
        F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
    {
        Self {
            pending: Box::new(Typed {
                request: Some(request),
                convert,
            }),
            outcome: Mutex::new(None),
        }
    }

    fn outcome(&self) -> MutexGuard<'_, Option<PyResult<Py<PyAny>>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of an operation that is done, as often as asked
    fn repeat_outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(outcome) = &*self.outcome() {
            return match outcome {
                Ok(value) => Ok(value.clone_ref(py)),
                Err(error) => Err(error.clone_ref(py)),
            };
        }
        if !self.pending.is_done() {
            return Err(errors::not_done(py));
        }
        let fresh = self.pending.take(py);
        let kept = match &fresh {
            Ok(value) => Ok(value.clone_ref(py)),
            Err(error) => Err(error.clone_ref(py)),
        };
        *self.outcome() = Some(kept);
        fresh
    }

    /// Moves the operation along: at once with the interpreter held, then polling without it
    fn poll(&self, py: Python<'_>) -> bool {
        self.pending.is_done()
            || attention::call(py, || {
                self.pending.step() || py.detach(|| self.pending.poll_inline())
            })
    }
}

#[pymethods]
impl Request {
    /// Whether the result is there
    fn done(&self) -> bool {
        self.pending.is_done()
    }

    /// The result of an operation that is done
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.repeat_outcome(py)
    }

    /// Blocks until the operation is done, for at most `timeout` seconds
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let deadline = timeout
            .map(|timeout| {
                Duration::try_from_secs_f64(timeout)
                    .map_err(|error| PyValueError::new_err(format!("timeout {timeout}: {error}")))
            })
            .transpose()?
            .and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.pending.is_done() {
            let left = deadline.map_or(SIGNALS_EACH, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(SIGNALS_EACH)
            });
            let done = attention::call(py, || py.detach(|| self.pending.wait_done(left)));
            if done {
                break;
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(errors::wait_timed_out(py, timeout.unwrap_or_default()));
            }
        }
        self.repeat_outcome(py)
    }

    /// Asks to cancel, returning whether it was still possible to ask
    fn cancel(&self, py: Python<'_>) -> bool {
        let possible = !self.pending.is_done();
        if possible {
            attention::call(py, || self.pending.cancel());
        }
        possible
    }

    fn __await__(slf: Py<Self>) -> Awaiter {
        Awaiter {
            request: slf,
            sleeping: Mutex::new(None),
        }
    }
}

/// The iterator behind `await request`
#[pyclass(frozen, module = "backhaul._native")]
struct Awaiter {
    request: Py<Request>,
    sleeping: Mutex<Option<Sleeping>>,
}

/// What a task sleeps on
struct Sleeping {
    /// Iterator of the future that the loop watches
    future: Py<PyAny>,
    bridge: Py<LoopBridge>,
    ticket: u64,
}

impl Awaiter {
    fn lock(&self) -> MutexGuard<'_, Option<Sleeping>> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, py: Python<'_>) -> PyErr {
        match self.request.get().repeat_outcome(py) {
            Ok(value) => PyStopIteration::new_err((value,)),
            Err(error) => error,
        }
    }

    /// Makes a future that the loop settles when the operation is done; `None` if it is
    fn sleep(&self, py: Python<'_>) -> PyResult<Option<Sleeping>> {
        static SETTLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (event_loop, bridge) = LoopBridge::running(py)?;
        let future = event_loop.call_method0("create_future")?;
        let settle = SETTLE
            .import(py, "backhaul._loops", "settle")?
            .call1((&future,))?;
        let (waker, ticket) = bridge.get().waker(settle.unbind());
        if !self.request.get().pending.set_waker(&waker) {
            bridge.get().forget(ticket);
            return Ok(None);
        }
        Ok(Some(Sleeping {
            future: future.call_method0("__await__")?.unbind(),
            bridge,
            ticket,
        }))
    }
}

#[pymethods]
impl Awaiter {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let future = self
            .lock()
            .as_ref()
            .map(|sleeping| sleeping.future.clone_ref(py));
        let future = match future {
            Some(future) => future,
            None => {
                if self.request.get().poll(py) {
                    return Err(self.finish(py));
                }
                let Some(sleeping) = self.sleep(py)? else {
                    return Err(self.finish(py));
                };
                let future = sleeping.future.clone_ref(py);
                *self.lock() = Some(sleeping);
                future
            }
        };
        match future.call_method0(py, "__next__") {
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => Err(self.finish(py)),
            outcome => outcome,
        }
    }

    /// The task is being cancelled: so is the operation
    #[pyo3(signature = (kind, value = None, _traceback = None))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.close(py);
        let value = value.filter(|value| !value.is_none());
        Err(PyErr::from_value(value.unwrap_or(kind)))
    }

    /// The task is gone: the operation is cancelled
    fn close(&self, py: Python<'_>) {
        let sleeping = self.lock().take();
        if let Some(sleeping) = sleeping {
            sleeping.bridge.get().forget(sleeping.ticket);
            self.request.get().cancel(py);
        }
    }
}

/// How often a blocked thread lets Python handle signals
const SIGNALS_EACH: Duration = Duration::from_millis(100);
