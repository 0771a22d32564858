//! One task of the scheduler, and the table of tasks.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use backhaul_placement::resources::Signature;

use super::compact::{NumberOrNone, PriorityOrNone};
use super::ids::{ClientId, GroupId, NameId, TaskId, WorkerId};
use super::key_table::KeyTable;
use super::messages::TaskError;
use crate::ordered_set::OrderedSet;

/// A key of Dask's as bytes, whatever it is in Python
pub type Key = Arc<[u8]>;
/// Bytes that are passed on as they came: an exception, a type, annotations
pub type Payload = Arc<[u8]>;

/// The run spec of a task, which is passed on as it came
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spec {
    /// Bytes that it shares with other tasks, if there are any
    pub shared: Option<Payload>,
    /// Bytes of its own
    pub own: Payload,
}

impl From<&[u8]> for Spec {
    fn from(own: &[u8]) -> Self {
        Self {
            shared: None,
            own: Payload::from(own),
        }
    }
}

/// Where a task is on its way
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum TaskState {
    /// Known, not asked for or not yet looked at
    Released,
    /// Waits for its dependencies
    Waiting,
    /// Ready, but no worker may run it
    NoWorker,
    /// Ready, and held back until a worker has a slot
    Queued,
    /// Sent to a worker
    Processing,
    /// Its result is on at least one worker
    Memory,
    /// It failed, or what it depends on did
    Erred,
    /// No longer known
    Forgotten,
}

impl TaskState {
    /// Every state, in the order of upstream's `ALL_TASK_STATES`
    pub const ALL: [Self; 8] = [
        Self::Released,
        Self::Waiting,
        Self::NoWorker,
        Self::Queued,
        Self::Processing,
        Self::Memory,
        Self::Erred,
        Self::Forgotten,
    ];

    /// The state as Dask calls it
    pub const fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Waiting => "waiting",
            Self::NoWorker => "no-worker",
            Self::Queued => "queued",
            Self::Processing => "processing",
            Self::Memory => "memory",
            Self::Erred => "erred",
            Self::Forgotten => "forgotten",
        }
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Which task runs first: user's priority negated, generation, place in its graph; least first
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Priority(pub [f64; 3]);

impl Priority {
    /// Compares as tuples of numbers do; none of them is NaN
    pub fn order(&self, other: &Self) -> std::cmp::Ordering {
        let mut pairs = self.0.iter().zip(&other.0);
        pairs
            .find_map(|(ours, theirs)| {
                let order = ours.partial_cmp(theirs)?;
                order.is_ne().then_some(order)
            })
            .unwrap_or(std::cmp::Ordering::Equal)
    }
}

/// One task: the attributes of upstream's `TaskState` that decide or are reported
///
/// A set in an `Option` is one that upstream has as `None` until it is first needed.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) key: Key,
    pub(super) spec: Option<Spec>,
    pub(super) priority: PriorityOrNone,
    pub(super) dependencies: OrderedSet<TaskId>,
    pub(super) dependents: OrderedSet<TaskId>,
    pub(super) waiting_on: Option<OrderedSet<TaskId>>,
    pub(super) waiters: Option<OrderedSet<TaskId>>,
    pub(super) who_wants: Option<OrderedSet<ClientId>>,
    pub(super) who_has: OrderedSet<WorkerId>,
    /// Size of the result, in bytes, if it is known
    pub(super) nbytes: NumberOrNone,
    /// Number of the latest run; never repeated
    pub(super) run_id: NumberOrNone,
    pub(super) requirements: Option<Box<Requirements>>,
    pub(super) failure: Option<Box<Failure>>,
    pub(super) group: GroupId,
    pub(super) processing_on: Option<WorkerId>,
    /// One more than its place in the queue, if it is there; see `queue.rs`
    pub(super) queue_place: Option<NonZeroU32>,
    pub(super) type_name: Option<NameId>,
    /// Place among all tasks that there ever were, which tells it from others of its number or key;
    /// after 2³² tasks they begin anew, and only the order of lists suffers
    pub(super) serial: u32,
    /// Entries of workers (`needs_what`, `actors`) that may outlive the task
    pub(super) references: u32,
    pub(super) suspicious: u32,
    pub(super) retries: i32,
    pub(super) state: TaskState,
    pub(super) has_lost_dependencies: bool,
    pub(super) actor: bool,
    /// True if its run spec says that it produces data, which makes it root-ish
    pub(super) data_producer: bool,
    pub(super) queueable: bool,
}

/// Requests of a task to workers, and its annotations
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Hosts or aliases of workers that may run it
    pub hosts: Option<Vec<Arc<str>>>,
    /// Addresses of workers that may run it
    pub workers: Option<Vec<Arc<str>>>,
    /// How much of which resource it needs
    pub resources: Option<Vec<(Arc<str>, f64)>>,
    /// How many threads it takes, if that is not one, or if it is near to where its inputs ran
    pub threads: Option<f64>,
    /// Number of what it asks for, as the core gives it
    pub(super) request: Option<Signature>,
    /// True if other workers may run it while none of these can
    pub loose: bool,
    /// Priority from its annotations, before the graph's
    pub priority: Option<f64>,
    /// How often it is run again when it fails
    pub retries: Option<i32>,
    /// All annotations, which are only passed on
    pub annotations: Option<Payload>,
}

impl Requirements {
    /// Returns whether it takes another number of threads than one, which is heeded
    pub(super) fn takes_other_than_a_thread(&self) -> bool {
        self.threads.is_some() && self.request.is_some()
    }

    /// Returns whether it is bound to some hosts or workers
    pub(super) fn bind(&self) -> bool {
        is_some(self.hosts.as_ref()) || is_some(self.workers.as_ref())
    }

    /// Returns whether some worker may be unfit, whatever the others do
    pub(super) fn restrict(&self) -> bool {
        self.bind() || is_some(self.resources.as_ref())
    }
}

fn is_some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

/// How a task failed, or which task's failure it suffers
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    pub(super) exception: Option<TaskError>,
    pub(super) traceback: Option<Payload>,
    pub(super) exception_text: Option<Arc<str>>,
    pub(super) traceback_text: Option<Arc<str>>,
    pub(super) blame: Option<Blame>,
    /// Addresses of workers where it failed
    pub(super) erred_on: Option<Vec<Arc<str>>>,
}

/// The task whose failure this is: it may be forgotten, and then has no exception any more
#[derive(Clone, Debug)]
pub(super) struct Blame {
    pub(super) task: TaskId,
    pub(super) serial: u32,
    pub(super) key: Key,
}

/// A failure that is remembered, whatever became of its task
#[derive(Clone, Debug, PartialEq)]
pub struct ErredTask {
    /// Key of the task
    pub key: Key,
    /// When it failed, in seconds
    pub at_s: f64,
    /// Addresses of workers where it had failed by then
    pub erred_on: Vec<Arc<str>>,
    /// The exception as a text, if this failure came with one
    pub exception_text: Option<Arc<str>>,
    /// Where, as a text, likewise
    pub traceback_text: Option<Arc<str>>,
}

impl Task {
    pub(super) fn new(key: Key, group: GroupId, state: TaskState, serial: u32) -> Self {
        Self {
            key,
            spec: None,
            priority: PriorityOrNone::NONE,
            dependencies: OrderedSet::new(),
            dependents: OrderedSet::new(),
            waiting_on: None,
            waiters: None,
            who_wants: None,
            who_has: OrderedSet::new(),
            nbytes: NumberOrNone::NONE,
            run_id: NumberOrNone::NONE,
            requirements: None,
            failure: None,
            group,
            processing_on: None,
            queue_place: None,
            type_name: None,
            serial,
            references: 0,
            suspicious: 0,
            retries: 0,
            state,
            has_lost_dependencies: false,
            actor: false,
            data_producer: false,
            queueable: true,
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.who_wants.as_ref().is_some_and(|who| !who.is_empty())
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.waiters.as_ref().is_some_and(|set| !set.is_empty())
    }

    pub(super) fn is_blamed(&self) -> bool {
        self.failure
            .as_ref()
            .is_some_and(|failure| failure.blame.is_some())
    }

    pub(super) fn failure_mut(&mut self) -> &mut Failure {
        self.failure.get_or_insert_default()
    }

    pub(super) fn resources(&self) -> &[(Arc<str>, f64)] {
        let requirements = self.requirements.as_ref();
        requirements
            .and_then(|requirements| requirements.resources.as_deref())
            .unwrap_or_default()
    }

    /// Size of the result as decisions see it, in bytes
    pub(super) fn nbytes_or(&self, default_bytes: u64) -> u64 {
        self.nbytes.get().unwrap_or(default_bytes)
    }

    pub(super) fn remove_waiter(&mut self, waiter: TaskId) {
        if let Some(waiters) = &mut self.waiters {
            waiters.remove(waiter);
        }
    }
}

/// Tasks by number, with numbers used again
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    tasks: Vec<Option<Task>>,
    free: Vec<TaskId>,
    /// Tasks that are not forgotten
    by_key: KeyTable,
    /// Serial of the next task
    next_serial: u32,
}

impl TaskTable {
    pub(super) fn add(&mut self, key: Key, group: GroupId, state: TaskState) -> TaskId {
        let task = Task::new(key, group, state, self.next_serial());
        if let Some(id) = self.free.pop() {
            self.tasks[id.index()] = Some(task);
            return id;
        }
        let id = TaskId::at(self.tasks.len());
        self.tasks.push(Some(task));
        id
    }

    fn next_serial(&mut self) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        serial
    }

    /// Begins a task anew under the number that things still refer to
    pub(super) fn revive(&mut self, id: TaskId, group: GroupId, state: TaskState) {
        let serial = self.next_serial();
        let old = &self[id];
        let mut task = Task::new(old.key.clone(), group, state, serial);
        task.references = old.references;
        self.tasks[id.index()] = Some(task);
    }

    pub(super) fn remove(&mut self, id: TaskId) {
        if self.tasks[id.index()].take().is_some() {
            self.free.push(id);
        }
    }

    pub(super) fn find(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(id.index())?.as_ref()
    }

    /// The task of a key
    pub(super) fn by_key(&self, key: &[u8]) -> Option<TaskId> {
        self.by_key.find(key, |id| has_key(&self.tasks, id, key))
    }

    /// Has a task be found by its key
    pub(super) fn insert_key(&mut self, id: TaskId) {
        let (tasks, key) = (&self.tasks, &self.tasks[id.index()].as_ref());
        if let Some(Task { key, .. }) = key {
            self.by_key
                .insert(key, id, |other| has_key(tasks, other, key));
        }
    }

    /// Has no task be found by the key of this one
    pub(super) fn remove_key(&mut self, id: TaskId) {
        let (tasks, key) = (&self.tasks, &self.tasks[id.index()].as_ref());
        if let Some(Task { key, .. }) = key {
            self.by_key.remove(key, |other| has_key(tasks, other, key));
        }
    }

    /// How many tasks are found by their keys
    pub(super) fn known_count(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the tasks that are not forgotten, in no order
    pub(super) fn known(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.by_key.iter()
    }
}

fn has_key(tasks: &[Option<Task>], id: TaskId, key: &[u8]) -> bool {
    let task = tasks[id.index()].as_ref();
    task.is_some_and(|task| *task.key == *key)
}

impl Index<TaskId> for TaskTable {
    type Output = Task;

    fn index(&self, id: TaskId) -> &Task {
        self.tasks[id.index()]
            .as_ref()
            .expect("whoever refers to a task keeps its number")
    }
}

impl IndexMut<TaskId> for TaskTable {
    fn index_mut(&mut self, id: TaskId) -> &mut Task {
        self.tasks[id.index()]
            .as_mut()
            .expect("whoever refers to a task keeps its number")
    }
}
