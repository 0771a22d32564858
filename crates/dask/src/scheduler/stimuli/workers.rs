//! Workers that come, tell how they are, and go.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::{TaskId, WorkerId};
use super::super::messages::{Message, TaskError, WorkerMessage};
use super::super::recommendations::Recommendations;
use super::super::task::{Key, TaskState};
use super::super::transitions::{Cause, ErredBy};
use super::super::worker::{Worker, WorkerJoins, WorkerStatus};

impl SchedulerCore {
    /// Handles a worker that joins, and gives it what waits for one
    ///
    /// # Errors
    ///
    /// [`EventError::NameTaken`] if its address or name is; nothing has changed then. Errors of the
    /// transitions that follow.
    pub fn handle_worker_added(
        &mut self,
        joins: &WorkerJoins,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let taken = if self.workers.by_address(&joins.address).is_some() {
            Some(&joins.address)
        } else if self.workers.by_name.contains_key(&joins.name) {
            Some(&joins.name)
        } else {
            None
        };
        if let Some(name) = taken {
            return Err(EventError::NameTaken {
                name: name.to_string(),
            });
        }
        let host = self.names.intern(&joins.host);
        let worker = self.workers.add(Worker::new(joins, host));
        if joins.status == WorkerStatus::Running {
            self.running.insert(worker);
            self.refresh_no_workers_since(self.now_s);
        }
        self.hosts.entry(host).or_default().insert(worker);
        self.meet_worker(worker);
        self.total_nthreads += joins.nthreads;
        self.mix_bandwidth(joins.bandwidth_bytes_per_s);
        if !joins.resources.is_empty() {
            self.set_resources(worker, &joins.resources);
            self.drain_soon();
        }
        self.place_worker(worker);
        self.check_idle_saturated(worker);
        if joins.status == WorkerStatus::Running {
            self.schedule_unrunnable(worker)?;
            self.fill_slots()?;
        }
        self.drain()
    }

    /// Handles what a worker measured: bandwidth in bytes per second, and for how many seconds it
    /// has been executing which tasks
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn handle_heartbeat(
        &mut self,
        address: &str,
        bandwidth_bytes_per_s: f64,
        executing: &[(Key, f64)],
    ) -> Result<(), EventError> {
        let worker = self.worker_at(address)?;
        self.mix_bandwidth(bandwidth_bytes_per_s);
        let known = executing
            .iter()
            .filter(|(key, _)| self.tasks.by_key(key).is_some());
        self.workers[worker].executing = known.cloned().collect();
        for (key, executing_s) in executing {
            let Some(task) = self.tasks.by_key(key) else {
                continue;
            };
            let prefix = self.groups.prefix_of(self.tasks[task].group);
            self.groups.learn(prefix, |prefix| {
                prefix.max_exec_time_s = prefix.max_exec_time_s.max(*executing_s);
                if *executing_s > 2.0 * prefix.duration_average_s {
                    prefix.duration_average_s = -1.0;
                }
            });
        }
        Ok(())
    }

    /// Handles a worker whose resources change
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn handle_resources(
        &mut self,
        address: &str,
        resources: &[(Arc<str>, f64)],
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        let worker = self.worker_at(address)?;
        self.begin(stimulus, now_s);
        let used = self.workers[worker].used_resources.clone();
        self.set_resources(worker, resources);
        if let Some(room) = &mut self.room {
            // Its units are counted now.
            room.forget_declared(address);
            // Resources in use stay in use.
            let now = &mut self.workers[worker].used_resources;
            for (name, amount) in used {
                match now.iter_mut().find(|(one, _)| *one == name) {
                    Some((_, used)) => *used = amount,
                    None => now.push((name, amount)),
                }
            }
        }
        self.place_worker(worker);
        self.drain_soon();
        self.drain()
    }

    /// As much of what a worker measured as it is a part of the cluster
    fn mix_bandwidth(&mut self, measured_bytes_per_s: f64) {
        let share = 1.0 / self.workers.sorted().len() as f64;
        self.bandwidth_bytes_per_s =
            self.bandwidth_bytes_per_s * (1.0 - share) + measured_bytes_per_s * share;
    }

    fn set_resources(&mut self, worker: WorkerId, resources: &[(Arc<str>, f64)]) {
        for (name, amount) in resources {
            let name = self.names.intern(name);
            let has = &mut self.workers[worker].resources;
            match has.iter_mut().find(|(one, _)| *one == name) {
                Some((_, has)) => *has = *amount,
                None => has.push((name, *amount)),
            }
        }
        let has = self.workers[worker].resources.clone();
        // The use by its tasks is forgotten, as upstream does.
        self.workers[worker].used_resources = has.iter().map(|&(name, _)| (name, 0.0)).collect();
        for (name, amount) in has {
            let suppliers = self.resources.entry(name).or_default();
            match suppliers.iter_mut().find(|(one, _)| *one == worker) {
                Some((_, supplies)) => *supplies = amount,
                None => suppliers.push((worker, amount)),
            }
        }
    }

    /// Handles a worker that has gone, `expected` or not, or that is sent away, with `close`
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`]; what the transitions that follow may meet.
    pub fn handle_worker_removed(
        &mut self,
        address: &str,
        expected: bool,
        close: bool,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        if close {
            self.send_to_address(&Arc::from(address), WorkerMessage::Close);
        }
        self.lose_worker(address, expected, stimulus, now_s)?;
        let address: Arc<str> = Arc::from(address);
        for other in self.workers.sorted().to_vec() {
            let receiver = Arc::clone(&self.workers[other].address);
            let message = WorkerMessage::RemoveWorker {
                address: Arc::clone(&address),
                stimulus: Arc::clone(stimulus),
            };
            self.messages.push(Message::ToWorker(receiver, message));
        }
        self.drain()
    }

    /// Handles a worker that has gone, `expected` or not, of which the caller tells it and others
    ///
    /// # Errors
    ///
    /// As [`SchedulerCore::handle_worker_removed`].
    pub fn handle_worker_lost(
        &mut self,
        address: &str,
        expected: bool,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.lose_worker(address, expected, stimulus, now_s)?;
        self.drain()
    }

    fn lose_worker(
        &mut self,
        address: &str,
        expected: bool,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.begin(stimulus, now_s);
        let worker = self.worker_at(address)?;
        let address = Arc::clone(&self.workers[worker].address);
        self.take_from_cluster(worker);
        let mut recs = Recommendations::default();
        for task in self.workers[worker].processing.listed() {
            recs.set(task, TaskState::Released);
            if !expected {
                self.suspect(task, &address, &mut recs)?;
            }
        }
        for task in self.workers[worker].has_what.listed() {
            self.remove_replica(task, worker);
            let one = &self.tasks[task];
            if self.workers[worker].actors.contains(task) {
                recs.set(task, TaskState::Erred);
            } else if one.who_has.is_empty() {
                let next = if one.spec.is_some() {
                    TaskState::Released
                } else {
                    TaskState::Forgotten
                };
                recs.set(task, next);
            }
        }
        self.follow(recs)?;
        // It had gone before its tasks became unrunnable, which decides what they fail of.
        self.refresh_no_workers_since(now_s.next_down());
        self.forget_victim(worker);
        self.part_from_worker(worker);
        self.forget_worker(worker);
        Ok(())
    }

    fn take_from_cluster(&mut self, worker: WorkerId) {
        let one = &self.workers[worker];
        let (host, nthreads) = (one.host, one.nthreads);
        for &(resource, _) in &one.resources {
            if let Some(suppliers) = self.resources.get_mut(&resource) {
                suppliers.retain(|&(one, _)| one != worker);
            }
        }
        if let Some(workers) = self.hosts.get_mut(&host) {
            workers.remove(worker);
            if workers.is_empty() {
                self.hosts.remove(&host);
            }
        }
        self.total_nthreads -= nthreads;
        self.displace_worker(worker);
        self.remove_from_idle(worker);
        self.remove_from_slots(worker);
        self.saturated.remove(worker);
        self.workers.remove(worker);
        self.workers[worker].status = WorkerStatus::Closed;
        self.running.remove(worker);
    }

    /// Notes that a task was on a worker that died; it fails if that was so too often
    fn suspect(
        &mut self,
        task: TaskId,
        address: &Arc<str>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let one = &mut self.tasks[task];
        one.suspicious += 1;
        let prefix = self.groups.prefix_of(one.group);
        self.groups[prefix].suspicious += 1;
        if one.suspicious <= self.config.allowed_failures {
            return Ok(());
        }
        recs.remove(task);
        let error = TaskError::KilledWorker {
            key: Arc::clone(&one.key),
            worker: Arc::clone(address),
            allowed_failures: self.config.allowed_failures,
        };
        let cause = ErredBy::found(task, Some(Arc::clone(address)), error);
        self.transition(task, TaskState::Erred, Cause::Erred(&cause), recs)
    }

    /// Removes a worker that no task refers to any more
    fn forget_worker(&mut self, worker: WorkerId) {
        let one = &mut self.workers[worker];
        let needs = std::mem::take(&mut one.needs_what);
        let actors = std::mem::take(&mut one.actors);
        let stays = !one.processing.is_empty();
        for task in needs.into_keys().chain(actors.iter()) {
            self.drop_reference(task);
        }
        // A defect if it does, but no reason to end with it: its tasks have still to find it.
        debug_assert!(!stays, "tasks are left on a worker that has gone");
        if !stays {
            self.workers.forget(worker);
        }
    }

    /// Sends to a worker that now takes tasks what no other could run
    pub(super) fn schedule_unrunnable(&mut self, worker: WorkerId) -> Result<(), EventError> {
        let mut runnable: Vec<TaskId> = Vec::new();
        for task in self.unrunnable.listed() {
            let valid = self.valid_workers(task);
            if valid.is_none_or(|valid| valid.contains(worker)) {
                runnable.push(task);
            }
        }
        // Data that is lost has none. Upstream fails to sort it among others.
        if runnable.len() > 1
            && let Some(&task) =
                (runnable.iter()).find(|&&task| self.tasks[task].priority.get().is_none())
        {
            return Err(self.lacks(task, "priority"));
        }
        runnable.sort_by(|&one, &other| self.by_priority(other, one));
        let mut recs = Recommendations::default();
        for task in runnable {
            recs.set(task, TaskState::Processing);
        }
        self.follow(recs)
    }
}
