//! `backhaul_placement` as Python calls it.

mod cost;
pub(crate) mod declared;
mod links;
mod network;
mod places;
mod resources;
mod roots;
mod shared;
mod stack;

pub(crate) use cost::Placement;
use pyo3::prelude::*;

/// Adds the classes of this module
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<links::Links>()?;
    module.add_class::<resources::ResourceRequest>()?;
    module.add_class::<resources::ResourcePools>()?;
    module.add_class::<places::ResourcePlaces>()?;
    module.add_class::<cost::Placement>()?;
    module.add_class::<network::FairNetwork>()?;
    module.add_function(wrap_pyfunction!(roots::plan_roots, module)?)
}
