//! Strings that come again and again: the keys of a message's maps, and short values.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// The strings made last, found by their bytes
///
/// Each string has one place, given by a hash; a newer one takes it over.
pub(super) struct KeyCache {
    places: Vec<Option<Place>>,
}

struct Place {
    len: u8,
    is_interned: bool,
    bytes: [u8; KEY_BYTES_MAX],
    string: Py<PyString>,
}

impl KeyCache {
    pub(super) fn new() -> Self {
        let mut places = Vec::new();
        places.resize_with(PLACES, || None);
        Self { places }
    }

    /// The interned string of these bytes: a key, by which others will be looked up
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError`, if they are not UTF-8.
    pub(super) fn key<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        match u8::try_from(text.len()) {
            Ok(len) if text.len() <= KEY_BYTES_MAX => self.string(py, text, len, true),
            _ => interned(py, text),
        }
    }

    /// A string of these bytes, which may be one that was made before
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError`, if they are not UTF-8.
    pub(super) fn value<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        match u8::try_from(text.len()) {
            Ok(len) if text.len() <= VALUE_BYTES_MAX => self.string(py, text, len, false),
            _ => PyString::from_bytes(py, text),
        }
    }

    fn string<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        len: u8,
        must_be_interned: bool,
    ) -> PyResult<Bound<'py, PyString>> {
        let place = &mut self.places[place_of(text)];
        if let Some(found) = place
            && found.len == len
            && found.bytes[..text.len()] == *text
            && (found.is_interned || !must_be_interned)
        {
            return Ok(found.string.bind(py).clone());
        }
        let string = if must_be_interned {
            interned(py, text)?
        } else {
            PyString::from_bytes(py, text)?
        };
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        *place = Some(Place {
            len,
            is_interned: must_be_interned,
            bytes,
            string: string.clone().unbind(),
        });
        Ok(string)
    }
}

fn interned<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(text) {
        Ok(text) => Ok(PyString::intern(py, text)),
        Err(_) => PyString::from_bytes(py, text),
    }
}

/// A hash of the length and of both ends, which may overlap, folded to the number of places
fn place_of(text: &[u8]) -> usize {
    let [first, last] = match (text.first_chunk(), text.last_chunk()) {
        (Some(first), Some(last)) => [u64::from_le_bytes(*first), u64::from_le_bytes(*last)],
        _ => {
            let mut bytes = [0; 8];
            bytes[..text.len()].copy_from_slice(text);
            [u64::from_le_bytes(bytes), 0]
        }
    };
    // Any odd factor that mixes all bits will do; this is 2**64 divided by the golden ratio
    // (Knuth, The Art of Computer Programming, 6.4).
    let mixed =
        (first ^ last.rotate_left(23) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as usize % PLACES
}

/// Longer keys, such as those of tasks, seldom come again
const KEY_BYTES_MAX: usize = 30;

/// Names of operations, states and types come again; longer values are mostly new
const VALUE_BYTES_MAX: usize = 14;

/// A few times the keys of all messages of Dask; a power of two
const PLACES: usize = 512;
