//! A core that takes over the state of another scheduler, so that decisions go on as they would have.
//!
//! The state comes as the views that a core gives of its own ([`super::views`]): workers, clients,
//! prefixes, groups, tasks, counters, and the order of all of these.

use std::sync::Arc;

use super::compact::{NumberOrNone, PriorityOrNone};
use super::config::Config;
use super::core::{SchedulerCore, shown};
use super::error::InheritError;
use super::groups::{Group, Prefix, Tally};
use super::ids::{ClientId, GroupId, Id, PrefixId, TaskId, WorkerId};
use super::queue::TaskQueue;
use super::task::{Blame, Failure, Key, TaskState};
use super::views::{ClusterView, CollectionView, GroupView, PrefixView, TaskView, WorkerView};
use super::worker::{Worker, WorkerJoins};
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// The state of a scheduler, as views show it
#[derive(Debug)]
pub struct Inherited {
    /// All that belongs to no single task or worker
    pub cluster: ClusterView,
    /// Its workers
    pub workers: Vec<WorkerView>,
    /// Its prefixes, in the order in which they were first met
    pub prefixes: Vec<PrefixView>,
    /// Its groups by serial, those included that are gone and depended on
    pub groups: Vec<GroupView>,
    /// Its tasks, in the order in which they came
    pub tasks: Vec<TaskView>,
    /// The clients that have a stream
    pub streams: Vec<Arc<str>>,
}

impl SchedulerCore {
    /// A core with the state that these views show
    ///
    /// # Errors
    ///
    /// [`InheritError`] if a view names a worker, client, prefix, group or task that no view shows.
    pub fn inherit(config: Config, inherited: &Inherited) -> Result<Self, InheritError> {
        let mut core = Self::new(config);
        for prefix in &inherited.prefixes {
            core.inherit_prefix(prefix);
        }
        core.inherit_groups(inherited)?;
        for task in &inherited.tasks {
            core.inherit_task(task)?;
        }
        for worker in &inherited.workers {
            core.inherit_worker(worker)?;
        }
        core.inherit_clients(&inherited.cluster, &inherited.streams)?;
        for task in &inherited.tasks {
            core.inherit_relations(task)?;
        }
        core.inherit_last_workers(&inherited.groups)?;
        core.inherit_cluster(&inherited.cluster)?;
        for worker in core.workers.sorted().to_vec() {
            core.place_worker(worker);
        }
        Ok(core)
    }

    fn inherit_prefix(&mut self, view: &PrefixView) {
        let tally = self.inherited_tally(&view.common);
        self.groups.add_prefix(Prefix {
            name: Arc::clone(&view.common.name),
            tally,
            state_counts: view.state_counts,
            duration_average_s: view.duration_average,
            max_exec_time_s: view.max_exec_time,
            suspicious: view.suspicious,
            groups: OrderedSet::new(),
        });
    }

    fn inherited_tally(&mut self, view: &CollectionView) -> Tally {
        let mut named = |list: &[(Arc<str>, i64)]| {
            list.iter()
                .map(|(name, count)| (self.names.intern(name), *count))
                .collect()
        };
        Tally {
            states: view.states,
            len: view.len,
            nbytes_total: view.nbytes_total,
            duration_us: view.duration_us,
            durations_us: named(&view.all_durations_us),
            types: named(&view.types),
        }
    }

    fn inherit_groups(&mut self, inherited: &Inherited) -> Result<(), InheritError> {
        let mut by_serial: Map<u64, GroupId> = Map::default();
        for view in &inherited.groups {
            let prefix = self.inherited_prefix(&view.prefix)?;
            let tally = self.inherited_tally(&view.common);
            let group = self.groups.add_group(Group {
                name: Arc::clone(&view.common.name),
                serial: view.serial,
                prefix,
                tally,
                dependencies: OrderedSet::new(),
                referrers: 0,
                gone: view.gone,
                last_worker: None,
                last_worker_tasks_left: view.last_worker_tasks_left,
                start_s: view.start,
                stop_s: view.stop,
            });
            by_serial.insert(view.serial, group);
        }
        for view in &inherited.groups {
            for serial in &view.dependency_serials {
                let dependency = by_serial.get(serial).copied();
                let dependency = dependency.ok_or_else(|| unknown_group(&serial.to_string()))?;
                self.groups
                    .add_dependency(by_serial[&view.serial], dependency);
            }
        }
        for view in &inherited.prefixes {
            let prefix = self.inherited_prefix(&view.common.name)?;
            for name in &view.groups {
                let group = self.inherited_group(name)?;
                self.groups[prefix].groups.insert(group);
            }
        }
        Ok(())
    }

    /// Adds a task, without what joins it to others
    fn inherit_task(&mut self, view: &TaskView) -> Result<(), InheritError> {
        let group = self.inherited_group(&view.group)?;
        let task = self.tasks.add(Arc::clone(&view.key), group, view.state);
        self.tasks.insert_key(task);
        let type_name = view.type_name.as_ref().map(|name| self.names.intern(name));
        let mut requirements = view.requirements.clone().map(Box::new);
        if let Some(requirements) = &mut requirements {
            self.note_request(requirements);
        }
        let one = &mut self.tasks[task];
        one.spec.clone_from(&view.run_spec);
        one.priority = view
            .priority
            .map_or(PriorityOrNone::NONE, PriorityOrNone::some);
        one.nbytes = number(view.nbytes);
        one.run_id = number(view.run_id);
        one.requirements = requirements;
        one.type_name = type_name;
        one.suspicious = view.suspicious;
        one.retries = view.retries;
        one.has_lost_dependencies = view.has_lost_dependencies;
        one.actor = view.actor;
        one.data_producer = view.data_producer;
        one.queueable = view.queueable;
        Ok(())
    }

    fn inherit_worker(&mut self, view: &WorkerView) -> Result<(), InheritError> {
        let joins = WorkerJoins {
            address: Arc::clone(&view.address),
            name: Arc::clone(&view.name),
            host: Arc::clone(&view.host),
            nthreads: view.nthreads,
            memory_limit: view.memory_limit,
            status: view.status,
            resources: Vec::new(),
            bandwidth_bytes_per_s: 0.0,
        };
        let host = self.names.intern(&joins.host);
        let worker = self.workers.add(Worker::new(&joins, host));
        for (name, count) in &view.task_prefix_count {
            let prefix = self.inherited_prefix(name)?;
            self.workers[worker].prefix_counts.add(prefix, *count);
        }
        for (key, count) in &view.needs_what {
            let task = self.referred_task(key);
            self.workers[worker].needs_what.insert(task, *count);
        }
        for key in &view.actors {
            let task = self.referred_task(key);
            self.workers[worker].actors.insert(task);
        }
        let has_what = self.inherited_tasks(&view.has_what)?;
        let processing = self.inherited_tasks(&view.processing)?;
        let long_running = self.inherited_tasks(&view.long_running)?;
        let mut named = |list: &[(Arc<str>, f64)]| {
            list.iter()
                .map(|(name, amount)| (self.names.intern(name), *amount))
                .collect::<Vec<_>>()
        };
        let (resources, used) = (named(&view.resources), named(&view.used_resources));
        let one = &mut self.workers[worker];
        one.has_what = has_what;
        one.processing = processing;
        one.long_running = long_running;
        one.resources = resources;
        one.used_resources = used;
        one.nbytes = view.nbytes;
        one.network_bytes = view.network_occ;
        one.executing.clone_from(&view.executing);
        Ok(())
    }

    /// The number of a task that an entry of a worker refers to, which may be forgotten
    fn referred_task(&mut self, key: &Key) -> TaskId {
        let known = self.tasks.by_key(key);
        let task = match known.or_else(|| self.remembered.get(key).copied()) {
            Some(task) => task,
            None => {
                let state = TaskState::Forgotten;
                // It has no group any more, and is not asked for it.
                let task = self.tasks.add(Arc::clone(key), GroupId::HOLE, state);
                self.remembered.insert(Arc::clone(key), task);
                task
            }
        };
        self.add_reference(task);
        task
    }

    fn inherit_clients(
        &mut self,
        cluster: &ClusterView,
        streams: &[Arc<str>],
    ) -> Result<(), InheritError> {
        for (name, wants) in &cluster.clients {
            let client = self.clients.find_or_add(name);
            self.clients[client].wants = self.inherited_tasks(wants)?;
        }
        for client in streams {
            let client = self.clients.find_or_add(client);
            self.clients[client].has_stream = true;
        }
        Ok(())
    }

    /// Joins a task to other tasks, workers and clients
    fn inherit_relations(&mut self, view: &TaskView) -> Result<(), InheritError> {
        let task = self.inherited_key(&view.key)?;
        let dependencies = self.inherited_tasks(&view.dependencies)?;
        let dependents = self.inherited_tasks(&view.dependents)?;
        let waiting_on = self.maybe_tasks(view.waiting_on.as_deref())?;
        let waiters = self.maybe_tasks(view.waiters.as_deref())?;
        let who_wants = match &view.who_wants {
            None => None,
            Some(names) => Some(set_of(names, |name| self.inherited_client(name))?),
        };
        let who_has = set_of(&view.who_has, |address| self.inherited_worker(address))?;
        let processing_on = view.processing_on.as_deref();
        let processing_on = processing_on
            .map(|address| self.inherited_worker(address))
            .transpose()?;
        let failure = self.inherited_failure(view)?;
        let one = &mut self.tasks[task];
        one.dependencies = dependencies;
        one.dependents = dependents;
        one.waiting_on = waiting_on;
        one.waiters = waiters;
        one.who_wants = who_wants;
        one.who_has = who_has;
        one.processing_on = processing_on;
        one.failure = failure;
        Ok(())
    }

    fn inherited_failure(&mut self, view: &TaskView) -> Result<Option<Box<Failure>>, InheritError> {
        let blame = match (&view.exception_blame, view.forgotten_blame) {
            (None, _) => None,
            (Some(key), None) => {
                let task = self.inherited_key(key)?;
                Some(Blame {
                    task,
                    serial: self.tasks[task].serial,
                    key: Arc::clone(key),
                })
            }
            (Some(key), Some(_)) => Some(self.forgotten_blame(key)),
        };
        let failure = Failure {
            exception: view.exception.clone(),
            traceback: view.traceback.clone(),
            exception_text: view.exception_text.clone(),
            traceback_text: view.traceback_text.clone(),
            blame,
            erred_on: view.erred_on.clone(),
        };
        let is_none = failure.exception.is_none()
            && failure.traceback.is_none()
            && failure.exception_text.is_none()
            && failure.traceback_text.is_none()
            && failure.blame.is_none()
            && failure.erred_on.is_none();
        Ok((!is_none).then(|| Box::new(failure)))
    }

    /// Blames a task that is forgotten: its number and serial name no task from now on
    fn forgotten_blame(&mut self, key: &Key) -> Blame {
        let state = TaskState::Forgotten;
        let task = self.tasks.add(Arc::clone(key), GroupId::HOLE, state);
        let serial = self.tasks[task].serial;
        self.tasks.remove(task);
        Blame {
            task,
            serial,
            key: Arc::clone(key),
        }
    }

    fn inherit_last_workers(&mut self, groups: &[GroupView]) -> Result<(), InheritError> {
        for view in groups.iter().filter(|view| !view.gone) {
            if let Some(Some(address)) = &view.last_worker {
                let worker = self.inherited_worker(address)?;
                let group = self.inherited_group(&view.common.name)?;
                self.groups[group].last_worker = Some(worker);
            }
        }
        Ok(())
    }

    fn inherit_cluster(&mut self, cluster: &ClusterView) -> Result<(), InheritError> {
        self.inherit_sets(cluster)?;
        for (name, count) in &cluster.task_prefix_count {
            let prefix = self.inherited_prefix(name)?;
            self.groups.loads.set_processing(prefix, *count);
            self.processing_prefixes.insert(prefix);
        }
        let queued = cluster.queued.iter().map(|key| self.inherited_key(key));
        let queued = queued.collect::<Result<Vec<_>, _>>()?;
        let entries = cluster.queue_entries.iter();
        let entries = entries.map(|(priority, order, key)| {
            let task = self.inherited_key(key)?;
            Ok((*priority, *order, task))
        });
        let entries = entries.collect::<Result<Vec<_>, InheritError>>()?;
        let added = cluster.queue_added;
        self.queue = TaskQueue::from_parts(&mut self.tasks, &queued, &entries, added);
        for (key, since_s) in &cluster.unrunnable {
            let task = self.inherited_key(key)?;
            self.unrunnable.insert(task);
            self.unrunnable_since_s.insert(task, *since_s);
        }
        self.replicated = self.inherited_tasks(&cluster.replicated_tasks)?;
        self.erred = cluster.erred_tasks.iter().cloned().collect();
        self.total_nthreads = cluster.total_nthreads;
        self.network_bytes = cluster.network_occ;
        self.bandwidth_bytes_per_s = cluster.bandwidth;
        self.tasks_sent = cluster.n_tasks;
        self.transition_count = cluster.transition_counter;
        self.generation = cluster.generation;
        self.last_graph_s = cluster.last_graph;
        self.runs = cluster.next_run_id;
        self.no_workers_since_s = cluster.no_workers_since;
        Ok(())
    }

    fn inherit_sets(&mut self, cluster: &ClusterView) -> Result<(), InheritError> {
        for address in &cluster.running {
            let worker = self.inherited_worker(address)?;
            self.running.insert(worker);
        }
        for address in &cluster.idle {
            let worker = self.inherited_worker(address)?;
            self.add_to_idle(worker);
        }
        for address in &cluster.idle_task_count {
            let worker = self.inherited_worker(address)?;
            self.add_to_slots(worker);
        }
        for address in &cluster.saturated {
            let worker = self.inherited_worker(address)?;
            self.saturated.insert(worker);
        }
        for (host, addresses) in &cluster.hosts {
            let host = self.names.intern(host);
            for address in addresses {
                let worker = self.inherited_worker(address)?;
                self.hosts.entry(host).or_default().insert(worker);
            }
        }
        for (resource, suppliers) in &cluster.resources {
            let suppliers = suppliers.iter();
            let suppliers = suppliers
                .map(|(address, amount)| Ok((self.inherited_worker(address)?, *amount)))
                .collect::<Result<Vec<_>, InheritError>>()?;
            let resource = self.names.intern(resource);
            self.resources.insert(resource, suppliers);
        }
        Ok(())
    }

    // Things that views name

    pub(super) fn inherited_worker(&self, address: &str) -> Result<WorkerId, InheritError> {
        let worker = self.workers.by_address(address);
        worker.ok_or_else(|| InheritError::UnknownWorker {
            address: address.to_owned(),
        })
    }

    pub(super) fn inherited_prefix(&self, name: &str) -> Result<PrefixId, InheritError> {
        let prefix = self.groups.prefix_by_name.get(name).copied();
        prefix.ok_or_else(|| InheritError::UnknownPrefix {
            prefix: name.to_owned(),
        })
    }

    fn inherited_group(&self, name: &str) -> Result<GroupId, InheritError> {
        let group = self.groups.by_name.get(name).copied();
        group.ok_or_else(|| unknown_group(name))
    }

    fn inherited_client(&self, name: &str) -> Result<ClientId, InheritError> {
        let client = self.clients.by_name.get(name).copied();
        client.ok_or_else(|| InheritError::UnknownClient {
            client: name.to_owned(),
        })
    }

    pub(super) fn inherited_key(&self, key: &Key) -> Result<TaskId, InheritError> {
        let task = self.tasks.by_key(key);
        task.ok_or_else(|| InheritError::UnknownTask { key: shown(key) })
    }

    pub(super) fn inherited_tasks(&self, keys: &[Key]) -> Result<OrderedSet<TaskId>, InheritError> {
        set_of(keys, |key| self.inherited_key(key))
    }

    fn maybe_tasks(
        &self,
        keys: Option<&[Key]>,
    ) -> Result<Option<OrderedSet<TaskId>>, InheritError> {
        keys.map(|keys| self.inherited_tasks(keys)).transpose()
    }
}

fn unknown_group(name: &str) -> InheritError {
    InheritError::UnknownGroup {
        group: name.to_owned(),
    }
}

const fn number(number: Option<u64>) -> NumberOrNone {
    match number {
        Some(number) => NumberOrNone::some(number),
        None => NumberOrNone::NONE,
    }
}

fn set_of<N, T: Id>(
    names: &[N],
    find: impl Fn(&N) -> Result<T, InheritError>,
) -> Result<OrderedSet<T>, InheritError> {
    let mut found = OrderedSet::new();
    for name in names {
        found.insert(find(name)?);
    }
    Ok(found)
}
