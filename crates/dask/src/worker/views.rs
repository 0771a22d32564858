//! Read access to the state.

use std::cmp::Ordering;

use super::core::{Counters, WorkerCore};
use super::counter::TaskCounts;
use super::heap::Heap;
use super::ids::{PeerId, PrefixId, TaskId};
use super::priority::Priority;
use super::state::State;
use super::task::Task;

/// A task as it is now
#[derive(Clone, Copy, Debug)]
pub struct TaskView<'a>(&'a Task);

impl TaskView<'_> {
    /// Its state
    pub const fn state(&self) -> State {
        self.0.state
    }

    /// Returns the state before, while the task is cancelled or resumed
    pub const fn previous(&self) -> Option<State> {
        self.0.previous
    }

    /// Returns the next state, while the task is resumed
    pub const fn next(&self) -> Option<State> {
        self.0.next
    }

    /// Returns whether it has been run or fetched, and its transition is due
    pub const fn done(&self) -> bool {
        self.0.done
    }

    /// Returns whether it takes a thread of the pool
    pub const fn executes(&self) -> bool {
        self.0.executes
    }

    /// Returns whether it runs beside the pool
    pub const fn runs_long(&self) -> bool {
        self.0.runs_long
    }

    /// Returns whether it is on its way
    pub const fn in_flight(&self) -> bool {
        self.0.in_flight
    }

    /// Returns whether it waits for results
    pub const fn waits(&self) -> bool {
        self.0.waits
    }

    /// Its prefix
    pub const fn prefix(&self) -> PrefixId {
        self.0.prefix
    }

    /// The run that the scheduler has asked for last; -1 for none
    pub const fn run_id(&self) -> i64 {
        self.0.run_id
    }

    /// Bytes of its result
    pub const fn nbytes(&self) -> Option<i64> {
        self.0.nbytes
    }

    /// When it is run
    pub fn priority(&self) -> Option<&[f64]> {
        self.0.priority.as_ref().map(Priority::numbers)
    }

    /// Returns the peer that it is fetched from
    pub const fn coming_from(&self) -> Option<PeerId> {
        self.0.coming_from
    }

    /// Tasks that it needs
    pub fn dependencies(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.0.dependencies.iter()
    }

    /// Tasks that need it
    pub fn dependents(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.0.dependents.iter()
    }

    /// Returns the tasks that it waits for
    pub fn waiting_for_data(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.0.waiting_for_data.iter()
    }

    /// Returns the tasks that wait for it
    pub fn waiters(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.0.waiters.iter()
    }

    /// Returns the peers that have its result
    pub fn who_has(&self) -> &[PeerId] {
        &self.0.who_has
    }
}

/// A heap as it is now
#[derive(Clone, Debug)]
pub struct HeapView {
    /// Places in order: of which priority, the how manieth that was added, of which task, and
    /// whether that is a member. A task may have several, and be a member all the same.
    pub places: Vec<(Priority, u64, TaskId, bool)>,
    /// How many were ever added
    pub added: u64,
}

impl WorkerCore {
    /// A task
    pub fn view(&self, task: TaskId) -> TaskView<'_> {
        TaskView(self.task(task))
    }

    /// Returns whether a value that comes for a task now is stored
    pub fn stores(&self, task: TaskId) -> bool {
        !matches!(self.task(task).state, State::Memory | State::Cancelled)
    }

    /// Returns whether a task's value is here
    pub fn has_value(&self, task: TaskId) -> bool {
        self.task(task).state == State::Memory
    }

    /// Returns the least priority of the tasks here that need a result and have not ended
    pub fn first_use(&self, task: TaskId) -> Option<&[f64]> {
        let needing = self.task(task).dependents.iter();
        needing
            .map(|dependent| self.task(dependent))
            .filter(|dependent| {
                matches!(
                    dependent.state,
                    State::Waiting
                        | State::Ready
                        | State::Constrained
                        | State::Executing
                        | State::LongRunning
                )
            })
            .filter_map(|dependent| dependent.priority.as_ref().map(Priority::numbers))
            .min_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal))
    }

    /// All tasks, in the order in which they were made
    pub fn tasks(&self) -> Vec<TaskId> {
        let known = self.tasks.iter().enumerate();
        let mut found: Vec<(u64, TaskId)> = known
            .filter(|(_, task)| task.state != State::Forgotten)
            .map(|(place, task)| (task.born, TaskId::at(place)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, task)| task).collect()
    }

    /// How many tasks there are
    pub const fn task_count(&self) -> usize {
        self.live
    }

    /// Tasks that wait for a thread
    pub fn ready(&self) -> HeapView {
        self.heap_view(&self.ready)
    }

    /// The first of them, in the order in which they get one
    pub fn first_ready(&self, most: usize) -> Vec<TaskId> {
        self.ready.first(most, |task| self.task(task).life)
    }

    /// How many tasks wait for a thread
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Peers that may have something to fetch, with what that is
    pub fn needed(&self) -> Vec<(PeerId, HeapView)> {
        let listed = self.needed.listed();
        listed
            .map(|(peer, heap)| (peer, self.heap_view(heap)))
            .collect()
    }

    /// Peers from which something is on its way
    pub fn in_flight_workers(&self) -> Vec<PeerId> {
        self.in_flight_workers.iter().collect()
    }

    fn heap_view(&self, heap: &Heap) -> HeapView {
        let places = heap.places(|task| self.task(task).life);
        HeapView {
            places: places
                .map(|(priority, number, task)| {
                    (priority.clone(), number, task, heap.contains(task))
                })
                .collect(),
            added: heap.added(),
        }
    }

    /// Returns whether there is anything to fetch
    pub fn has_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// Tasks that are nowhere
    pub fn missing(&self) -> Vec<TaskId> {
        self.missing.iter().collect()
    }

    /// Peers that were busy
    pub fn busy(&self) -> Vec<PeerId> {
        self.busy.iter().collect()
    }

    /// Returns whether tasks are begun
    pub const fn is_running(&self) -> bool {
        self.running
    }

    /// How many runs take a thread of the pool
    pub const fn executing_count(&self) -> usize {
        self.executing
    }

    /// How many runs have left the pool
    pub const fn long_running_count(&self) -> usize {
        self.long_running
    }

    /// How many results are on their way
    pub const fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    /// How many transfers are under way
    pub fn transfers(&self) -> usize {
        self.in_flight_workers.len()
    }

    /// Numbers of it
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tasks and seconds by prefix and state
    pub const fn counts(&mut self) -> &mut TaskCounts {
        &mut self.counts
    }
}
