//! Where the tasks without inputs go: a streaming partition of the graph.
//!
//! - [`graph`](mod@graph): the graph as numbers, and which results meet where
//! - [`plan`](mod@plan): who is to run which root

pub mod graph;
pub mod plan;

pub use graph::{Graph, GraphError, Place};
pub use plan::{Target, plan};
