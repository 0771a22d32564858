//! Events that cannot be handled.

use thiserror::Error;

use super::ids::TaskId;
use super::state::State;

/// A state machine that meets what should not be, as upstream's does, and raises
///
/// Its state is then half changed, as upstream's is.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Refused {
    /// There is no such transition
    #[error("no way from {} to {}", start.name(), finish.name())]
    InvalidTransition {
        /// The task
        task: TaskId,
        /// The state that the task is in
        start: State,
        /// Where it was to go
        finish: State,
    },
    /// Something is not as upstream asserts that it is
    #[error("{0}")]
    Assertion(&'static str),
    /// A copy is to be released while a task that runs needs it
    #[error("the task is needed by one that runs")]
    ReplicaInUse {
        /// The task
        task: TaskId,
        /// The task that needs it
        dependent: TaskId,
    },
}
