//! Tasks that ask for resources: which worker has room for them, and which wait until one has.
//!
//! `backhaul.dask.resource_pools.scheduler_slots` goes by the same rules, decision for decision; what
//! needs no task is [`Admission`] for both, and why it is so is in `docs/design/resources.md`. Each
//! distinct request has a ranking of the workers that can meet it, by what is spoken for there; a
//! worker gets as many tasks as it can run, and as many again.

use std::collections::BTreeMap;
use std::sync::Arc;

use backhaul_placement::resources::{
    Admission, Asked, BESIDE, CPU, Declaration, RequestError, Signature, declared_name,
};

use super::compact::PriorityOrNone;
use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{Id, TaskId, WorkerId};
use super::lines::Lines;
use super::task::{Key, Requirements};
use crate::hashing::{Map, Set};
use crate::ordered_set::OrderedSet;

/// Requests for resources: units of workers, units in use, and waiting tasks
#[derive(Debug)]
pub(super) struct Room {
    pub(super) admission: Admission<PriorityOrNone>,
    /// True once a task has made a request
    pub(super) is_active: bool,
    /// Most concurrent tasks of a worker that take less than a thread
    beside_max: u32,
    /// Tasks that were sent to a worker and hold what they ask for
    pub(super) booked: Map<TaskId, (Signature, WorkerId)>,
    /// Tasks of each worker that take less than a thread
    pub(super) beside: Map<WorkerId, i64>,
    pub(super) lines: Lines,
    /// True if something has come back that a task may wait for
    pub(super) drains: bool,
    /// Pools with ids, by address of workers that said so
    declared: Map<Arc<str>, BTreeMap<String, Declaration>>,
    pub(super) warned: Set<Signature>,
    pub(super) unmet: Vec<Unmet>,
}

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
            booked: Map::default(),
            beside: Map::default(),
            lines: Lines::default(),
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

    /// Returns whether a worker may be given one more such task, to run or to wait
    pub(super) fn has_room(&self, request: Signature, worker: WorkerId) -> bool {
        self.admission.has_room(request, worker.number())
    }

    /// The worker, of those that run, that would be the least loaded with one more such task
    pub(super) fn least_loaded(
        &mut self,
        request: Signature,
        running: &OrderedSet<WorkerId>,
    ) -> Option<WorkerId> {
        let ranked = self.admission.ranked(request);
        let mut ranked = ranked.map(|place| WorkerId::at(place as usize));
        ranked.find(|&worker| running.contains(worker))
    }

    /// Keeps the least loaded worker for a request that waited for long; returns whether one runs
    pub(super) fn keep_worker(
        &mut self,
        request: Signature,
        running: &OrderedSet<WorkerId>,
    ) -> bool {
        let worker = self.least_loaded(request, running);
        self.admission.keep(request, worker.map(Id::number))
    }
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
        self.keeps() || room.admission.asked(request).is_some_and(Asked::is_beside)
    }

    /// How many tasks of a worker take less than a thread
    pub(super) fn tasks_beside(&self, worker: WorkerId) -> i64 {
        let room = self.room.as_deref();
        let beside = room.and_then(|room| room.beside.get(&worker));
        beside.copied().unwrap_or_default()
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
            room.drains |= !room.lines.is_empty();
        }
    }

    /// Forgets what a worker has that is leaving
    pub(super) fn displace_worker(&mut self, worker: WorkerId) {
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        let one = &self.workers[worker];
        room.declared.remove(&one.address);
        for task in one.processing.iter() {
            room.booked.remove(&task);
        }
        room.beside.remove(&worker);
        room.admission.remove_worker(worker.number());
        // Another one is kept, and what may run elsewhere while it cannot run here goes there.
        room.drains |= !room.lines.is_empty();
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
        let room = self.room.as_deref_mut()?;
        room.least_loaded(request, &self.running)
    }

    fn cheapest(
        &self,
        task: TaskId,
        request: Signature,
        candidates: &OrderedSet<WorkerId>,
    ) -> Option<WorkerId> {
        let room = self.room.as_deref()?;
        let one = &self.tasks[task];
        let mut best: Option<(f64, f64, WorkerId)> = None;
        for worker in candidates.iter() {
            let number = worker.number();
            let Some(load) = room.admission.load(request, number, self.keeps()) else {
                continue;
            };
            let mut begins_s = 0.0;
            if !one.dependencies.is_empty() {
                begins_s = self.comm_cost_s(task, worker);
                if load > 1.0 {
                    let prefix = self.groups.prefix_of(one.group);
                    begins_s += (load - 1.0) * self.prefix_duration_s(prefix);
                }
            }
            if best.is_none_or(|(least_s, least, _)| (begins_s, load) < (least_s, least)) {
                best = Some((begins_s, load, worker));
            }
        }
        best.map(|(_, _, worker)| worker)
    }

    // Units in use

    /// Notes that a task was sent to a worker
    pub(super) fn book(&mut self, task: TaskId, worker: WorkerId) {
        let Some(request) = self.request_of(task) else {
            return;
        };
        let stood = self.tasks[task].priority;
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        // One that has left the cluster has no place any more.
        let _ = room.admission.places.book(request, worker.number());
        room.booked.insert(task, (request, worker));
        let overdue = room.admission.granted(request, &stood);
        let _ = (overdue.into_iter()).any(|request| room.keep_worker(request, &self.running));
        let is_beside = self.is_beside(request);
        if is_beside && !self.workers[worker].long_running.contains(task) {
            if let Some(room) = self.room.as_deref_mut() {
                *room.beside.entry(worker).or_default() += 1;
            }
            self.add_to_long_running(worker, task);
        }
    }

    pub(super) fn is_beside(&self, request: Signature) -> bool {
        let asked = self.room.as_deref();
        let asked = asked.and_then(|room| room.admission.asked(request));
        asked.is_some_and(Asked::is_beside)
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
        let room = self.room.as_deref_mut();
        let Some((request, booked_at)) = room.and_then(|room| room.booked.remove(&task)) else {
            return Ok(());
        };
        self.use_resources(task, worker, -1.0)?;
        let is_beside = self.is_beside(request);
        if let Some(room) = self.room.as_deref_mut() {
            let _ = (room.admission.places).release(request, booked_at.number());
            if is_beside
                && let Some(beside) = room.beside.get_mut(&worker)
                && *beside != 0
            {
                *beside -= 1;
            }
            if !room.lines.is_empty() {
                room.drains = true;
            }
        }
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
