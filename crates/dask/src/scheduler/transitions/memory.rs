//! To `Memory`, and from it: back, or to failure where it was an actor.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::{TaskId, WorkerId};
use super::super::messages::{ClientMessage, TaskError};
use super::super::recommendations::Recommendations;
use super::super::stimuli::TaskFinished;
use super::super::task::{Blame, Priority, TaskState};
use super::{Cause, ErredBy};

impl SchedulerCore {
    /// Notes a result, and what became ready or is no longer needed by it
    pub(super) fn add_to_memory(
        &mut self,
        task: TaskId,
        worker: WorkerId,
        finished: &TaskFinished,
        recs: &mut Recommendations,
    ) {
        self.add_replica(task, worker);
        let mut dependents = self.tasks[task].dependents.listed();
        if dependents.len() > 1 {
            // The last that is recommended is the first to go, so the least urgent comes first.
            dependents.sort_by(|&one, &other| self.by_priority(other, one));
        }
        for dependent in dependents {
            if let Some(waiting_on) = &mut self.tasks[dependent].waiting_on
                && waiting_on.remove(task)
                && waiting_on.is_empty()
            {
                recs.set(dependent, TaskState::Processing);
            }
        }
        for dependency in self.tasks[task].dependencies.listed() {
            let one = &mut self.tasks[dependency];
            one.remove_waiter(task);
            if !one.has_waiters() && !one.is_wanted() {
                recs.set(dependency, TaskState::Released);
            }
        }
        let one = &self.tasks[task];
        if !one.has_waiters() && !one.is_wanted() {
            recs.set(task, TaskState::Released);
        } else if one.is_wanted() {
            let message = ClientMessage::KeyInMemory {
                key: Arc::clone(&one.key),
                type_: Some(Arc::clone(&finished.type_)),
                workers: None,
            };
            self.send_to_who_wants(task, &message);
        }
        self.set_state(task, TaskState::Memory);
        let type_name = self.names.intern(&finished.type_name);
        self.tasks[task].type_name = Some(type_name);
        self.groups.count_type(self.tasks[task].group, type_name);
        self.fire_and_forget(task, recs);
    }

    /// Compares two tasks by priority; one that has none goes first
    pub(in super::super) fn by_priority(&self, one: TaskId, other: TaskId) -> Ordering {
        match (
            self.tasks[one].priority.get(),
            self.tasks[other].priority.get(),
        ) {
            (Some(one), Some(other)) => Priority::order(&one, &other),
            (one, other) => one.is_some().cmp(&other.is_some()),
        }
    }

    pub(super) fn memory_to_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        if self.tasks[task].actor {
            for worker in self.tasks[task].who_has.listed() {
                self.remove_actor(worker, task);
            }
            if self.tasks[task].is_wanted() {
                // Its state is lost with it: it is not made again.
                let blame = self.as_blamed(task);
                let failure = self.tasks[task].failure_mut();
                failure.blame = Some(blame);
                failure.exception = Some(TaskError::ActorLost);
                recs.set(task, TaskState::Erred);
                return;
            }
        }
        let key = Arc::clone(&self.tasks[task].key);
        for worker in self.tasks[task].who_has.listed() {
            self.send_free_key(worker, task);
        }
        self.remove_all_replicas(task);
        self.set_state(task, TaskState::Released);
        self.send_to_who_wants(task, &ClientMessage::LostData { key });
        let one = &self.tasks[task];
        if one.spec.is_none() || one.has_lost_dependencies {
            recs.set(task, TaskState::Forgotten);
        } else if (one.is_wanted() || one.has_waiters())
            && !one
                .dependencies
                .iter()
                .any(|dependency| self.is_erred(dependency))
        {
            recs.set(task, TaskState::Waiting);
        }
        let waiters = self.tasks[task].waiters.as_ref();
        for waiter in waiters.map(|waiters| waiters.listed()).unwrap_or_default() {
            match self.tasks[waiter].state {
                TaskState::NoWorker | TaskState::Processing | TaskState::Queued => {
                    recs.set(waiter, TaskState::Waiting);
                }
                TaskState::Waiting => {
                    let waiting_on = self.tasks[waiter].waiting_on.get_or_insert_default();
                    waiting_on.insert(task);
                }
                _ => {}
            }
        }
    }

    fn is_erred(&self, task: TaskId) -> bool {
        self.tasks[task].state == TaskState::Erred
    }

    /// An actor whose worker is gone
    ///
    /// Upstream makes messages to its holders and clients here and then drops them; the remaining
    /// effect is that dependents without results get the task to blame.
    pub(super) fn memory_to_erred(
        &mut self,
        task: TaskId,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        self.remove_all_replicas(task);
        let blame = self.as_blamed(task);
        for dependent in self.tasks[task].dependents.listed() {
            if self.tasks[dependent].who_has.is_empty() {
                self.tasks[dependent].failure_mut().blame = Some(blame.clone());
            }
        }
        self.set_state(task, TaskState::Erred);
        let erred = ErredBy::found(task, None, TaskError::ActorLost);
        self.propagate_erred(task, Cause::Erred(&erred), recs)
    }

    pub(super) fn as_blamed(&self, task: TaskId) -> Blame {
        let one = &self.tasks[task];
        Blame {
            task,
            serial: one.serial,
            key: Arc::clone(&one.key),
        }
    }
}
