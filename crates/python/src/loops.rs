//! The bridge to an asyncio event loop: one bell that wakes it for any number of completions.
//!
//! Completing a request pushes a number and rings an eventfd; the loop, which watches that with
//! `add_reader`, then settles all futures that are due. No thread but the loop's runs Python.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::{PyTraverseError, PyVisit};
use rustix::event::{EventfdFlags, eventfd};

use crate::attention;

/// Completions that an event loop has not seen, and the bell that calls it
pub(crate) struct Bell {
    fd: OwnedFd,
    due: Mutex<Due>,
}

#[derive(Default)]
struct Due {
    tickets: Vec<u64>,
    /// Rung, and not yet answered
    rung: bool,
}

impl Bell {
    /// Calls the loop
    pub(crate) fn ring(&self) {
        self.push(None);
    }

    fn push(&self, ticket: Option<u64>) {
        let mut due = self.lock();
        due.tickets.extend(ticket);
        if !std::mem::replace(&mut due.rung, true) {
            // The only error of a valid eventfd is a full counter, and then it is ringing.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// Silences the bell and takes what is due
    fn answer(&self) -> Vec<u64> {
        let mut due = self.lock();
        due.rung = false;
        let mut count = [0; 8];
        // An error means that it was silent.
        let _ = rustix::io::read(self.fd.as_fd(), &mut count);
        std::mem::take(&mut due.tickets)
    }

    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the loop for one waiting future or callback
struct Ticket {
    bell: Arc<Bell>,
    number: u64,
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.push(Some(self.number));
    }
}

/// The futures of one event loop that wait for the engine
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct LoopBridge {
    bell: Arc<Bell>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// What to call, without arguments, when a ticket is due
    callbacks: HashMap<u64, Py<PyAny>>,
}

impl LoopBridge {
    /// The bridge of the running loop
    pub(crate) fn running(py: Python<'_>) -> PyResult<(Bound<'_, PyAny>, Py<Self>)> {
        static GET_RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static BRIDGE_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let event_loop = GET_RUNNING_LOOP
            .import(py, "asyncio", "get_running_loop")?
            .call0()?;
        let bridge = BRIDGE_OF
            .import(py, "backhaul._loops", "bridge_of")?
            .call1((&event_loop,))?
            .cast_into::<Self>()?
            .unbind();
        Ok((event_loop, bridge))
    }

    /// A waker that has `callback` called on the loop
    pub(crate) fn waker(&self, callback: Py<PyAny>) -> (Waker, u64) {
        let number = {
            let mut waiting = self.lock();
            waiting.next += 1;
            let number = waiting.next;
            waiting.callbacks.insert(number, callback);
            number
        };
        let ticket = Ticket {
            bell: Arc::clone(&self.bell),
            number,
        };
        (Waker::from(Arc::new(ticket)), number)
    }

    /// Has the callback of a ticket called at the loop's next turn
    pub(crate) fn due(&self, number: u64) {
        self.bell.push(Some(number));
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
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(std::io::Error::from)?;
        let bell = Arc::new(Bell {
            fd,
            due: Mutex::default(),
        });
        attention::add_bell(Arc::downgrade(&bell));
        Ok(Self {
            bell,
            waiting: Mutex::default(),
        })
    }

    /// The descriptor to watch for reading
    fn fileno(&self) -> i32 {
        self.bell.fd.as_raw_fd()
    }

    /// Settles what is due; to be called on the loop when the descriptor is readable
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let mut outcome = Ok(());
        for number in self.bell.answer() {
            let callback = self.lock().callbacks.remove(&number);
            if let Some(callback) = callback
                && let Err(error) = callback.call0(py)
            {
                outcome = Err(error);
            }
        }
        attention::tend(py);
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
