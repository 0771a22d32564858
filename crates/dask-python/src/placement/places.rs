//! Which worker a task with resources fits best: `ResourcePlaces`.

use backhaul_placement::resources::{Place, Places, PlacesError, Signature};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::declared;
use super::resources::{ResourceRequest, key_error, value_error};
use super::shared::Shared;

#[doc = stub_doc!("ResourcePlaces")]
#[pyclass(frozen, module = "backhaul._native")]
#[derive(Default)]
pub(crate) struct ResourcePlaces {
    places: Shared<Places>,
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
        let mut places = self.places.lock();
        places.set_worker(place, &declared).map_err(value_error)
    }

    #[doc = stub_doc!("ResourcePlaces.remove_worker")]
    fn remove_worker(&self, place: Place) {
        self.places.lock().remove_worker(place);
    }

    #[doc = stub_doc!("ResourcePlaces.signature")]
    fn signature(&self, request: &ResourceRequest) -> u32 {
        self.places.lock().signature(&request.request).0
    }

    #[doc = stub_doc!("ResourcePlaces.ranked")]
    #[pyo3(signature = (signature, count = 1))]
    fn ranked(&self, signature: u32, count: usize) -> PyResult<Vec<Place>> {
        let mut places = self.places.lock();
        let ranked = places.ranked(Signature(signature)).map_err(key)?;
        Ok(ranked.take(count).collect())
    }

    #[doc = stub_doc!("ResourcePlaces.load")]
    fn load(&self, signature: u32, place: Place) -> PyResult<Option<f64>> {
        self.places
            .lock()
            .load(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.has_room")]
    fn has_room(&self, signature: u32, place: Place) -> PyResult<bool> {
        self.places
            .lock()
            .has_room(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.book")]
    fn book(&self, signature: u32, place: Place) -> PyResult<()> {
        self.places
            .lock()
            .book(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.release")]
    fn release(&self, signature: u32, place: Place) -> PyResult<()> {
        self.places
            .lock()
            .release(Signature(signature), place)
            .map_err(key)
    }

    #[doc = stub_doc!("ResourcePlaces.served")]
    fn served(&self) -> Vec<Place> {
        self.places.lock().served()
    }

    #[doc = stub_doc!("ResourcePlaces.set_served")]
    fn set_served(&self, served: Vec<Place>) {
        self.places.lock().set_served(&served);
    }

    #[doc = stub_doc!("ResourcePlaces.booked")]
    fn booked(&self, signature: u32, place: Place) -> u64 {
        self.places.lock().booked(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.unmeetable")]
    fn unmeetable(&self, signature: u32) -> PyResult<Option<String>> {
        self.places
            .lock()
            .unmeetable(Signature(signature))
            .map_err(key)
    }
}

fn key(error: PlacesError) -> PyErr {
    key_error(error)
}
