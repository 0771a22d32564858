//! Messages of the scheduler to workers and clients, as values, not as bytes.

use std::sync::Arc;

use smallvec::SmallVec;

use super::task::{Key, Payload, Priority, Spec, TaskState};

/// Addresses of the workers that hold each key, most of which one worker holds
pub type Holders = Vec<(Key, SmallVec<[Arc<str>; 1]>)>;

/// One message, in the order in which they are to be sent to its receiver
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// To the worker at this address
    ToWorker(Arc<str>, WorkerMessage),
    /// To the client of this name
    ToClient(Arc<str>, ClientMessage),
    /// To every client that has a stream
    ToClients(ClientMessage),
}

/// A message to a worker; `stimulus` names the event that led to it
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerMessage {
    /// Run a task
    ComputeTask(Box<ComputeTask>),
    /// Give up tasks and drop results
    FreeKeys {
        /// Which
        keys: Vec<Key>,
        /// Why
        stimulus: Arc<str>,
    },
    /// Drop results of which there are others
    RemoveReplicas {
        /// Which
        keys: Vec<Key>,
        /// Why
        stimulus: Arc<str>,
    },
    /// Fetch results
    AcquireReplicas {
        /// Where they are
        who_has: Holders,
        /// Their sizes, in bytes, if they are known
        nbytes: Vec<Option<u64>>,
        /// Why
        stimulus: Arc<str>,
    },
    /// Where results are, as was asked
    RefreshWhoHas {
        /// Where they are
        who_has: Holders,
        /// Why
        stimulus: Arc<str>,
    },
    /// Give a task up, if it has not begun, and say so
    StealRequest {
        /// Which
        key: Key,
        /// Which request, as the answer names it
        stimulus: Arc<str>,
    },
    /// Leave
    Close,
    /// Another worker has left
    RemoveWorker {
        /// Which
        address: Arc<str>,
        /// Why
        stimulus: Arc<str>,
    },
}

/// A task for a worker
#[derive(Clone, Debug, PartialEq)]
pub struct ComputeTask {
    /// Which
    pub key: Key,
    /// Which run of it
    pub run_id: u64,
    /// When among others
    pub priority: Priority,
    /// Where its inputs are
    pub who_has: Holders,
    /// Sizes of its inputs, in bytes, if they are known, in the order of `who_has`
    pub nbytes: Vec<Option<u64>>,
    /// The run spec
    pub spec: Option<Spec>,
    /// How much of which resource it needs
    pub resources: Option<Vec<(Arc<str>, f64)>>,
    /// True if its result is an actor
    pub actor: bool,
    /// Its annotations
    pub annotations: Option<Payload>,
}

/// A message to a client
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// A result is there
    KeyInMemory {
        /// Of which task
        key: Key,
        /// Its type, pickled, if it was computed just now
        type_: Option<Payload>,
        /// Where it was put, if a client put it there
        workers: Option<Vec<Arc<str>>>,
    },
    /// A task failed
    TaskErred {
        /// Which
        key: Key,
        /// How; none if the task that is to blame is forgotten
        exception: Option<TaskError>,
        /// Where
        traceback: Option<Payload>,
    },
    /// A result that was there is gone
    LostData {
        /// Of which task
        key: Key,
    },
    /// A task that had failed is run again
    TaskRetried {
        /// Which
        key: Key,
    },
    /// Tasks that will not run
    CancelledKeys {
        /// Which
        keys: Vec<Key>,
        /// Why, if upstream says so
        reason: Option<Arc<str>>,
        /// More of it, if upstream says so
        message: Option<Arc<str>>,
    },
}

/// Why a task failed: the caller pickles what the scheduler itself found
#[derive(Clone, Debug, PartialEq)]
pub enum TaskError {
    /// The task raised this
    Raised(Payload),
    /// Too many workers died while they ran it: `KilledWorker`
    KilledWorker {
        /// Which
        key: Key,
        /// Address of the last of them
        worker: Arc<str>,
        /// How many were allowed to
        allowed_failures: u32,
    },
    /// The worker that held the actor is gone: `RuntimeError`
    ActorLost,
    /// Its inputs are larger than the memory of its worker: `MemoryError`
    OverMemory {
        /// Which
        key: Key,
        /// Size of its inputs, in bytes
        input_bytes: i64,
        /// Address of the worker
        worker: Arc<str>,
        /// Memory that the worker may use, in bytes
        limit_bytes: u64,
        /// True if no task depends on it, as when all of a collection is gathered
        gathers: bool,
    },
    /// No worker met its restrictions in time: `NoValidWorkerError`
    NoValidWorker {
        /// Which
        key: Key,
        /// Hosts or aliases of workers that might have run it
        hosts: Vec<Arc<str>>,
        /// Addresses of workers that might have
        workers: Vec<Arc<str>>,
        /// How much of which resource it needed
        resources: Vec<(Arc<str>, f64)>,
    },
    /// No worker was there in time: `NoWorkerError`
    NoWorker {
        /// Which
        key: Key,
    },
}

/// One entry of the log of transitions
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// Of which task
    pub key: Key,
    /// Where it was, or `Released` if it went through that
    pub start: TaskState,
    /// Where it is
    pub finish: TaskState,
}
