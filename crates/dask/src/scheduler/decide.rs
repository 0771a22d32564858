//! Which worker runs a task that is ready.
//!
//! Upstream's rules: root-ish tasks go to the least busy worker with a free slot, or to the worker
//! that had the last of their group; others to a worker with some of their inputs, where they are
//! expected to start first. Of equal workers the first is taken, in the order that each function
//! names.

use super::core::SchedulerCore;
use super::ids::{TaskId, WorkerId};
use super::task::TaskState;
use super::worker::WorkerStatus;
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// By what workers are compared for a task; least is best
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Objective {
    /// Actors on the worker, for an actor
    actors: usize,
    /// When the task could start, in seconds from now
    start_s: f64,
    /// Bytes that the worker holds
    held_bytes: i64,
}

impl SchedulerCore {
    /// Returns whether a task is a root or like one: of a large group with few inputs
    pub(super) fn is_rootish(&self, task: TaskId) -> bool {
        let one = &self.tasks[task];
        if one.requirements.as_ref().is_some_and(|requirements| {
            requirements.restrict() || requirements.takes_other_than_a_thread()
        }) {
            return false;
        }
        if one.spec.is_some() && one.data_producer {
            return true;
        }
        let group = &self.groups[one.group];
        if group.tally.len <= 2 * i64::from(self.total_nthreads)
            || group.dependencies.len() >= self.config.rootish_dependencies
        {
            return false;
        }
        let inputs = group
            .dependencies
            .iter()
            .map(|group| self.groups[group].tally.len);
        inputs.sum::<i64>() < self.config.rootish_dependency_tasks as i64
    }

    /// The worker that is being filled, else the one that a task was planned for that is not queued
    /// yet, else the least busy one with a free slot; of equal ones the one that has had slots longest
    pub(super) fn decide_for_queued(&mut self, task: Option<TaskId>) -> Option<WorkerId> {
        if let Some(target) = self.target.take() {
            return Some(target);
        }
        let planned = task.and_then(|task| self.decide_for_planned_root(task));
        planned.unwrap_or_else(|| self.slots.first())
    }

    /// The worker that has the last of the group, or the best idle one if it has had enough of them
    ///
    /// Of equal ones the first by address, or, if none is idle, the one that has run longest.
    pub(super) fn decide_for_unqueued_root(&mut self, task: TaskId) -> Option<WorkerId> {
        if self.idle.is_empty() && self.running.is_empty() {
            return None;
        }
        let group = self.tasks[task].group;
        let last = self.groups[group].last_worker.filter(|&last| {
            self.groups[group].last_worker_tasks_left != 0
                && self.workers.is_current(last)
                && self.workers[last].status == WorkerStatus::Running
        });
        let worker = match last {
            Some(last) => last,
            None => {
                let best = if self.idle.is_empty() {
                    self.best(task, self.running.iter())
                } else {
                    self.best(task, self.idle.iter().copied())
                }?;
                let tasks = self.groups[group].tally.len as f64;
                let share = tasks / f64::from(self.total_nthreads);
                let nthreads = f64::from(self.workers[best].nthreads);
                self.groups[group].last_worker_tasks_left = (share * nthreads).floor() as i64;
                best
            }
        };
        let group = &mut self.groups[group];
        let states = &group.tally.states;
        let left = states[TaskState::Released as usize] + states[TaskState::Waiting as usize];
        group.last_worker = (left > 1).then_some(worker);
        group.last_worker_tasks_left -= 1;
        Some(worker)
    }

    /// The worker where a task is expected to start first, if one may run it
    ///
    /// Of equal ones the first in the order of its dependencies and who has each; or of
    /// [`SchedulerCore::valid_workers`]; or the one that has run longest.
    pub(super) fn decide_by_inputs(&mut self, task: TaskId) -> Option<WorkerId> {
        if self.running.is_empty() {
            return None;
        }
        if let Some(request) = self.request_of(task)
            && !self.tasks[task].actor
        {
            return self.decide_by_room(task, request);
        }
        if let Some(worker) = self.decide_by_links(task) {
            return Some(worker);
        }
        let mut valid = self.valid_workers(task);
        if valid.is_none() && self.running.len() < self.workers.sorted().len() {
            valid = Some(self.running.clone());
        }
        if self.tasks[task].dependencies.is_empty() && valid.is_none() {
            return Some(self.decide_round_robin());
        }
        self.decide_among(task, valid.as_ref())
    }

    fn decide_among(&self, task: TaskId, valid: Option<&OrderedSet<WorkerId>>) -> Option<WorkerId> {
        let one = &self.tasks[task];
        let mut candidates = if one.actor {
            self.running.clone()
        } else {
            let mut holders = OrderedSet::new();
            for dependency in one.dependencies.iter() {
                for worker in self.tasks[dependency].who_has.iter() {
                    if self.running.contains(worker) {
                        holders.insert(worker);
                    }
                }
            }
            holders
        };
        let Some(valid) = valid else {
            if candidates.is_empty() {
                return self.best(task, self.running.iter());
            }
            return self.best(task, candidates.iter());
        };
        candidates = candidates
            .iter()
            .filter(|&worker| valid.contains(worker))
            .collect();
        if !candidates.is_empty() {
            return self.best(task, candidates.iter());
        }
        if !valid.is_empty() {
            return self.best(task, valid.iter());
        }
        let loose = one
            .requirements
            .as_ref()
            .is_some_and(|requirements| requirements.loose);
        if loose {
            return self.decide_among(task, None);
        }
        None
    }

    /// The next idle worker, or the next of all; few of them by how busy they are
    fn decide_round_robin(&self) -> WorkerId {
        let pool = if self.idle.is_empty() {
            self.workers.sorted()
        } else {
            &self.idle[..]
        };
        let start = (self.tasks_sent % pool.len() as u64) as usize;
        if pool.len() >= FEW_WORKERS {
            return pool[start];
        }
        let mut best = pool[0];
        let mut best_s = self.occupancy_s(best);
        for &worker in &pool[1..] {
            let occupancy_s = self.occupancy_s(worker);
            if occupancy_s < best_s {
                (best, best_s) = (worker, occupancy_s);
            }
        }
        if best_s == 0.0 {
            let (before, from_start) = pool.split_at(start);
            let mut turn = from_start.iter().chain(before);
            if let Some(&free) = turn.find(|&&worker| self.occupancy_s(worker) == 0.0) {
                best = free;
            }
        }
        best
    }

    /// The first worker of least objective
    ///
    /// The bytes that each has are counted in one pass over the dependencies.
    fn best(
        &self,
        task: TaskId,
        mut candidates: impl Iterator<Item = WorkerId>,
    ) -> Option<WorkerId> {
        let first = candidates.next()?;
        let Some(second) = candidates.next() else {
            return Some(first);
        };
        let mut all_bytes = 0;
        let dependencies = &self.tasks[task].dependencies;
        let mut held_bytes = Map::<WorkerId, u64>::default();
        held_bytes.reserve(dependencies.len());
        for dependency in dependencies.iter() {
            let dependency = &self.tasks[dependency];
            let nbytes = dependency.nbytes_or(self.default_bytes());
            all_bytes += nbytes;
            for worker in dependency.who_has.iter() {
                *held_bytes.entry(worker).or_default() += nbytes;
            }
        }
        let missing = |worker| all_bytes - held_bytes.get(&worker).copied().unwrap_or(0);
        let mut best = first;
        let mut least = self.objective(task, first, missing(first));
        for worker in std::iter::once(second).chain(candidates) {
            let objective = self.objective(task, worker, missing(worker));
            if objective < least {
                (best, least) = (worker, objective);
            }
        }
        Some(best)
    }

    fn objective(&self, task: TaskId, worker: WorkerId, missing_bytes: u64) -> Objective {
        let one = &self.workers[worker];
        let nthreads = f64::from(one.nthreads);
        let start_s = match self.transfer_s(task, worker) {
            // One whose task left its thread twice has less than nothing before it.
            Some(transfer_s) => self.stack_s(worker).max(0.0) / nthreads + transfer_s,
            None => {
                let transfer_s = missing_bytes as f64 / self.bandwidth_bytes_per_s;
                self.occupancy_s(worker) / nthreads + transfer_s
            }
        };
        Objective {
            actors: if self.tasks[task].actor {
                one.actors.len()
            } else {
                0
            },
            start_s,
            held_bytes: one.nbytes,
        }
    }
}

/// Fewer workers than this are compared by how busy they are, more take turns
const FEW_WORKERS: usize = 20;
