//! `backhaul_placement` as Python calls it.

mod declared;
mod links;
mod places;
mod resources;

use pyo3::prelude::*;

/// Adds the classes of this module
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<links::Links>()?;
    module.add_class::<resources::ResourceRequest>()?;
    module.add_class::<resources::ResourcePools>()?;
    module.add_class::<places::ResourcePlaces>()
}
