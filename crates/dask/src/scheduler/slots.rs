//! Workers that root-ish tasks may be sent to, and which of them is least busy.
//!
//! Upstream looks at all of them for each such task; an ordered tree gives the same one immediately.

use std::collections::{BTreeMap, BTreeSet};

use super::core::SchedulerCore;
use super::ids::{TaskId, WorkerId};
use super::worker::WorkerStatus;

/// Workers with free slots, by tasks per thread and then by how long they have had some
#[derive(Debug, Default)]
pub(super) struct FreeSlots {
    /// The first number has the order of the load that it is made of
    workers: BTreeSet<(u64, u64, WorkerId)>,
    /// By how long they have had some
    by_order: BTreeMap<u64, WorkerId>,
    added: u64,
}

impl FreeSlots {
    /// The least busy worker
    pub(super) fn first(&self) -> Option<WorkerId> {
        self.workers.first().map(|&(_, _, worker)| worker)
    }

    /// The workers, those first that have had slots longest
    pub(super) fn in_order(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.by_order.values().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.workers.iter().map(|&(_, _, worker)| worker)
    }
}

impl SchedulerCore {
    /// Changes how many tasks a worker has, and keeps its place among those with free slots
    pub(super) fn change_processing(&mut self, worker: WorkerId, task: TaskId, added: bool) {
        let one = &mut self.workers[worker];
        let before = one.load().to_bits();
        if added {
            one.processing.insert(task);
        } else {
            one.processing.remove(task);
        }
        let after = one.load().to_bits();
        if let Some(order) = one.slot_order
            && before != after
        {
            self.slots.workers.remove(&(before, order, worker));
            self.slots.workers.insert((after, order, worker));
        }
    }

    pub(super) fn add_to_slots(&mut self, worker: WorkerId) {
        let one = &mut self.workers[worker];
        if one.slot_order.is_none() {
            let order = self.slots.added;
            self.slots.added += 1;
            one.slot_order = Some(order);
            let load = one.load().to_bits();
            self.slots.workers.insert((load, order, worker));
            self.slots.by_order.insert(order, worker);
        }
    }

    pub(super) fn remove_from_slots(&mut self, worker: WorkerId) {
        let one = &mut self.workers[worker];
        if let Some(order) = one.slot_order.take() {
            let load = one.load().to_bits();
            self.slots.workers.remove(&(load, order, worker));
            self.slots.by_order.remove(&order);
        }
    }

    /// How many more root-ish tasks a worker may be sent
    pub(super) fn slots_available(&self, worker: WorkerId) -> i64 {
        let worker = &self.workers[worker];
        let slots = (self.config.worker_saturation * f64::from(worker.nthreads)).ceil();
        let busy = worker.processing.len() as i64 - worker.long_running.len() as i64;
        (slots as i64).max(1) - busy
    }

    pub(super) fn is_full(&self, worker: WorkerId) -> bool {
        !self.config.worker_saturation.is_infinite() && self.slots_available(worker) <= 0
    }

    /// Files a worker anew among the idle, the saturated and those with free slots
    pub(super) fn check_idle_saturated(&mut self, worker: WorkerId) {
        let busy_s = self.occupancy_s(worker);
        self.check_idle_saturated_of(worker, busy_s);
    }

    /// Does so for a worker that is busy for so long, in seconds; less than none is as it is
    pub(super) fn check_idle_saturated_of(&mut self, worker: WorkerId, busy_s: f64) {
        let busy_s = if busy_s < 0.0 {
            self.occupancy_s(worker)
        } else {
            busy_s
        };
        if self.total_nthreads == 0 || self.workers[worker].status == WorkerStatus::Closed {
            return;
        }
        let runs = self.workers[worker].status == WorkerStatus::Running;
        self.saturated.remove(worker);
        if !runs {
            self.remove_from_idle(worker);
        } else if self.is_unoccupied(worker, busy_s) {
            self.add_to_idle(worker);
        } else {
            self.remove_from_idle(worker);
            if self.is_saturated(worker, busy_s) {
                self.saturated.insert(worker);
            }
        }
        if runs && !self.is_full(worker) {
            self.add_to_slots(worker);
        } else {
            self.remove_from_slots(worker);
        }
    }

    fn is_unoccupied(&self, worker: WorkerId, busy_s: f64) -> bool {
        self.is_unoccupied_with(worker, busy_s, self.workers[worker].processing.len() as i64)
    }

    /// Returns whether a worker with so many tasks of so much time has too little work
    pub(super) fn is_unoccupied_with(&self, worker: WorkerId, busy_s: f64, tasks: i64) -> bool {
        let tasks = tasks - self.tasks_beside(worker);
        let nthreads = self.workers[worker].nthreads;
        let (tasks_max, nthreads) = (i64::from(nthreads), f64::from(nthreads));
        let total_nthreads = f64::from(self.total_nthreads);
        tasks < tasks_max
            || self.holds_of_total(|total_s| busy_s < nthreads * (total_s / total_nthreads) / 2.0)
    }

    fn is_saturated(&self, worker: WorkerId, busy_s: f64) -> bool {
        let one = &self.workers[worker];
        let (tasks, nthreads) = (one.processing.len() as f64, f64::from(one.nthreads));
        if tasks <= nthreads {
            return false;
        }
        let pending_s = busy_s * (tasks - nthreads) / (tasks * nthreads);
        let total_nthreads = f64::from(self.total_nthreads);
        pending_s > 0.4
            && self.holds_of_total(|total_s| pending_s > 1.9 * (total_s / total_nthreads))
    }

    /// Where a worker is among the idle ones, which are listed by address, or where it would be
    fn idle_place(&self, worker: WorkerId) -> Result<usize, usize> {
        let rank = self.workers[worker].rank;
        self.idle
            .binary_search_by_key(&rank, |&one| self.workers[one].rank)
    }

    pub(super) fn add_to_idle(&mut self, worker: WorkerId) {
        if let Err(place) = self.idle_place(worker) {
            self.idle.insert(place, worker);
        }
    }

    pub(super) fn remove_from_idle(&mut self, worker: WorkerId) {
        if let Ok(place) = self.idle_place(worker)
            && self.idle[place] == worker
        {
            self.idle.remove(place);
        }
    }
}
