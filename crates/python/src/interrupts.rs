//! Calls of functions that another thread may interrupt with an exception.
//!
//! Python delivers an exception to another thread (`PyThreadState_SetAsyncExc`) at one of that
//! thread's next instructions, whichever function it is in by then. Here the exception reaches the
//! call that it is meant for, or nothing: a table has the calls that run, and a call that ends takes
//! itself out of the table and takes an exception back that was not delivered, before the thread
//! runs its next instruction.

#![allow(
    unsafe_code,
    reason = "PyO3 has no safe form of PyThreadState_SetAsyncExc"
)]

use std::ffi::c_long;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Calls that run, in the order in which they began
///
/// Locked for some instructions only, by threads that are attached to Python and stay so: no thread
/// waits for Python with this lock, and no fork finds it locked by another thread of a Python with
/// a GIL.
static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());

struct Call {
    /// `threading.get_ident()` of the thread that calls
    thread: c_long,
    /// Names the call
    owner: Py<PyAny>,
    /// True once the thread was sent an exception
    is_interrupted: bool,
}

#[doc = stub_doc!("call_interruptibly")]
#[pyfunction]
pub(crate) fn call_interruptibly<'py>(
    owner: &Bound<'py, PyAny>,
    thread: u64,
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let thread = thread.cast_signed() as c_long;
    calls().push(Call {
        thread,
        owner: owner.clone().unbind(),
        is_interrupted: false,
    });
    let outcome = function.call1((argument,));
    let ended = {
        let mut calls = calls();
        let ended = calls
            .iter()
            .rposition(|call| call.thread == thread && call.owner.is(owner))
            .map(|place| calls.remove(place));
        if ended.as_ref().is_some_and(|call| call.is_interrupted) {
            // SAFETY: This thread is attached to Python. The call takes a null pointer for "none".
            unsafe { ffi::PyThreadState_SetAsyncExc(thread, ptr::null_mut()) };
        }
        ended
    };
    drop(ended);
    outcome
}

#[doc = stub_doc!("running_calls")]
#[pyfunction]
pub(crate) fn running_calls(py: Python<'_>) -> Vec<Py<PyAny>> {
    calls()
        .iter()
        .map(|call| call.owner.clone_ref(py))
        .collect()
}

#[doc = stub_doc!("interrupt_call")]
#[pyfunction]
pub(crate) fn interrupt_call(
    owner: &Bound<'_, PyAny>,
    exception: &Bound<'_, PyType>,
) -> PyResult<bool> {
    if !exception.is_subclass_of::<pyo3::exceptions::PyBaseException>()? {
        return Err(PyTypeError::new_err(format!(
            "exception must be a class of exceptions, and is {exception}"
        )));
    }
    let mut calls = calls();
    let Some(call) = calls.iter_mut().find(|call| call.owner.is(owner)) else {
        return Ok(false);
    };
    // SAFETY: This thread is attached to Python, and the class is alive. Python takes a reference
    // of its own.
    let found = unsafe { ffi::PyThreadState_SetAsyncExc(call.thread, exception.as_ptr()) };
    call.is_interrupted = found > 0;
    Ok(call.is_interrupted)
}

fn calls() -> MutexGuard<'static, Vec<Call>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}
