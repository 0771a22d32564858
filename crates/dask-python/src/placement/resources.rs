//! Requests of tasks, and units that one worker lends: `ResourceRequest` and `ResourcePools`.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use backhaul_placement::resources::{Kind, LeaseId, PASSES_MAX, Pools, RanOn, Request, UnitId};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::declared;
use super::shared::Shared;

#[doc = stub_doc!("ResourceRequest")]
#[pyclass(frozen, eq, hash, module = "backhaul._native")]
#[derive(Eq, PartialEq)]
pub(crate) struct ResourceRequest {
    pub(super) request: Request,
    hash: u64,
}

impl Hash for ResourceRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl ResourceRequest {
    fn kind(&self, threads: f64) -> Kind {
        Kind {
            request: self.request.clone(),
            threads,
        }
    }
}

#[pymethods]
impl ResourceRequest {
    #[new]
    #[pyo3(signature = (needs, affinity = Vec::new()))]
    fn new(needs: HashMap<String, f64>, affinity: Vec<String>) -> PyResult<Self> {
        let amounts = needs.iter().map(|(name, units)| (name.as_str(), *units));
        let request = Request::new(amounts, affinity.iter().map(String::as_str))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut hasher = DefaultHasher::new();
        request.hash(&mut hasher);
        Ok(Self {
            request,
            hash: hasher.finish(),
        })
    }

    #[doc = stub_doc!("ResourceRequest.needs")]
    #[getter]
    fn needs(&self) -> BTreeMap<&str, f64> {
        let needs = self.request.needs().iter();
        needs
            .map(|(name, amount)| (name.as_str(), amount.as_f64()))
            .collect()
    }

    #[doc = stub_doc!("ResourceRequest.affinity")]
    #[getter]
    fn affinity(&self) -> Vec<&str> {
        let needs = self.request.needs().iter();
        needs
            .map(|(name, _)| name.as_str())
            .filter(|name| self.request.prefers(name))
            .collect()
    }

    fn __getnewargs__(&self) -> (BTreeMap<&str, f64>, Vec<&str>) {
        (self.needs(), self.affinity())
    }

    fn __repr__(&self) -> String {
        format!(
            "ResourceRequest({:?}, affinity={:?})",
            self.needs(),
            self.affinity()
        )
    }
}

#[doc = stub_doc!("ResourcePools")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct ResourcePools {
    pools: Shared<Pools>,
}

#[pymethods]
impl ResourcePools {
    #[new]
    #[pyo3(signature = (declared, *, coupled = None, passes_max = PASSES_MAX))]
    fn new(
        declared: &Bound<'_, PyDict>,
        coupled: Option<&Bound<'_, PyDict>>,
        passes_max: u64,
    ) -> PyResult<Self> {
        let mut pools = Pools::new(&declared::read(declared, coupled)?).map_err(value_error)?;
        pools.set_passes_max(passes_max);
        Ok(Self {
            pools: Shared::new(pools),
        })
    }

    #[doc = stub_doc!("ResourcePools.declare")]
    #[pyo3(signature = (declared, *, coupled = None))]
    fn declare(
        &self,
        declared: &Bound<'_, PyDict>,
        coupled: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let declared = declared::read(declared, coupled)?;
        self.pools.lock().declare(&declared).map_err(value_error)
    }

    #[doc = stub_doc!("ResourcePools.unmeetable")]
    fn unmeetable(&self, request: &ResourceRequest) -> Option<String> {
        let refused = self.pools.lock().meetable(&request.request).err()?;
        Some(refused.to_string())
    }

    #[doc = stub_doc!("ResourcePools.take")]
    #[pyo3(signature = (request, inputs = None))]
    fn take(
        &self,
        request: &ResourceRequest,
        inputs: Option<BTreeMap<String, Vec<RanOn>>>,
    ) -> PyResult<Option<u64>> {
        let inputs = inputs.unwrap_or_default();
        let lease = self
            .pools
            .lock()
            .take(&request.request, &inputs)
            .map_err(value_error)?;
        Ok(lease.map(|lease| lease.0))
    }

    #[doc = stub_doc!("ResourcePools.is_free")]
    fn is_free(&self, request: &ResourceRequest) -> PyResult<bool> {
        let pools = self.pools.lock();
        pools.is_free(&request.request).map_err(value_error)
    }

    #[doc = stub_doc!("ResourcePools.refused")]
    #[pyo3(signature = (request, stands, *, threads = 1.0))]
    fn refused(&self, request: &ResourceRequest, stands: Vec<f64>, threads: f64) {
        self.pools.lock().refused(&request.kind(threads), stands);
    }

    #[doc = stub_doc!("ResourcePools.granted")]
    #[pyo3(signature = (request, stood, *, threads = 1.0))]
    fn granted(&self, request: &ResourceRequest, stood: Vec<f64>, threads: f64) {
        self.pools.lock().granted(&request.kind(threads), &stood);
    }

    #[doc = stub_doc!("ResourcePools.left")]
    #[pyo3(signature = (request, *, threads = 1.0))]
    fn left(&self, request: &ResourceRequest, threads: f64) -> bool {
        self.pools.lock().left(&request.kind(threads))
    }

    #[doc = stub_doc!("ResourcePools.is_kept")]
    #[pyo3(signature = (request, *, threads = 1.0))]
    fn is_kept(&self, request: &ResourceRequest, threads: f64) -> bool {
        self.pools.lock().is_kept(&request.kind(threads))
    }

    #[doc = stub_doc!("ResourcePools.passes_max")]
    #[getter]
    fn passes_max(&self) -> u64 {
        self.pools.lock().passes_max()
    }

    #[doc = stub_doc!("ResourcePools.keeps")]
    #[getter]
    fn keeps(&self) -> bool {
        self.pools.lock().kept_for().is_some()
    }

    #[doc = stub_doc!("ResourcePools.give_back")]
    fn give_back(&self, lease: u64) -> PyResult<()> {
        let mut pools = self.pools.lock();
        pools.give_back(LeaseId(lease)).map_err(key_error)?;
        Ok(())
    }

    #[doc = stub_doc!("ResourcePools.held")]
    fn held<'py>(&self, py: Python<'py>, lease: u64) -> PyResult<Bound<'py, PyDict>> {
        let held = {
            let pools = self.pools.lock();
            pools.held(LeaseId(lease)).map_err(key_error)?.clone()
        };
        let shown = PyDict::new(py);
        for (name, units) in &held.units {
            shown.set_item(name, PyTuple::new(py, units.iter().map(|(id, _)| *id))?)?;
        }
        for (name, amount) in &held.amounts {
            shown.set_item(name, amount.as_f64())?;
        }
        Ok(shown)
    }

    #[doc = stub_doc!("ResourcePools.amounts")]
    fn amounts(&self) -> BTreeMap<String, (f64, f64)> {
        let pools = self.pools.lock();
        let amounts = pools.amounts();
        amounts
            .map(|(name, total, free)| (name.to_owned(), (total.as_f64(), free.as_f64())))
            .collect()
    }

    #[doc = stub_doc!("ResourcePools.units")]
    fn units(&self, resource: &str) -> Option<BTreeMap<UnitId, f64>> {
        let units = self.pools.lock().units(resource)?;
        Some(
            units
                .into_iter()
                .map(|(id, free)| (id, free.as_f64()))
                .collect(),
        )
    }

    #[doc = stub_doc!("ResourcePools.leases")]
    #[getter]
    fn leases(&self) -> usize {
        self.pools.lock().leases()
    }
}

pub(super) fn value_error(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(super) fn key_error(error: impl std::error::Error) -> PyErr {
    PyKeyError::new_err(error.to_string())
}
