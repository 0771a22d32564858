//! How long workers are busy for, by the tasks they have and the bytes they have to fetch.

use std::collections::hash_map::Entry;

use super::core::SchedulerCore;
use super::ids::{PrefixId, TaskId, WorkerId};

impl SchedulerCore {
    /// How long a task of a prefix computes, in seconds, as far as is known
    pub(super) fn prefix_duration_s(&self, prefix: PrefixId) -> f64 {
        self.groups.loads.duration_s(prefix)
    }

    /// How long a worker is busy for, in seconds of one thread
    pub(super) fn occupancy_s(&self, worker: WorkerId) -> f64 {
        let compute_s = self.stack_s(worker);
        self.with_network_s(compute_s, self.workers[worker].network_bytes)
    }

    /// How long the tasks of a worker compute, in seconds of one thread
    pub(super) fn stack_s(&self, worker: WorkerId) -> f64 {
        let worker = &self.workers[worker];
        let changes = self.groups.loads.changes();
        match worker.added_up.get() {
            Some((compute_s, then)) if then == changes => compute_s,
            _ => {
                let compute_s = self.compute_s(worker.prefix_counts.iter());
                worker.added_up.set(Some((compute_s, changes)));
                compute_s
            }
        }
    }

    /// How long all workers are busy for, in seconds of one thread
    pub(super) fn total_occupancy_s(&self) -> f64 {
        let prefixes = self.processing_prefixes.iter();
        let counts = prefixes.map(|prefix| (prefix, self.groups.loads.processing(prefix)));
        self.with_network_s(self.compute_s(counts), self.network_bytes)
    }

    /// Returns whether a condition holds of [`SchedulerCore::total_occupancy_s`], where the
    /// condition holds above some number and not below, or the reverse
    ///
    /// The bounds of the total decide if the condition holds of both or of neither, because adding
    /// up takes a step for each prefix.
    pub(super) fn holds_of_total(&self, holds: impl Fn(f64) -> bool) -> bool {
        let prefixes = self.processing_prefixes.len();
        let bounds_s = (prefixes > ADDED_UP_MAX)
            .then(|| self.groups.loads.bounds_s(prefixes))
            .flatten();
        if let Some([low_s, high_s]) = bounds_s {
            let of_low = holds(self.with_network_s(low_s, self.network_bytes));
            if of_low == holds(self.with_network_s(high_s, self.network_bytes)) {
                debug_assert_eq!(of_low, holds(self.total_occupancy_s()));
                return of_low;
            }
        }
        holds(self.total_occupancy_s())
    }

    /// Adds up in the order in which prefixes came, as rounding depends on it
    fn compute_s(&self, counts: impl Iterator<Item = (PrefixId, i64)>) -> f64 {
        let mut compute_s = 0.0;
        for (prefix, count) in counts {
            compute_s += self.groups.loads.compute_s(prefix, count);
        }
        compute_s
    }

    fn with_network_s(&self, compute_s: f64, network_bytes: u64) -> f64 {
        let occupancy_s: f64 = compute_s + network_bytes as f64 / self.bandwidth_bytes_per_s;
        occupancy_s.max(0.0)
    }

    /// Gives a task to a worker: counts it, and what has to be fetched for it
    pub(super) fn add_to_processing_of(&mut self, worker: WorkerId, task: TaskId) {
        let prefix = self.groups.prefix_of(self.tasks[task].group);
        self.count_prefix(worker, prefix);
        self.change_processing(worker, task, true);
        for dependency in self.tasks[task].dependencies.listed() {
            if !self.tasks[dependency].who_has.contains(worker) {
                self.add_need(worker, dependency);
            }
        }
    }

    /// Takes a task from a worker again
    pub(super) fn remove_from_processing_of(&mut self, worker: WorkerId, task: TaskId) {
        if !self.workers[worker].long_running.remove(task) {
            let prefix = self.groups.prefix_of(self.tasks[task].group);
            self.uncount_prefix(worker, prefix);
        }
        self.change_processing(worker, task, false);
        for dependency in self.tasks[task].dependencies.listed() {
            self.drop_need(worker, dependency);
        }
    }

    /// Stops counting the time of a task that has left its thread
    pub(super) fn add_to_long_running(&mut self, worker: WorkerId, task: TaskId) {
        let prefix = self.groups.prefix_of(self.tasks[task].group);
        self.uncount_prefix(worker, prefix);
        self.workers[worker].long_running.insert(task);
    }

    fn count_prefix(&mut self, worker: WorkerId, prefix: PrefixId) {
        let one = &mut self.workers[worker];
        one.added_up.set(None);
        one.prefix_counts.add(prefix, 1);
        let total = self.groups.loads.processing(prefix);
        self.set_processing(prefix, total + 1);
    }

    fn set_processing(&mut self, prefix: PrefixId, total: i64) {
        // One that has any is listed already.
        if self.groups.loads.processing(prefix) == 0 {
            self.processing_prefixes.insert(prefix);
        }
        self.groups.loads.set_processing(prefix, total);
    }

    /// Counts a task less, of one worker and of all; a prefix that comes to nothing loses its place
    ///
    /// A worker that says twice that a task has left its thread has it counted twice, below zero if
    /// need be, as upstream does.
    fn uncount_prefix(&mut self, worker: WorkerId, prefix: PrefixId) {
        let one = &mut self.workers[worker];
        one.added_up.set(None);
        one.prefix_counts.take(prefix);
        let total = self.groups.loads.processing(prefix) - 1;
        self.set_processing(prefix, total);
        if total == 0 {
            self.processing_prefixes.remove(prefix);
        }
    }

    fn add_need(&mut self, worker: WorkerId, dependency: TaskId) {
        let nbytes = self.tasks[dependency].nbytes_or(self.default_bytes());
        let one = &mut self.workers[worker];
        let needs = one.needs_what.entry(dependency).or_insert(0);
        *needs += 1;
        if *needs == 1 {
            if let Some(placing) = &self.placing {
                placing.promise(dependency, worker, &self.tasks);
            }
            one.network_bytes += nbytes;
            self.network_bytes += nbytes;
            self.add_reference(dependency);
        }
    }

    fn drop_need(&mut self, worker: WorkerId, dependency: TaskId) {
        let needs_what = &mut self.workers[worker].needs_what;
        if needs_what.is_empty() {
            // Looking for an entry would make room for one.
            return;
        }
        let Entry::Occupied(mut needs) = needs_what.entry(dependency) else {
            return;
        };
        *needs.get_mut() -= 1;
        if *needs.get() == 0 {
            needs.remove();
            self.need_less(worker, dependency);
        }
    }

    /// Has a worker no longer fetch a result
    ///
    /// Tells whether it had to.
    pub(super) fn end_need(&mut self, worker: WorkerId, dependency: TaskId) -> bool {
        let one = &mut self.workers[worker];
        let needed = one.needs_what.remove(&dependency).is_some();
        if needed {
            self.need_less(worker, dependency);
        }
        needed
    }

    fn need_less(&mut self, worker: WorkerId, dependency: TaskId) {
        if let Some(placing) = &self.placing {
            placing.settle(dependency, worker);
        }
        let nbytes = self.tasks[dependency].nbytes_or(self.default_bytes());
        let one = &mut self.workers[worker];
        // The size may have changed since it was added.
        one.network_bytes = one.network_bytes.saturating_sub(nbytes);
        self.network_bytes = self.network_bytes.saturating_sub(nbytes);
        self.drop_reference(dependency);
    }
}

/// Prefixes that are added up directly: that is as fast
const ADDED_UP_MAX: usize = 4;
