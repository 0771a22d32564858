//! Collections that other threads may change while they are walked over.
//!
//! With the GIL no thread does, as long as no Python is called; where it is, the walk looks once
//! more. Without it any thread may at any time, and PyO3's iterators panic then, so a copy is
//! walked over: the interpreter makes it under the collection's own lock.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet};

/// A dict as it is now
pub(super) fn dict<'py>(dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    if cfg!(Py_GIL_DISABLED) {
        dict.copy()
    } else {
        Ok(dict.clone())
    }
}

/// The items that a set has now
pub(super) fn items<'py>(set: &Bound<'py, PySet>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if cfg!(Py_GIL_DISABLED) {
        let list = set.py().get_type::<PyList>().call1((set,))?;
        Ok(list.cast_into::<PyList>()?.iter().collect())
    } else {
        Ok(set.iter().collect())
    }
}
