//! A state that another machine has kept until now.

use smallvec::SmallVec;

use super::core::{Counters, WorkerCore};
use super::counter::TaskCounts;
use super::heap::Heap;
use super::ids::{PeerId, PrefixId, TaskId};
use super::priority::Priority;
use super::state::State;
use crate::ordered_set::OrderedSet;

/// A task of Dask's state machine
#[derive(Clone, Debug)]
pub struct InheritedTask {
    /// Its state
    pub state: State,
    /// State before, while it is cancelled or resumed
    pub previous: Option<State>,
    /// See `previous`
    pub next: Option<State>,
    /// True if it has been run or fetched, and its transition is due
    pub done: bool,
    /// True if it takes a thread of the pool, runs beside it, or is on its way
    pub executes: bool,
    /// See `executes`
    pub runs_long: bool,
    /// See `executes`
    pub in_flight: bool,
    /// True if it is among those that wait for results
    pub waits: bool,
    /// Its prefix
    pub prefix: PrefixId,
    /// The run that the scheduler has asked for last; -1 for none
    pub run_id: i64,
    /// Bytes of its result
    pub nbytes: Option<i64>,
    /// When it is run
    pub priority: Option<Priority>,
    /// The peer that it is fetched from
    pub coming_from: Option<PeerId>,
    /// The peers that have its result
    pub who_has: Vec<PeerId>,
}

/// A heap of Dask's state machine
#[derive(Clone, Debug)]
pub struct InheritedHeap {
    /// Its places: of which priority, the how manieth that was added, and of which task
    pub places: Vec<(Priority, u64, TaskId)>,
    /// Its members
    pub members: Vec<TaskId>,
    /// How many were ever added
    pub added: u64,
}

impl WorkerCore {
    /// Takes over a task; [`Self::link`] adds its links
    pub fn inherit(&mut self, inherited: InheritedTask) -> TaskId {
        let task = self.create(inherited.prefix);
        self.unmake(task);
        let known = self.task_mut(task);
        known.state = inherited.state;
        known.previous = inherited.previous;
        known.next = inherited.next;
        known.done = inherited.done;
        known.executes = inherited.executes;
        known.runs_long = inherited.runs_long;
        known.in_flight = inherited.in_flight;
        known.waits = inherited.waits;
        known.run_id = inherited.run_id;
        known.nbytes = inherited.nbytes;
        known.priority = inherited.priority;
        known.coming_from = inherited.coming_from;
        known.who_has = SmallVec::from_vec(inherited.who_has);
        self.executing += usize::from(inherited.executes);
        self.long_running += usize::from(inherited.runs_long);
        self.in_flight += usize::from(inherited.in_flight);
        task
    }

    /// Says what a task needs, what needs it, what it waits for, and what waits for it
    pub fn link(
        &mut self,
        task: TaskId,
        [dependencies, dependents, waiting_for_data, waiters]: [Vec<TaskId>; 4],
    ) {
        let set = |tasks: Vec<TaskId>| tasks.into_iter().collect::<OrderedSet<TaskId>>();
        let known = self.task_mut(task);
        known.dependencies = set(dependencies);
        known.dependents = set(dependents);
        known.waiting_for_data = set(waiting_for_data);
        known.waiters = set(waiters);
    }

    /// Takes over the tasks that wait for a thread
    pub fn inherit_ready(&mut self, heap: InheritedHeap) {
        self.ready = self.inherited_heap(heap);
    }

    /// Takes over what is to be fetched from a peer, behind those that were taken over before
    pub fn inherit_needed(&mut self, peer: PeerId, heap: InheritedHeap) {
        let heap = self.inherited_heap(heap);
        self.needed.inherit(peer, heap);
    }

    fn inherited_heap(&self, heap: InheritedHeap) -> Heap {
        let places = heap.places.into_iter().map(|(priority, number, task)| {
            let life = self.task(task).life;
            (priority, number, task, life)
        });
        Heap::inherited(heap.added, places, heap.members.into_iter())
    }

    /// Takes over that something is on its way from a peer
    pub fn inherit_flight(&mut self, peer: PeerId) {
        self.in_flight_workers.insert(peer);
    }

    /// Takes over the rest
    pub fn inherit_rest(
        &mut self,
        running: bool,
        counters: Counters,
        counts: TaskCounts,
        missing: Vec<TaskId>,
        busy: Vec<PeerId>,
    ) {
        self.running = running;
        self.counters = counters;
        self.counts = counts;
        self.missing = missing.into_iter().collect();
        self.busy = busy.into_iter().collect();
    }
}
