//! Which worker a task with resources fits best: `ResourcePlaces`.

use backhaul_placement::resources::{Place, Places, PlacesError, Signature};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::declared;
use super::resources::{ResourceRequest, key_error, value_error};

/// The workers of a scheduler, by number, and what of them is spoken for
#[pyclass(module = "backhaul._native")]
#[derive(Default)]
pub(crate) struct ResourcePlaces {
    places: Places,
}

#[pymethods]
impl ResourcePlaces {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Knows of a worker, or of what it has now; what is booked there stays booked
    fn set_worker(&mut self, place: Place, declared: &Bound<'_, PyDict>) -> PyResult<()> {
        self.places
            .set_worker(place, &declared::read(declared, None)?)
            .map_err(value_error)
    }

    /// Forgets a worker and all that is booked there
    fn remove_worker(&mut self, place: Place) {
        self.places.remove_worker(place);
    }

    /// Number of a request, the same for equal ones
    fn signature(&mut self, request: &ResourceRequest) -> u32 {
        self.places.signature(&request.request).0
    }

    /// Workers that can ever meet a request, the least loaded first
    #[pyo3(signature = (signature, count = 1))]
    fn ranked(&mut self, signature: u32, count: usize) -> PyResult<Vec<Place>> {
        let ranked = self.places.ranked(Signature(signature)).map_err(key)?;
        Ok(ranked.take(count).collect())
    }

    /// How loaded a worker would be with one more such task; None if it can never meet the request
    fn load(&self, signature: u32, place: Place) -> PyResult<Option<f64>> {
        self.places.load(Signature(signature), place).map_err(key)
    }

    /// Whether a worker may be given one more such task, to run or to wait
    fn has_room(&self, signature: u32, place: Place) -> PyResult<bool> {
        self.places
            .has_room(Signature(signature), place)
            .map_err(key)
    }

    /// Notes that a task was given to a worker
    fn book(&mut self, signature: u32, place: Place) -> PyResult<()> {
        self.places.book(Signature(signature), place).map_err(key)
    }

    /// Notes that a task has left a worker
    fn release(&mut self, signature: u32, place: Place) -> PyResult<()> {
        self.places
            .release(Signature(signature), place)
            .map_err(key)
    }

    /// Number of such tasks that a worker was given, and has
    fn booked(&self, signature: u32, place: Place) -> u64 {
        self.places.booked(Signature(signature), place)
    }

    /// Says why no worker can ever meet a request; None if one can, or there is none at all
    fn unmeetable(&mut self, signature: u32) -> PyResult<Option<String>> {
        self.places.unmeetable(Signature(signature)).map_err(key)
    }
}

fn key(error: PlacesError) -> PyErr {
    key_error(error)
}
