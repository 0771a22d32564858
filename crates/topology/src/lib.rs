//! The parts of this machine, and a launch plan for it
//!
//! Readers ([`model`] says what they fill in) look at files, a driver or a text; everything after
//! them is pure: a [`Machine`] that was recorded on one host can be planned for on another.

pub mod check;
pub mod cpuset;
pub mod distance;
pub mod locality;
pub mod model;
pub mod plan;
pub mod read;
pub mod render;
pub mod route;

pub use cpuset::CpuSet;
pub use model::Machine;
pub use plan::{Options, Plan, PlanError};
