//! The state of a worker, and how recommendations are worked off.

use super::counter::TaskCounts;
use super::error::Refused;
use super::fetching::Needed;
use super::heap::Heap;
use super::host::Host;
use super::ids::{PeerId, PrefixId, TaskId};
use super::state::{Finish, State};
use super::task::Task;
use crate::ordered_set::OrderedSet;

/// Recommendations: the state that each task should go to
pub(super) type Recommendations = crate::recommendations::Recommendations<TaskId, Finish>;

/// Limits that a worker is given
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Threads of the pool
    pub threads: usize,
    /// Most transfers at the same time
    pub transfers: f64,
    /// Bytes under way below which their number does not matter
    pub throttle_bytes: f64,
    /// Most bytes under way
    pub incoming_bytes: f64,
    /// Most bytes of one transfer of several results
    pub message_bytes: f64,
    /// Bytes that a result is taken to have whose size is not known
    pub default_bytes: i64,
}

/// A worker's state machine: events in, instructions out
///
/// An event is one of the methods of `events.rs`, or several of them, and then [`Self::conclude`].
/// All in order: a number of a task is good from [`Self::create`] until the end of the event in
/// which the host hears that it is forgotten.
#[derive(Debug)]
pub struct WorkerCore {
    pub(super) limits: Limits,
    pub(super) running: bool,
    pub(super) tasks: Vec<Task>,
    /// Numbers that are free, and those that are when the event is over
    free: Vec<TaskId>,
    forgotten: Vec<TaskId>,
    born: u64,
    pub(super) live: usize,
    pub(super) ready: Heap,
    pub(super) needed: Needed,
    /// Per peer, true if it is on another host
    pub(super) peers: Vec<bool>,
    /// Peers from which something is on its way
    pub(super) in_flight_workers: OrderedSet<PeerId>,
    pub(super) busy: OrderedSet<PeerId>,
    pub(super) missing: OrderedSet<TaskId>,
    pub(super) executing: usize,
    pub(super) long_running: usize,
    pub(super) in_flight: usize,
    pub(super) counters: Counters,
    pub(super) counts: TaskCounts,
    /// Recommendations of the event that is handled, the tasks that it made, and earlier states
    pub(super) recommended: Recommendations,
    made: Vec<TaskId>,
    initial: Vec<TaskId>,
}

/// Numbers of a state machine
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Counts down with each task that is taken on
    pub generation: i64,
    /// Bytes of all results that are here
    pub nbytes: i64,
    /// Runs that have ended
    pub executed: i64,
    /// Transitions so far
    pub transitions: i64,
    /// Tasks to be fetched
    pub fetch: i64,
    /// Bytes under way
    pub incoming_bytes: i64,
    /// Transfers so far
    pub incoming_total: i64,
}

impl WorkerCore {
    /// A state machine without tasks
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            running: true,
            tasks: Vec::new(),
            free: Vec::new(),
            forgotten: Vec::new(),
            born: 0,
            live: 0,
            ready: Heap::default(),
            needed: Needed::default(),
            peers: Vec::new(),
            in_flight_workers: OrderedSet::new(),
            busy: OrderedSet::new(),
            missing: OrderedSet::new(),
            executing: 0,
            long_running: 0,
            in_flight: 0,
            counters: Counters::default(),
            counts: TaskCounts::default(),
            recommended: Recommendations::default(),
            made: Vec::new(),
            initial: Vec::new(),
        }
    }

    /// Makes a task, which its event is going to change
    pub fn create(&mut self, prefix: PrefixId) -> TaskId {
        let born = self.born;
        self.born += 1;
        self.live += 1;
        let task = match self.free.pop() {
            Some(task) => {
                let known = &mut self.tasks[task.index()];
                *known = Task::new(prefix, known.life, born);
                task
            }
            None => {
                self.tasks.push(Task::new(prefix, 0, born));
                TaskId::at(self.tasks.len() - 1)
            }
        };
        self.made.push(task);
        task
    }

    /// Counts a task that was made as one that was there before
    pub(super) fn unmake(&mut self, task: TaskId) {
        self.made.retain(|&one| one != task);
        self.task_mut(task).is_new = false;
    }

    /// Takes note of a peer
    pub fn meet(&mut self, is_remote: bool) -> PeerId {
        self.peers.push(is_remote);
        self.needed.meet();
        PeerId::at(self.peers.len() - 1)
    }

    /// Works off what the event recommends, and all that follows from it
    ///
    /// # Errors
    ///
    /// [`Refused`], where upstream raises.
    pub fn conclude(&mut self, host: &mut impl Host) -> Result<(), Refused> {
        let mut recommended = std::mem::take(&mut self.recommended);
        self.work_off(host, &mut recommended)?;
        let mut fetches = Recommendations::default();
        self.ensure_communicating(host, &mut fetches)?;
        self.work_off(host, &mut fetches)?;
        self.count(host);
        self.free.append(&mut self.forgotten);
        Ok(())
    }

    fn work_off(
        &mut self,
        host: &mut impl Host,
        recommended: &mut Recommendations,
    ) -> Result<(), Refused> {
        while let Some((task, finish)) = recommended.pop() {
            let known = &mut self.tasks[task.index()];
            if known.before.is_none() {
                known.before = Some(known.state);
                self.initial.push(task);
            }
            let mut found = Recommendations::default();
            self.transition(host, task, finish, &mut found)?;
            recommended.update(found);
        }
        Ok(())
    }

    /// Counts tasks by state, as `TaskCounter.transitions`
    fn count(&mut self, host: &mut impl Host) {
        if self.initial.is_empty() && self.made.is_empty() {
            return;
        }
        self.counts.count_time(host.monotonic_s());
        for task in self.initial.drain(..) {
            let known = &mut self.tasks[task.index()];
            let before = known.before.take();
            let was_new = std::mem::take(&mut known.is_new);
            if before == Some(known.state) && !was_new {
                continue;
            }
            if known.state != State::Forgotten {
                self.counts.add((known.prefix, known.state));
            }
            if let (Some(before), false) = (before, was_new) {
                self.counts.take((known.prefix, before));
            }
        }
        for task in self.made.drain(..) {
            let known = &mut self.tasks[task.index()];
            if std::mem::take(&mut known.is_new) {
                self.counts.add((known.prefix, known.state));
            }
        }
    }

    /// Forgets a task when the event is over
    pub(super) fn give_up(&mut self, host: &mut impl Host, task: TaskId) {
        self.live -= 1;
        // The places that the task has left behind are invalid from now on.
        let known = self.task_mut(task);
        known.life = known.life.wrapping_add(1);
        self.forgotten.push(task);
        host.forget(task);
    }

    pub(super) fn task(&self, task: TaskId) -> &Task {
        &self.tasks[task.index()]
    }

    pub(super) fn task_mut(&mut self, task: TaskId) -> &mut Task {
        &mut self.tasks[task.index()]
    }
}
