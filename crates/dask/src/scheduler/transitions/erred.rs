//! From `Erred`, and what is said of failures.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::ids::TaskId;
use super::super::messages::ClientMessage;
use super::super::recommendations::Recommendations;
use super::super::task::{Blame, Failure, TaskState};

impl SchedulerCore {
    pub(super) fn erred_to_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        let failure = self.tasks[task].failure_mut();
        failure.exception = None;
        failure.blame = None;
        failure.traceback = None;
        let erred_on = failure.erred_on.take();
        for dependent in self.tasks[task].dependents.listed() {
            if self.tasks[dependent].state == TaskState::Erred {
                recs.set(dependent, TaskState::Waiting);
            }
        }
        let key = Arc::clone(&self.tasks[task].key);
        for address in erred_on.unwrap_or_default() {
            self.send_free_keys(&address, &key);
        }
        self.send_to_who_wants(task, &ClientMessage::TaskRetried { key });
        self.set_state(task, TaskState::Released);
    }

    pub(in super::super) fn blame_of(&self, task: TaskId) -> Option<Blame> {
        let failure = self.tasks[task].failure.as_ref()?;
        failure.blame.clone()
    }

    /// The failure that a task is blamed with; none if the task to blame is forgotten
    pub(in super::super) fn failure_behind(&self, task: TaskId) -> Option<&Failure> {
        let failure = self.tasks[task].failure.as_ref()?;
        let blame = failure.blame.as_ref()?;
        let blamed = self.tasks.find(blame.task)?;
        if blamed.serial != blame.serial {
            return None;
        }
        blamed.failure.as_deref()
    }

    pub(in super::super) fn erred_message(&self, task: TaskId) -> ClientMessage {
        let failure = self.failure_behind(task);
        ClientMessage::TaskErred {
            key: Arc::clone(&self.tasks[task].key),
            exception: failure.and_then(|failure| failure.exception.clone()),
            traceback: failure.and_then(|failure| failure.traceback.clone()),
        }
    }
}

/// Name of the missing part of a task that errs without a failure of any task
pub(in super::super) const NO_BLAME: &str = "failure to be blamed with";
