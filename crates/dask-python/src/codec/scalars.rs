//! Numbers and short text that are to be serialized: results of small tasks, above all.
//!
//! Dask pickles each of them by way of its families, its compression and the meters around them,
//! and writes the same header for all. Here only the pickle is made. Python supplies the header,
//! and decides whether Dask would write that header now.

use std::time::{Duration, Instant};

use backhaul_dask::codec::scalar::PICKLED_BYTES_MAX;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

/// Time spent on scalars, which Dask measures one by one
#[derive(Default)]
pub(super) struct Stopwatch {
    spent: Duration,
    scalars: usize,
}

impl Stopwatch {
    /// Does the work for one scalar
    pub(super) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.spent += start.elapsed();
        self.scalars += 1;
        done
    }

    /// Calls `report(seconds)`, if there were any
    pub(super) fn report(&self, report: &Py<PyAny>, py: Python<'_>) -> PyResult<()> {
        if self.scalars > 0 {
            report.bind(py).call1((self.spent.as_secs_f64(),))?;
        }
        Ok(())
    }
}

/// How a scalar is read
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reading {
    /// It is unpickled
    Load,
    /// It stays serialized
    Keep,
    /// Python decides
    Ask,
}

impl Reading {
    /// From the options of a message: whether to deserialize, and by which families
    pub(super) fn from_options(options: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !options.get_item(0)?.is_truthy()? {
            return Ok(Self::Keep);
        }
        Ok(if options.get_item(1)?.is_none() {
            Self::Load
        } else {
            Self::Ask
        })
    }
}

/// An object that stays serialized, as it was read
pub(super) fn kept<'py>(
    serialized: &Bound<'py, PyAny>,
    header: &Bound<'py, PyDict>,
    pickled: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // A caller that passes it on writes into its header.
    serialized.call1((header.copy()?, [pickled]))
}

/// Returns whether an object is a number, short text or nothing; Dask serializes bytes differently
pub(super) fn is_scalar(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(text) = object.cast_exact::<PyString>() {
        return Ok(text.len()? <= PICKLED_BYTES_MAX);
    }
    Ok(object.is_none()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyBool>())
}
