//! The transitions of a task: the functions of `WorkerState._TRANSITIONS_TABLE`.
//!
//! Left out is what asks for resources, and actors: tasks of those are not taken on.

use smallvec::SmallVec;

use super::core::{Recommendations, WorkerCore};
use super::error::Refused;
use super::host::{Host, Instruction, Line, Stored};
use super::ids::{PayloadId, PeerId, TaskId};
use super::state::{Finish, State};
use super::task::NO_RUN;
use crate::ordered_set::OrderedSet;

/// Report to the scheduler about a result on this worker
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Told {
    Nothing,
    AddKeys,
    TaskFinished,
}

impl WorkerCore {
    /// Takes a task to another state; `found` is empty, and has what is recommended then
    pub(super) fn transition(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let start = self.task(task).state;
        let target = finish.state();
        if start == target {
            return Ok(());
        }
        self.counters.transitions += 1;
        if !self.step(host, task, start, finish, found)? {
            let invalid = Refused::InvalidTransition {
                task,
                start,
                finish: target,
            };
            if start == State::Released || target == State::Released {
                return Err(invalid);
            }
            self.transition_by_way_of_released(host, task, finish, found)
                .map_err(|refused| match refused {
                    Refused::InvalidTransition { .. } => invalid,
                    other => other,
                })?;
        }
        let states: SmallVec<[(TaskId, State); 4]> = found
            .iter()
            .map(|(task, finish)| (task, finish.state()))
            .collect();
        host.log(Line::Transition {
            task,
            start,
            finish: target,
            end: self.task(task).state,
            found: &states,
        });
        Ok(())
    }

    fn transition_by_way_of_released(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        self.transition(host, task, Finish::To(State::Released), found)?;
        while let Some(next) = found.state(task) {
            found.remove(task);
            if next != Finish::To(State::Forgotten) {
                self.transition_and_merge(host, task, next, found)?;
            }
        }
        self.transition_and_merge(host, task, finish, found)
    }

    /// Goes on, and merges what is recommended: `merge_recs_instructions`
    fn transition_and_merge(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let mut more = Recommendations::default();
        self.transition(host, task, finish, &mut more)?;
        for (task, finish) in more.iter() {
            if found.state(task).is_some_and(|known| known != finish) {
                return Err(Refused::InvalidTransition {
                    task,
                    start: self.task(task).state,
                    finish: finish.state(),
                });
            }
            found.set(task, finish);
        }
        Ok(())
    }

    /// Does what the table has for two states; false if it has nothing
    fn step(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        start: State,
        finish: Finish,
        found: &mut Recommendations,
    ) -> Result<bool, Refused> {
        use State::{
            Cancelled, Error, Executing, Fetch, Flight, Forgotten, LongRunning, Memory, Missing,
            Ready, Released, Rescheduled, Resumed, Waiting,
        };
        match (start, finish.state()) {
            (Cancelled, Error | Memory | Missing | Released | Rescheduled) => {
                self.cancelled_to_released(host, task, found);
            }
            (Cancelled, Fetch) => self.cancelled_to_fetch(task, found)?,
            (Cancelled | Resumed, LongRunning) => self.unwanted_to_long_running(task, found)?,
            (Cancelled, Waiting) => self.cancelled_to_waiting(host, task)?,
            (Resumed, Error | Rescheduled) => self.resumed_to_error(task, found)?,
            (Resumed, Fetch) => self.resumed_to_fetch(task, found),
            (Resumed, Memory) => self.resumed_to_memory(host, task, finish, found)?,
            (Resumed, Released) => self.resumed_to_released(task)?,
            (Error | Ready | Waiting, Released) => self.any_to_released(host, task, found),
            (Executing | Flight | LongRunning | Missing | Released, Error) => {
                self.any_to_error(host, task, finish);
            }
            (Executing, LongRunning) => self.executing_to_long_running(host, task, finish, found),
            (Executing | LongRunning, Memory) => {
                self.any_to_memory(host, task, finish, Told::TaskFinished, found)?;
            }
            (Executing | LongRunning, Released) => self.running_to_released(task),
            (Executing | LongRunning, Rescheduled) => {
                self.running_to_rescheduled(host, task, found)?;
            }
            (Fetch, Flight) => self.fetch_to_flight(task, finish),
            (Fetch, Missing) => {
                self.counters.fetch -= 1;
                self.any_to_missing(task);
            }
            (Fetch, Released) => {
                self.counters.fetch -= 1;
                self.any_to_released(host, task, found);
            }
            (Flight, Fetch) => {
                if self.task(task).done {
                    self.any_to_fetch(task, found)?;
                }
            }
            (Flight, Memory) => self.any_to_memory(host, task, finish, Told::AddKeys, found)?,
            (Flight, Missing) => {
                if !self.task(task).done {
                    return Err(Refused::Assertion("on its way, and missing"));
                }
                self.any_to_missing(task);
            }
            (Flight, Released) => self.flight_to_released(task)?,
            (Memory, Released) => self.memory_to_released(host, task, found)?,
            (Missing, Fetch) => {
                if !self.task(task).who_has.is_empty() {
                    self.missing.remove(task);
                    self.any_to_fetch(task, found)?;
                }
            }
            (Missing, Released) => {
                self.missing.remove(task);
                self.any_to_released(host, task, found);
            }
            (Missing, Waiting) => {
                self.missing.remove(task);
                self.purge(host, task);
                self.released_to_waiting(task, found);
            }
            (Ready, Executing) => {
                self.task_mut(task).state = Executing;
                host.tell(Instruction::Execute(task));
            }
            (Released, Fetch) => self.any_to_fetch(task, found)?,
            (Released, Forgotten) => self.released_to_forgotten(host, task, found),
            (Released, Memory) => self.any_to_memory(host, task, finish, Told::Nothing, found)?,
            (Released, Missing) => self.any_to_missing(task),
            (Released, Waiting) => self.released_to_waiting(task, found),
            (Waiting, Ready) => self.waiting_to_ready(task, found)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn any_to_fetch(&mut self, task: TaskId, found: &mut Recommendations) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if known.who_has.is_empty() {
            found.set(task, Finish::To(State::Missing));
            return Ok(());
        }
        known.state = State::Fetch;
        known.done = false;
        let life = known.life;
        let Some(priority) = known.priority.clone() else {
            return Err(Refused::Assertion("to be fetched without a priority"));
        };
        self.counters.fetch += 1;
        for peer in self.task(task).who_has.clone() {
            self.needed.of(peer).add(task, life, priority.clone());
        }
        Ok(())
    }

    fn any_to_missing(&mut self, task: TaskId) {
        let known = self.task_mut(task);
        known.state = State::Missing;
        known.done = false;
        self.missing.insert(task);
    }

    pub(super) fn any_to_released(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        found: &mut Recommendations,
    ) {
        self.purge(host, task);
        for dependency in self.task(task).dependencies.listed() {
            let known = self.task(dependency);
            if known.waiters.is_empty() && !known.state.stays() {
                found.set(dependency, Finish::To(State::Released));
            }
        }
        let known = self.task_mut(task);
        known.state = State::Released;
        if known.dependents.is_empty() {
            found.set(task, Finish::To(State::Forgotten));
        }
    }

    fn released_to_waiting(&mut self, task: TaskId, found: &mut Recommendations) {
        let mut waiting_for_data = OrderedSet::new();
        for dependency in self.task(task).dependencies.listed() {
            let known = self.task_mut(dependency);
            if known.state != State::Memory {
                known.waiters.insert(task);
                waiting_for_data.add(dependency);
                found.set(dependency, Finish::To(State::Fetch));
            }
        }
        if waiting_for_data.is_empty() {
            found.set(task, Finish::To(State::Ready));
        }
        let known = self.task_mut(task);
        known.waiting_for_data = waiting_for_data;
        known.state = State::Waiting;
        known.waits = true;
    }

    fn fetch_to_flight(&mut self, task: TaskId, finish: Finish) {
        let peer: Option<PeerId> = match finish {
            Finish::Flight(peer) => Some(peer),
            _ => None,
        };
        let known = self.task_mut(task);
        known.done = false;
        known.state = State::Flight;
        known.coming_from = peer;
        if !std::mem::replace(&mut known.in_flight, true) {
            self.in_flight += 1;
        }
        self.counters.fetch -= 1;
    }

    fn memory_to_released(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let Some(nbytes) = self.task(task).nbytes else {
            return Err(Refused::Assertion("in memory without a size"));
        };
        self.counters.nbytes -= nbytes;
        self.any_to_released(host, task, found);
        host.tell(Instruction::ReleaseWorkerData(task));
        Ok(())
    }

    fn running_to_rescheduled(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        if !self.task(task).done {
            return Err(Refused::Assertion("rescheduled before its end"));
        }
        host.tell(Instruction::Reschedule(task));
        self.any_to_released(host, task, found);
        Ok(())
    }

    fn waiting_to_ready(
        &mut self,
        task: TaskId,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let known = self.task_mut(task);
        known.state = State::Ready;
        if !std::mem::take(&mut known.waits) {
            return Err(Refused::Assertion("ready without having waited"));
        }
        let life = known.life;
        let Some(priority) = known.priority.clone() else {
            return Err(Refused::Assertion("ready without a priority"));
        };
        self.ready.add(task, life, priority);
        self.ensure_computing(found);
        Ok(())
    }

    fn any_to_error(&mut self, host: &mut impl Host, task: TaskId, finish: Finish) {
        if let Finish::Error(error, run_id) = finish {
            host.fail(task, error);
            self.task_mut(task).state = State::Error;
            host.tell(Instruction::TaskErred(task, run_id));
        }
    }

    fn running_to_released(&mut self, task: TaskId) {
        let known = self.task_mut(task);
        known.previous = Some(known.state);
        known.state = State::Cancelled;
    }

    fn flight_to_released(&mut self, task: TaskId) -> Result<(), Refused> {
        let known = self.task_mut(task);
        if known.done {
            return Err(Refused::Assertion("released when its fetch is done"));
        }
        known.previous = Some(State::Flight);
        known.next = None;
        known.state = State::Cancelled;
        Ok(())
    }

    fn executing_to_long_running(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        found: &mut Recommendations,
    ) {
        self.task_mut(task).state = State::LongRunning;
        self.leave_pool(task);
        let seconds: Option<PayloadId> = match finish {
            Finish::LongRunning(seconds) => Some(seconds),
            _ => None,
        };
        let run_id = self.task(task).run_id;
        host.tell(Instruction::LongRunning(task, run_id, seconds));
        self.ensure_computing(found);
    }

    pub(super) fn leave_pool(&mut self, task: TaskId) {
        let known = self.task_mut(task);
        let ran_long = std::mem::replace(&mut known.runs_long, true);
        let executed = std::mem::take(&mut known.executes);
        self.long_running += usize::from(!ran_long);
        self.executing -= usize::from(executed);
    }

    pub(super) fn any_to_memory(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        finish: Finish,
        told: Told,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        let Finish::Memory(value, run_id) = finish else {
            return Err(Refused::Assertion("in memory without a value"));
        };
        // Of what came without being run here there is no run to speak of.
        let run_id = match self.task(task).state {
            State::Flight | State::Released => NO_RUN,
            _ => run_id,
        };
        if let Stored::Refused(error) = host.store(task, value) {
            found.set(task, Finish::Error(error, run_id));
            return Ok(());
        }
        let known = self.task_mut(task);
        known.state = State::Memory;
        let nbytes = *known.nbytes.get_or_insert_with(|| host.size_of(value));
        self.counters.nbytes += nbytes;
        for dependent in self.task(task).dependents.listed() {
            let known = self.task_mut(dependent);
            known.waiting_for_data.remove(task);
            if known.waiting_for_data.is_empty() && known.state == State::Waiting {
                found.set(dependent, Finish::To(State::Ready));
            }
        }
        host.log(Line::PutInMemory(task));
        match told {
            Told::Nothing => {}
            Told::AddKeys => host.tell(Instruction::AddKeys(task)),
            Told::TaskFinished if run_id == NO_RUN => {
                return Err(Refused::Assertion("the end of a run that nobody asked for"));
            }
            Told::TaskFinished => host.tell(Instruction::TaskFinished(task, run_id, nbytes)),
        }
        Ok(())
    }

    fn released_to_forgotten(
        &mut self,
        host: &mut impl Host,
        task: TaskId,
        found: &mut Recommendations,
    ) {
        for dependency in self.task(task).dependencies.listed() {
            let known = self.task_mut(dependency);
            known.dependents.remove(task);
            if known.state == State::Released && known.dependents.is_empty() {
                found.set(dependency, Finish::To(State::Forgotten));
            }
        }
        self.purge(host, task);
        self.task_mut(task).state = State::Forgotten;
        self.give_up(host, task);
    }

    /// Resets all that belongs to the run of a task: `_purge_state`
    fn purge(&mut self, host: &mut impl Host, task: TaskId) {
        host.purge(task);
        let known = self.task_mut(task);
        for peer in std::mem::take(&mut known.who_has) {
            self.needed.of(peer).discard(task);
        }
        for dependency in self.task(task).dependencies.listed() {
            self.task_mut(dependency).waiters.remove(task);
        }
        let known = self.task_mut(task);
        known.waiting_for_data = OrderedSet::new();
        known.nbytes = None;
        known.previous = None;
        known.next = None;
        known.done = false;
        known.coming_from = None;
        known.waits = false;
        let executed = std::mem::take(&mut known.executes);
        let ran_long = std::mem::take(&mut known.runs_long);
        let was_in_flight = std::mem::take(&mut known.in_flight);
        self.executing -= usize::from(executed);
        self.long_running -= usize::from(ran_long);
        self.in_flight -= usize::from(was_in_flight);
        self.missing.remove(task);
        self.ready.discard(task);
    }

    /// Recommends tasks to be run, while threads are free
    pub(super) fn ensure_computing(&mut self, found: &mut Recommendations) {
        if !self.running {
            return;
        }
        while self.executing < self.limits.threads {
            let tasks = &self.tasks;
            let Some(task) = self.ready.pop(|task| tasks[task.index()].life) else {
                break;
            };
            found.set(task, Finish::To(State::Executing));
            self.task_mut(task).executes = true;
            self.executing += 1;
        }
    }
}
