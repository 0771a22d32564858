//! A core that takes over a scheduler without tasks, so that decisions go on as they would have.
//!
//! What outlives tasks is taken over: workers and what they are believed to have to fetch still,
//! clients, what prefixes have learned, counters, and the order of all of these.

use std::sync::Arc;

use super::config::Config;
use super::core::{SchedulerCore, shown};
use super::error::InheritError;
use super::groups::{Prefix, Tally};
use super::ids::{GroupId, Id, PrefixId, TaskId, WorkerId};
use super::queue::TaskQueue;
use super::task::{Key, TaskState};
use super::views::{ClusterView, CollectionView, PrefixView, WorkerView};
use super::worker::{Worker, WorkerJoins};
use crate::ordered_set::OrderedSet;

impl SchedulerCore {
    /// A core with the cluster that these views show
    ///
    /// The views are as `cluster_view`, `worker_views` and `prefix_views` give them; `streams` are the
    /// clients that can be told anything.
    ///
    /// # Errors
    ///
    /// [`InheritError`] if there are tasks, or a view names a worker or prefix that no view shows.
    pub fn inherit(
        config: Config,
        cluster: &ClusterView,
        workers: &[WorkerView],
        prefixes: &[PrefixView],
        streams: &[Arc<str>],
    ) -> Result<Self, InheritError> {
        if let Some(key) = task_of(cluster, workers) {
            return Err(InheritError::HasTasks { key: shown(key) });
        }
        let mut core = Self::new(config);
        for prefix in prefixes {
            core.inherit_prefix(prefix);
        }
        for worker in workers {
            core.inherit_worker(worker)?;
        }
        core.inherit_sets(cluster)?;
        for (name, count) in &cluster.task_prefix_count {
            let prefix = core.inherited_prefix(name)?;
            core.groups.loads.set_processing(prefix, *count);
            core.processing_prefixes.insert(prefix);
        }
        for (client, _) in &cluster.clients {
            core.clients.find_or_add(client);
        }
        for client in streams {
            let client = core.clients.find_or_add(client);
            core.clients[client].has_stream = true;
        }
        core.queue = TaskQueue::from_count(cluster.queue_added);
        core.erred = cluster.erred_tasks.iter().cloned().collect();
        core.total_nthreads = cluster.total_nthreads;
        core.network_bytes = cluster.network_occ;
        core.bandwidth_bytes_per_s = cluster.bandwidth;
        core.tasks_sent = cluster.n_tasks;
        core.transition_count = cluster.transition_counter;
        core.generation = cluster.generation;
        core.last_graph_s = cluster.last_graph;
        core.runs = cluster.next_run_id;
        core.no_workers_since_s = cluster.no_workers_since;
        Ok(core)
    }

    fn inherit_prefix(&mut self, view: &PrefixView) {
        let tally = self.inherit_tally(&view.common);
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

    fn inherit_tally(&mut self, view: &CollectionView) -> Tally {
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
            let task = self.remember(key);
            self.workers[worker].needs_what.insert(task, *count);
        }
        for key in &view.actors {
            let task = self.remember(key);
            self.workers[worker].actors.insert(task);
        }
        let mut named = |list: &[(Arc<str>, f64)]| {
            list.iter()
                .map(|(name, amount)| (self.names.intern(name), *amount))
                .collect::<Vec<_>>()
        };
        let (resources, used) = (named(&view.resources), named(&view.used_resources));
        let one = &mut self.workers[worker];
        one.resources = resources;
        one.used_resources = used;
        one.nbytes = view.nbytes;
        one.network_bytes = view.network_occ;
        one.executing.clone_from(&view.executing);
        Ok(())
    }

    /// The number of a forgotten task that an entry of a worker refers to
    fn remember(&mut self, key: &Key) -> TaskId {
        let task = match self.remembered.get(key) {
            Some(&task) => task,
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

    fn inherited_worker(&self, address: &str) -> Result<WorkerId, InheritError> {
        let worker = self.workers.by_address(address);
        worker.ok_or_else(|| InheritError::UnknownWorker {
            address: address.to_owned(),
        })
    }

    fn inherited_prefix(&self, name: &str) -> Result<PrefixId, InheritError> {
        let prefix = self.groups.prefix_by_name.get(name).copied();
        prefix.ok_or_else(|| InheritError::UnknownPrefix {
            prefix: name.to_owned(),
        })
    }
}

/// A task that something in the views shows, if any does
fn task_of<'a>(cluster: &'a ClusterView, workers: &'a [WorkerView]) -> Option<&'a Key> {
    let wanted = cluster.clients.iter().flat_map(|(_, wants)| wants);
    let kept = cluster.queued.iter().chain(&cluster.replicated_tasks);
    let unrunnable = cluster.unrunnable.iter().map(|(key, _)| key);
    let on_workers = workers.iter().flat_map(|worker| {
        let has = worker.has_what.iter();
        has.chain(&worker.processing).chain(&worker.long_running)
    });
    wanted
        .chain(kept)
        .chain(unrunnable)
        .chain(on_workers)
        .next()
}
