//! Consequences of a release or a failure for other tasks.

use std::sync::Arc;

use super::super::core::SchedulerCore;
use super::super::error::EventError;
use super::super::ids::{ClientId, TaskId};
use super::super::recommendations::Recommendations;
use super::super::task::{Blame, ErredTask, TaskState};
use super::Cause;
use super::erred::NO_BLAME;

impl SchedulerCore {
    pub(super) fn propagate_released(&mut self, task: TaskId, recs: &mut Recommendations) {
        self.set_state(task, TaskState::Released);
        let one = &self.tasks[task];
        if one.has_lost_dependencies {
            recs.set(task, TaskState::Forgotten);
        } else if one.has_waiters() || one.is_wanted() {
            recs.set(task, TaskState::Waiting);
            return;
        }
        for dependency in self.tasks[task].dependencies.listed() {
            let one = &mut self.tasks[dependency];
            if one.state != TaskState::Released {
                one.remove_waiter(task);
                if !one.has_waiters() && !one.is_wanted() {
                    recs.set(dependency, TaskState::Released);
                }
            }
        }
        self.tasks[task].waiters = None;
    }

    pub(super) fn propagate_erred(
        &mut self,
        task: TaskId,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        self.set_state(task, TaskState::Erred);
        let blamed = match cause {
            Cause::Erred(erred) => self.tasks.find(erred.blamed).map(|one| Blame {
                task: erred.blamed,
                serial: one.serial,
                key: Arc::clone(&one.key),
            }),
            _ => None,
        };
        let failure = self.tasks[task].failure_mut();
        let erred_on = failure.erred_on.get_or_insert_default();
        if let Cause::Erred(erred) = cause {
            if let Some(worker) = &erred.worker
                && !erred_on.contains(worker)
            {
                erred_on.push(Arc::clone(worker));
            }
            if erred.exception.is_some() {
                failure.exception.clone_from(&erred.exception);
                failure.exception_text.clone_from(&erred.exception_text);
            }
            if erred.traceback.is_some() {
                failure.traceback.clone_from(&erred.traceback);
                failure.traceback_text.clone_from(&erred.traceback_text);
            }
            failure.blame = blamed;
        }
        let Some(blame) = failure.blame.clone() else {
            return Err(self.lacks(task, NO_BLAME));
        };
        let erred_on = failure.erred_on.clone().unwrap_or_default();
        let texts = match cause {
            Cause::Erred(erred) => (erred.exception_text.clone(), erred.traceback_text.clone()),
            _ => (None, None),
        };
        self.erred.push_front(ErredTask {
            key: Arc::clone(&self.tasks[task].key),
            at_s: self.now_s,
            erred_on,
            exception_text: texts.0,
            traceback_text: texts.1,
        });
        self.erred.truncate(ERRED_MAX);

        let waiters = self.tasks[task].waiters.take();
        for waiter in waiters.iter().flat_map(|waiters| waiters.iter()) {
            self.tasks[waiter].failure_mut().blame = Some(blame.clone());
            recs.set(waiter, TaskState::Erred);
        }
        for dependency in self.tasks[task].dependencies.listed() {
            let one = &mut self.tasks[dependency];
            one.remove_waiter(task);
            if !one.has_waiters() && !one.is_wanted() {
                recs.set(dependency, TaskState::Released);
            }
        }
        let message = self.erred_message(task);
        self.send_to_who_wants(task, &message);
        self.fire_and_forget(task, recs);
        Ok(())
    }

    /// Has the client that only waits for ends no longer want a task
    pub(super) fn fire_and_forget(&mut self, task: TaskId, recs: &mut Recommendations) {
        let client = self.clients.fire_and_forget;
        self.release_key(task, client, recs);
    }

    /// Has a client no longer want a task, if it did
    pub(in super::super) fn release_key(
        &mut self,
        task: TaskId,
        client: ClientId,
        recs: &mut Recommendations,
    ) {
        if !self.clients[client].wants.remove(task) {
            return;
        }
        let one = &mut self.tasks[task];
        if let Some(who_wants) = &mut one.who_wants {
            who_wants.remove(client);
        }
        if one.is_wanted() {
            return;
        }
        if one.dependents.is_empty() {
            recs.set(task, TaskState::Forgotten);
        } else if one.state != TaskState::Erred && !one.has_waiters() {
            recs.set(task, TaskState::Released);
        }
    }
}

/// `diagnostics.erred-tasks.max-history`: failures that are remembered
const ERRED_MAX: usize = 100;
