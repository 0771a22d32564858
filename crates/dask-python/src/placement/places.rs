//! Which worker a task with resources fits best, and which request is next: `ResourcePlaces`.

use std::sync::Arc;

use backhaul_placement::resources::{Admission, Place, PlacesError, Signature, Waits};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::declared;
use super::resources::{key_error, value_error};
use super::shared::Shared;

/// Where a task stands among all tasks; its priority
type Stands = Option<Vec<f64>>;

#[doc = stub_doc!("ResourcePlaces")]
#[pyclass(frozen, module = "backhaul._native")]
#[derive(Default)]
pub(crate) struct ResourcePlaces {
    admission: Shared<Admission<Stands>>,
}

#[pymethods]
impl ResourcePlaces {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[doc = stub_doc!("ResourcePlaces.set_worker")]
    fn set_worker(&self, place: Place, declared: &Bound<'_, PyDict>) -> PyResult<()> {
        let declared = declared::read(declared, None)?;
        let places = &mut self.admission.lock().places;
        places.set_worker(place, &declared).map_err(value_error)
    }

    #[doc = stub_doc!("ResourcePlaces.remove_worker")]
    fn remove_worker(&self, place: Place) {
        self.admission.lock().remove_worker(place);
    }

    #[doc = stub_doc!("ResourcePlaces.request")]
    fn request(&self, amounts: Vec<(String, f64)>, threads: f64) -> PyResult<u32> {
        let amounts = amounts.into_iter();
        let amounts = amounts.map(|(name, units)| (Arc::from(name), units));
        let mut admission = self.admission.lock();
        let signature = admission.request(amounts.collect(), threads);
        Ok(signature.map_err(value_error)?.0)
    }

    #[doc = stub_doc!("ResourcePlaces.asked")]
    fn asked(&self, signature: u32) -> PyResult<(Vec<(String, f64)>, f64)> {
        let admission = self.admission.lock();
        let asked = admission.asked(Signature(signature));
        let asked = asked.ok_or_else(|| PyKeyError::new_err(signature))?;
        let amounts = asked.amounts.iter();
        let amounts = amounts.map(|(name, units)| (name.to_string(), *units));
        Ok((amounts.collect(), asked.threads))
    }

    #[doc = stub_doc!("ResourcePlaces.ranked")]
    #[pyo3(signature = (signature, count = 1))]
    fn ranked(&self, signature: u32, count: usize) -> Vec<Place> {
        let mut admission = self.admission.lock();
        admission.ranked(Signature(signature)).take(count).collect()
    }

    #[doc = stub_doc!("ResourcePlaces.load")]
    fn load(&self, signature: u32, place: Place, keeps: bool) -> Option<f64> {
        let admission = self.admission.lock();
        admission.load(Signature(signature), place, keeps)
    }

    #[doc = stub_doc!("ResourcePlaces.has_room")]
    fn has_room(&self, signature: u32, place: Place) -> bool {
        let admission = self.admission.lock();
        admission.has_room(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.refused")]
    fn refused(&self, signature: u32, stands: Stands) {
        let turns = &mut self.admission.lock().turns;
        turns.refused(&Signature(signature), stands);
    }

    #[doc = stub_doc!("ResourcePlaces.granted")]
    fn granted(&self, signature: u32, stood: Stands) -> Vec<u32> {
        let overdue = self.admission.lock().granted(Signature(signature), &stood);
        overdue.into_iter().map(|one| one.0).collect()
    }

    #[doc = stub_doc!("ResourcePlaces.keep")]
    fn keep(&self, signature: u32, place: Option<Place>) -> bool {
        self.admission.lock().keep(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.left")]
    fn left(&self, signature: u32) {
        self.admission.lock().left(Signature(signature));
    }

    #[doc = stub_doc!("ResourcePlaces.kept")]
    #[getter]
    fn kept(&self) -> (Option<u32>, Option<Place>) {
        let admission = self.admission.lock();
        (admission.turns.kept.map(|one| one.0), admission.kept_place)
    }

    #[doc = stub_doc!("ResourcePlaces.waiting")]
    fn waiting(&self) -> Vec<(u32, Stands, u64)> {
        let admission = self.admission.lock();
        let waiting = admission.turns.waiting().iter();
        waiting
            .map(|one| (one.request.0, one.stands.clone(), one.passes))
            .collect()
    }

    #[doc = stub_doc!("ResourcePlaces.waits")]
    #[pyo3(signature = (signature, stands, passes, *, is_kept))]
    fn waits(&self, signature: u32, stands: Stands, passes: u64, is_kept: bool) {
        let waits = Waits {
            request: Signature(signature),
            stands,
            passes,
        };
        self.admission.lock().turns.inherit(waits, is_kept);
    }

    #[doc = stub_doc!("ResourcePlaces.forget_waiting")]
    fn forget_waiting(&self) {
        let mut admission = self.admission.lock();
        admission.turns.clear();
        admission.kept_place = None;
    }

    #[doc = stub_doc!("ResourcePlaces.book")]
    fn book(&self, signature: u32, place: Place) -> PyResult<()> {
        self.admission
            .lock()
            .places
            .book(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.release")]
    fn release(&self, signature: u32, place: Place) -> PyResult<()> {
        self.admission
            .lock()
            .places
            .release(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.served")]
    fn served(&self) -> Vec<Place> {
        self.admission.lock().places.served()
    }

    #[doc = stub_doc!("ResourcePlaces.set_served")]
    fn set_served(&self, served: Vec<Place>) {
        self.admission.lock().places.set_served(&served);
    }

    #[doc = stub_doc!("ResourcePlaces.booked")]
    fn booked(&self, signature: u32, place: Place) -> u64 {
        self.admission
            .lock()
            .places
            .booked(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.unmeetable")]
    fn unmeetable(&self, signature: u32) -> PyResult<Option<String>> {
        self.admission
            .lock()
            .places
            .unmeetable(Signature(signature))
            .map_err(key)
    }
}

fn key(error: PlacesError) -> PyErr {
    key_error(error)
}
