//! The bridge to an asyncio event loop: one descriptor that wakes it for any number of completions.
//!
//! The loop watches it with `add_reader`. It is readable when news have come for a connection that
//! the loop has taken over ([`backhaul::LoopWatch`]), and when another thread has completed a
//! request: that pushes a number and notifies once, and the loop then settles all futures that are
//! due. No thread but the loop's runs Python.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use backhaul::LoopWatch;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};

use crate::deferred;
use crate::request::Request;

/// Completions that an event loop has not seen, and what calls it
pub(crate) struct Completions {
    due: Mutex<Due>,
}

struct Due {
    /// `None` once the event loop is closed: futures and workers of a closed loop may stay for long,
    /// descriptors must not
    watch: Option<Arc<LoopWatch>>,
    tickets: Vec<u64>,
    /// The loop was called, or is here
    is_called: bool,
    /// Tickets that are due with the next call, and not a reason for one
    late: Vec<u64>,
}

impl Completions {
    /// Calls the loop
    pub(crate) fn call(&self) {
        self.push(None);
    }

    pub(crate) fn push(&self, ticket: Option<u64>) {
        let mut due = self.lock();
        due.tickets.extend(ticket);
        if !std::mem::replace(&mut due.is_called, true)
            && let Some(watch) = &due.watch
        {
            watch.notify();
        }
    }

    /// Has a ticket settled when the loop comes by, which is within `delay`
    pub(crate) fn push_within(&self, ticket: u64, delay: Duration) {
        self.lock().late.push(ticket);
        let Some(watch) = self.watch() else { return };
        if let Err(error) = watch.notify_within(delay) {
            tracing::debug!(%error, "no alarm for an event loop");
            self.call();
        }
    }

    /// Moves along what the loop has taken over, and takes what is due
    fn progress(&self) -> Vec<u64> {
        // Requests that complete meanwhile need not call the loop.
        self.lock().is_called = true;
        if let Some(watch) = self.watch() {
            watch.progress();
        }
        let mut due = self.lock();
        due.is_called = false;
        let late = std::mem::take(&mut due.late);
        due.tickets.extend(late);
        std::mem::take(&mut due.tickets)
    }

    fn watch(&self) -> Option<Arc<LoopWatch>> {
        self.lock().watch.clone()
    }

    /// Closes the descriptors, as the event loop is closed
    fn close(&self) {
        let watch = self.lock().watch.take();
        // Outside the lock: connections go back to the engine.
        drop(watch);
    }

    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the loop for one waiting future or callback
struct Ticket {
    completions: Arc<Completions>,
    number: u64,
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.completions.push(Some(self.number));
    }
}

#[doc = stub_doc!("LoopBridge")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct LoopBridge {
    completions: Arc<Completions>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// Functions to call, without arguments, when a ticket is due
    callbacks: HashMap<u64, Py<PyAny>>,
}

impl LoopBridge {
    /// The bridge of the running loop
    pub(crate) fn running(py: Python<'_>) -> PyResult<(Bound<'_, PyAny>, Py<Self>)> {
        static GET_RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static BRIDGE_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let event_loop = GET_RUNNING_LOOP
            .import(py, "asyncio", "get_running_loop")?
            .call0()
            .map_err(|error| {
                if error.is_instance_of::<PyRuntimeError>(py) {
                    PyRuntimeError::new_err(NO_LOOP)
                } else {
                    error
                }
            })?;
        let bridge = BRIDGE_OF
            .import(py, "backhaul._loops", "bridge_of")?
            .call1((&event_loop,))?
            .cast_into::<Self>()?
            .unbind();
        Ok((event_loop, bridge))
    }

    /// A waker that has `callback` called on the loop
    pub(crate) fn waker(&self, callback: Py<PyAny>) -> (Waker, u64) {
        let number = self.expect(callback);
        let ticket = Ticket {
            completions: Arc::clone(&self.completions),
            number,
        };
        (Waker::from(Arc::new(ticket)), number)
    }

    /// Has `callback` called when the ticket is due that this gives; never 0
    pub(crate) fn expect(&self, callback: Py<PyAny>) -> u64 {
        let mut waiting = self.lock();
        waiting.next += 1;
        let number = waiting.next;
        waiting.callbacks.insert(number, callback);
        number
    }

    /// Returns the tickets that are due, and the object that calls the loop for them
    pub(crate) fn completions(&self) -> &Arc<Completions> {
        &self.completions
    }

    /// Has the callback of a ticket called at the loop's next turn
    pub(crate) fn due(&self, number: u64) {
        self.completions.push(Some(number));
    }

    /// Has the loop, which is about to wait for a request, watch its connection itself
    pub(crate) fn join(&self, request: &Request) {
        if let Some(watch) = self.completions.watch() {
            request.join_loop(&watch);
        }
    }

    /// Forgets what [`LoopBridge::waker`] began
    pub(crate) fn forget(&self, number: u64) {
        let callback = self.lock().callbacks.remove(&number);
        // Outside the lock: it may run a destructor.
        drop(callback);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl LoopBridge {
    #[new]
    fn new() -> PyResult<Self> {
        let completions = Arc::new(Completions {
            due: Mutex::new(Due {
                watch: Some(LoopWatch::new()?),
                tickets: Vec::new(),
                is_called: false,
                late: Vec::new(),
            }),
        });
        deferred::add_loop(Arc::downgrade(&completions));
        Ok(Self {
            completions,
            waiting: Mutex::default(),
        })
    }

    #[doc = stub_doc!("LoopBridge.fileno")]
    fn fileno(&self) -> PyResult<i32> {
        match self.completions.watch() {
            Some(watch) => Ok(watch.as_fd().as_raw_fd()),
            None => Err(PyValueError::new_err("the event loop is closed")),
        }
    }

    #[doc = stub_doc!("LoopBridge.reader")]
    fn reader(slf: Py<Self>) -> LoopReader {
        LoopReader { bridge: slf }
    }

    #[doc = stub_doc!("LoopBridge.drain")]
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let mut outcome = Ok(());
        let due = deferred::call(py, || self.completions.progress());
        for number in due {
            let callback = self.lock().callbacks.remove(&number);
            if let Some(callback) = callback
                && let Err(error) = callback.call0(py)
            {
                outcome = Err(error);
            }
        }
        deferred::run(py);
        outcome
    }

    // A callback leads to a future, that to the loop, and that to its bridge.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(waiting) = self.waiting.try_lock() {
            for callback in waiting.callbacks.values() {
                visit.call(callback)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let callbacks = std::mem::take(&mut self.lock().callbacks);
        // Outside the lock: it may run destructors.
        drop(callbacks);
    }
}

#[doc = stub_doc!("LoopReader")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct LoopReader {
    bridge: Py<LoopBridge>,
}

#[pymethods]
impl LoopReader {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        self.bridge.get().drain(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.bridge)
    }
}

impl Drop for LoopReader {
    fn drop(&mut self) {
        self.bridge.get().completions.close();
    }
}

/// Error text, also for users of trio, whose loop is none of asyncio's
const NO_LOOP: &str = "no event loop of asyncio runs in this thread: await requests under asyncio \
    or uvloop, or block with request.wait(); trio is not supported, there it is \
    trio.to_thread.run_sync(request.wait)";
