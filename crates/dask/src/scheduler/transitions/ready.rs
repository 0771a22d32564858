//! From `Queued` and `NoWorker`: to a worker, back, or to failure after waiting too long.

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::recommendations::Recommendations;
use super::Cause;

impl SchedulerCore {
    pub(super) fn queued_to_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        self.queue.remove(&mut self.tasks, task);
        self.propagate_released(task, recs);
    }

    pub(super) fn queued_to_processing(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        if let Some(worker) = self.decide_for_queued(None) {
            self.queue.remove(&mut self.tasks, task);
            self.add_to_processing(task, worker, recs)?;
        }
        Ok(())
    }

    pub(super) fn queued_to_erred(
        &mut self,
        task: TaskId,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        self.queue.remove(&mut self.tasks, task);
        self.propagate_erred(task, cause, recs)
    }

    pub(super) fn no_worker_to_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        self.remove_from_unrunnable(task);
        self.propagate_released(task, recs);
    }

    pub(super) fn no_worker_to_processing(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        if let Some(worker) = self.decide_by_inputs(task) {
            self.remove_from_unrunnable(task);
            self.add_to_processing(task, worker, recs)?;
        }
        Ok(())
    }

    pub(super) fn no_worker_to_erred(
        &mut self,
        task: TaskId,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        self.remove_from_unrunnable(task);
        self.propagate_erred(task, cause, recs)
    }

    pub(super) fn remove_from_unrunnable(&mut self, task: TaskId) {
        self.unrunnable.remove(task);
        self.unrunnable_since_s.remove(&task);
    }
}
