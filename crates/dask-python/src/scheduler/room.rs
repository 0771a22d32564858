//! Tasks that ask for resources, and who has room for them.

use std::sync::Arc;

use backhaul_dask::scheduler::RoomView;
use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Core, text_of, texts_of};
use crate::placement::declared;

#[doc = stub_doc!("RoomState")]
#[pyclass(frozen, eq, module = "backhaul._native")]
#[derive(PartialEq)]
pub(crate) struct RoomState(pub(crate) RoomView);

#[doc = stub_doc!("PassedRequest")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct PassedRequest {
    #[doc = stub_doc!("PassedRequest.amounts")]
    amounts: Vec<(String, f64)>,
    #[doc = stub_doc!("PassedRequest.threads")]
    threads: f64,
    #[doc = stub_doc!("PassedRequest.stands")]
    stands: [f64; 3],
    #[doc = stub_doc!("PassedRequest.passes")]
    passes: u64,
}

#[doc = stub_doc!("UnmetRequest")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct UnmetRequest {
    #[doc = stub_doc!("UnmetRequest.key")]
    key: String,
    #[doc = stub_doc!("UnmetRequest.amounts")]
    amounts: Vec<(String, f64)>,
    #[doc = stub_doc!("UnmetRequest.threads")]
    threads: f64,
    #[doc = stub_doc!("UnmetRequest.reason")]
    reason: String,
}

#[pymethods]
impl RoomState {
    #[doc = stub_doc!("RoomState.booked")]
    #[getter]
    fn booked(&self) -> Vec<String> {
        texts_of(&self.0.booked)
    }

    #[doc = stub_doc!("RoomState.waiting")]
    #[getter]
    fn waiting(&self) -> Vec<String> {
        texts_of(&self.0.waiting)
    }

    #[doc = stub_doc!("RoomState.passed")]
    #[getter]
    fn passed(&self) -> Vec<PassedRequest> {
        let passed = self.0.passed.iter();
        let passed = passed.map(|one| PassedRequest {
            amounts: owned(&one.amounts),
            threads: one.threads,
            stands: one.stands.0,
            passes: one.passes,
        });
        passed.collect()
    }

    #[doc = stub_doc!("RoomState.kept")]
    #[getter]
    fn kept(&self) -> Option<usize> {
        self.0.kept
    }

    #[doc = stub_doc!("RoomState.kept_worker")]
    #[getter]
    fn kept_worker(&self) -> Option<&str> {
        self.0.kept_worker.as_deref()
    }

    #[doc = stub_doc!("RoomState.served")]
    #[getter]
    fn served(&self) -> Vec<&str> {
        self.0.served.iter().map(|address| &**address).collect()
    }

    #[doc = stub_doc!("RoomState.drains")]
    #[getter]
    fn drains(&self) -> bool {
        self.0.drains
    }

    fn __repr__(&self) -> String {
        format!(
            "RoomState(booked={:?}, waiting={:?}, passed={:?}, kept={:?}, kept_worker={:?}, \
             served={:?}, drains={})",
            self.booked(),
            self.waiting(),
            self.0.passed,
            self.0.kept,
            self.0.kept_worker,
            self.0.served,
            self.0.drains,
        )
    }
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.declare_worker")]
    fn declare_worker(&self, address: &str, declared: &Bound<'_, PyDict>) -> PyResult<()> {
        let declared = declared::read(declared, None)?;
        self.core().declare(&Arc::from(address), declared);
        Ok(())
    }

    #[doc = stub_doc!("SchedulerCore.take_unmet")]
    fn take_unmet(&self) -> Vec<UnmetRequest> {
        let taken = self.core().take_unmet().into_iter();
        let taken = taken.map(|one| UnmetRequest {
            key: text_of(&one.key),
            amounts: owned(&one.amounts),
            threads: one.threads,
            reason: one.reason,
        });
        taken.collect()
    }

    #[doc = stub_doc!("SchedulerCore.room")]
    fn room(&self) -> Option<RoomState> {
        self.core().room_view().map(RoomState)
    }

    #[doc = stub_doc!("SchedulerCore.inherit_room")]
    fn inherit_room(&self, state: &RoomState) -> PyResult<()> {
        let inherited = self.core().inherit_room(&state.0);
        inherited.map_err(|error| PyLookupError::new_err(error.to_string()))
    }
}

fn owned(amounts: &[(Arc<str>, f64)]) -> Vec<(String, f64)> {
    let amounts = amounts.iter();
    amounts
        .map(|(name, units)| (name.to_string(), *units))
        .collect()
}
