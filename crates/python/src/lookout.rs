//! `Lookout`: where a thread waits for what an event loop would be woken for otherwise.
//!
//! A request that is done wakes the thread that is on the lookout, if one is; the thread
//! looks, and says when the event loop is to be called. If none is, the event loop is called. The
//! thread itself watches the connection where it has a doorbell, so that no other thread has to
//! wake it.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use backhaul::Doorbell;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use crate::deferred;
use crate::loops::{Completions, LoopBridge};
use crate::request::{Request, SIGNALS_EACH};

#[doc = stub_doc!("Lookout")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Lookout {
    bridge: Py<LoopBridge>,
    post: Arc<Post>,
}

/// State that is shared with the threads that complete requests
struct Post {
    watch: Mutex<Watch>,
    completions: Arc<Completions>,
    /// Ticket that the event loop expects; 0 while it does not
    ///
    /// The order is settled under no lock: a thread that sets an expected ticket looks once more
    /// then, and a thread that calls the loop has completed something before.
    ticket: AtomicU64,
}

#[derive(Default)]
struct Watch {
    /// A thread is here, and looks before it leaves
    is_manned: bool,
    is_roused: bool,
    /// Wakes the thread; `None` once it is closed
    kick: Option<Arc<Doorbell>>,
}

impl Post {
    /// Wakes the thread that is here, or else the next, if it is meant, too; `false` if neither
    fn rouse(&self, or_next: bool) -> bool {
        let mut watch = self.lock();
        if !watch.is_manned && !or_next {
            return false;
        }
        if !std::mem::replace(&mut watch.is_roused, true)
            && let Some(kick) = &watch.kick
        {
            kick.notify();
        }
        true
    }

    /// Calls the event loop, if it expects that
    fn call(&self) {
        // A completion before this is seen by a thread that expects something after this.
        fence(Ordering::SeqCst);
        let ticket = self.ticket.load(Ordering::SeqCst);
        if ticket != 0 {
            self.completions.push(Some(ticket));
        }
    }

    /// A thread comes; `false` if another one is here
    fn man(&self) -> bool {
        let mut watch = self.lock();
        !std::mem::replace(&mut watch.is_manned, true)
    }

    /// It leaves; tells whether it was roused
    fn unman(&self) -> bool {
        let mut watch = self.lock();
        watch.is_manned = false;
        let is_roused = std::mem::take(&mut watch.is_roused);
        if let Some(kick) = watch.kick.as_ref().filter(|_| is_roused) {
            kick.clear();
        }
        is_roused
    }

    fn is_roused(&self) -> bool {
        self.lock().is_roused
    }

    /// Returns the doorbell to sleep on; `None` if there is something to look at
    fn kick(&self) -> Option<Arc<Doorbell>> {
        let watch = self.lock();
        watch.kick.clone().filter(|_| !watch.is_roused)
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Post {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rouse(false) {
            self.call();
        }
    }
}

#[pymethods]
impl Lookout {
    #[new]
    fn new(bridge: Py<LoopBridge>) -> PyResult<Self> {
        let post = Arc::new(Post {
            watch: Mutex::new(Watch {
                kick: Some(Arc::new(Doorbell::new()?)),
                ..Watch::default()
            }),
            completions: Arc::clone(bridge.get().completions()),
            ticket: AtomicU64::new(0),
        });
        Ok(Self { bridge, post })
    }

    #[doc = stub_doc!("Lookout.watch")]
    fn watch(&self, request: &Bound<'_, Request>) -> bool {
        let waker = Waker::from(Arc::clone(&self.post));
        request.get().add_waker(waker)
    }

    #[doc = stub_doc!("Lookout.expect")]
    fn expect(
        &self,
        py: Python<'_>,
        request: &Bound<'_, Request>,
        callback: Py<PyAny>,
    ) -> PyResult<bool> {
        let request = request.get();
        request.check(py)?;
        let is_manned = self.post.lock().is_manned;
        if request.is_done() || (!is_manned && request.poll(py)?) {
            return Ok(false);
        }
        let bridge = self.bridge.get();
        let ticket = bridge.expect(callback);
        let former = self.post.ticket.swap(ticket, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        bridge.forget(former);
        bridge.join(request);
        if request.is_done() {
            self.disregard();
            return Ok(false);
        }
        Ok(true)
    }

    #[doc = stub_doc!("Lookout.disregard")]
    fn disregard(&self) {
        let ticket = self.post.ticket.swap(0, Ordering::SeqCst);
        self.bridge.get().forget(ticket);
    }

    #[doc = stub_doc!("Lookout.wait")]
    #[pyo3(signature = (request, timeout, *, awake = false))]
    fn wait(
        &self,
        py: Python<'_>,
        request: &Bound<'_, Request>,
        timeout: f64,
        awake: bool,
    ) -> PyResult<bool> {
        let patience = Duration::try_from_secs_f64(timeout).map_err(|_| {
            PyValueError::new_err(format!(
                "timeout must be a number of seconds from 0, got {timeout}"
            ))
        })?;
        let request = request.get();
        request.check(py)?;
        if !self.post.man() {
            return Err(PyRuntimeError::new_err("another thread is on the lookout"));
        }
        if awake && !patience.is_zero() {
            deferred::call(py, || {
                py.detach(|| request.poll_patiently(&|| self.post.is_roused()));
            });
        }
        let outcome = self.stay(py, request, patience);
        let is_roused = self.post.unman();
        if outcome.is_err() {
            // An interrupted thread does not look.
            self.post.call();
        }
        outcome.map(|()| is_roused || request.is_done())
    }

    #[doc = stub_doc!("Lookout.rouse")]
    #[pyo3(signature = (or_next = false))]
    fn rouse(&self, or_next: bool) -> bool {
        self.post.rouse(or_next)
    }

    #[doc = stub_doc!("Lookout.close")]
    fn close(&self) {
        self.post.rouse(true);
        // A thread that sleeps on it has it until it returns.
        let kick = self.post.lock().kick.take();
        drop(kick);
    }

    #[doc = stub_doc!("Lookout.call")]
    #[pyo3(signature = (within = 0.0))]
    fn call(&self, within: f64) {
        let ticket = self.post.ticket.load(Ordering::SeqCst);
        if ticket == 0 {
            return;
        }
        match Duration::try_from_secs_f64(within) {
            Ok(delay) if !delay.is_zero() => self.post.completions.push_within(ticket, delay),
            _ => self.post.completions.push(Some(ticket)),
        }
    }

    // The bridge leads to the callback, and that to the object that has this.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.bridge)
    }
}

impl Lookout {
    fn stay(&self, py: Python<'_>, request: &Request, patience: Duration) -> PyResult<()> {
        // Signals are handled by the first thread of the process alone.
        let slice_max = match is_main_thread() {
            true => SIGNALS_EACH,
            false => Duration::MAX,
        };
        let deadline = Instant::now().checked_add(patience);
        while !request.is_done()
            && let Some(kick) = self.post.kick()
        {
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            let slice = left.min(slice_max);
            deferred::call(py, || {
                py.detach(|| request.sleep(&kick, slice));
            });
            if slice_max == SIGNALS_EACH {
                py.check_signals()?;
            }
        }
        Ok(())
    }
}

/// Returns whether this is the thread that handles signals
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
