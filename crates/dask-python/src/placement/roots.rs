//! `backhaul_placement::roots` as Python calls it: two lists of numbers in, one out.

use std::sync::PoisonError;

use backhaul_placement::roots::{self, Graph, Kinds, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::cost::Placement;

#[doc = stub_doc!("plan_roots")]
#[pyfunction]
#[pyo3(signature = (placement, places, needs, kinds, table, targets, /))]
pub(crate) fn plan_roots(
    py: Python<'_>,
    placement: &Placement,
    places: Vec<i64>,
    needs: Vec<u32>,
    kinds: Vec<u32>,
    table: Vec<(f64, f64)>,
    targets: Vec<(u32, f64, f64)>,
) -> PyResult<Option<Vec<i64>>> {
    let graph =
        Graph::read(&places, &needs).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let shared = placement.shared();
    let costs = placement.costs();
    for &(worker, share, memory_bytes) in &targets {
        if !costs.has_worker(worker) {
            return Err(PyValueError::new_err(format!("no worker {worker}")));
        }
        if !(share >= 0.0 && share.is_finite()) {
            return Err(PyValueError::new_err(format!(
                "worker {worker} has a share of {share}"
            )));
        }
        if memory_bytes.is_nan() || memory_bytes < 0.0 {
            return Err(PyValueError::new_err(format!(
                "worker {worker} has {memory_bytes} bytes of memory left"
            )));
        }
    }
    let targets: Vec<Target> = targets
        .into_iter()
        .map(|(worker, share, memory_bytes)| Target {
            worker,
            share,
            roots_max: f64::INFINITY,
            memory_bytes,
        })
        .collect();
    let kinds = Kinds {
        of: &kinds,
        table: &table,
    };
    drop(costs);
    Ok(py.detach(|| {
        let costs = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = roots::choose(&graph, kinds, &targets, costs.links())?;
        let numbers = planned.into_iter();
        Some(numbers.map(|worker| worker.map_or(-1, i64::from)).collect())
    }))
}
