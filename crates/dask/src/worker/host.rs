//! Interface of the state machine to its caller.

use super::ids::{PayloadId, PeerId, TaskId};
use super::state::State;

/// Environment of the state machine: the worker's data, its logs and its clock
///
/// Calls come in upstream's order. Numbers of tasks are valid until the event is over.
pub trait Host {
    /// Now, in seconds of a clock that never goes back
    fn monotonic_s(&mut self) -> f64;

    /// The next number of the generator with which upstream breaks ties, from 0 to 1
    fn random(&mut self) -> f64;

    /// Stores a value as the result of a task
    fn store(&mut self, task: TaskId, value: PayloadId) -> Stored;

    /// How large a value is, in bytes
    fn size_of(&mut self, value: PayloadId) -> i64;

    /// Forgets what a run of the task left behind: its result, its thread, its error
    fn purge(&mut self, task: TaskId);

    /// Forgets a task that is not known any more
    fn forget(&mut self, task: TaskId);

    /// Keeps what a task raised
    fn fail(&mut self, task: TaskId, error: PayloadId);

    /// Writes a line of the log
    fn log(&mut self, line: Line<'_>);

    /// Takes an instruction for the worker
    fn tell(&mut self, instruction: Instruction<'_>);

    /// Fetches tasks from a peer; the caller keeps the tasks until that has ended
    fn gather(&mut self, peer: PeerId, tasks: &[TaskId], total_bytes: i64);
}

/// Result of storing a value
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stored {
    /// It is there
    Kept,
    /// It cannot be stored: why, as an error of the task
    Refused(PayloadId),
}

/// A line of a state machine's log
#[derive(Clone, Copy, Debug)]
pub enum Line<'a> {
    /// The scheduler has asked for a task, which is in this state
    ComputeTask(TaskId, State),
    /// A task needs another one, which is in this state
    EnsureTaskExists(TaskId, State),
    /// A value came from a client, for a task in this state
    ReceiveFromScatter(TaskId, State),
    /// A result is here
    PutInMemory(TaskId),
    /// A peer has not what it was asked for
    MissingDep(TaskId),
    /// A copy of a result is released
    RemoveReplica(TaskId),
    /// A task that waits is not wanted any more
    CancelCompute(TaskId),
    /// A task has gone from one state to another
    Transition {
        /// The task
        task: TaskId,
        /// The state that the task was in
        start: State,
        /// Where it was to go
        finish: State,
        /// The state that the task is in
        end: State,
        /// The recommendations of the transition
        found: &'a [(TaskId, State)],
    },
}

/// An instruction for a worker
#[derive(Clone, Copy, Debug)]
pub enum Instruction<'a> {
    /// Run a task
    Execute(TaskId),
    /// Say that a result was fetched
    AddKeys(TaskId),
    /// Say which run has ended well, and how large its result is
    TaskFinished(TaskId, i64, i64),
    /// Say which run has failed
    TaskErred(TaskId, i64),
    /// Say that a result is gone
    ReleaseWorkerData(TaskId),
    /// Say that a task wants to be run elsewhere
    Reschedule(TaskId),
    /// Say that a run has left the thread pool, after so long if that is known
    LongRunning(TaskId, i64, Option<PayloadId>),
    /// Ask a peer again, later
    RetryBusyWorkerLater(PeerId),
    /// Ask who has results
    RequestRefreshWhoHas(&'a [TaskId]),
}
