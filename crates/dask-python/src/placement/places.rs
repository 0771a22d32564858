//! Requests of a scheduler's tasks, the workers with room for them, and those that wait:
//! `ResourcePlaces`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use backhaul_dask::scheduler::{Priority, PriorityOrNone, RoomView};
use backhaul_placement::resources::{Admission, Drain, LineKey, Place, Signature, Step};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::declared;
use super::resources::value_error;
use super::shared::Shared;
use crate::scheduler::RoomState;

/// Number that Python gives a task: its address
type Task = u64;

#[doc = stub_doc!("ResourcePlaces")]
#[pyclass(frozen, module = "backhaul._native")]
#[derive(Default)]
pub(crate) struct ResourcePlaces {
    slots: Shared<Slots>,
}

#[derive(Default)]
struct Slots {
    admission: Admission<Task, PriorityOrNone>,
    running: HashSet<Place>,
}

impl Slots {
    fn least_loaded(&mut self, request: Signature) -> Option<Place> {
        let running = &self.running;
        (self.admission).least_loaded(request, |place| running.contains(&place))
    }

    fn begin_drain(&mut self) -> Drain<Task, PriorityOrNone> {
        let running = &self.running;
        (self.admission).begin_drain(|place| running.contains(&place))
    }

    fn step(
        &mut self,
        drain: &mut Drain<Task, PriorityOrNone>,
        answer: bool,
    ) -> Option<Step<Task>> {
        let running = &self.running;
        (self.admission).step(drain, answer, |place| running.contains(&place))
    }
}

/// Where a task stands among all tasks
fn standing(priority: Option<[f64; 3]>) -> PriorityOrNone {
    PriorityOrNone::some(Priority(priority.unwrap_or([f64::NAN; 3])))
}

fn line_key(signature: u32, workers: Vec<String>, hosts: Vec<String>, loose: bool) -> LineKey {
    let shared = |names: Vec<String>| names.into_iter().map(Arc::from).collect();
    LineKey::new(Signature(signature), shared(workers), shared(hosts), loose)
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
        let places = &mut self.slots.lock().admission.places;
        places.set_worker(place, &declared).map_err(value_error)
    }

    #[doc = stub_doc!("ResourcePlaces.set_running")]
    fn set_running(&self, place: Place, runs: bool) {
        let running = &mut self.slots.lock().running;
        if runs {
            running.insert(place);
        } else {
            running.remove(&place);
        }
    }

    #[doc = stub_doc!("ResourcePlaces.remove_worker")]
    fn remove_worker(&self, place: Place, tasks: Vec<Task>) {
        let mut slots = self.slots.lock();
        slots.running.remove(&place);
        slots.admission.remove_worker(place, tasks);
    }

    #[doc = stub_doc!("ResourcePlaces.request")]
    fn request(&self, amounts: Vec<(String, f64)>, threads: f64) -> PyResult<u32> {
        let amounts = amounts.into_iter();
        let amounts = amounts.map(|(name, units)| (Arc::from(name), units));
        let admission = &mut self.slots.lock().admission;
        let signature = admission.request(amounts.collect(), threads);
        Ok(signature.map_err(value_error)?.0)
    }

    #[doc = stub_doc!("ResourcePlaces.least_loaded")]
    fn least_loaded(&self, signature: u32) -> Option<Place> {
        self.slots.lock().least_loaded(Signature(signature))
    }

    #[doc = stub_doc!("ResourcePlaces.has_room")]
    fn has_room(&self, signature: u32, place: Place) -> bool {
        let admission = &self.slots.lock().admission;
        admission.has_room(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.choose")]
    fn choose(
        &self,
        signature: u32,
        transfers_s: Vec<(Place, f64)>,
        duration_s: f64,
        keeps: bool,
    ) -> Option<Place> {
        let by_place: BTreeMap<Place, f64> = transfers_s.iter().copied().collect();
        let candidates = transfers_s.into_iter().map(|(place, _)| place);
        let admission = &self.slots.lock().admission;
        admission.choose(Signature(signature), candidates, keeps, |place, load| {
            let transfer_s = by_place.get(&place).copied().unwrap_or_default();
            let waits_s = if load > 1.0 {
                (load - 1.0) * duration_s
            } else {
                0.0
            };
            transfer_s + waits_s
        })
    }

    #[doc = stub_doc!("ResourcePlaces.book")]
    fn book(
        &self,
        task: Task,
        signature: u32,
        place: Place,
        priority: Option<[f64; 3]>,
        counts: bool,
    ) {
        let slots = &mut *self.slots.lock();
        let (request, running) = (Signature(signature), &slots.running);
        let runs = |place| running.contains(&place);
        let stood = standing(priority);
        (slots.admission).book(task, request, place, &stood, counts, runs);
    }

    #[doc = stub_doc!("ResourcePlaces.inherit_booking")]
    fn inherit_booking(&self, task: Task, signature: u32, place: Place, counts: bool) {
        let admission = &mut self.slots.lock().admission;
        admission.inherit_booking(task, Signature(signature), place, counts);
    }

    #[doc = stub_doc!("ResourcePlaces.release")]
    fn release(&self, task: Task, place: Option<Place>) {
        self.slots.lock().admission.release(&task, place);
    }

    #[doc = stub_doc!("ResourcePlaces.beside")]
    fn beside(&self, place: Place) -> u64 {
        self.slots.lock().admission.beside(place)
    }

    #[doc = stub_doc!("ResourcePlaces.booked")]
    fn booked(&self, signature: u32, place: Place) -> u64 {
        let places = &self.slots.lock().admission.places;
        places.booked(Signature(signature), place)
    }

    #[doc = stub_doc!("ResourcePlaces.wait")]
    fn wait(
        &self,
        task: Task,
        signature: u32,
        workers: Vec<String>,
        hosts: Vec<String>,
        loose: bool,
        priority: Option<[f64; 3]>,
    ) -> Option<String> {
        let key = line_key(signature, workers, hosts, loose);
        let admission = &mut self.slots.lock().admission;
        admission.wait(key, task, standing(priority))
    }

    #[doc = stub_doc!("ResourcePlaces.join_line")]
    fn join_line(
        &self,
        task: Task,
        signature: u32,
        workers: Vec<String>,
        hosts: Vec<String>,
        loose: bool,
        priority: Option<[f64; 3]>,
    ) {
        let key = line_key(signature, workers, hosts, loose);
        let admission = &mut self.slots.lock().admission;
        admission.join_line(key, task, standing(priority));
    }

    #[doc = stub_doc!("ResourcePlaces.leave_line")]
    fn leave_line(&self, task: Task) {
        self.slots.lock().admission.leave_line(&task);
    }

    #[doc = stub_doc!("ResourcePlaces.has_lines")]
    #[getter]
    fn has_lines(&self) -> bool {
        self.slots.lock().admission.has_lines()
    }

    #[doc = stub_doc!("ResourcePlaces.drain")]
    fn drain(
        &self,
        waits: &Bound<'_, PyAny>,
        may_go: &Bound<'_, PyAny>,
        send: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut drain = self.slots.lock().begin_drain();
        let mut answer = false;
        loop {
            let step = self.slots.lock().step(&mut drain, answer);
            let (asked, task) = match step {
                Some(Step::Waits(task)) => (waits, task),
                Some(Step::MayGo(task)) => (may_go, task),
                Some(Step::Send(task)) => (send, task),
                None => return Ok(()),
            };
            answer = asked.call1((task,))?.extract()?;
        }
    }

    #[doc = stub_doc!("ResourcePlaces.state")]
    #[pyo3(signature = (booked, waiting, addresses, *, drains))]
    fn state(
        &self,
        booked: Vec<String>,
        waiting: HashMap<Task, String>,
        addresses: HashMap<Place, String>,
        drains: bool,
    ) -> PyResult<RoomState> {
        let view = (self.slots.lock().admission).view(|task| waiting.contains_key(task));
        let address = |place: Place| {
            let address = addresses
                .get(&place)
                .map(|address| Arc::from(address.as_str()));
            address.ok_or_else(|| PyKeyError::new_err(place))
        };
        let key = |text: &str| Arc::from(text.as_bytes());
        let served: PyResult<_> = view.served.iter().map(|&place| address(place)).collect();
        let passed = view.passed.into_iter();
        Ok(RoomState(RoomView {
            booked: booked.iter().map(|text| key(text)).collect(),
            waiting: view
                .waiting
                .iter()
                .map(|task| key(&waiting[task]))
                .collect(),
            passed: passed
                .map(|one| one.standing(PriorityOrNone::or_nan))
                .collect(),
            kept: view.kept,
            kept_worker: view.kept_place.map(address).transpose()?,
            served: served?,
            drains,
        }))
    }

    #[doc = stub_doc!("ResourcePlaces.inherit")]
    fn inherit(&self, state: &RoomState, places: HashMap<String, Place>) -> PyResult<()> {
        let RoomState(view) = state;
        let place = |address: &Arc<str>| {
            let place = places.get(&**address).copied();
            place.ok_or_else(|| PyKeyError::new_err(address.to_string()))
        };
        let served: PyResult<Vec<Place>> = view.served.iter().map(place).collect();
        let kept_worker = view.kept_worker.as_ref().map(place).transpose()?;
        let passed = view.passed.iter().cloned();
        self.slots.lock().admission.inherit(
            passed.map(|one| one.standing(PriorityOrNone::some)),
            view.kept,
            kept_worker,
            &served?,
        );
        Ok(())
    }

    #[doc = stub_doc!("ResourcePlaces.clear")]
    fn clear(&self) {
        let mut slots = self.slots.lock();
        slots.running.clear();
        slots.admission.clear();
    }
}
