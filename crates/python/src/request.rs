//! `Request`: one operation in flight, to await or to block on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use backhaul::{Doorbell, LoopWatch};
use pyo3::exceptions::{PyBaseException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;
use pyo3::{PyTraverseError, PyVisit};

use crate::arguments;
use crate::awaiter::{Awaiter, Sleeper, Sleepers};
use crate::deferred;
use crate::errors::{self, IntoException};
use crate::operation::Operation;
use crate::owned::Owned;

#[doc = stub_doc!("Request")]
#[pyclass(frozen, module = "backhaul._native", generic)]
pub(crate) struct Request {
    pending: Box<dyn Pending>,
    /// Outcome of the operation, once a caller has asked
    outcome: OnceLock<Outcome>,
    /// Wakers of the tasks that await the request, should there be several
    wakers: Mutex<Vec<Waker>>,
    /// Tasks that have it as their coroutine
    sleepers: Sleepers,
}

/// Outcome of an operation, as Python objects
///
/// The exception is kept as an object so that the garbage collector sees it: its traceback may
/// lead back to the request.
enum Outcome {
    Returned(Py<PyAny>),
    Raised(Py<PyBaseException>),
}

impl Outcome {
    fn new(py: Python<'_>, result: PyResult<Py<PyAny>>) -> Self {
        match result {
            Ok(value) => Self::Returned(value),
            Err(error) => Self::Raised(error.into_value(py)),
        }
    }

    fn repeat(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Returned(value) => Ok(value.clone_ref(py)),
            Self::Raised(error) => Err(PyErr::from_value(
                error.clone_ref(py).into_bound(py).into_any(),
            )),
        }
    }
}

/// Wakes several
struct Everyone(Vec<Waker>);

impl Wake for Everyone {
    fn wake(self: Arc<Self>) {
        for waker in &self.0 {
            waker.wake_by_ref();
        }
    }
}

/// A request of the fabric, without its types
trait Pending: Send + Sync {
    /// Returns the description of its operation; `None` if it is done from the start
    fn operation(&self) -> Option<Operation>;
    /// Refuses to go on in a process forked from the one that began
    fn check(&self, py: Python<'_>) -> PyResult<()>;
    fn check_done(&self) -> bool;
    fn step(&self) -> bool;
    fn poll_briefly(&self) -> bool;
    fn poll_inline(&self) -> bool;
    fn poll_patiently(&self, is_over: &dyn Fn() -> bool) -> bool;
    fn wait_done(&self, timeout: Duration) -> bool;
    /// Sleeps until it is done or `kick` is notified
    fn sleep(&self, kick: &Doorbell, timeout: Duration);
    fn set_waker(&self, waker: &Waker) -> bool;
    /// The loop is about to wait: it may watch the connection itself
    fn join_loop(&self, watch: &Arc<LoopWatch>);
    fn cancel(&self);
    /// Gives a receive up, so that its message is there for others; `false` if it is none
    fn give_up(&self) -> bool;
    /// The result, once
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;
    /// Logs an error that no caller has looked at, in place of [`Pending::take`]
    fn report(&self);
}

struct Typed<T, E, F> {
    request: Owned<backhaul::Request<T, E>>,
    operation: Operation,
    /// Makes the Python object
    convert: F,
    /// Makes the exception
    raise: fn(Python<'_>, E) -> PyErr,
    /// A caller has waited for it, or looked whether it is done
    is_waited_for: AtomicBool,
}

impl<T, E, F> Pending for Typed<T, E, F>
where
    T: Send,
    E: Send + IntoException,
    F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync,
{
    fn operation(&self) -> Option<Operation> {
        Some(self.operation)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.request.check(py).map(drop)
    }

    fn check_done(&self) -> bool {
        // It orders nothing: the code that drops the request has it alone.
        self.is_waited_for.store(true, Ordering::Relaxed);
        self.request.is_done()
    }

    fn step(&self) -> bool {
        self.request.step()
    }

    fn poll_briefly(&self) -> bool {
        self.request.poll_briefly()
    }

    fn poll_inline(&self) -> bool {
        self.request.poll_inline()
    }

    fn poll_patiently(&self, is_over: &dyn Fn() -> bool) -> bool {
        self.request.poll_patiently(is_over)
    }

    fn wait_done(&self, timeout: Duration) -> bool {
        self.request.wait_done(Some(timeout))
    }

    fn sleep(&self, kick: &Doorbell, timeout: Duration) {
        self.request.sleep(kick, timeout);
    }

    fn set_waker(&self, waker: &Waker) -> bool {
        self.request.set_waker(waker)
    }

    fn join_loop(&self, watch: &Arc<LoopWatch>) {
        self.request.join_loop(watch);
    }

    fn cancel(&self) {
        self.request.cancel();
    }

    fn give_up(&self) -> bool {
        self.request.gives_back() && self.request.withdraw()
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.request.take() {
            None => Err(errors::not_done(py)),
            Some(Ok(value)) => (self.convert)(py, value),
            Some(Err(error)) => Err((self.raise)(py, error)),
        }
    }

    fn report(&self) {
        // In a forked child, taking the result would drop what is its parent's.
        if !self.request.is_foreign()
            && let Some(error) = self.request.take_error()
            && let Some(reason) = error.unseen()
        {
            tracing::warn!("{reason}, and its request was dropped unread");
        }
    }
}

impl<T, E, F> Drop for Typed<T, E, F> {
    fn drop(&mut self) {
        // In Python, an operation that no caller looks at goes on; but a receive that a caller has
        // waited for in vain would take a message that no caller gets.
        if let Some(request) = self.request.give_up()
            && !(request.gives_back() && *self.is_waited_for.get_mut())
        {
            request.detach();
        }
    }
}

impl Request {
    pub(crate) fn new<T, E, F>(
        operation: Operation,
        request: backhaul::Request<T, E>,
        convert: F,
    ) -> Self
    where
        T: Send + 'static,
        E: Send + IntoException + 'static,
        F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
    {
        Self::raising(operation, request, convert, |py, error| {
            error.into_exception(py)
        })
    }

    /// A request with exceptions of its own
    pub(crate) fn raising<T, E, F>(
        operation: Operation,
        request: backhaul::Request<T, E>,
        convert: F,
        raise: fn(Python<'_>, E) -> PyErr,
    ) -> Self
    where
        T: Send + 'static,
        E: Send + IntoException + 'static,
        F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
    {
        Self {
            pending: Box::new(Typed {
                request: Owned::new(request),
                operation,
                convert,
                raise,
                is_waited_for: AtomicBool::new(false),
            }),
            outcome: OnceLock::new(),
            wakers: Mutex::default(),
            sleepers: Sleepers::default(),
        }
    }

    /// A request for a send, most of which are done from the start
    pub(crate) fn of_send(
        py: Python<'_>,
        operation: Operation,
        request: backhaul::Request<(), backhaul::SendError>,
    ) -> Self {
        if request.is_settled() {
            return Self::ready(py.None());
        }
        Self::new(operation, request, |py, ()| Ok(py.None()))
    }

    /// A request that is done from the start
    pub(crate) fn ready(value: Py<PyAny>) -> Self {
        Self {
            pending: Box::new(Ready),
            outcome: OnceLock::from(Outcome::Returned(value)),
            wakers: Mutex::default(),
            sleepers: Sleepers::default(),
        }
    }

    /// The result of an operation that is done, as often as asked
    pub(crate) fn repeat_outcome(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if let Some(outcome) = self.outcome.get() {
            return outcome.repeat(py);
        }
        // Also when it is done: its result belongs to the process that asked.
        self.pending.check(py)?;
        if !self.pending.check_done() {
            return Err(errors::not_done(py));
        }
        let outcome = self.outcome.get_or_init_py_attached(py, || {
            // The engine may have released the operation's memory, which the caller wants back.
            deferred::call(py, || Outcome::new(py, self.pending.take(py)))
        });
        outcome.repeat(py)
    }

    /// Has `waker` called when the result is there, beside earlier ones; `false` if it is there
    pub(crate) fn add_waker(&self, waker: Waker) -> bool {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.push(waker);
        match wakers.as_slice() {
            [only] => self.pending.set_waker(only),
            all => self
                .pending
                .set_waker(&Waker::from(Arc::new(Everyone(all.to_vec())))),
        }
    }

    /// The loop that a task waits on may watch the connection itself
    pub(crate) fn join_loop(&self, watch: &Arc<LoopWatch>) {
        self.pending.join_loop(watch);
    }

    /// Refuses to go on in a process forked from the one that began
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.pending.check(py)
    }

    /// Returns whether the result is there
    pub(crate) fn is_done(&self) -> bool {
        self.pending.check_done()
    }

    /// Sleeps until it is done or `kick` is notified; the interpreter is given away by the caller
    pub(crate) fn sleep(&self, kick: &Doorbell, timeout: Duration) {
        self.pending.sleep(kick, timeout);
    }

    /// Polls for longer, or until `is_over`; the interpreter is given away by the caller
    pub(crate) fn poll_patiently(&self, is_over: &dyn Fn() -> bool) -> bool {
        self.pending.poll_patiently(is_over)
    }

    /// Moves the operation along: at once with the interpreter held, then polling without it
    pub(crate) fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        if self.pending.check_done() {
            return Ok(true);
        }
        self.pending.check(py)?;
        Ok(deferred::call(py, || {
            self.pending.poll_briefly()
                || self.pending.step()
                || py.detach(|| self.pending.poll_inline())
        }))
    }

    /// Gives the operation up, because the task that awaited it is gone: a receive leaves its
    /// message for others
    pub(crate) fn abandon(&self, py: Python<'_>) {
        if self.outcome.get().is_some() || self.pending.check(py).is_err() {
            return;
        }
        let is_given_up = deferred::call(py, || self.pending.give_up());
        if is_given_up {
            let cancelled = backhaul::RecvError::Cancelled.into_exception(py);
            // There already only if another caller has got it meanwhile, and may be at it still.
            self.outcome
                .get_or_init_py_attached(py, || Outcome::new(py, Err(cancelled)));
        } else {
            self.cancel(py);
        }
    }

    /// Polls with the interpreter held, for less than it costs to give it away and take it back
    fn poll_attached(&self, py: Python<'_>) -> PyResult<bool> {
        self.pending.check(py)?;
        Ok(deferred::call(py, || self.pending.poll_briefly()))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.outcome.get().is_none() {
            self.pending.report();
        }
    }
}

#[pymethods]
impl Request {
    #[doc = stub_doc!("Request.done")]
    fn done(&self) -> bool {
        self.pending.check_done()
    }

    #[doc = stub_doc!("Request.result")]
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.repeat_outcome(py)
    }

    #[doc = stub_doc!("Request.wait")]
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let timeout = timeout.as_ref();
        let timeout = timeout.map(|timeout| arguments::number("timeout", "seconds", timeout));
        let timeout = timeout.transpose()?;
        let patience = timeout.map(patience).transpose()?;
        if self.pending.check_done() || self.poll_attached(py)? {
            return self.repeat_outcome(py);
        }
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        while !self.pending.check_done() {
            self.pending.check(py)?;
            let left = deadline.map_or(SIGNALS_EACH, |deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .min(SIGNALS_EACH)
            });
            let done = deferred::call(py, || py.detach(|| self.pending.wait_done(left)));
            if done {
                break;
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(match self.pending.operation() {
                    Some(operation) => {
                        errors::wait_timed_out(py, operation, timeout.unwrap_or_default())
                    }
                    None => errors::not_done(py),
                });
            }
        }
        self.repeat_outcome(py)
    }

    #[doc = stub_doc!("Request.cancel")]
    fn cancel(&self, py: Python<'_>) -> bool {
        let possible = !self.pending.check_done() && self.pending.check(py).is_ok();
        if possible {
            deferred::call(py, || self.pending.cancel());
        }
        possible
    }

    fn __await__(slf: Py<Self>) -> Awaiter {
        Awaiter {
            request: slf,
            sleeper: Sleeper::default(),
        }
    }

    // With these three it is a coroutine for `collections.abc`, hence for `asyncio.create_task`.

    #[doc = stub_doc!("Request.send")]
    #[pyo3(signature = (value, /))]
    fn send(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        if value.is_none() {
            return self.sleepers.next(py, self);
        }
        Err(PyTypeError::new_err(format!(
            "a request can be sent None alone, as event loops do, got {}; messages are sent by \
             Endpoint.send",
            value.repr()?
        )))
    }

    #[doc = stub_doc!("Request.throw")]
    #[pyo3(signature = (kind, value = None, traceback = None, /))]
    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        self.sleepers.throw(py, self, kind, value)
    }

    #[doc = stub_doc!("Request.close")]
    fn close(&self, py: Python<'_>) {
        self.sleepers.close(py, self);
    }

    fn __repr__(&self) -> String {
        let state = match self.outcome.get() {
            Some(Outcome::Returned(_)) => "returned",
            Some(Outcome::Raised(_)) => "raised",
            None if self.pending.check_done() => "done",
            None => "pending",
        };
        let operation = self.pending.operation();
        let cause = operation.filter(|_| state == "pending");
        let cause = cause.and_then(Operation::cause);
        match (operation, cause) {
            (Some(operation), Some(cause)) => {
                format!("<backhaul.Request, {operation}, {state}: {cause}>")
            }
            (Some(operation), None) => format!("<backhaul.Request, {operation}, {state}>"),
            (None, _) => format!("<backhaul.Request, {state}>"),
        }
    }

    // A task holds the request that is its coroutine, and is held by what that sleeps on.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.sleepers.traverse(&visit)?;
        match self.outcome.get() {
            Some(Outcome::Returned(value)) => visit.call(value),
            Some(Outcome::Raised(error)) => visit.call(error),
            None => Ok(()),
        }
    }
}

/// How long to wait for: what is negative has passed, what is too large is for ever
fn patience(timeout_s: f64) -> PyResult<Duration> {
    if timeout_s.is_nan() {
        return Err(PyValueError::new_err(
            "timeout must be a number of seconds or None, got nan",
        ));
    }
    Ok(Duration::try_from_secs_f64(timeout_s.max(0.0)).unwrap_or(Duration::MAX))
}

/// The operation of a request that needed none
struct Ready;

impl Pending for Ready {
    fn operation(&self) -> Option<Operation> {
        None
    }

    fn check(&self, _py: Python<'_>) -> PyResult<()> {
        Ok(())
    }

    fn check_done(&self) -> bool {
        true
    }

    fn step(&self) -> bool {
        true
    }

    fn poll_briefly(&self) -> bool {
        true
    }

    fn poll_inline(&self) -> bool {
        true
    }

    fn poll_patiently(&self, _is_over: &dyn Fn() -> bool) -> bool {
        true
    }

    fn wait_done(&self, _timeout: Duration) -> bool {
        true
    }

    fn sleep(&self, _kick: &Doorbell, _timeout: Duration) {}

    fn set_waker(&self, _waker: &Waker) -> bool {
        false
    }

    fn join_loop(&self, _watch: &Arc<LoopWatch>) {}

    fn cancel(&self) {}

    fn give_up(&self) -> bool {
        false
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }

    fn report(&self) {}
}

/// How often a blocked thread lets Python handle signals
pub(crate) const SIGNALS_EACH: Duration = Duration::from_millis(100);
