//! Which worker holds which result.

use super::compact::NumberOrNone;
use super::core::SchedulerCore;
use super::ids::{TaskId, WorkerId};

impl SchedulerCore {
    pub(super) fn add_replica(&mut self, task: TaskId, worker: WorkerId) {
        let nbytes = self.tasks[task].nbytes_or(self.default_bytes());
        let one = &mut self.workers[worker];
        if one.has_what.insert(task) {
            one.nbytes += nbytes as i64;
            if !self.end_need(worker, task) && self.tasks[task].who_has.is_empty() {
                self.observe_result(task);
            }
            self.tasks[task].who_has.insert(worker);
        }
        if self.tasks[task].who_has.len() == 2 {
            self.replicated.insert(task);
        }
    }

    pub(super) fn remove_replica(&mut self, task: TaskId, worker: WorkerId) {
        let nbytes = self.tasks[task].nbytes_or(self.default_bytes());
        let one = &mut self.workers[worker];
        one.nbytes -= nbytes as i64;
        one.has_what.remove(task);
        let who_has = &mut self.tasks[task].who_has;
        who_has.remove(worker);
        if who_has.len() == 1 {
            self.replicated.remove(task);
        }
    }

    pub(super) fn remove_all_replicas(&mut self, task: TaskId) {
        let nbytes = self.tasks[task].nbytes_or(self.default_bytes());
        let who_has = std::mem::take(&mut self.tasks[task].who_has);
        for worker in who_has.iter() {
            let one = &mut self.workers[worker];
            one.nbytes -= nbytes as i64;
            one.has_what.remove(task);
        }
        if who_has.len() > 1 {
            self.replicated.remove(task);
        }
    }

    /// Notes the size of a result, in its group and on the workers that hold it
    pub(super) fn set_nbytes(&mut self, task: TaskId, nbytes: u64) {
        let one = &mut self.tasks[task];
        let more_bytes = nbytes as i64 - one.nbytes.get().unwrap_or(0) as i64;
        one.nbytes = NumberOrNone::some(nbytes);
        self.groups.count_nbytes(one.group, more_bytes);
        for worker in self.tasks[task].who_has.listed() {
            self.workers[worker].nbytes += more_bytes;
        }
    }
}
