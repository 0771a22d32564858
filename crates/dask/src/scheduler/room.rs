//! Tasks that ask for resources: which worker has room for them, and which wait until one has.
//!
//! [`Admission`] decides, for this core and for `backhaul.dask.resource_pools.scheduler_slots`; why
//! it is so is in `docs/design/resources.md`. A worker gets as many tasks as it can run, and as many
//! again.

use std::collections::BTreeMap;
use std::sync::Arc;

use backhaul_placement::resources::{
    Admission, BESIDE, CPU, Declaration, Place, RequestError, Signature, declared_name,
};

use super::compact::PriorityOrNone;
use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{Id, TaskId, WorkerId};
use super::task::{Key, Requirements};
use crate::hashing::{Map, Set};
use crate::ordered_set::OrderedSet;

/// Requests for resources: units of workers, units in use, and waiting tasks
#[derive(Debug)]
pub(super) struct Room {
    pub(super) admission: Admission<Asking, PriorityOrNone>,
    /// True once a task has made a request
    pub(super) is_active: bool,
    /// Most concurrent tasks of a worker that take less than a thread
    beside_max: u32,
    /// True if something has come back that a task may wait for
    pub(super) drains: bool,
    /// Pools with ids, by address of workers that said so
    declared: Map<Arc<str>, BTreeMap<String, Declaration>>,
    pub(super) warned: Set<Signature>,
    pub(super) unmet: Vec<Unmet>,
}

/// A task with its serial, which tells it from a later one of the same number
pub(super) type Asking = (TaskId, u32);

/// A request that no worker can ever meet
#[derive(Clone, Debug, PartialEq)]
pub struct Unmet {
    /// Key of the task that was the first to ask so
    pub key: Key,
    /// How much of what it asks for, threads left out
    pub amounts: Vec<(Arc<str>, f64)>,
    /// How many threads it takes
    pub threads: f64,
    /// The missing resource
    pub reason: String,
}

impl Room {
    fn new(beside_max: u32) -> Self {
        Self {
            admission: Admission::default(),
            is_active: false,
            beside_max,
            drains: false,
            declared: Map::default(),
            warned: Set::default(),
            unmet: Vec::new(),
        }
    }

    /// Forgets what a worker has by ids
    pub(super) fn forget_declared(&mut self, address: &str) {
        self.declared.remove(address);
    }

    /// The number of what a task asks for
    ///
    /// # Errors
    ///
    /// [`RequestError`] if that cannot be asked for.
    pub(super) fn request(
        &mut self,
        resources: &[(Arc<str>, f64)],
        threads: f64,
    ) -> Result<Signature, RequestError> {
        let amounts = resources.iter().filter(|(name, _)| &**name != CPU);
        self.admission.request(amounts.cloned().collect(), threads)
    }
}

/// Tells whether the worker of a place runs
pub(super) fn runs_in(running: &OrderedSet<WorkerId>) -> impl Fn(Place) -> bool + '_ {
    |place| running.contains(WorkerId::at(place as usize))
}

impl SchedulerCore {
    /// Says what a worker has by ids, before or after it joins
    ///
    /// A worker of which that is not said has the amounts that it joins with.
    pub fn declare(&mut self, address: &Arc<str>, declared: BTreeMap<String, Declaration>) {
        if let Some(room) = &mut self.room {
            room.declared.insert(Arc::clone(address), declared);
            if let Some(worker) = self.workers.by_address(address) {
                self.place_worker(worker);
            }
        }
    }

    /// Takes the requests that no worker can ever meet, each once
    pub fn take_unmet(&mut self) -> Vec<Unmet> {
        let room = self.room.as_mut();
        room.map(|room| std::mem::take(&mut room.unmet))
            .unwrap_or_default()
    }

    /// Begins to heed what tasks ask for, as the settings say
    pub(super) fn make_room(&mut self) {
        let beside_max = self.config.beside_tasks_max;
        self.room = beside_max.map(|beside_max| Box::new(Room::new(beside_max)));
    }

    /// Returns whether tasks wait here for room
    ///
    /// With a timeout for tasks that no worker can run they would fail while they do.
    pub(super) fn keeps(&self) -> bool {
        self.config.no_workers_timeout_s.is_none()
    }

    /// Numbers what a new task asks for
    pub(super) fn note_request(&mut self, requirements: &mut Requirements) {
        let Some(room) = &mut self.room else { return };
        let resources = requirements.resources.as_deref().unwrap_or_default();
        if resources.is_empty() && requirements.threads.is_none() {
            return;
        }
        // The caller has refused requests that are not possible.
        requirements.request = room
            .request(resources, requirements.threads.unwrap_or(1.0))
            .ok();
        self.begin_admission();
    }

    /// Notes what workers have, with the first request
    pub(super) fn begin_admission(&mut self) {
        if let Some(room) = &mut self.room
            && !std::mem::replace(&mut room.is_active, true)
        {
            for worker in self.workers.sorted().to_vec() {
                self.place_worker(worker);
            }
        }
    }

    /// Returns the request of a task, by its number; `None` for one thread and nothing else
    pub(super) fn request_of(&self, task: TaskId) -> Option<Signature> {
        self.tasks[task].requirements.as_deref()?.request
    }

    /// Returns whether a task must not be stolen, because it waits here for free units
    pub(super) fn stays(&self, task: TaskId) -> bool {
        let (Some(request), Some(room)) = (self.request_of(task), self.room.as_deref()) else {
            return false;
        };
        self.keeps() || room.admission.is_beside(request)
    }

    /// How many tasks of a worker take less than a thread
    pub(super) fn tasks_beside(&self, worker: WorkerId) -> i64 {
        let room = self.room.as_deref();
        room.map_or(0, |room| {
            room.admission.beside(worker.number()).cast_signed()
        })
    }

    /// Returns whether a task that has left its thread was reported as such before
    pub(super) fn has_left_its_thread(&self, task: TaskId, worker: WorkerId) -> bool {
        let is_active = self.room.as_deref().is_some_and(|room| room.is_active);
        is_active && self.workers[worker].long_running.contains(task)
    }

    // Workers

    /// Notes what a worker has; what is in use stays in use
    pub(super) fn place_worker(&mut self, worker: WorkerId) {
        let one = &self.workers[worker];
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        if !room.is_active {
            return;
        }
        let threads = [
            (CPU, f64::from(one.nthreads)),
            (BESIDE, f64::from(room.beside_max)),
        ];
        let threads = threads.map(|(name, units)| (name.to_owned(), Declaration::Sum(units)));
        let mut declared = BTreeMap::from(threads.clone());
        match room.declared.get(&one.address) {
            Some(pools) => declared.extend(pools.clone()),
            None => declared.extend(one.resources.iter().filter_map(|&(name, units)| {
                let name = self.names.text(name);
                // A resource of that name is not the project's: a thread is.
                (**name != *CPU)
                    .then(|| (declared_name(name).into_owned(), Declaration::Sum(units)))
            })),
        }
        let places = &mut room.admission.places;
        if places.set_worker(worker.number(), &declared).is_err() {
            // Amounts that make no sense are as good as none; the caller says so.
            let _ = places.set_worker(worker.number(), &BTreeMap::from(threads));
        }
    }

    /// Notes that a worker has more than it had, which tasks may wait for
    pub(super) fn drain_soon(&mut self) {
        if let Some(room) = &mut self.room {
            room.drains = true;
        }
    }

    /// Notes that tasks that wait may have room elsewhere than before, if there are any
    pub(super) fn drain_what_waits(&mut self) {
        if let Some(room) = &mut self.room {
            room.drains |= room.admission.has_lines();
        }
    }

    /// Forgets what a worker has that is leaving
    pub(super) fn displace_worker(&mut self, worker: WorkerId) {
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        let one = &self.workers[worker];
        room.declared.remove(&one.address);
        let tasks = one.processing.iter();
        let tasks = tasks.map(|task| (task, self.tasks[task].serial));
        room.admission.remove_worker(worker.number(), tasks);
        // Another one is kept, and what may run elsewhere while it cannot run here goes there.
        room.drains |= room.admission.has_lines();
    }

    // Where tasks go

    /// Chooses, of the workers with room, the one where a task can begin first
    pub(super) fn decide_by_room(&mut self, task: TaskId, request: Signature) -> Option<WorkerId> {
        if self.running.is_empty() {
            return None;
        }
        let asks = self.tasks[task].requirements.as_deref();
        let loose = asks.is_some_and(|asks| asks.loose);
        let candidates = if asks.is_some_and(Requirements::bind) {
            match self.valid_workers(task) {
                Some(allowed) if loose && allowed.is_empty() => self.running.clone(),
                allowed => allowed.unwrap_or_default(),
            }
        } else {
            self.candidates(task, request)
        };
        let found = self.cheapest(task, request, &candidates);
        if found.is_none() {
            self.wait_for_room(task, request);
        }
        found
    }

    /// Returns the workers that hold inputs, and the least loaded one
    fn candidates(&mut self, task: TaskId, request: Signature) -> OrderedSet<WorkerId> {
        let mut found = OrderedSet::new();
        for input in self.tasks[task].dependencies.iter() {
            for worker in self.tasks[input].who_has.iter() {
                if self.running.contains(worker) {
                    found.insert(worker);
                }
            }
        }
        if let Some(worker) = self.least_loaded(request) {
            found.insert(worker);
        }
        found
    }

    fn least_loaded(&mut self, request: Signature) -> Option<WorkerId> {
        let admission = &mut self.room.as_deref_mut()?.admission;
        let place = admission.least_loaded(request, runs_in(&self.running))?;
        Some(WorkerId::at(place as usize))
    }

    fn cheapest(
        &self,
        task: TaskId,
        request: Signature,
        candidates: &OrderedSet<WorkerId>,
    ) -> Option<WorkerId> {
        let admission = &self.room.as_deref()?.admission;
        let one = &self.tasks[task];
        let candidates = candidates.iter().map(Id::number);
        let place = admission.choose(request, candidates, self.keeps(), |place, load| {
            if one.dependencies.is_empty() {
                return 0.0;
            }
            let transfer_s = self.comm_cost_s(task, WorkerId::at(place as usize));
            let waits_s = if load > 1.0 {
                let prefix = self.groups.prefix_of(one.group);
                (load - 1.0) * self.prefix_duration_s(prefix)
            } else {
                0.0
            };
            transfer_s + waits_s
        })?;
        Some(WorkerId::at(place as usize))
    }

    // Units in use

    /// Returns a task as the admission has it
    pub(super) fn asking(&self, task: TaskId) -> Asking {
        (task, self.tasks[task].serial)
    }

    /// Notes that a task was sent to a worker
    pub(super) fn book(&mut self, task: TaskId, worker: WorkerId) {
        let Some(request) = self.request_of(task) else {
            return;
        };
        let asking = self.asking(task);
        let stood = self.tasks[task].priority;
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        let admission = &mut room.admission;
        let counts =
            admission.is_beside(request) && !self.workers[worker].long_running.contains(task);
        let runs = runs_in(&self.running);
        admission.book(asking, request, worker.number(), &stood, counts, runs);
        if counts {
            self.add_to_long_running(worker, task);
        }
    }

    /// Notes that a task has left a worker, or has given back what it held there
    ///
    /// # Errors
    ///
    /// As [`SchedulerCore::use_resources`].
    pub(super) fn release_room(
        &mut self,
        task: TaskId,
        worker: WorkerId,
    ) -> Result<(), EventError> {
        if self.room.is_none() || self.request_of(task).is_none() {
            return self.use_resources(task, worker, -1.0);
        }
        let asking = self.asking(task);
        let room = self.room.as_deref();
        if !room.is_some_and(|room| room.admission.is_booked(&asking)) {
            return Ok(());
        }
        self.use_resources(task, worker, -1.0)?;
        if let Some(room) = self.room.as_deref_mut() {
            room.admission.release(&asking, Some(worker.number()));
        }
        self.drain_what_waits();
        Ok(())
    }

    /// Notes that a task has left its thread, and gives back what it holds
    ///
    /// # Errors
    ///
    /// As [`SchedulerCore::use_resources`].
    pub(super) fn give_back_room(
        &mut self,
        task: TaskId,
        worker: WorkerId,
    ) -> Result<(), EventError> {
        if self.room.is_some() && self.request_of(task).is_some() {
            self.release_room(task, worker)?;
        }
        Ok(())
    }
}
