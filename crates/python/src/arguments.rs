//! Arguments from Python, whose errors name the argument, what is allowed, and what was given.
//!
//! What PyO3 would say of them speaks of Rust's types.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::{self, config_error};

/// A count or size
pub(crate) fn count<T>(name: &str, value: &Bound<'_, PyAny>) -> PyResult<T>
where
    T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
{
    value.extract().map_err(|error: PyErr| {
        let py = value.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            let bits = 8 * size_of::<T>();
            let text = format!("{name} must be between 0 and 2**{bits} - 1, got {value}");
            config_error(py, text)
        } else if error.is_instance_of::<PyTypeError>(py) {
            type_error(name, "an integer", value)
        } else {
            error
        }
    })
}

/// Takes over a count or size, if one is given
pub(crate) fn set<T>(setting: &mut T, name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<()>
where
    T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
{
    if let Some(value) = value {
        *setting = count(name, &value)?;
    }
    Ok(())
}

/// A number of seconds, or of another unit
pub(crate) fn number(name: &str, unit: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyTypeError>(value.py()) {
            type_error(name, &format!("a number of {unit}"), value)
        } else {
            error
        }
    })
}

/// A duration given as a number of units, each of so many seconds
pub(crate) fn duration(
    name: &str,
    value: Option<Bound<'_, PyAny>>,
    (unit, unit_s): (&str, f64),
) -> PyResult<Option<Duration>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let units = number(name, unit, &value)?;
    Duration::try_from_secs_f64(units * unit_s)
        .map(Some)
        .map_err(|_| {
            let text = format!("{name} must be a number of {unit}, 0 or more, got {value}");
            config_error(value.py(), text)
        })
}

/// The items of a list; a text is none, though it can be iterated over
pub(crate) fn items<'py>(
    name: &str,
    of_what: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        let got = value.repr()?;
        return Err(PyTypeError::new_err(format!(
            "{name} must be a list of {of_what}, got {got}: write {name}=[{got}]"
        )));
    }
    let iterator = value
        .try_iter()
        .map_err(|_| type_error(name, &format!("a list of {of_what}"), value))?;
    iterator.collect()
}

/// Lanes or carriers by their names
pub(crate) fn names<K: FromStr<Err: Display>>(
    name: &str,
    value: Option<Bound<'_, PyAny>>,
) -> PyResult<Option<Vec<K>>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let parse = |item: Bound<'_, PyAny>| {
        let Ok(text) = item.cast::<PyString>() else {
            return Err(type_error(name, "a list of names", &value));
        };
        text.to_cow()?
            .parse::<K>()
            .map_err(|error| errors::config_error(value.py(), error.to_string()))
    };
    let items = items(name, "names", &value)?;
    items
        .into_iter()
        .map(parse)
        .collect::<PyResult<_>>()
        .map(Some)
}

/// An argument of another type
fn type_error(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let got = value
        .repr()
        .map_or_else(|_| "an object".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!("{name} must be {wanted}, got {got}"))
}
