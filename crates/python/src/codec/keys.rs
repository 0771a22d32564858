//! Strings that come again and again: the keys of a message's maps.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// The strings made last, found by their bytes
///
/// Each string has one place, given by a hash; a newer one takes it over.
pub(crate) struct KeyCache {
    places: Vec<Option<Place>>,
}

struct Place {
    len: u8,
    bytes: [u8; KEY_BYTES_MAX],
    string: Py<PyString>,
}

impl KeyCache {
    pub(crate) fn new() -> Self {
        let mut places = Vec::new();
        places.resize_with(PLACES, || None);
        Self { places }
    }

    /// The interned string of these bytes
    ///
    /// # Errors
    ///
    /// `UnicodeDecodeError`, if they are not UTF-8.
    pub(crate) fn string<'py>(
        &mut self,
        py: Python<'py>,
        text: &[u8],
    ) -> PyResult<Bound<'py, PyString>> {
        let Some(len) = u8::try_from(text.len())
            .ok()
            .filter(|&len| usize::from(len) <= KEY_BYTES_MAX)
        else {
            return interned(py, text);
        };
        let place = &mut self.places[place_of(text)];
        if let Some(found) = place
            && found.len == len
            && found.bytes[..text.len()] == *text
        {
            return Ok(found.string.bind(py).clone());
        }
        let string = interned(py, text)?;
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        *place = Some(Place {
            len,
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

/// FNV-1a (Fowler, Noll, Vo), folded to the number of places
fn place_of(text: &[u8]) -> usize {
    let hash = text.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ hash >> 15) as usize % PLACES
}

/// Longer keys, such as those of tasks, seldom come again
const KEY_BYTES_MAX: usize = 30;

/// A few times the keys of all messages of Dask; a power of two
const PLACES: usize = 512;
