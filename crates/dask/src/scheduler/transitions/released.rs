//! From `Released`: to wait for dependencies, or to share the failure of one.

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::recommendations::Recommendations;
use super::super::task::TaskState;
use super::erred::NO_BLAME;

impl SchedulerCore {
    pub(super) fn released_to_waiting(&mut self, task: TaskId, recs: &mut Recommendations) {
        if self.tasks[task].has_lost_dependencies {
            recs.set(task, TaskState::Forgotten);
            return;
        }
        self.set_state(task, TaskState::Waiting);
        for dependency in self.tasks[task].dependencies.listed() {
            if self.tasks[dependency].who_has.is_empty() {
                let waiting_on = self.tasks[task].waiting_on.get_or_insert_default();
                waiting_on.insert(dependency);
            }
            if self.tasks[dependency].state == TaskState::Released {
                recs.set(dependency, TaskState::Waiting);
            } else {
                let waiters = self.tasks[dependency].waiters.get_or_insert_default();
                waiters.insert(task);
            }
        }
        let dependents = self.tasks[task].dependents.iter();
        let waiters = dependents
            .filter(|&dependent| self.tasks[dependent].state == TaskState::Waiting)
            .collect();
        let one = &mut self.tasks[task];
        one.waiters = Some(waiters);
        if one.waiting_on.as_ref().is_none_or(|set| set.is_empty()) {
            recs.set(task, TaskState::Processing);
        }
    }

    pub(super) fn released_to_erred(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        let Some(blame) = self.blame_of(task) else {
            return Err(self.lacks(task, NO_BLAME));
        };
        for dependent in self.tasks[task].dependents.listed() {
            if self.tasks[dependent].who_has.is_empty() {
                self.tasks[dependent].failure_mut().blame = Some(blame.clone());
                recs.set(dependent, TaskState::Erred);
            }
        }
        let message = self.erred_message(task);
        self.send_to_who_wants(task, &message);
        self.set_state(task, TaskState::Erred);
        Ok(())
    }
}
