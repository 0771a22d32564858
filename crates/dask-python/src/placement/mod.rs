//! `backhaul_placement` as Python calls it.

use pyo3::prelude::*;

/// Adds the classes of this module
pub(crate) fn add_to(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
