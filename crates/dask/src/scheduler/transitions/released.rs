//! From `Released`: to wait for dependencies, or to share the failure of one.

use smallvec::SmallVec;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::TaskId;
use super::super::recommendations::Recommendations;
use super::super::task::TaskState;
use super::erred::NO_BLAME;
use crate::ordered_set::OrderedSet;

impl SchedulerCore {
    pub(super) fn released_to_waiting(&mut self, task: TaskId, recs: &mut Recommendations) {
        if self.tasks[task].has_lost_dependencies {
            recs.set(task, TaskState::Forgotten);
            return;
        }
        self.set_state(task, TaskState::Waiting);
        self.wait_for_inputs(task);
        for dependency in self.tasks[task].dependencies.listed() {
            if self.tasks[dependency].state == TaskState::Released {
                recs.set(dependency, TaskState::Waiting);
            } else {
                let one = &mut self.tasks[dependency];
                let waiters = one.waiters.get_or_insert_default();
                waiters.insert(task);
                waiters.expect(one.dependents.len());
                if waiters.len() == one.dependents.len() {
                    waiters.share(&one.dependents);
                }
            }
        }
        let dependents = &self.tasks[task].dependents;
        let waiters = dependents
            .iter()
            .filter(|&dependent| self.tasks[dependent].state == TaskState::Waiting);
        let mut waiters: OrderedSet<TaskId> = waiters.collect();
        waiters.share(dependents);
        let one = &mut self.tasks[task];
        one.waiters = Some(waiters);
        if one.waiting_on.as_ref().is_none_or(|set| set.is_empty()) {
            recs.set(task, TaskState::Processing);
        }
    }

    /// Notes which inputs of a task no worker has
    fn wait_for_inputs(&mut self, task: TaskId) {
        let one = &self.tasks[task];
        let is_missing = |&input: &TaskId| self.tasks[input].who_has.is_empty();
        let waits = one.waiting_on.as_ref().is_some_and(|set| !set.is_empty());
        if !waits && one.dependencies.iter().all(|input| is_missing(&input)) {
            // Nearly always; of many inputs it is one list.
            if !one.dependencies.is_empty() {
                self.tasks[task].waiting_on = Some(one.dependencies.clone());
            }
            return;
        }
        let missing: SmallVec<[TaskId; 4]> = one.dependencies.iter().filter(is_missing).collect();
        for input in missing {
            let waiting_on = self.tasks[task].waiting_on.get_or_insert_default();
            waiting_on.insert(input);
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
