//! `backhaul_placement::roots` as Python calls it: two lists of numbers in, one out.

use backhaul_placement::roots::{self, Graph, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::cost::Placement;

/// Plans which worker runs which root of a graph
#[pyfunction]
#[pyo3(signature = (placement, places, needs, targets, /))]
pub(crate) fn plan_roots(
    py: Python<'_>,
    placement: &Placement,
    places: Vec<i64>,
    needs: Vec<u32>,
    targets: Vec<(u32, f64)>,
) -> PyResult<Vec<i64>> {
    let graph =
        Graph::read(&places, &needs).map_err(|error| PyValueError::new_err(error.to_string()))?;
    for &(worker, share) in &targets {
        if !placement.has_worker(worker) {
            return Err(PyValueError::new_err(format!("no worker {worker}")));
        }
        if !(share >= 0.0 && share.is_finite()) {
            return Err(PyValueError::new_err(format!(
                "worker {worker} has a share of {share}"
            )));
        }
    }
    let targets: Vec<Target> = targets
        .into_iter()
        .map(|(worker, share)| Target { worker, share })
        .collect();
    Ok(py.detach(|| {
        let cost = |a: u32, b: u32| {
            placement
                .seconds_per_byte(a, b)
                .max(placement.seconds_per_byte(b, a))
        };
        let mut worst = 0.0f64;
        for a in &targets {
            for b in &targets {
                worst = worst.max(cost(a.worker, b.worker));
            }
        }
        let near = |a: u32, b: u32| {
            if worst > 0.0 {
                1.0 - cost(a, b) / worst
            } else {
                1.0
            }
        };
        roots::plan(&graph, &targets, near)
            .into_iter()
            .map(|worker| worker.map_or(-1, i64::from))
            .collect()
    }))
}
