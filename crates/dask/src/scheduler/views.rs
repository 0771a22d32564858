//! The state as Dask's users and dashboards look at it: attributes by the names that upstream has.

use std::sync::Arc;

use super::core::SchedulerCore;
use super::groups::{Group, Prefix, Tally};
use super::ids::{Id, NameId, TaskId, WorkerId};
use super::messages::TaskError;
use super::task::{ErredTask, Key, Payload, Priority, Requirements, Spec, Task, TaskState};
use super::worker::{Worker, WorkerStatus};
use crate::ordered_set::OrderedSet;

/// How much of each, by name or address
pub type Amounts = Vec<(Arc<str>, f64)>;

/// One task; sets are in the order of their additions
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct TaskView {
    pub key: Key,
    pub state: TaskState,
    pub run_spec: Option<Spec>,
    pub priority: Option<Priority>,
    pub dependencies: Vec<Key>,
    pub dependents: Vec<Key>,
    pub waiting_on: Option<Vec<Key>>,
    pub waiters: Option<Vec<Key>>,
    pub who_wants: Option<Vec<Arc<str>>>,
    pub who_has: Vec<Arc<str>>,
    pub processing_on: Option<Arc<str>>,
    pub nbytes: Option<u64>,
    pub type_name: Option<Arc<str>>,
    pub retries: i32,
    pub suspicious: u32,
    pub run_id: Option<u64>,
    pub queueable: bool,
    pub has_lost_dependencies: bool,
    pub actor: bool,
    /// True if its run spec says that it produces data
    pub data_producer: bool,
    pub group: Arc<str>,
    pub prefix: Arc<str>,
    pub exception: Option<TaskError>,
    pub traceback: Option<Payload>,
    pub exception_text: Option<Arc<str>>,
    pub traceback_text: Option<Arc<str>>,
    pub exception_blame: Option<Key>,
    /// Of a task to blame that is forgotten, what tells it from others of its key
    pub forgotten_blame: Option<u32>,
    pub erred_on: Option<Vec<Arc<str>>>,
    pub requirements: Option<Requirements>,
}

/// One worker; sets are in the order of their additions
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct WorkerView {
    pub address: Arc<str>,
    pub name: Arc<str>,
    pub host: Arc<str>,
    pub status: WorkerStatus,
    pub nthreads: u32,
    pub memory_limit: u64,
    pub nbytes: i64,
    pub occupancy: f64,
    pub has_what: Vec<Key>,
    pub processing: Vec<Key>,
    pub long_running: Vec<Key>,
    pub actors: Vec<Key>,
    pub task_prefix_count: Vec<(Arc<str>, i64)>,
    pub needs_what: Vec<(Key, u32)>,
    pub network_occ: u64,
    pub executing: Vec<(Key, f64)>,
    pub resources: Amounts,
    pub used_resources: Amounts,
}

/// One group or prefix
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct CollectionView {
    pub name: Arc<str>,
    /// In the order of [`TaskState::ALL`]
    pub states: [i64; 8],
    pub len: i64,
    pub nbytes_total: i64,
    pub duration_us: i64,
    pub all_durations_us: Vec<(Arc<str>, i64)>,
    pub types: Vec<(Arc<str>, i64)>,
}

/// A group, beyond what it has in common with its prefix
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct GroupView {
    pub common: CollectionView,
    /// Place among all groups that there ever were
    pub serial: u64,
    /// True if all of its tasks are forgotten
    pub gone: bool,
    pub prefix: Arc<str>,
    /// Serials of what is in `dependencies`
    pub dependency_serials: Vec<u64>,
    /// Names and lengths, groups that are gone included
    pub dependencies: Vec<(Arc<str>, i64)>,
    pub start: f64,
    pub stop: f64,
    /// Address, of a worker that may have gone
    pub last_worker: Option<Option<Arc<str>>>,
    pub last_worker_tasks_left: i64,
}

/// A prefix, beyond what it has in common with its groups
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct PrefixView {
    pub common: CollectionView,
    /// In the order of [`TaskState::ALL`]
    pub state_counts: [u64; 8],
    pub duration_average: f64,
    pub max_exec_time: f64,
    pub suspicious: u64,
    pub groups: Vec<Arc<str>>,
}

/// State that belongs to no single task or worker
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the names are upstream's, whose documentation says what they mean"
)]
pub struct ClusterView {
    pub running: Vec<Arc<str>>,
    pub idle: Vec<Arc<str>>,
    pub idle_task_count: Vec<Arc<str>>,
    pub saturated: Vec<Arc<str>>,
    pub queued: Vec<Key>,
    /// Entries of its heap, first ones first: priority if any, number of the entry, key
    pub queue_entries: Vec<(Option<Priority>, u64, Key)>,
    /// How many entries there were ever
    pub queue_added: u64,
    /// With the times since when, in seconds
    pub unrunnable: Vec<(Key, f64)>,
    pub replicated_tasks: Vec<Key>,
    /// The latest first
    pub erred_tasks: Vec<ErredTask>,
    pub clients: Vec<(Arc<str>, Vec<Key>)>,
    pub resources: Vec<(Arc<str>, Amounts)>,
    pub hosts: Vec<(Arc<str>, Vec<Arc<str>>)>,
    pub task_prefix_count: Vec<(Arc<str>, i64)>,
    pub network_occ: u64,
    pub total_occupancy: f64,
    pub total_nthreads: u32,
    pub bandwidth: f64,
    pub n_tasks: u64,
    pub transition_counter: u64,
    pub generation: i64,
    /// When the latest graph came that began a generation, in seconds
    pub last_graph: f64,
    /// Number that the next run of a task gets
    pub next_run_id: u64,
    pub no_workers_since: Option<f64>,
}

impl TaskView {
    /// A task of which nothing is known but its key and state
    pub fn new(key: Key, state: TaskState, group: Arc<str>, prefix: Arc<str>) -> Self {
        Self {
            key,
            state,
            group,
            prefix,
            run_spec: None,
            priority: None,
            dependencies: Vec::new(),
            dependents: Vec::new(),
            waiting_on: None,
            waiters: None,
            who_wants: None,
            who_has: Vec::new(),
            processing_on: None,
            nbytes: None,
            type_name: None,
            retries: 0,
            suspicious: 0,
            run_id: None,
            queueable: true,
            has_lost_dependencies: false,
            actor: false,
            data_producer: false,
            exception: None,
            traceback: None,
            exception_text: None,
            traceback_text: None,
            exception_blame: None,
            forgotten_blame: None,
            erred_on: None,
            requirements: None,
        }
    }
}

impl SchedulerCore {
    /// Keys of all tasks, in the order in which they came
    pub fn keys(&self) -> Vec<&Key> {
        let mut tasks: Vec<&Task> = self.tasks.known().map(|task| &self.tasks[task]).collect();
        tasks.sort_unstable_by_key(|task| task.serial);
        tasks.into_iter().map(|task| &task.key).collect()
    }

    /// The task of a key, if it is known
    pub fn task_view(&self, key: &[u8]) -> Option<TaskView> {
        let one = &self.tasks[self.tasks.by_key(key)?];
        let failure = one.failure.as_deref().cloned().unwrap_or_default();
        let group = &self.groups[one.group];
        Some(TaskView {
            key: Arc::clone(&one.key),
            state: one.state,
            run_spec: one.spec.clone(),
            priority: one.priority.get(),
            dependencies: self.keys_of(&one.dependencies),
            dependents: self.keys_of(&one.dependents),
            waiting_on: one.waiting_on.as_ref().map(|set| self.keys_of(set)),
            waiters: one.waiters.as_ref().map(|set| self.keys_of(set)),
            who_wants: one.who_wants.as_ref().map(|set| {
                set.iter()
                    .map(|client| Arc::clone(&self.clients[client].name))
                    .collect()
            }),
            who_has: self.addresses(one.who_has.iter()),
            processing_on: one.processing_on.map(|worker| self.address(worker)),
            nbytes: one.nbytes.get(),
            type_name: one.type_name.map(|name| self.name(name)),
            retries: one.retries,
            suspicious: one.suspicious,
            run_id: one.run_id.get(),
            queueable: one.queueable,
            has_lost_dependencies: one.has_lost_dependencies,
            actor: one.actor,
            data_producer: one.data_producer,
            group: Arc::clone(&group.name),
            prefix: Arc::clone(&self.groups[group.prefix].name),
            exception: failure.exception,
            traceback: failure.traceback,
            exception_text: failure.exception_text,
            traceback_text: failure.traceback_text,
            forgotten_blame: failure.blame.as_ref().and_then(|blame| {
                let current = self.tasks.by_key(&blame.key) == Some(blame.task)
                    && self.tasks[blame.task].serial == blame.serial;
                (!current).then_some(blame.serial)
            }),
            exception_blame: failure.blame.map(|blame| blame.key),
            erred_on: failure.erred_on,
            requirements: one.requirements.as_deref().cloned(),
        })
    }

    /// The workers, by address
    pub fn worker_views(&self) -> Vec<WorkerView> {
        let workers = self.workers.sorted().iter();
        workers.map(|&worker| self.worker_view(worker)).collect()
    }

    /// Workers that have left the cluster, but on which tasks still are: an event was refused
    pub fn departed_worker_views(&self) -> Vec<WorkerView> {
        let departed = self.workers.departed();
        departed.map(|worker| self.worker_view(worker)).collect()
    }

    fn worker_view(&self, worker: WorkerId) -> WorkerView {
        let one: &Worker = &self.workers[worker];
        let named = |list: &[(NameId, f64)]| {
            list.iter()
                .map(|&(name, amount)| (self.name(name), amount))
                .collect()
        };
        WorkerView {
            address: Arc::clone(&one.address),
            name: Arc::clone(&one.name),
            host: self.name(one.host),
            status: one.status,
            nthreads: one.nthreads,
            memory_limit: one.memory_limit,
            nbytes: one.nbytes,
            occupancy: self.occupancy_s(worker),
            has_what: self.keys_of(&one.has_what),
            processing: self.keys_of(&one.processing),
            long_running: self.keys_of(&one.long_running),
            actors: self.keys_of(&one.actors),
            task_prefix_count: one
                .prefix_counts
                .iter()
                .map(|(prefix, count)| (Arc::clone(&self.groups[prefix].name), count))
                .collect(),
            needs_what: one
                .needs_what
                .iter()
                .map(|(&task, &needs)| (Arc::clone(&self.tasks[task].key), needs))
                .collect(),
            network_occ: one.network_bytes,
            executing: one.executing.clone(),
            resources: named(&one.resources),
            used_resources: named(&one.used_resources),
        }
    }

    /// The groups in the order in which they came, with those that are gone and depended on
    pub fn group_views(&self) -> Vec<GroupView> {
        let groups = self.groups.groups().into_iter();
        groups.map(|group| self.group_view(group)).collect()
    }

    pub(super) fn group_view(&self, group: &Group) -> GroupView {
        let dependencies = group.dependencies.iter();
        GroupView {
            common: self.collection(&group.name, &group.tally),
            serial: group.serial,
            gone: group.gone,
            dependency_serials: group
                .dependencies
                .iter()
                .map(|one| self.groups[one].serial)
                .collect(),
            prefix: Arc::clone(&self.groups[group.prefix].name),
            dependencies: dependencies
                .map(|one| {
                    (
                        Arc::clone(&self.groups[one].name),
                        self.groups[one].tally.len,
                    )
                })
                .collect(),
            start: group.start_s,
            stop: group.stop_s,
            last_worker: group.last_worker.map(|worker| {
                let current = self.workers.is_current(worker);
                current.then(|| self.address(worker))
            }),
            last_worker_tasks_left: group.last_worker_tasks_left,
        }
    }

    /// The prefixes, in the order in which they were first met
    pub fn prefix_views(&self) -> Vec<PrefixView> {
        self.groups
            .prefixes()
            .map(|prefix| self.prefix_view(prefix))
            .collect()
    }

    pub(super) fn prefix_view(&self, prefix: &Prefix) -> PrefixView {
        let groups = prefix.groups.iter();
        PrefixView {
            common: self.collection(&prefix.name, &prefix.tally),
            state_counts: prefix.state_counts,
            duration_average: prefix.duration_average_s,
            max_exec_time: prefix.max_exec_time_s,
            suspicious: prefix.suspicious,
            groups: groups
                .map(|group| Arc::clone(&self.groups[group].name))
                .collect(),
        }
    }

    fn collection(&self, name: &Arc<str>, tally: &Tally) -> CollectionView {
        let named = |list: &[(NameId, i64)]| {
            list.iter()
                .map(|&(name, count)| (self.name(name), count))
                .collect()
        };
        CollectionView {
            name: Arc::clone(name),
            states: tally.states,
            len: tally.len,
            nbytes_total: tally.nbytes_total,
            duration_us: tally.duration_us,
            all_durations_us: named(&tally.durations_us),
            types: named(&tally.types),
        }
    }

    /// Returns the state that belongs to no single task or worker
    pub fn cluster_view(&self) -> ClusterView {
        let mut with_slots: Vec<WorkerId> = self.slots.iter().collect();
        with_slots.sort_by_key(|&worker| self.workers[worker].slot_order);
        let unrunnable = self.unrunnable.iter();
        let prefixes = self.processing_prefixes.iter();
        let resources = self.resources.iter();
        let hosts = self.hosts.iter();
        ClusterView {
            running: self.addresses(self.running.iter()),
            idle: self.addresses(self.idle.iter().copied()),
            idle_task_count: self.addresses(with_slots.into_iter()),
            saturated: self.addresses(self.saturated.iter()),
            queued: self.queue.iter().map(|task| self.key(task)).collect(),
            queue_entries: self.queue_entries(),
            queue_added: self.queue.added(),
            unrunnable: unrunnable
                .map(|task| (self.key(task), self.unrunnable_since_s[&task]))
                .collect(),
            replicated_tasks: self.keys_of(&self.replicated),
            erred_tasks: self.erred.iter().cloned().collect(),
            clients: self
                .clients
                .by_name
                .iter()
                .map(|(name, &client)| {
                    (Arc::clone(name), self.keys_of(&self.clients[client].wants))
                })
                .collect(),
            resources: resources
                .map(|(&name, suppliers)| {
                    let suppliers = suppliers.iter();
                    let suppliers = suppliers.map(|&(worker, has)| (self.address(worker), has));
                    (self.name(name), suppliers.collect())
                })
                .collect(),
            hosts: hosts
                .map(|(&host, workers)| (self.name(host), self.addresses(workers.iter())))
                .collect(),
            task_prefix_count: prefixes
                .map(|prefix| {
                    let count = self.groups.loads.processing(prefix);
                    (Arc::clone(&self.groups[prefix].name), count)
                })
                .collect(),
            network_occ: self.network_bytes,
            total_occupancy: self.total_occupancy_s(),
            total_nthreads: self.total_nthreads,
            bandwidth: self.bandwidth_bytes_per_s,
            n_tasks: self.tasks_sent,
            transition_counter: self.transition_count,
            generation: self.generation,
            last_graph: self.last_graph_s,
            next_run_id: self.runs,
            no_workers_since: self.no_workers_since_s,
        }
    }

    /// Entries of the queue's heap, without those of tasks that are forgotten
    fn queue_entries(&self) -> Vec<(Option<Priority>, u64, Key)> {
        let entries = self.queue.entries().into_iter();
        entries
            .filter_map(|(priority, order, task, serial)| {
                let one = self.tasks.find(task)?;
                let known = one.serial == serial && one.state != TaskState::Forgotten;
                known.then(|| (priority, order, Arc::clone(&one.key)))
            })
            .collect()
    }

    fn key(&self, task: TaskId) -> Key {
        let one: &Task = &self.tasks[task];
        Arc::clone(&one.key)
    }

    fn keys_of(&self, tasks: &OrderedSet<TaskId>) -> Vec<Key> {
        tasks.iter().map(|task| self.key(task)).collect()
    }

    fn address(&self, worker: WorkerId) -> Arc<str> {
        Arc::clone(&self.workers[worker].address)
    }

    fn addresses(&self, workers: impl Iterator<Item = WorkerId>) -> Vec<Arc<str>> {
        workers.map(|worker| self.address(worker)).collect()
    }

    fn name(&self, name: NameId) -> Arc<str> {
        debug_assert_ne!(name, NameId::HOLE);
        Arc::clone(self.names.text(name))
    }
}
