//! Tasks that ask for resources: which worker has room for them, and which wait until one has.
//!
//! The rules of `backhaul.dask.resource_pools.scheduler_slots`, decision for decision; why they are so is in
//! `docs/design/resources.md`. Each distinct request has a ranking of the workers that can meet it,
//! by what is spoken for there; a worker gets as many tasks as it can run, and as many again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use backhaul_placement::resources::{Declaration, Places, Request, RequestError, Signature};

use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{Id, TaskId, WorkerId};
use super::lines::Lines;
use super::task::{Key, Requirements};
use super::turns::Turns;
use crate::hashing::{Map, Set};
use crate::ordered_set::OrderedSet;

/// The resource that a thread is, which every task takes one of unless it says otherwise
const CPU: &str = "CPU";

/// Resource that a task without a thread asks for in addition, of which each worker has some
const BESIDE: &str = "tasks without CPU";

/// Put before names of users' resources that would be one of these
const DECLARED: &str = "declared ";

/// Returns the name here of a user's resource; `declared_name` of `backhaul.dask.resource_pools`
fn declared_name(name: &str) -> Cow<'_, str> {
    match name.trim_start_matches(DECLARED) {
        CPU | BESIDE => Cow::Owned(format!("{DECLARED}{name}")),
        _ => Cow::Borrowed(name),
    }
}

/// Requests for resources: units of workers, units in use, and waiting tasks
#[derive(Debug)]
pub(super) struct Room {
    pub(super) places: Places,
    /// True once a task has made a request
    pub(super) is_active: bool,
    /// Most concurrent tasks of a worker that take less than a thread
    beside_max: u32,
    /// By the number that the places gave each request
    pub(super) asked: Map<Signature, Asked>,
    /// By amounts, as bits, and threads
    by_needs: Map<Needs, Signature>,
    /// Tasks that were sent to a worker and hold what they ask for
    pub(super) booked: Map<TaskId, (Signature, WorkerId)>,
    /// Tasks of each worker that take less than a thread
    pub(super) beside: Map<WorkerId, i64>,
    pub(super) lines: Lines,
    pub(super) turns: Turns,
    /// The worker that takes nothing more of what the request needs that `turns` keeps it for
    pub(super) kept_worker: Option<WorkerId>,
    /// True if something has come back that a task may wait for
    pub(super) drains: bool,
    /// Pools with ids, by address of workers that said so
    declared: Map<Arc<str>, BTreeMap<String, Declaration>>,
    pub(super) warned: Set<Signature>,
    pub(super) unmet: Vec<Unmet>,
}

/// Amounts of each resource, as bits of the numbers, and of threads
type Needs = (Vec<(Arc<str>, u64)>, u64);

/// One distinct request
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) amounts: Vec<(Arc<str>, f64)>,
    pub(super) threads: f64,
    /// Resources that tasks with this request keep from each other
    names: Vec<Arc<str>>,
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

/// Returns whether two requests keep something from each other
fn share(asked: &Map<Signature, Asked>, one: Signature, other: Signature) -> bool {
    let pair = asked.get(&one).zip(asked.get(&other));
    pair.is_some_and(|(one, other)| one.names.iter().any(|name| other.names.contains(name)))
}

impl Asked {
    fn is_beside(&self) -> bool {
        self.threads < 1.0
    }
}

impl Room {
    fn new(beside_max: u32) -> Self {
        Self {
            places: Places::default(),
            is_active: false,
            beside_max,
            asked: Map::default(),
            by_needs: Map::default(),
            booked: Map::default(),
            beside: Map::default(),
            lines: Lines::default(),
            turns: Turns::default(),
            kept_worker: None,
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
        let amounts: Vec<(Arc<str>, f64)> = amounts.cloned().collect();
        let bits = amounts
            .iter()
            .map(|(name, units)| (Arc::clone(name), units.to_bits()));
        let needs = (bits.collect(), threads.to_bits());
        if let Some(&known) = self.by_needs.get(&needs) {
            return Ok(known);
        }
        let apart = amounts
            .iter()
            .map(|(name, units)| (declared_name(name), *units));
        let mut all: Vec<(Cow<'_, str>, f64)> = apart.collect();
        let mut names: Vec<Arc<str>> = amounts.iter().map(|(name, _)| Arc::clone(name)).collect();
        // Several threads are a restriction, too: not every worker has them. Tasks without a thread
        // are counted, so that a worker is not sent more than it could ever run at the same time.
        if threads != 1.0 {
            all.push((Cow::Borrowed(CPU), threads));
        }
        if threads == 0.0 {
            all.push((Cow::Borrowed(BESIDE), 1.0));
        }
        if threads > 1.0 {
            names.push(Arc::from(CPU));
        }
        let all = all.iter().map(|(name, units)| (name.as_ref(), *units));
        let signature = self.places.signature(&Request::new(all, [])?);
        self.by_needs.insert(needs, signature);
        self.asked.entry(signature).or_insert(Asked {
            amounts,
            threads,
            names,
        });
        Ok(signature)
    }

    /// Returns whether two requests keep something from each other
    fn shares(&self, one: Signature, other: Signature) -> bool {
        share(&self.asked, one, other)
    }

    /// Returns whether a worker is reserved for another request that has waited for long
    fn is_kept_from(&self, request: Signature, worker: WorkerId) -> bool {
        match self.turns.kept {
            Some(kept) if self.kept_worker == Some(worker) && kept != request => {
                self.shares(kept, request)
            }
            _ => false,
        }
    }

    /// Returns whether a worker may be given one more such task, to run or to wait
    pub(super) fn has_room(&self, request: Signature, worker: WorkerId) -> bool {
        let room = self.places.has_room(request, worker.number());
        room.unwrap_or(false)
    }

    /// The worker, of those that run, that would be the least loaded with one more such task
    pub(super) fn least_loaded(
        &mut self,
        request: Signature,
        running: &OrderedSet<WorkerId>,
    ) -> Option<WorkerId> {
        let kept = match self.turns.kept {
            Some(kept) if kept != request && self.shares(kept, request) => self.kept_worker,
            _ => None,
        };
        let ranked = self.places.ranked(request).ok()?;
        let mut ranked = ranked.map(|place| WorkerId::at(place as usize));
        ranked.find(|&worker| running.contains(worker) && Some(worker) != kept)
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
        self.keeps() || room.asked.get(&request).is_some_and(Asked::is_beside)
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
        if room.places.set_worker(worker.number(), &declared).is_err() {
            // Amounts that make no sense are as good as none; the caller says so.
            let _ = room
                .places
                .set_worker(worker.number(), &BTreeMap::from(threads));
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
        room.places.remove_worker(worker.number());
        if room.kept_worker == Some(worker) {
            room.kept_worker = None;
        }
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
            let Ok(Some(load)) = room.places.load(request, worker.number()) else {
                continue;
            };
            let is_full = self.keeps() && !room.has_room(request, worker);
            if is_full || room.is_kept_from(request, worker) {
                continue;
            }
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
        let _ = room.places.book(request, worker.number());
        room.booked.insert(task, (request, worker));
        let (asked, turns) = (&room.asked, &mut room.turns);
        let keeps = turns.granted(request, stood, |other| share(asked, request, other));
        if keeps {
            self.keep_for_next();
        }
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
        let asked = asked.and_then(|room| room.asked.get(&request));
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
            let _ = room.places.release(request, booked_at.number());
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

    /// Keeps a worker for the first request that others have gone past too often
    fn keep_for_next(&mut self) {
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        for request in room.turns.overdue() {
            room.kept_worker = room.least_loaded(request, &self.running);
            if room.kept_worker.is_some() {
                room.turns.kept = Some(request);
                return;
            }
        }
    }
}
