//! Keys as `str` writes them, by which Dask decides between tasks that are otherwise alike.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString, PyTuple};

/// Writes keys as text
#[derive(Default)]
pub(super) struct Labeller {
    text: String,
}

impl Labeller {
    /// The text of a key
    pub(super) fn label<'l>(&'l mut self, key: &'l Bound<'_, PyAny>) -> PyResult<&'l str> {
        if let Ok(text) = key.cast_exact::<PyString>() {
            return text.to_str();
        }
        self.text.clear();
        let written = match key.cast_exact::<PyTuple>() {
            Ok(tuple) => self.write_tuple(tuple),
            Err(_) => false,
        };
        if !written {
            self.text.clear();
            self.text.push_str(key.str()?.to_str()?);
        }
        Ok(&self.text)
    }

    /// Writes a tuple of plain text and numbers, which keys mostly are; returns false for others
    fn write_tuple(&mut self, tuple: &Bound<'_, PyTuple>) -> bool {
        let mut before = '(';
        for item in tuple {
            self.text.push(before);
            if before == ',' {
                self.text.push(' ');
            }
            before = ',';
            if let Ok(text) = item.cast_exact::<PyString>() {
                match text.to_str() {
                    Ok(text) if text.bytes().all(is_plain) => {
                        self.text.push('\'');
                        self.text.push_str(text);
                        self.text.push('\'');
                    }
                    _ => return false,
                }
            } else if let Ok(number) = item.cast_exact::<PyInt>() {
                match number.extract::<i64>() {
                    Ok(number) => write!(self.text, "{number}").expect("a string takes all"),
                    Err(_) => return false,
                }
            } else {
                return false;
            }
        }
        if tuple.len() == 1 {
            self.text.push(',');
        }
        self.text.push(')');
        !tuple.is_empty()
    }
}

/// Returns whether `repr` writes a character as it is, between single quotes
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\'' && byte != b'\\'
}
