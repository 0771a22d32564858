//! Memory between Python and Rust: the one module of this crate that may be unsafe.
//!
//! Memory that Python owns is pinned by its buffer protocol for as long as an operation needs it.
//! It may be Rust's engine that drops the pin; the release then waits for a thread of Python.
//! Python code may change memory while it is being sent: the peer then gets some mixture, which is
//! the caller's loss under MPI's rule, and no reference to the bytes is kept across calls here.

#![allow(
    unsafe_code,
    reason = "pointers of the buffer protocol; see the module's doc"
)]

use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use backhaul::{Bytes, PoolBuf, RecvBuffer};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyMemoryView};
use pyo3::{PyTraverseError, PyVisit, ffi};

use crate::attention;
use crate::errors;

/// Pins dropped by threads that must not run Python
static BURIED: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());

/// Memory of a Python object, pinned
struct Pinned {
    buffer: ManuallyDrop<PyUntypedBuffer>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is valid in any thread while the buffer is pinned, and the pin is released
// only by `release_buried`, attached to the interpreter.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(buffer: PyUntypedBuffer) -> Self {
        Self {
            start: buffer.buf_ptr().cast(),
            bytes: buffer.len_bytes(),
            buffer: ManuallyDrop::new(buffer),
        }
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `bytes` contiguous bytes at `start` while the buffer is
        // pinned, which lasts as long as `self`. That nobody writes meanwhile is asked of the
        // caller; a write gives wrong bytes to the peer, and nothing here decides by them.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl RecvBuffer for Pinned {
    fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_ref`; the buffer was checked to be writable.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        BURIED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(buffer);
        attention::ask();
    }
}

/// Releases the pins that were dropped; the caller is attached to the interpreter
pub(crate) fn release_buried(py: Python<'_>) {
    let buried = std::mem::take(&mut *BURIED.lock().unwrap_or_else(PoisonError::into_inner));
    for buffer in buried {
        buffer.release(py);
    }
}

/// A segment to send: small ones are copied, large ones pinned
pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>()
        && bytes.as_bytes().len() <= COPY_BYTES_MAX
    {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    let buffer = contiguous(object)?;
    if buffer.len_bytes() > COPY_BYTES_MAX {
        return Ok(Bytes::from_owner(Pinned::new(buffer)));
    }
    let bytes = if buffer.len_bytes() == 0 {
        Bytes::new()
    } else {
        // SAFETY: the exporter keeps so many contiguous bytes there while `buffer` is held, which
        // is released below; no Python code runs in between.
        Bytes::copy_from_slice(unsafe {
            std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
        })
    };
    buffer.release(object.py());
    Ok(bytes)
}

/// A buffer to receive into
pub(crate) fn target(object: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecvBuffer>> {
    let buffer = contiguous(object)?;
    if buffer.readonly() {
        buffer.release(object.py());
        return Err(errors::buffer_error(
            object.py(),
            format!("cannot receive into {}: it is read-only", describe(object)),
        ));
    }
    Ok(Box::new(Pinned::new(buffer)))
}

/// Whether an object is one buffer, rather than a collection of them
pub(crate) fn is_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the pointer is that of a live object, which the reference keeps.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

/// The memory of an object, if it is in one piece and means the same in another process
fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = match PyUntypedBuffer::get(object) {
        Ok(buffer) => buffer,
        Err(error) => {
            let viewed = as_buffer(object)?.ok_or_else(|| {
                let message = format!(
                    "{} offers neither the buffer protocol nor __array_interface__: {}",
                    describe(object),
                    error.value(object.py()),
                );
                PyTypeError::new_err(message)
            })?;
            PyUntypedBuffer::get(&viewed)?
        }
    };
    let refusal = if has_references(buffer.format().to_bytes()) {
        format!(
            "{} holds references to Python objects (format {:?}): pickle it first",
            describe(object),
            buffer.format(),
        )
    } else if buffer.is_c_contiguous() {
        return Ok(buffer);
    } else {
        format!(
            "{} is not C-contiguous (strides {:?} for shape {:?}): copy it first",
            describe(object),
            buffer.strides(),
            buffer.shape(),
        )
    };
    buffer.release(object.py());
    Err(errors::buffer_error(object.py(), refusal))
}

/// Whether a format of PEP 3118 has an object in it, outside the names of fields
fn has_references(format: &[u8]) -> bool {
    format
        .split(|&byte| byte == b':')
        .step_by(2)
        .any(|types| types.contains(&b'O'))
}

/// A buffer over an object that has only `__array_interface__`, by way of NumPy
fn as_buffer<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    static AS_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let as_buffer = AS_BUFFER.import(py, "backhaul._buffers", "as_buffer")?;
    let buffer = as_buffer.call1((object,))?;
    Ok((!buffer.is_none()).then_some(buffer))
}

fn describe(object: &Bound<'_, PyAny>) -> String {
    object
        .get_type()
        .name()
        .map_or_else(|_| "an object".to_owned(), |name| format!("a {name}"))
}

/// Received memory: 64-byte aligned, writable, and its own
///
/// Gives its memory by the buffer protocol; freed with the last view.
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct ReceivedBuffer {
    start: *mut u8,
    bytes: usize,
    /// Keeps the memory
    _memory: PoolBuf,
}

// SAFETY: `start` points into `_memory`, which is Send and not otherwise used; who writes through
// the views is governed by Python as for any writable buffer.
unsafe impl Send for ReceivedBuffer {}
// SAFETY: as above; the struct itself is never changed.
unsafe impl Sync for ReceivedBuffer {}

impl ReceivedBuffer {
    /// A memoryview of received memory
    pub(crate) fn view(py: Python<'_>, mut memory: PoolBuf) -> PyResult<Bound<'_, PyMemoryView>> {
        let buffer = Self {
            start: memory.as_mut_ptr(),
            bytes: memory.len(),
            _memory: memory,
        };
        PyMemoryView::from(Bound::new(py, buffer)?.as_any())
    }
}

#[pymethods]
impl ReceivedBuffer {
    fn __len__(&self) -> usize {
        self.bytes
    }

    /// # Safety
    ///
    /// Called by the interpreter with a valid `view`.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        let buffer = slf.get();
        let bytes = ffi::Py_ssize_t::try_from(buffer.bytes)?;
        // SAFETY: `view` is valid by the interpreter's contract; the memory lives as long as the
        // object, of which the view takes a reference.
        let outcome = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), buffer.start.cast(), bytes, 0, flags)
        };
        if outcome == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }

    #[expect(
        clippy::unused_self,
        reason = "the signature is the garbage collector's"
    )]
    fn __traverse__(&self, _visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }
}

/// Up to here, copying costs less than pinning and releasing
const COPY_BYTES_MAX: usize = 4096;
