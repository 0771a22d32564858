//! Reasons for which an event is refused.

use thiserror::Error;

use super::task::TaskState;

/// Why a core cannot take over a scheduler; the caller's fault, and nothing was made
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum InheritError {
    /// A worker is named that is not one of the cluster's
    #[error("no worker at {address} is in the cluster")]
    UnknownWorker {
        /// The address
        address: String,
    },
    /// Tasks of a prefix are counted that is not known
    #[error("tasks of {prefix} are counted, but no such prefix is known")]
    UnknownPrefix {
        /// The prefix
        prefix: String,
    },
    /// A task or group is part of a group that is not known
    #[error("no group {group} is known")]
    UnknownGroup {
        /// The group, or its serial
        group: String,
    },
    /// A task is named that is not known
    #[error("no task {key} is known")]
    UnknownTask {
        /// The key
        key: String,
    },
    /// A client wants a task that is not known
    #[error("no client {client} is known")]
    UnknownClient {
        /// The client
        client: String,
    },
}

/// Why an event could not be handled; upstream raises at the same place, with the same state
///
/// The state is what it was when the event was refused, which may be in the middle of it: what
/// upstream leaves half done is half done here as well. The messages so far are to be sent.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum EventError {
    /// The caller names a worker that is not in the cluster
    #[error("no worker at {address}")]
    UnknownWorker {
        /// The address
        address: String,
    },
    /// The caller names a client that is not known
    #[error("no client {client}")]
    UnknownClient {
        /// The client
        client: String,
    },
    /// The caller names a task that is not known
    #[error("no task {key}")]
    UnknownTask {
        /// The key
        key: String,
    },
    /// A worker of that address or name is in the cluster already
    #[error("a worker is known as {name} already")]
    NameTaken {
        /// The address or name
        name: String,
    },
    /// Upstream's table has no such transition
    #[error("impossible transition of {key} from {start} to {finish}")]
    ImpossibleTransition {
        /// The key
        key: String,
        /// Where the task is
        start: TaskState,
        /// Where it was to go
        finish: TaskState,
    },
    /// A worker finished the current run of a task that another worker was given
    #[error("{key} was finished by {worker}, but {given} was given it")]
    FinishedElsewhere {
        /// The key
        key: String,
        /// The worker that finished it
        worker: String,
        /// The worker that has it
        given: String,
    },
    /// A task is cancelled, or depends on one that is, and no client wants it
    #[error("{key} is cancelled, but no client wants it")]
    Unwanted {
        /// The key
        key: String,
    },
    /// A task that is not bound to its restrictions went to a worker without a resource it needs
    #[error("{key} needs {resource}, which {worker} does not have")]
    NoSuchResource {
        /// The key
        key: String,
        /// The resource
        resource: String,
        /// The worker
        worker: String,
    },
    /// A task has come where it needs what it does not have, where upstream asserts that it does
    #[error("{key} has no {what}")]
    Lacks {
        /// The key
        key: String,
        /// A priority, a failure to blame it with, or a worker
        what: &'static str,
    },
    /// Consequences of an event lead back to themselves, which upstream would follow for ever
    #[error("{transitions} transitions come of one event, the last one of {key}")]
    Endless {
        /// The key
        key: String,
        /// How many transitions the event has led to
        transitions: u64,
    },
    /// A graph names a dependency by a number that it has not given
    #[error("a graph of {names} names refers to name {number}")]
    UnknownName {
        /// The number
        number: u32,
        /// How many names the graph has
        names: usize,
    },
}
