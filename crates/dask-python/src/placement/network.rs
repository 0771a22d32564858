//! `backhaul_placement::network` as Python calls it.

use backhaul_placement::network::{self, NetworkError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::shared::Shared;

#[doc = stub_doc!("FairNetwork")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct FairNetwork(Shared<network::FairNetwork>);

#[pymethods]
impl FairNetwork {
    #[new]
    fn new(capacities_bytes_per_s: Vec<f64>) -> PyResult<Self> {
        network::FairNetwork::new(capacities_bytes_per_s)
            .map(|network| Self(Shared::new(network)))
            .map_err(refusal)
    }

    #[doc = stub_doc!("FairNetwork.start")]
    #[pyo3(signature = (now_s, path, nbytes, /))]
    fn start(&self, now_s: f64, path: Vec<u32>, nbytes: f64) -> PyResult<u32> {
        self.0.lock().start(now_s, &path, nbytes).map_err(refusal)
    }

    #[doc = stub_doc!("FairNetwork.next_end")]
    fn next_end(&self) -> Option<f64> {
        self.0.lock().next_end()
    }

    #[doc = stub_doc!("FairNetwork.finish")]
    #[pyo3(signature = (now_s, /))]
    fn finish(&self, now_s: f64) -> PyResult<Vec<u32>> {
        self.0.lock().finish(now_s).map_err(refusal)
    }
}

fn refusal(error: NetworkError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
