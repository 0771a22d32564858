//! Rust parts of the Dask backend for Python: conversions, and calls of `backhaul_dask` and
//! `backhaul_placement`.
//!
//! A library of `crates/python`, which builds the one module `backhaul._native` and lets [`add_to`]
//! add its classes and functions there. Knows nothing of the fabric, and of Dask only the classes
//! and callables that it is given.

#![forbid(unsafe_code)]

// Before the modules that use it
include!(concat!(env!("OUT_DIR"), "/stub_docs.rs"));

mod codec;
mod order;
mod placement;
mod scheduler;
mod worker;

use pyo3::prelude::*;

pub use scheduler::{
    Core as SchedulerCore, SharedCore, WindowPolicy, gone_groups, message_of, refusal,
};

/// Adds the classes and functions of this crate to a module
///
/// # Errors
///
/// Whatever Python raises when it adds them.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<codec::Codec>()?;
    placement::add_to(module)?;
    module.add_class::<scheduler::Core>()?;
    module.add_class::<scheduler::PassedRequest>()?;
    module.add_class::<scheduler::ReplicatedTask>()?;
    module.add_class::<scheduler::RoomState>()?;
    module.add_class::<scheduler::RunRecord>()?;
    module.add_class::<scheduler::StealOutcome>()?;
    module.add_class::<scheduler::StealRequest>()?;
    module.add_class::<scheduler::TaskCalls>()?;
    module.add_class::<scheduler::TaskGraph>()?;
    module.add_class::<scheduler::UnmetRequest>()?;
    module.add_class::<scheduler::WindowPolicy>()?;
    module.add_class::<scheduler::WorkerLoad>()?;
    module.add_class::<worker::Core>()?;
    module.add_function(wrap_pyfunction!(order::order, module)?)?;
    module.add_function(wrap_pyfunction!(order::set_listing, module)?)?;
    module.add_function(wrap_pyfunction!(order::difference_listing, module)?)
}
