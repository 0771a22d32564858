//! `backhaul_placement` as Python calls it.

mod links;

use pyo3::prelude::*;

/// Adds the classes of this module
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<links::Links>()
}
