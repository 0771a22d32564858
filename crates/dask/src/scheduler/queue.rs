//! Root-ish tasks that are ready and held back, by priority.
//!
//! Behaves as `distributed.collections.HeapSet` does: what is removed leaves its entry in the heap,
//! and a task that is queued again counts from the oldest entry that is left of it. That matters
//! where priorities are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::compact::PriorityOrNone;
use super::ids::TaskId;
use super::ordered_set::OrderedSet;
use super::task::Priority;

/// A set of tasks that gives the one of least priority; one without any comes before all others
#[derive(Debug, Default)]
pub(super) struct TaskQueue {
    tasks: OrderedSet<TaskId>,
    heap: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

/// A task in a heap, by its priority and then by how long it is there
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) priority: PriorityOrNone,
    order: u64,
    pub(super) task: TaskId,
    /// Tells the task from a later one of the same number
    pub(super) serial: u32,
}

impl Entry {
    pub(super) fn new(priority: PriorityOrNone, order: u64, task: TaskId, serial: u32) -> Self {
        Self {
            priority,
            order,
            task,
            serial,
        }
    }
}

impl TaskQueue {
    pub(super) fn add(&mut self, task: TaskId, serial: u32, priority: PriorityOrNone) {
        if self.tasks.insert(task) {
            let order = self.added;
            self.added += 1;
            self.heap
                .push(Reverse(Entry::new(priority, order, task, serial)));
        }
    }

    pub(super) fn remove(&mut self, task: TaskId) {
        self.tasks.remove(task);
        if self.tasks.is_empty() {
            // With its memory, which was that of all that were ever queued.
            self.heap = BinaryHeap::new();
        }
    }

    /// The task of least priority, given which one has a number now
    pub(super) fn first(&mut self, serial_of: impl Fn(TaskId) -> Option<u32>) -> Option<TaskId> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            if self.tasks.contains(entry.task) && serial_of(entry.task) == Some(entry.serial) {
                return Some(entry.task);
            }
            self.heap.pop();
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn contains(&self, task: TaskId) -> bool {
        self.tasks.contains(task)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Entries of the heap, the first to go first, those included that were left behind: the
    /// priority if there is one, a number that rises with the time of queueing, the task and its
    /// serial
    pub(super) fn entries(&self) -> Vec<(Option<Priority>, u64, TaskId, u32)> {
        let mut entries: Vec<&Entry> = self.heap.iter().map(|Reverse(entry)| entry).collect();
        entries.sort();
        let entries = entries.into_iter();
        entries
            .map(|entry| (entry.priority.get(), entry.order, entry.task, entry.serial))
            .collect()
    }

    /// An empty queue that goes on counting from here
    pub(super) fn from_count(added: u64) -> Self {
        Self {
            added,
            ..Self::default()
        }
    }

    /// How many tasks were queued so far
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// The tasks in the order in which they were queued
    pub(super) fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.tasks.iter()
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = match (self.priority.get(), other.priority.get()) {
            (Some(ours), Some(theirs)) => ours.order(&theirs),
            (ours, theirs) => ours.is_some().cmp(&theirs.is_some()),
        };
        by_priority.then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}
