//! Strings that come again and again: the keys of a message's maps, and short values.

use backhaul_dask::codec::ShortTexts;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The strings made last, found by their bytes
#[derive(Default)]
pub(super) struct KeyCache {
    texts: ShortTexts<Py<PyString>>,
}

impl KeyCache {
    /// The interned string of these bytes: a key, by which others will be looked up
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError`, if they are not UTF-8.
    #[inline]
    pub(super) fn key<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        if let Some(known) = self.texts.get(text, true) {
            return Ok(known.bind(py).clone());
        }
        let string = match std::str::from_utf8(text) {
            Ok(text) => PyString::intern(py, text),
            Err(_) => PyString::from_bytes(py, text)?,
        };
        self.texts.put(text, true, string.clone().unbind());
        Ok(string)
    }

    /// A string of these bytes, which may be one that was made before
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError`, if they are not UTF-8.
    #[inline]
    pub(super) fn value<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        if text.len() > VALUE_BYTES_MAX {
            return PyString::from_bytes(py, text);
        }
        if let Some(known) = self.texts.get(text, false) {
            return Ok(known.bind(py).clone());
        }
        let string = PyString::from_bytes(py, text)?;
        self.texts.put(text, false, string.clone().unbind());
        Ok(string)
    }
}

/// Names of operations, states and types come again; longer values are mostly new
const VALUE_BYTES_MAX: usize = 14;
