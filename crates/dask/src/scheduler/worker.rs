//! One worker of the scheduler, and the table of workers.

use std::cell::Cell;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::ids::{NameId, TaskId, WorkerId};
use super::prefix_counts::PrefixCounts;
use super::task::Key;
use crate::hashing::Map;
use crate::ordered_set::OrderedSet;

/// State of a worker that takes tasks or not; Dask's other states are paused or closed to the
/// scheduler
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkerStatus {
    /// Takes tasks
    Running,
    /// Takes none, but keeps what it has
    Paused,
    /// Paused, and about to leave
    ClosingGracefully,
    /// Gone, or about to be
    Closed,
}

/// A worker that joins
#[derive(Clone, Debug)]
pub struct WorkerJoins {
    /// Where it listens
    pub address: Arc<str>,
    /// The name that users gave it, under which restrictions may name its host
    pub name: Arc<str>,
    /// The host part of its address
    pub host: Arc<str>,
    /// How many tasks it runs at a time
    pub nthreads: u32,
    /// Memory that it may use, in bytes; 0 if that has no limit
    pub memory_limit: u64,
    /// The state, which says whether the worker takes tasks
    pub status: WorkerStatus,
    /// How much of which resource it has
    pub resources: Vec<(Arc<str>, f64)>,
    /// Bandwidth that it measured, in bytes per second, as its first heartbeat says
    pub bandwidth_bytes_per_s: f64,
}

/// One worker: the attributes of upstream's `WorkerState` that decide or are reported
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) address: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) host: NameId,
    pub(super) nthreads: u32,
    pub(super) memory_limit: u64,
    pub(super) status: WorkerStatus,
    /// True if it is in the cluster still; [`Workers`] keeps it
    is_current: bool,
    /// Bytes of the results that it holds
    pub(super) nbytes: i64,
    pub(super) has_what: OrderedSet<TaskId>,
    pub(super) processing: OrderedSet<TaskId>,
    pub(super) long_running: OrderedSet<TaskId>,
    pub(super) actors: OrderedSet<TaskId>,
    /// Tasks it is processing by prefix, long-running ones not counted, in the order of first ones
    pub(super) prefix_counts: PrefixCounts,
    /// How long they compute, in seconds, as it was added up last, with [`Loads::changes`] of then;
    /// none if they have changed
    ///
    /// [`Loads::changes`]: super::loads::Loads::changes
    pub(super) added_up: Cell<Option<(f64, u64)>>,
    /// Results that it has to fetch, and how many of its tasks need each
    pub(super) needs_what: Map<TaskId, u32>,
    /// Bytes of them
    pub(super) network_bytes: u64,
    /// The tasks of its last report, with their seconds so far; some may be forgotten
    pub(super) executing: Vec<(Key, f64)>,
    pub(super) resources: Vec<(NameId, f64)>,
    pub(super) used_resources: Vec<(NameId, f64)>,
    /// Place among the workers by address
    pub(super) rank: u32,
    /// Place in the order in which workers came to have free slots, if this one has some
    pub(super) slot_order: Option<u64>,
}

impl Worker {
    pub(super) fn new(joins: &WorkerJoins, host: NameId) -> Self {
        Self {
            address: Arc::clone(&joins.address),
            name: Arc::clone(&joins.name),
            host,
            nthreads: joins.nthreads,
            memory_limit: joins.memory_limit,
            status: joins.status,
            is_current: false,
            nbytes: 0,
            has_what: OrderedSet::new(),
            processing: OrderedSet::new(),
            long_running: OrderedSet::new(),
            actors: OrderedSet::new(),
            prefix_counts: PrefixCounts::default(),
            added_up: Cell::new(None),
            needs_what: Map::default(),
            network_bytes: 0,
            executing: Vec::new(),
            resources: Vec::new(),
            used_resources: Vec::new(),
            rank: 0,
            slot_order: None,
        }
    }

    /// Tasks for each thread, by which workers with free slots are compared
    pub(super) fn load(&self) -> f64 {
        self.processing.len() as f64 / f64::from(self.nthreads)
    }
}

/// Workers by number and address
#[derive(Debug, Default)]
pub(super) struct Workers {
    workers: Vec<Option<Box<Worker>>>,
    by_address: Map<Arc<str>, WorkerId>,
    /// Workers of the cluster, in the order of their addresses
    sorted: Vec<WorkerId>,
    pub(super) by_name: Map<Arc<str>, WorkerId>,
}

impl Workers {
    pub(super) fn add(&mut self, worker: Worker) -> WorkerId {
        let id = WorkerId::at(self.workers.len());
        self.by_address.insert(Arc::clone(&worker.address), id);
        self.by_name.insert(Arc::clone(&worker.name), id);
        let place = self
            .sorted
            .partition_point(|&one| self[one].address < worker.address);
        self.sorted.insert(place, id);
        self.workers.push(Some(Box::new(worker)));
        self[id].is_current = true;
        self.rank_from(place);
        id
    }

    /// Takes a worker out of the cluster; it stays readable until [`Workers::forget`]
    pub(super) fn remove(&mut self, id: WorkerId) {
        let worker = &self[id];
        let (address, name) = (Arc::clone(&worker.address), Arc::clone(&worker.name));
        let place = worker.rank as usize;
        self.by_address.remove(&address);
        self.by_name.remove(&name);
        self[id].is_current = false;
        self.sorted.remove(place);
        self.rank_from(place);
    }

    pub(super) fn forget(&mut self, id: WorkerId) {
        self.workers[id.index()] = None;
    }

    fn rank_from(&mut self, place: usize) {
        for rank in place..self.sorted.len() {
            let id = self.sorted[rank];
            self[id].rank = rank as u32;
        }
    }

    pub(super) fn by_address(&self, address: &str) -> Option<WorkerId> {
        self.by_address.get(address).copied()
    }

    /// Returns whether a worker is in the cluster still
    pub(super) fn is_current(&self, id: WorkerId) -> bool {
        let worker = self.workers[id.index()].as_deref();
        worker.is_some_and(|worker| worker.is_current)
    }

    /// The worker at an address, which is looked at first if it is this one
    pub(super) fn find(&self, likely: Option<WorkerId>, address: &str) -> Option<WorkerId> {
        let is_it = |&id: &WorkerId| self.is_current(id) && *self[id].address == *address;
        likely.filter(is_it).or_else(|| self.by_address(address))
    }

    pub(super) fn sorted(&self) -> &[WorkerId] {
        &self.sorted
    }

    /// Workers that have left the cluster and that something still refers to
    pub(super) fn departed(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let places = 0..self.workers.len();
        let there = places
            .map(WorkerId::at)
            .filter(|id| self.workers[id.index()].is_some());
        there.filter(|&id| !self.is_current(id))
    }
}

impl Index<WorkerId> for Workers {
    type Output = Worker;

    fn index(&self, id: WorkerId) -> &Worker {
        self.workers[id.index()]
            .as_deref()
            .expect("a worker is forgotten once no task is on it")
    }
}

impl IndexMut<WorkerId> for Workers {
    fn index_mut(&mut self, id: WorkerId) -> &mut Worker {
        self.workers[id.index()]
            .as_deref_mut()
            .expect("a worker is forgotten once no task is on it")
    }
}
