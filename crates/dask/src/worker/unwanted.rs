//! Transitions of tasks that are run or fetched, and that are wanted no more, or otherwise.

use super::core::{Recommendations, WorkerCore};
use super::error::Refused;
use super::host::{Host, Instruction};
use super::ids::TaskId;
use super::state::{Finish, State};
use super::task::Task;
use super::transitions::Told;

impl WorkerCore {
    pub(super) fn resumed_to_error(
        &mut self,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if !known.done {
            return Err(Refused::Assertion("an end before it is done"));
        }
        let next = match known.previous {
            Some(State::Executing | State::LongRunning) => State::Fetch,
            Some(State::Flight) => State::Waiting,
            _ => return Err(Refused::Assertion("resumed from nothing")),
        };
        start_again(known);
        found.set(task, Finish::To(next));
        Ok(())
    }

    pub(super) fn resumed_to_fetch(&mut self, task: TaskId, found: &mut Recommendations) {
        let known = self.task_mut(task);
        if known.previous != Some(State::Flight) {
            return;
        }
        if known.done {
            start_again(known);
            found.set(task, Finish::To(State::Waiting));
        } else {
            known.state = State::Flight;
            known.previous = None;
            known.next = None;
        }
    }

    pub(super) fn resumed_to_released(&mut self, task: TaskId) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if known.done {
            return Err(Refused::Assertion("released when it is done"));
        }
        known.state = State::Cancelled;
        known.next = None;
        Ok(())
    }

    pub(super) fn resumed_to_memory(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        let told = if known.previous.is_some_and(State::runs) {
            Told::AddKeys
        } else {
            Told::TaskFinished
        };
        known.previous = None;
        known.next = None;
        self.any_to_memory(host, task, finish, told, found)
    }

    pub(super) fn cancelled_to_fetch(
        &mut self,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if known.previous == Some(State::Flight) {
            if known.done {
                found.set(task, Finish::To(State::Released));
            } else {
                known.state = State::Flight;
                known.previous = None;
            }
            return Ok(());
        }
        if known.done {
            return Err(Refused::Assertion("to be fetched when its run is done"));
        }
        known.state = State::Resumed;
        known.next = Some(State::Fetch);
        Ok(())
    }

    pub(super) fn cancelled_to_waiting(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if known.done {
            return Err(Refused::Assertion("to wait when it is done"));
        }
        match known.previous {
            Some(State::Executing) => {
                known.state = State::Executing;
                known.previous = None;
            }
            Some(State::LongRunning) => {
                known.state = State::LongRunning;
                known.previous = None;
                let run_id = known.run_id;
                host.tell(Instruction::LongRunning(task, run_id, None));
            }
            _ => {
                known.state = State::Resumed;
                known.next = Some(State::Waiting);
            }
        }
        Ok(())
    }

    pub(super) fn cancelled_to_released(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        found: &mut Recommendations,
    ) {
        let known = self.task_mut(task);
        if known.done {
            known.previous = None;
            known.done = false;
            self.any_to_released(host, task, found);
        }
    }

    pub(super) fn unwanted_to_long_running(
        &mut self,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if !known.previous.is_some_and(State::runs) {
            return Err(Refused::Assertion("leaves the pool without a run"));
        }
        known.previous = Some(State::LongRunning);
        self.leave_pool(task);
        self.ensure_computing(found);
        Ok(())
    }
}

/// Has a task begin anew, whatever it was resumed to
fn start_again(task: &mut Task) {
    task.state = State::Released;
    task.done = false;
    task.previous = None;
    task.next = None;
}
