//! The bytes of Python's buffers, which no thread changes while they are read.

use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// Works on the bytes of a buffer, in the order in which Python would iterate over them: the
/// object's own if they cannot change, otherwise a copy
///
/// # Errors
///
/// That of the work; `BufferError` for items of more than one byte, as they would mean something
/// else elsewhere; `TypeError` for what is no buffer.
pub(super) fn with_bytes<T>(
    data: &Bound<'_, PyAny>,
    work: impl FnOnce(&[u8]) -> PyResult<T>,
) -> PyResult<T> {
    if let Ok(bytes) = data.cast_exact::<PyBytes>() {
        return work(bytes.as_bytes());
    }
    let viewed;
    let view = match data.cast_exact::<PyMemoryView>() {
        Ok(view) => view,
        Err(_) => {
            viewed = PyMemoryView::from(data)?;
            &viewed
        }
    };
    let item_bytes: usize = view.getattr(intern!(data.py(), "itemsize"))?.extract()?;
    if item_bytes != 1 {
        return Err(PyBufferError::new_err(
            "cannot unpack from multi-byte object",
        ));
    }
    work(copied(view)?.as_bytes())
}

/// A copy of the bytes of a memoryview, which must be in one piece
///
/// # Errors
///
/// `BufferError` if it is not.
pub(super) fn of_memoryview<'py>(view: &Bound<'py, PyMemoryView>) -> PyResult<Bound<'py, PyBytes>> {
    let in_one_piece = view.getattr(intern!(view.py(), "c_contiguous"))?;
    if !in_one_piece.is_truthy()? {
        return Err(PyBufferError::new_err(
            "memoryview: underlying buffer is not C-contiguous",
        ));
    }
    copied(view)
}

fn copied<'py>(view: &Bound<'py, PyMemoryView>) -> PyResult<Bound<'py, PyBytes>> {
    let copy = view.call_method0(intern!(view.py(), "tobytes"))?;
    Ok(copy.cast_into()?)
}
