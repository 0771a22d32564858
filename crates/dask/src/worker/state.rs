//! The states of a worker's tasks, and where a task should go.

use super::ids::{PayloadId, PeerId};

/// The state of a task, as `distributed.worker_state_machine.TaskStateState`
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum State {
    /// Nothing is done for it
    Released,
    /// Waits for results
    Waiting,
    /// Waits for a thread
    Ready,
    /// Waits for more than a thread: Python's alone, but there are times of it
    Constrained,
    /// Is run
    Executing,
    /// Is run, and has left the thread pool
    LongRunning,
    /// Its result is here
    Memory,
    /// Its result is to be fetched
    Fetch,
    /// Its result is on its way
    Flight,
    /// Its result is nowhere that is known
    Missing,
    /// Is run or fetched, and not wanted any more
    Cancelled,
    /// Is run though it is to be fetched, or fetched though it is to be run
    Resumed,
    /// Has failed
    Error,
    /// Was raised by the task itself: to be run elsewhere
    Rescheduled,
    /// Not known any more
    Forgotten,
}

impl State {
    /// The word that Dask has for it
    pub const fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Constrained => "constrained",
            Self::Executing => "executing",
            Self::LongRunning => "long-running",
            Self::Memory => "memory",
            Self::Fetch => "fetch",
            Self::Flight => "flight",
            Self::Missing => "missing",
            Self::Cancelled => "cancelled",
            Self::Resumed => "resumed",
            Self::Error => "error",
            Self::Rescheduled => "rescheduled",
            Self::Forgotten => "forgotten",
        }
    }

    /// Returns whether a task that is not needed stays as it is: upstream's `READY`, `PROCESSING`
    /// and `memory`
    pub(super) const fn stays(self) -> bool {
        matches!(
            self,
            Self::Ready | Self::Waiting | Self::Executing | Self::LongRunning | Self::Memory
        )
    }

    /// Returns whether it is run
    pub(super) const fn runs(self) -> bool {
        matches!(self, Self::Executing | Self::LongRunning)
    }
}

/// Where a task should go
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Finish {
    /// To a state that says all
    To(State),
    /// To memory, with a value
    Memory(PayloadId, i64),
    /// To error, with what was raised
    Error(PayloadId, i64),
    /// Out of the thread pool, with the seconds that it has run
    LongRunning(PayloadId),
    /// On its way, from a peer
    Flight(PeerId),
}

impl Finish {
    /// The state alone
    pub(super) const fn state(self) -> State {
        match self {
            Self::To(state) => state,
            Self::Memory(..) => State::Memory,
            Self::Error(..) => State::Error,
            Self::LongRunning(_) => State::LongRunning,
            Self::Flight(_) => State::Flight,
        }
    }
}
