//! Single values that watching programs read from a running scheduler, while its state is here.
//!
//! By upstream's names; whole states are in `views.rs`. Nothing here changes anything.

use std::sync::Arc;

use super::core::SchedulerCore;
use super::error::EventError;
use super::ids::{TaskId, WorkerId};
use super::recent::PastTransition;
use super::run_record::RunRecord;
use super::stimuli::EndedRun;
use super::task::{Key, Priority, TaskState};
use super::views::{GroupView, PrefixView};
use crate::ordered_set::OrderedSet;

/// Tasks that a worker, a client or the scheduler has in a collection of upstream's
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskSet<'a> {
    /// `WorkerState.processing`, by address
    Processing(&'a str),
    /// `WorkerState.long_running`, by address
    LongRunning(&'a str),
    /// `WorkerState.has_what`, by address
    HasWhat(&'a str),
    /// `WorkerState.actors`, by address
    Actors(&'a str),
    /// `ClientState.wants_what`, by name
    WantsWhat(&'a str),
    /// `SchedulerState.queued`
    Queued,
    /// `SchedulerState.replicated_tasks`
    Replicated,
}

/// Kinds of notes that watching plugins want
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Watched {
    /// No plugin watches
    Nothing,
    /// Runs that end well
    Runs,
    /// And tasks that fail or are forgotten
    Ends,
}

/// A note for watching plugins
#[derive(Clone, Debug)]
pub enum Noted {
    /// A run that ended well and counted
    Ended(EndedRun),
    /// A task that failed or was forgotten
    Moved(PastTransition),
}

/// One attribute of a task
#[derive(Clone, Debug, PartialEq)]
pub enum TaskValue {
    /// None
    Nothing,
    /// A number
    Number(i64),
    /// Yes or no
    Flag(bool),
    /// A text
    Text(Arc<str>),
    /// A state
    State(TaskState),
    /// The priority of a task
    Priority(Priority),
    /// Keys of tasks
    Keys(Vec<Key>),
    /// Addresses of workers, or names of clients
    Names(Vec<Arc<str>>),
}

/// Counters of one worker
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerLoad {
    /// How long it is busy for, in seconds of one thread
    pub occupancy_s: f64,
    /// Bytes that it has to fetch
    pub network_bytes: u64,
    /// Tasks it is processing by prefix, long-running ones not counted
    pub prefix_counts: Vec<(Arc<str>, i64)>,
}

/// Counters of the cluster
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterLoad {
    /// Addresses, in the order of upstream's collections
    pub idle: Vec<Arc<str>>,
    /// Likewise
    pub idle_task_count: Vec<Arc<str>>,
    /// Likewise
    pub saturated: Vec<Arc<str>>,
    /// How long all workers are busy for, in seconds of one thread
    pub occupancy_s: f64,
    /// Bytes that all workers have to fetch
    pub network_bytes: u64,
    /// Tasks that are processing by prefix, long-running ones not counted
    pub prefix_counts: Vec<(Arc<str>, i64)>,
    /// How many tasks workers were sent so far
    pub tasks_sent: u64,
    /// Of graphs
    pub generation: i64,
}

impl SchedulerCore {
    /// How many tasks a collection has
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], [`EventError::UnknownClient`].
    pub fn count_in(&self, set: TaskSet<'_>) -> Result<usize, EventError> {
        Ok(match set {
            TaskSet::Queued => self.queue.len(),
            _ => self.task_set(set)?.len(),
        })
    }

    /// The keys of a collection's tasks, in its order, so many of them at most
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], [`EventError::UnknownClient`].
    pub fn keys_in(&self, set: TaskSet<'_>, keys_max: usize) -> Result<Vec<Key>, EventError> {
        let key = |task: TaskId| Arc::clone(&self.tasks[task].key);
        Ok(match set {
            TaskSet::Queued => self.queue.iter().take(keys_max).map(key).collect(),
            _ => {
                let tasks = self.task_set(set)?.iter();
                tasks.take(keys_max).map(key).collect()
            }
        })
    }

    /// An attribute of a task by upstream's name; None if there is no such task, or it is not here
    ///
    /// Other attributes are in `task_view`.
    pub fn task_value(&self, key: &[u8], name: &str) -> Option<TaskValue> {
        let one = &self.tasks[self.tasks.by_key(key)?];
        let keys = |tasks: &OrderedSet<TaskId>| {
            let tasks = tasks.iter();
            TaskValue::Keys(
                tasks
                    .map(|task| Arc::clone(&self.tasks[task].key))
                    .collect(),
            )
        };
        let keys_or_none =
            |tasks: &Option<OrderedSet<TaskId>>| tasks.as_ref().map_or(TaskValue::Nothing, keys);
        let address = |worker: WorkerId| Arc::clone(&self.workers[worker].address);
        Some(match name {
            "state" => TaskValue::State(one.state),
            "nbytes" => TaskValue::Number(one.nbytes.get().map_or(-1, |nbytes| nbytes as i64)),
            "group" => TaskValue::Text(Arc::clone(&self.groups[one.group].name)),
            "type" => match one.type_name {
                Some(name) => TaskValue::Text(Arc::clone(self.names.text(name))),
                None => TaskValue::Nothing,
            },
            "processing_on" => match one.processing_on {
                Some(worker) => TaskValue::Text(address(worker)),
                None => TaskValue::Nothing,
            },
            "priority" => match one.priority.get() {
                Some(priority) => TaskValue::Priority(priority),
                None => TaskValue::Nothing,
            },
            "run_id" => match one.run_id.get() {
                Some(run_id) => TaskValue::Number(run_id as i64),
                None => TaskValue::Nothing,
            },
            "retries" => TaskValue::Number(i64::from(one.retries)),
            "suspicious" => TaskValue::Number(i64::from(one.suspicious)),
            "actor" => TaskValue::Flag(one.actor),
            "data_producer" => TaskValue::Flag(one.data_producer),
            "queueable" => TaskValue::Flag(one.queueable),
            "has_lost_dependencies" => TaskValue::Flag(one.has_lost_dependencies),
            "dependencies" => keys(&one.dependencies),
            "dependents" => keys(&one.dependents),
            "waiting_on" => keys_or_none(&one.waiting_on),
            "waiters" => keys_or_none(&one.waiters),
            "who_has" if one.who_has.is_empty() => TaskValue::Nothing,
            "who_has" => TaskValue::Names(one.who_has.iter().map(address).collect()),
            "who_wants" => match &one.who_wants {
                Some(clients) => {
                    let clients = clients.iter();
                    let names = clients.map(|client| Arc::clone(&self.clients[client].name));
                    TaskValue::Names(names.collect())
                }
                None => TaskValue::Nothing,
            },
            "exception" | "traceback" | "exception_text" | "traceback_text" | "exception_blame"
            | "erred_on"
                if one.failure.is_none() =>
            {
                TaskValue::Nothing
            }
            "host_restrictions"
            | "worker_restrictions"
            | "resource_restrictions"
            | "annotations"
                if one.requirements.is_none() =>
            {
                TaskValue::Nothing
            }
            "loose_restrictions" if one.requirements.is_none() => TaskValue::Flag(false),
            _ => return None,
        })
    }

    /// Returns whether a collection has a task
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`], [`EventError::UnknownClient`].
    pub fn is_in(&self, set: TaskSet<'_>, key: &[u8]) -> Result<bool, EventError> {
        let Some(task) = self.tasks.by_key(key) else {
            return Ok(false);
        };
        Ok(match set {
            TaskSet::Queued => self.tasks[task].queue_place.is_some(),
            _ => self.task_set(set)?.contains(task),
        })
    }

    fn task_set(&self, set: TaskSet<'_>) -> Result<&OrderedSet<TaskId>, EventError> {
        let worker = |address| Ok(&self.workers[self.worker_at(address)?]);
        Ok(match set {
            TaskSet::Processing(address) => &worker(address)?.processing,
            TaskSet::LongRunning(address) => &worker(address)?.long_running,
            TaskSet::HasWhat(address) => &worker(address)?.has_what,
            TaskSet::Actors(address) => &worker(address)?.actors,
            TaskSet::WantsWhat(name) => {
                let client = self.clients.by_name.get(name);
                let &client = client.ok_or_else(|| EventError::UnknownClient {
                    client: name.to_owned(),
                })?;
                &self.clients[client].wants
            }
            TaskSet::Replicated => &self.replicated,
            TaskSet::Queued => unreachable!("the queue is no set of its own"),
        })
    }

    /// Begins to note this for those who watch
    pub fn watch(&mut self, watched: Watched) {
        self.watched = watched;
    }

    /// Appends each run that ends well to this record from now on
    pub fn record_runs(&mut self, record: Arc<RunRecord>) {
        self.run_record = Some(record);
    }

    /// How much was noted since it was last taken
    pub fn noted_count(&self) -> usize {
        self.noted.len()
    }

    /// Takes what was noted since the last call
    pub fn take_noted(&mut self) -> Vec<Noted> {
        std::mem::take(&mut self.noted)
    }

    /// The state of a task
    pub fn state_of(&self, key: &[u8]) -> Option<TaskState> {
        let task = self.tasks.by_key(key)?;
        Some(self.tasks[task].state)
    }

    /// Returns the counters of a worker
    ///
    /// # Errors
    ///
    /// [`EventError::UnknownWorker`].
    pub fn worker_load(&self, address: &str) -> Result<WorkerLoad, EventError> {
        let worker = self.worker_at(address)?;
        let one = &self.workers[worker];
        let counts = one.prefix_counts.iter();
        Ok(WorkerLoad {
            occupancy_s: self.occupancy_s(worker),
            network_bytes: one.network_bytes,
            prefix_counts: counts
                .map(|(prefix, count)| (Arc::clone(&self.groups[prefix].name), count))
                .collect(),
        })
    }

    /// Returns the counters of the cluster
    pub fn cluster_load(&self) -> ClusterLoad {
        let addresses = |workers: &mut dyn Iterator<Item = WorkerId>| {
            workers
                .map(|worker| Arc::clone(&self.workers[worker].address))
                .collect()
        };
        let mut with_slots: Vec<WorkerId> = self.slots.iter().collect();
        with_slots.sort_by_key(|&worker| self.workers[worker].slot_order);
        let prefixes = self.processing_prefixes.iter().map(|prefix| {
            let count = self.groups.loads.processing(prefix);
            (Arc::clone(&self.groups[prefix].name), count)
        });
        ClusterLoad {
            idle: addresses(&mut self.idle.iter().copied()),
            idle_task_count: addresses(&mut with_slots.into_iter()),
            saturated: addresses(&mut self.saturated.iter()),
            occupancy_s: self.total_occupancy_s(),
            network_bytes: self.network_bytes,
            prefix_counts: prefixes.collect(),
            tasks_sent: self.tasks_sent,
            generation: self.generation,
        }
    }

    /// Names of the groups that have tasks, each with that of its prefix, as they came
    pub fn group_names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let groups = self.groups.groups().into_iter();
        groups
            .filter(|group| !group.gone)
            .map(|group| {
                let prefix = &self.groups[group.prefix];
                (Arc::clone(&group.name), Arc::clone(&prefix.name))
            })
            .collect()
    }

    /// Names of the prefixes, as they were first met
    pub fn prefix_names(&self) -> Vec<Arc<str>> {
        let prefixes = self.groups.prefixes();
        prefixes.map(|prefix| Arc::clone(&prefix.name)).collect()
    }

    /// The group of a name, if it has tasks
    pub fn group_named(&self, name: &str) -> Option<GroupView> {
        let &group = self.groups.by_name.get(name)?;
        Some(self.group_view(&self.groups[group]))
    }

    /// The prefix of a name
    pub fn prefix_named(&self, name: &str) -> Option<PrefixView> {
        let &prefix = self.groups.prefix_by_name.get(name)?;
        Some(self.prefix_view(&self.groups[prefix]))
    }
}
