//! The transitions of a task, and how one leads to others.
//!
//! The table is upstream's `_TRANSITIONS_TABLE`; each state a task leaves has a file of its own.
//! A pair of states that is not in the table passes through `Released`.

pub(super) mod erred;
mod forgotten;
mod memory;
mod processing;
mod propagate;
mod ready;
mod released;
mod waiting;

use std::sync::Arc;

use super::core::{SchedulerCore, shown};
use super::error::EventError;
use super::ids::TaskId;
use super::looks::{Noted, Watched};
use super::messages::{TaskError, Transition};
use super::recent::PastTransition;
use super::recommendations::Recommendations;
use super::stimuli::TaskFinished;
use super::task::{Payload, TaskState};

/// Arguments of a transition besides its task
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause<'a> {
    /// Nothing
    None,
    /// How a task ended well
    Finished(&'a TaskFinished),
    /// How a task failed
    Erred(&'a ErredBy),
}

/// How a task failed, as an argument of transitions to `Erred`
#[derive(Clone, Debug)]
pub(super) struct ErredBy {
    /// The task to blame; it may be another one
    pub(super) blamed: TaskId,
    /// Address of the worker where it failed
    pub(super) worker: Option<Arc<str>>,
    pub(super) exception: Option<TaskError>,
    pub(super) traceback: Option<Payload>,
    pub(super) exception_text: Option<Arc<str>>,
    pub(super) traceback_text: Option<Arc<str>>,
}

impl ErredBy {
    /// A failure that the scheduler itself found
    pub(super) fn found(blamed: TaskId, worker: Option<Arc<str>>, exception: TaskError) -> Self {
        Self {
            blamed,
            worker,
            exception: Some(exception),
            traceback: None,
            exception_text: None,
            traceback_text: None,
        }
    }
}

/// Transitions that may come of one event, and more for each task: none that ends comes to a tenth
const TRANSITIONS_MIN: u64 = 100_000;
const TRANSITIONS_PER_TASK: u64 = 64;

impl SchedulerCore {
    /// Follows recommendations until none are left
    pub(super) fn follow(&mut self, mut recs: Recommendations) -> Result<(), EventError> {
        let begun = self.transition_count;
        let most = TRANSITIONS_MIN + TRANSITIONS_PER_TASK * self.tasks.known_count() as u64;
        while let Some((task, finish)) = recs.pop() {
            self.transition(task, finish, Cause::None, &mut recs)?;
            let transitions = self.transition_count - begun;
            if transitions > most {
                let one = self.tasks.find(task);
                let key = one.map(|one| shown(&one.key)).unwrap_or_default();
                return Err(EventError::Endless { key, transitions });
            }
        }
        Ok(())
    }

    /// Follows one recommendation, and what comes of it
    pub(super) fn follow_one(&mut self, task: TaskId, finish: TaskState) -> Result<(), EventError> {
        let mut recs = Recommendations::default();
        recs.set(task, finish);
        self.follow(recs)
    }

    /// Takes a task to a state, or as far as it can go; what is to follow is added to `recs`
    pub(super) fn transition(
        &mut self,
        task: TaskId,
        finish: TaskState,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<(), EventError> {
        // It may have been forgotten since this was recommended.
        let Some(one) = self.tasks.find(task) else {
            return Ok(());
        };
        let mut start = one.state;
        if start == finish || start == TaskState::Forgotten {
            return Ok(());
        }
        self.transition_count += 1;
        if !self.direct(task, start, finish, cause, recs)? {
            if start == TaskState::Released || finish == TaskState::Released {
                return Err(self.impossible(task, start, finish));
            }
            self.transition(task, TaskState::Released, Cause::None, recs)?;
            // Recommendations of the release come before the requested state.
            let next = recs.state(task).unwrap_or(finish);
            if !self.direct(task, TaskState::Released, next, Cause::None, recs)? {
                return Err(self.impossible(task, TaskState::Released, next));
            }
            start = TaskState::Released;
        }
        self.conclude(task, start);
        Ok(())
    }

    /// Does a transition that the table has; returns whether it has it
    fn direct(
        &mut self,
        task: TaskId,
        start: TaskState,
        finish: TaskState,
        cause: Cause<'_>,
        recs: &mut Recommendations,
    ) -> Result<bool, EventError> {
        use TaskState::{
            Erred, Forgotten, Memory, NoWorker, Processing, Queued, Released, Waiting,
        };
        match (start, finish) {
            (Released, Waiting) => self.released_to_waiting(task, recs),
            (Released, Erred) => self.released_to_erred(task, recs)?,
            (Released | Memory, Forgotten) => self.forget(task, recs),
            (Waiting, Released) => self.waiting_to_released(task, recs),
            (Waiting, Processing) => self.waiting_to_processing(task, recs)?,
            (Waiting, NoWorker) => self.waiting_to_no_worker(task),
            (Waiting, Queued) => self.waiting_to_queued(task)?,
            // A replica that no task waits for any more; its worker will be asked to drop it.
            (Waiting, Memory) => {}
            (Queued, Released) => self.queued_to_released(task, recs),
            (Queued, Processing) => self.queued_to_processing(task, recs)?,
            (Queued, Erred) => self.queued_to_erred(task, cause, recs)?,
            (NoWorker, Released) => self.no_worker_to_released(task, recs),
            (NoWorker, Processing) => self.no_worker_to_processing(task, recs)?,
            (NoWorker, Erred) => self.no_worker_to_erred(task, cause, recs)?,
            (Processing, Released) => self.processing_to_released(task, recs)?,
            (Processing, Memory) => self.processing_to_memory(task, cause, recs)?,
            (Processing, Erred) => self.processing_to_erred(task, cause, recs)?,
            (Memory, Released) => self.memory_to_released(task, recs),
            (Memory, Erred) => self.memory_to_erred(task, recs)?,
            (Erred, Released) => self.erred_to_released(task, recs),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Logs a transition, and drops what it leaves empty
    fn conclude(&mut self, task: TaskId, start: TaskState) {
        let one = &self.tasks[task];
        let (finish, group) = (one.state, one.group);
        let transition = || Transition {
            key: Arc::clone(&one.key),
            start,
            finish,
        };
        if let Some(log) = &mut self.log {
            log.push(transition());
        }
        let past = || PastTransition {
            transition: transition(),
            stimulus: Arc::clone(&self.stimulus),
            at_s: self.now_s,
        };
        self.recent.add(past);
        let is_end = matches!(finish, TaskState::Erred | TaskState::Forgotten);
        if is_end && self.watched == Watched::Ends {
            self.noted.push(Noted::Moved(past()));
        }
        self.refile(task, start, finish);
        if finish != TaskState::Forgotten {
            return;
        }
        self.forget_unknown(task);
        let states = &self.groups[group].tally.states;
        let live = &states[..TaskState::Forgotten as usize];
        if live.iter().all(|&count| count == 0) {
            if self.forgotten.is_some() {
                let last = self.group_view(&self.groups[group]);
                self.gone_groups.push(last);
            }
            self.groups.retire(group);
        }
        self.drop_task(task);
    }

    fn impossible(&self, task: TaskId, start: TaskState, finish: TaskState) -> EventError {
        EventError::ImpossibleTransition {
            key: shown(&self.tasks[task].key),
            start,
            finish,
        }
    }
}
