//! From `Waiting`: to a worker, to those held back, or back.

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::recommendations::Recommendations;
use super::super::task::TaskState;

impl SchedulerCore {
    pub(super) fn waiting_to_processing(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let worker = if self.is_rootish(task) {
            let queues = !self.config.worker_saturation.is_infinite();
            if queues && self.tasks[task].queueable {
                let Some(worker) = self.decide_for_queued(Some(task)) else {
                    recs.set(task, TaskState::Queued);
                    return Ok(());
                };
                Some(worker)
            } else {
                self.decide_for_unqueued_root(task)
            }
        } else {
            self.decide_by_inputs(task)
        };
        match worker {
            Some(worker) => self.add_to_processing(task, worker, recs),
            None => {
                recs.set(task, TaskState::NoWorker);
                Ok(())
            }
        }
    }

    pub(super) fn waiting_to_no_worker(&mut self, task: TaskId) {
        self.set_state(task, TaskState::NoWorker);
        self.unrunnable.insert(task);
        self.unrunnable_since_s.insert(task, self.now_s);
    }

    pub(super) fn waiting_to_queued(&mut self, task: TaskId) -> Result<(), EventError> {
        self.set_state(task, TaskState::Queued);
        if self.queue.add(&mut self.tasks, task) {
            Ok(())
        } else {
            Err(self.lacks(
                task,
                "place in the queue: it alone has a priority, or has none",
            ))
        }
    }

    pub(super) fn waiting_to_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        for dependency in self.tasks[task].dependencies.listed() {
            let one = &mut self.tasks[dependency];
            let waited = one
                .waiters
                .as_mut()
                .is_some_and(|waiters| waiters.remove(task));
            if waited && !one.has_waiters() && !one.is_wanted() {
                recs.set(dependency, TaskState::Released);
            }
        }
        self.tasks[task].waiting_on = None;
        self.set_state(task, TaskState::Released);
        let one = &mut self.tasks[task];
        if one.has_lost_dependencies {
            recs.set(task, TaskState::Forgotten);
        } else if !one.is_blamed() && (one.is_wanted() || one.has_waiters()) {
            recs.set(task, TaskState::Waiting);
        } else {
            one.waiters = None;
        }
    }
}
