//! Where the tasks without inputs go: a streaming partition of the graph.
//!
//! - [`graph`](mod@graph): the graph as numbers, and which results meet where
//! - [`groups`]: which workers have the same links
//! - [`plan`](mod@plan): who is to run which root
//! - [`estimate`](mod@estimate): how long that takes
//! - [`choice`]: which of several plans is taken, or none

pub mod choice;
pub mod estimate;
pub mod graph;
pub mod groups;
mod loads;
pub mod plan;

pub use choice::choose;
pub use estimate::{Estimate, Kinds, estimate};
pub use graph::{Graph, GraphError, Place};
pub use groups::Groups;
pub use plan::{Target, plan};
