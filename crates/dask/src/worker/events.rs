//! The events of a worker: `WorkerState._handle_event` for each class of them.
//!
//! [`WorkerCore::conclude`] applies the recommendations of an event, after the methods here.

use smallvec::SmallVec;

use super::core::WorkerCore;
use super::error::Refused;
use super::host::{Host, Instruction, Line};
use super::ids::{PayloadId, PeerId, TaskId};
use super::priority::Priority;
use super::state::{Finish, State};
use super::task::NO_RUN;

/// Result of a request of the scheduler to run a task
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asked {
    /// It is at work on it, or has the result, which it has said again
    Known,
    /// It is to be taken on: [`WorkerCore::take_on`], its inputs, and who has them
    TakesOn {
        /// True if what it asks for besides a thread is what the scheduler says now
        is_free: bool,
    },
}

impl WorkerCore {
    /// The scheduler asks for a task
    pub fn compute_task(&mut self, host: &mut impl Host, task: TaskId, run_id: i64) -> Asked {
        let state = self.task(task).state;
        host.log(Line::ComputeTask(task, state));
        let known = self.task_mut(task);
        known.run_id = run_id;
        match state {
            State::Ready | State::Executing | State::LongRunning | State::Waiting => Asked::Known,
            State::Memory => {
                let nbytes = known.nbytes.unwrap_or_default();
                host.tell(Instruction::TaskFinished(task, run_id, nbytes));
                Asked::Known
            }
            _ => {
                let is_run = matches!(state, State::Cancelled | State::Resumed)
                    && known.previous.is_some_and(State::runs);
                Asked::TakesOn { is_free: !is_run }
            }
        }
    }

    /// Takes on a task with the scheduler's priority
    pub fn take_on(&mut self, task: TaskId, priority: &Priority) {
        self.recommended.set(task, Finish::To(State::Waiting));
        let priority = priority.followed_by(self.counters.generation);
        self.counters.generation -= 1;
        self.task_mut(task).priority = Some(priority);
    }

    /// Says that a task that is taken on needs another one
    pub fn add_input(&mut self, host: &mut impl Host, task: TaskId, input: TaskId, nbytes: i64) {
        let priority = self.task(task).priority.clone();
        self.ensure_exists(host, input, priority);
        let known = self.task_mut(input);
        if known.state != State::Memory {
            known.nbytes = Some(nbytes);
        }
        known.dependents.insert(task);
        self.task_mut(task).dependencies.insert(input);
    }

    fn ensure_exists(&mut self, host: &mut impl Host, task: TaskId, priority: Option<Priority>) {
        let known = self.task_mut(task);
        if known.priority.is_none() {
            known.priority = priority;
        }
        host.log(Line::EnsureTaskExists(task, known.state));
    }

    /// Says who else has a result, in the order in which Python's set lists them
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn note_holders(&mut self, task: TaskId, holders: &[PeerId]) -> Result<(), Refused> {
        let known = self.task(task);
        let before = &known.who_has;
        if before.len() == holders.len() && before.iter().all(|peer| holders.contains(peer)) {
            return Ok(());
        }
        if known.state == State::Fetch {
            let life = known.life;
            let priority = known.priority.clone();
            for peer in self.task(task).who_has.clone() {
                if !holders.contains(&peer) && !self.needed.of(peer).discard(task) {
                    return Err(Refused::Assertion("to be fetched, and not from who has it"));
                }
            }
            for &peer in holders {
                if let (false, Some(priority)) =
                    (self.task(task).who_has.contains(&peer), &priority)
                {
                    self.needed.of(peer).add(task, life, priority.clone());
                }
            }
        }
        self.task_mut(task).who_has = SmallVec::from_slice(holders);
        Ok(())
    }

    /// The scheduler needs a result no more, or a run
    pub fn free(&mut self, task: TaskId) {
        self.recommended.set(task, Finish::To(State::Released));
    }

    /// A run has ended well
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn succeeded(
        &mut self,
        task: TaskId,
        run_id: i64,
        nbytes: i64,
        value: PayloadId,
    ) -> Result<(), Refused> {
        self.run_ended(task)?;
        self.task_mut(task).nbytes = Some(nbytes);
        self.recommended.set(task, Finish::Memory(value, run_id));
        Ok(())
    }

    /// A run has failed
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn failed(&mut self, task: TaskId, run_id: i64, error: PayloadId) -> Result<(), Refused> {
        self.run_ended(task)?;
        self.recommended.set(task, Finish::Error(error, run_id));
        Ok(())
    }

    /// A task wants to be run elsewhere
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn rescheduled(&mut self, task: TaskId) -> Result<(), Refused> {
        self.run_ended(task)?;
        self.recommended.set(task, Finish::To(State::Rescheduled));
        Ok(())
    }

    fn run_ended(&mut self, task: TaskId) -> Result<(), Refused> {
        let known = self.task_mut(task);
        known.done = true;
        let executed = std::mem::take(&mut known.executes);
        let ran_long = std::mem::take(&mut known.runs_long);
        self.executing -= usize::from(executed);
        self.long_running -= usize::from(ran_long);
        self.counters.executed += 1;
        let mut recommended = std::mem::take(&mut self.recommended);
        self.ensure_computing(&mut recommended);
        let is_begun_again = recommended.state(task).is_some();
        self.recommended = recommended;
        if is_begun_again {
            return Err(Refused::Assertion("to be run when its run is over"));
        }
        Ok(())
    }

    /// A transfer has ended, however, that was for these tasks
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn gathered(
        &mut self,
        peer: PeerId,
        total_bytes: i64,
        tasks: &[TaskId],
    ) -> Result<(), Refused> {
        self.counters.incoming_bytes -= total_bytes;
        if !self.in_flight_workers.remove(peer) {
            return Err(Refused::Assertion("the end of a transfer that was none"));
        }
        for &task in tasks {
            let known = self.task_mut(task);
            known.done = true;
            known.coming_from = None;
            if !std::mem::take(&mut known.in_flight) {
                return Err(Refused::Assertion(
                    "has come without having been on its way",
                ));
            }
            self.in_flight -= 1;
        }
        Ok(())
    }

    /// A result has come with a transfer that has ended
    pub fn arrived(&mut self, task: TaskId, value: PayloadId) {
        let run_id = self.task(task).run_id;
        self.recommended.set(task, Finish::Memory(value, run_id));
    }

    /// A result has not: that peer has it not
    pub fn not_arrived(&mut self, host: &mut impl Host, task: TaskId, peer: PeerId) {
        host.log(Line::MissingDep(task));
        self.task_mut(task).who_has.retain(|holder| *holder != peer);
        self.recommended.set(task, Finish::To(State::Fetch));
    }

    /// A transfer has failed, as what came could not be read
    pub fn not_readable(&mut self, task: TaskId, error: PayloadId) {
        let run_id = self.task(task).run_id;
        self.recommended.set(task, Finish::Error(error, run_id));
    }

    /// A peer whose transfer has ended was too busy for it
    pub fn was_busy(&mut self, host: &mut impl Host, peer: PeerId, tasks: &[TaskId]) {
        self.busy.insert(peer);
        let mut unknown: Vec<TaskId> = Vec::new();
        for &task in tasks {
            self.recommended.set(task, Finish::To(State::Fetch));
            let mut holders = self.task(task).who_has.iter();
            if holders.all(|holder| self.busy.contains(*holder)) {
                unknown.push(task);
            }
        }
        host.tell(Instruction::RetryBusyWorkerLater(peer));
        if !unknown.is_empty() {
            host.tell(Instruction::RequestRefreshWhoHas(&unknown));
        }
    }

    /// A peer whose transfer has ended could not be reached
    pub fn was_unreachable(&mut self, host: &mut impl Host, peer: PeerId, tasks: &[TaskId]) {
        for &task in tasks {
            host.log(Line::MissingDep(task));
            self.recommended.set(task, Finish::To(State::Fetch));
        }
        self.peer_left(peer);
    }

    /// A peer has left
    pub fn peer_left(&mut self, peer: PeerId) {
        let heap = self.needed.drop_peer(peer);
        for task in heap.sorted(|task| self.tasks[task.index()].life) {
            if self.task(task).who_has[..] == [peer] {
                self.recommended.set(task, Finish::To(State::Missing));
            }
        }
        for known in &mut self.tasks {
            known.who_has.retain(|holder| *holder != peer);
        }
    }

    /// A peer may be asked again
    pub fn retry(&mut self, peer: PeerId) {
        self.busy.remove(peer);
    }

    /// The scheduler would give a task to another worker; returns the state of the task
    pub fn steal(&mut self, task: TaskId) -> State {
        let state = self.task(task).state;
        if matches!(state, State::Ready | State::Waiting) {
            self.recommended.set(task, Finish::To(State::Released));
        }
        state
    }

    /// The scheduler does not want a task any more, if it has not begun
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn cancel(&mut self, host: &mut impl Host, task: TaskId) -> Result<(), Refused> {
        let known = self.task(task);
        if !matches!(known.state, State::Ready | State::Waiting) {
            return Ok(());
        }
        host.log(Line::CancelCompute(task));
        if !known.dependents.is_empty() {
            return Err(Refused::Assertion("cancelled, and needed"));
        }
        self.recommended.set(task, Finish::To(State::Released));
        Ok(())
    }

    /// A run has left the thread pool
    pub fn seceded(&mut self, task: TaskId, seconds: PayloadId) {
        self.recommended.set(task, Finish::LongRunning(seconds));
    }

    /// Nothing is begun any more
    pub fn pause(&mut self) {
        self.running = false;
    }

    /// Waiting tasks begin again
    pub fn unpause(&mut self) {
        self.running = true;
        let mut recommended = std::mem::take(&mut self.recommended);
        self.ensure_computing(&mut recommended);
        self.recommended = recommended;
    }

    /// A copy of a result is not needed
    ///
    /// # Errors
    ///
    /// [`Refused::ReplicaInUse`], where upstream raises.
    pub fn remove_replica(&mut self, host: &mut impl Host, task: TaskId) -> Result<(), Refused> {
        let known = self.task(task);
        if known.state != State::Memory {
            return Ok(());
        }
        for dependent in known.dependents.iter() {
            if self.task(dependent).state.runs() {
                return Err(Refused::ReplicaInUse { task, dependent });
            }
        }
        host.log(Line::RemoveReplica(task));
        self.recommended.set(task, Finish::To(State::Released));
        Ok(())
    }

    /// A copy of a result is wanted
    pub fn acquire_replica(&mut self, host: &mut impl Host, task: TaskId, nbytes: i64) {
        // Behind the inputs of tasks of default priority: upstream's
        self.ensure_exists(host, task, Some(Priority::new(&[1.0])));
        let known = self.task_mut(task);
        if known.state != State::Memory {
            known.nbytes = Some(nbytes);
            self.recommended.set(task, Finish::To(State::Fetch));
        }
    }

    /// The holders of a result were updated
    pub fn refreshed(&mut self, task: TaskId) {
        let known = self.task(task);
        match (known.state, known.who_has.is_empty()) {
            (State::Missing, false) => self.recommended.set(task, Finish::To(State::Fetch)),
            (State::Fetch, true) => self.recommended.set(task, Finish::To(State::Missing)),
            _ => {}
        }
    }

    /// A client has sent a value
    pub fn scattered(&mut self, host: &mut impl Host, task: TaskId, value: PayloadId) {
        self.recommended.set(task, Finish::Memory(value, NO_RUN));
        host.log(Line::ReceiveFromScatter(task, self.task(task).state));
    }

    /// Asks who has what is missing
    pub fn find_missing(&mut self, host: &mut impl Host) {
        let missing: Vec<TaskId> = self.missing.iter().collect();
        if !missing.is_empty() {
            host.tell(Instruction::RequestRefreshWhoHas(&missing));
        }
    }
}
