//! The order in which Dask would run a graph: `dask.order.order`, number for number.
//!
//! The strategy is Dask's own (`dask/order.py`, release 2026.7.1): walk along critical paths from
//! one leaf to the next, and run on the side what releases memory. This is that algorithm over dense
//! numbers instead of keys. Where Dask's outcome depends on how a Python set lists its members, so
//! does ours, by way of a model of those sets.
//!
//! A graph is put together with [`GraphBuilder`] and ordered by [`order`]. Nothing here knows what
//! a key is, beyond its hash and its text.

mod adjacency;
mod connected;
mod error;
mod graph;
mod ids;
mod leaves;
mod path_count;
mod ranking;
mod runnables;
mod set_order;
mod topological_sort;
mod trim;
mod walk;

pub use error::OrderError;
pub use graph::{Graph, GraphBuilder, TaskKind};
pub use ids::TaskId;
pub use set_order::{difference_listing, set_listing};

use trim::Trimmed;
use walk::Walk;

/// Orders a graph: the tasks as Dask numbers them, from 0, without the external ones
///
/// # Errors
///
/// [`OrderError`]; only Dask can order such a graph.
pub fn order(graph: &Graph) -> Result<Vec<TaskId>, OrderError> {
    if graph.tasks() == 0 {
        return Ok(Vec::new());
    }
    let trimmed = Trimmed::new(graph)?;
    Walk::new(graph, &trimmed)?.run()
}

#[cfg(test)]
mod tests;
