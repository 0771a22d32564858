//! Memory of the host between Python and Rust. Only this module of the crate, `dlpack`,
//! `numpy_memory` and `memory_policy` may be unsafe.
//!
//! Memory that Python owns is pinned by its buffer protocol for as long as an operation needs it.
//! It may be Rust's engine that drops the pin; the release then waits for a thread of Python.
//! Python code may change memory while it is being sent: the peer then gets some mixture, which is
//! the caller's loss under MPI's rule, and no reference to the bytes is kept across calls here.

#![allow(
    unsafe_code,
    reason = "pointers of the buffer protocol; see the module's doc"
)]

use std::ffi::{CStr, c_int};
use std::ops::DerefMut;
use std::sync::{Mutex, PoisonError};

use backhaul::{Bytes, PoolBuf, Received, RecvBuffer, RecvMemory, Segment};
use backhaul_sys::forks::PerProcess;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyMemoryView};
use pyo3::{PyTraverseError, PyVisit, ffi};

use crate::deferred;
use crate::device::{self, Memory, describe};
use crate::errors;

/// Pins dropped by threads that must not run Python
static PENDING_RELEASES: PerProcess<Mutex<Vec<View>>> = PerProcess::new();

/// A view of the memory of a Python object, which is pinned until [`View::release`]
///
/// PyO3's own class refuses views without strides, such as those of ctypes.
///
/// Invariant: `raw` was filled by `PyObject_GetBuffer` and not released yet. It is boxed, because
/// an exporter may have let it point into itself.
struct View<R = Box<ffi::Py_buffer>> {
    raw: R,
}

// SAFETY: what the view points to is valid in any thread while the memory is pinned, and only
// `release`, attached to the interpreter, ends that.
unsafe impl Send for View {}

impl View {
    fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get_in(object, Box::new(ffi::Py_buffer::new()))
    }
}

impl<R: DerefMut<Target = ffi::Py_buffer>> View<R> {
    /// A view in memory that stays where it is, for as long as the view lives
    fn get_in(object: &Bound<'_, PyAny>, mut raw: R) -> PyResult<Self> {
        // SAFETY: the object is alive, the thread attached, and `raw` ours to be filled.
        let outcome =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, ffi::PyBUF_FULL_RO) };
        if outcome == 0 {
            Ok(Self { raw })
        } else {
            Err(PyErr::fetch(object.py()))
        }
    }

    fn release(mut self, _py: Python<'_>) {
        // SAFETY: filled and not released before, by the invariant; `self` ends here. The thread is
        // attached, as the token shows.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.raw) };
    }

    fn start(&self) -> *mut u8 {
        self.raw.buf.cast()
    }

    fn len(&self) -> usize {
        usize::try_from(self.raw.len).unwrap_or(0)
    }

    fn is_readonly(&self) -> bool {
        self.raw.readonly != 0
    }

    /// Returns whether the memory is in one piece, in C's order
    fn is_contiguous(&self) -> bool {
        const C_ORDER: std::ffi::c_char = b'C' as std::ffi::c_char;
        // SAFETY: `raw` is filled, by the invariant.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.raw, C_ORDER) != 0 }
    }

    fn format(&self) -> &[u8] {
        if self.raw.format.is_null() {
            return b"B";
        }
        // SAFETY: the exporter keeps a C string there while the memory is pinned.
        unsafe { CStr::from_ptr(self.raw.format) }.to_bytes()
    }

    fn shape(&self) -> &[ffi::Py_ssize_t] {
        self.dimensions(self.raw.shape)
    }

    fn strides(&self) -> &[ffi::Py_ssize_t] {
        self.dimensions(self.raw.strides)
    }

    fn dimensions(&self, start: *const ffi::Py_ssize_t) -> &[ffi::Py_ssize_t] {
        let count = usize::try_from(self.raw.ndim).unwrap_or(0);
        if start.is_null() || count == 0 {
            return &[];
        }
        // SAFETY: shape and strides have `ndim` entries, which live while the memory is pinned.
        unsafe { std::slice::from_raw_parts(start, count) }
    }
}

/// Contiguous memory of a Python object that an operation works on
struct Pinned {
    /// `None` once its release is pending
    view: Option<View>,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is valid in any thread while the view is pinned, and the pin is released
// only by `release_pending`, attached to the interpreter.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(view: View) -> Self {
        Self {
            start: view.start(),
            bytes: view.len(),
            view: Some(view),
        }
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `bytes` contiguous bytes at `start` while the buffer is
        // pinned, which lasts as long as `self`. The caller is asked not to write meanwhile; a
        // write gives wrong bytes to the peer, and nothing here decides by them.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl RecvBuffer for Pinned {
    fn memory(&mut self) -> RecvMemory<'_> {
        if self.bytes == 0 {
            return RecvMemory::Host(&mut []);
        }
        // SAFETY: as in `as_ref`; the buffer was checked to be writable.
        RecvMemory::Host(unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        PENDING_RELEASES
            .value()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(self.view.take());
        deferred::ask();
    }
}

/// Releases the pins that were dropped; the caller is attached to the interpreter
pub(crate) fn release_pending(py: Python<'_>) {
    let pending = std::mem::take(
        &mut *PENDING_RELEASES
            .value()
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    );
    for view in pending {
        view.release(py);
    }
}

/// A segment to send
pub(crate) enum Source<T> {
    /// A short one, and what was made of it
    Short(T),
    /// A long one, pinned, or one in memory of a device
    Long(Segment),
}

/// A segment to send: short ones are handed to `short`, long ones pinned
pub(crate) fn source_with<T>(
    object: &Bound<'_, PyAny>,
    short: impl FnOnce(&[u8]) -> T,
) -> PyResult<Source<T>> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>()
        && bytes.as_bytes().len() <= COPY_BYTES_MAX
    {
        return Ok(Source::Short(short(bytes.as_bytes())));
    }
    if let Some(memory) = only_on_device(object, false)? {
        return Ok(match memory {
            Memory::Device(memory) => Source::Long(Segment::Device(memory)),
            Memory::Empty => Source::Short(short(&[])),
        });
    }
    // On the stack, where it costs no allocation: most are short, and of the usual kind.
    let mut raw = ffi::Py_buffer::new();
    if let Ok(view) = View::get_in(object, &mut raw) {
        let is_usual = view.is_contiguous() && !has_references(view.format());
        if is_usual && view.len() <= COPY_BYTES_MAX {
            return Ok(Source::Short(hand_over(object.py(), view, short)));
        }
        view.release(object.py());
    }
    let view = match contiguous(object) {
        Ok(view) => view,
        Err(error) => match device::memory_of(object, false)? {
            Some(Memory::Device(memory)) => return Ok(Source::Long(Segment::Device(memory))),
            Some(Memory::Empty) => return Ok(Source::Short(short(&[]))),
            None => return Err(error),
        },
    };
    if view.len() > COPY_BYTES_MAX {
        return Ok(Source::Long(Bytes::from_owner(Pinned::new(view)).into()));
    }
    Ok(Source::Short(hand_over(object.py(), view, short)))
}

/// Calls `short` with the bytes of a view, which it releases then
fn hand_over<R: DerefMut<Target = ffi::Py_buffer>, T>(
    py: Python<'_>,
    view: View<R>,
    short: impl FnOnce(&[u8]) -> T,
) -> T {
    let bytes = view.len();
    let outcome = if bytes == 0 {
        short(&[])
    } else {
        // SAFETY: the exporter keeps `bytes` contiguous bytes there until `release` below, and no
        // Python code runs in between.
        short(unsafe { std::slice::from_raw_parts(view.start(), bytes) })
    };
    view.release(py);
    outcome
}

/// A segment to send: short ones are copied, long ones pinned
pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<Segment> {
    Ok(match source_with(object, Bytes::copy_from_slice)? {
        Source::Short(bytes) => bytes.into(),
        Source::Long(segment) => segment,
    })
}

/// Releases the pin of a receive that is over, now rather than when deferred work is run
pub(crate) fn release_received(py: Python<'_>, received: Received) {
    if let Some(mut pinned) = received.into_buffer::<Pinned>()
        && let Some(view) = pinned.view.take()
    {
        view.release(py);
        // Nothing is left to release.
        std::mem::forget(pinned);
    }
}

/// A buffer to receive into
pub(crate) fn target(object: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecvBuffer>> {
    if let Some(memory) = only_on_device(object, true)? {
        return Ok(match memory {
            Memory::Device(memory) => Box::new(memory),
            Memory::Empty => Box::new(Vec::new()),
        });
    }
    let view = match contiguous(object) {
        Ok(view) => view,
        Err(error) => match device::memory_of(object, true)? {
            Some(Memory::Device(memory)) => return Ok(Box::new(memory)),
            Some(Memory::Empty) => return Ok(Box::new(Vec::new())),
            None => return Err(error),
        },
    };
    if view.is_readonly() {
        view.release(object.py());
        return Err(errors::buffer_error(
            object.py(),
            format!("cannot receive into {}: it is read-only", describe(object)),
        ));
    }
    Ok(Box::new(Pinned::new(view)))
}

/// Views of Python objects that are released with this value, which is dropped while attached
struct Views<'py> {
    py: Python<'py>,
    views: Vec<View>,
}

impl<'py> Views<'py> {
    fn of(py: Python<'py>, objects: &[Bound<'py, PyAny>]) -> PyResult<Self> {
        let mut found = Self {
            py,
            views: Vec::with_capacity(objects.len()),
        };
        for object in objects {
            found.views.push(contiguous(object)?);
        }
        Ok(found)
    }

    fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.views
            .iter()
            .filter(|view| view.len() > 0)
            .map(|view| (view.start().addr(), view.start().addr() + view.len()))
    }
}

impl Drop for Views<'_> {
    fn drop(&mut self) {
        for view in self.views.drain(..) {
            view.release(self.py);
        }
    }
}

/// Runs `work` on the memory of Python objects while other threads may run Python
///
/// The sources are read and the targets written. `work` decides nothing by bytes that it has read
/// twice, as Python code may change the sources meanwhile.
///
/// # Errors
///
/// If an object is no contiguous buffer, or if a target is read-only or overlaps another object.
pub(crate) fn detached<'py, T: Send>(
    py: Python<'py>,
    sources: &[Bound<'py, PyAny>],
    targets: &[Bound<'py, PyAny>],
    work: impl FnOnce(&[&[u8]], Vec<&mut [u8]>) -> T + Send,
) -> PyResult<T> {
    let read = Views::of(py, sources)?;
    let written = Views::of(py, targets)?;
    if let Some(index) = written.views.iter().position(View::is_readonly) {
        let shown = describe(&targets[index]);
        return Err(errors::buffer_error(
            py,
            format!("cannot write to {shown}: it is read-only"),
        ));
    }
    let mut ranges: Vec<_> = written.ranges().collect();
    ranges.sort_unstable();
    let overlaps = |(start, end): (usize, usize)| {
        let after = ranges.partition_point(|range| range.1 <= start);
        ranges.get(after).is_some_and(|range| range.0 < end)
    };
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) || read.ranges().any(overlaps) {
        let message = "cannot write to memory that another argument shares".to_owned();
        return Err(errors::buffer_error(py, message));
    }
    let sources: Vec<&[u8]> = read
        .views
        .iter()
        .map(|view| match view.len() {
            0 => &[][..],
            // SAFETY: the exporter keeps `bytes` contiguous bytes there until `read` is dropped,
            // after `work`. That no thread writes meanwhile is asked of the caller, as in `Pinned`.
            bytes => unsafe { std::slice::from_raw_parts(view.start(), bytes) },
        })
        .collect();
    let targets: Vec<&mut [u8]> = written
        .views
        .iter()
        .map(|view| match view.len() {
            0 => &mut [][..],
            // SAFETY: as above; the memory is writable and shared with no other slice, as checked.
            bytes => unsafe { std::slice::from_raw_parts_mut(view.start(), bytes) },
        })
        .collect();
    Ok(py.detach(|| work(&sources, targets)))
}

/// Returns whether an object is one buffer, rather than a collection of them
pub(crate) fn is_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the pointer is that of a live object, which the reference keeps.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) == 1 }
}

/// Memory of a device, if an object is no buffer and says by itself that it has such memory
///
/// An object that is no buffer is likelier to be on a device than to need NumPy, and finding that
/// out by the errors of others takes a few microseconds.
fn only_on_device(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Option<Memory>> {
    if is_buffer(object) {
        return Ok(None);
    }
    device::memory_at_once(object, writable)
}

/// The memory of an object, if it is in one piece and means the same in another process
fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<View> {
    let view = match View::get(object) {
        Ok(view) => view,
        Err(error) => {
            let viewed = as_buffer(object)?.ok_or_else(|| {
                let message = format!(
                    "{} offers neither the buffer protocol nor __array_interface__: {}",
                    describe(object),
                    error.value(object.py()),
                );
                PyTypeError::new_err(message)
            })?;
            View::get(&viewed)?
        }
    };
    let refusal = if has_references(view.format()) {
        format!(
            "{} holds references to Python objects (format {:?}): pickle it first",
            describe(object),
            String::from_utf8_lossy(view.format()),
        )
    } else if view.is_contiguous() {
        return Ok(view);
    } else {
        format!(
            "{} is not C-contiguous (strides {:?} for shape {:?}): copy it first",
            describe(object),
            view.strides(),
            view.shape(),
        )
    };
    view.release(object.py());
    Err(errors::buffer_error(object.py(), refusal))
}

/// Returns whether a format of PEP 3118 has an object in it, outside the names of fields
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
        flags: c_int,
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
