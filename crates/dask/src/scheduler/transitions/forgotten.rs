//! To `Forgotten`: a task leaves everything that knows of it.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::ids::TaskId;
use super::super::messages::ClientMessage;
use super::super::recommendations::Recommendations;
use super::super::task::TaskState;

impl SchedulerCore {
    /// From `Released` or `Memory`; the number is given back when the transition is over
    pub(super) fn forget(&mut self, task: TaskId, recs: &mut Recommendations) {
        if self.tasks[task].state == TaskState::Memory && self.tasks[task].actor {
            for worker in self.tasks[task].who_has.listed() {
                self.remove_actor(worker, task);
            }
        }
        self.propagate_forgotten(task, recs);
        let message = ClientMessage::CancelledKeys {
            keys: vec![Arc::clone(&self.tasks[task].key)],
            reason: Some(Arc::from("already forgotten")),
            message: None,
        };
        self.send_to_who_wants(task, &message);
        self.remove_key(task);
    }

    fn propagate_forgotten(&mut self, task: TaskId, recs: &mut Recommendations) {
        self.set_state(task, TaskState::Forgotten);
        self.give(task);
        let dependents = std::mem::take(&mut self.tasks[task].dependents);
        for dependent in dependents.iter() {
            let one = &mut self.tasks[dependent];
            one.has_lost_dependencies = true;
            one.dependencies.remove(task);
            if let Some(waiting_on) = &mut one.waiting_on {
                waiting_on.remove(task);
            }
            if !matches!(one.state, TaskState::Memory | TaskState::Erred) {
                recs.set(dependent, TaskState::Forgotten);
            }
        }
        self.tasks[task].waiters = None;
        let dependencies = std::mem::take(&mut self.tasks[task].dependencies);
        for dependency in dependencies.iter() {
            let one = &mut self.tasks[dependency];
            one.dependents.remove(task);
            one.remove_waiter(task);
            if one.dependents.is_empty() && !one.is_wanted() {
                recs.set(dependency, TaskState::Forgotten);
            }
        }
        self.tasks[task].waiting_on = None;
        for worker in self.tasks[task].who_has.listed() {
            self.send_free_key(worker, task);
        }
        self.remove_all_replicas(task);
    }

    fn remove_key(&mut self, task: TaskId) {
        self.tasks.remove_key(task);
        if let Some(forgotten) = &mut self.forgotten {
            forgotten.push(Arc::clone(&self.tasks[task].key));
        }
        self.remove_from_unrunnable(task);
        for client in self.clients_of(task) {
            self.clients[client].wants.remove(task);
        }
        let one = &mut self.tasks[task];
        one.who_wants = None;
        one.processing_on = None;
        one.failure = None;
        one.spec = None;
        one.requirements = None;
    }
}
