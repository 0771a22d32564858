//! Root-ish tasks that are ready and held back, by priority.
//!
//! Behaves as `distributed.collections.HeapSet` does: what is removed leaves its entry in the heap,
//! and a task that is queued again counts from the oldest entry that is left of it. That matters
//! where priorities are equal.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;

use super::compact::PriorityOrNone;
use super::ids::{Id, TaskId};
use super::task::{Priority, TaskTable};

/// A set of tasks that gives the one of least priority
///
/// All tasks in it have a priority, or none has: [`TaskQueue::add`] reports one that differs from
/// the others, because upstream cannot compare them either.
#[derive(Debug, Default)]
pub(super) struct TaskQueue {
    places: Places,
    heap: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

/// A task in a heap, by its priority and then by how long it is there
#[derive(Debug)]
struct Entry {
    priority: PriorityOrNone,
    order: u64,
    task: TaskId,
    /// Tells the task from a later one of the same number
    serial: u32,
}

impl Entry {
    fn new(priority: PriorityOrNone, order: u64, task: TaskId, serial: u32) -> Self {
        Self {
            priority,
            order,
            task,
            serial,
        }
    }
}

impl TaskQueue {
    /// Adds a task, returning whether it could be compared with those that are there
    ///
    /// One that cannot leaves an entry in the heap, and is not in the queue.
    #[must_use]
    pub(super) fn add(&mut self, tasks: &mut TaskTable, task: TaskId) -> bool {
        let one = &tasks[task];
        if one.queue_place.is_some() {
            return true;
        }
        let entry = Entry::new(one.priority, self.added, task, one.serial);
        let is_like_others = self.heap.peek().is_none_or(|Reverse(first)| {
            first.priority.get().is_some() == entry.priority.get().is_some()
        });
        self.heap.push(Reverse(entry));
        if is_like_others {
            self.places.add(tasks, task);
            self.added += 1;
        }
        is_like_others
    }

    pub(super) fn remove(&mut self, tasks: &mut TaskTable, task: TaskId) {
        self.places.remove(tasks, task);
        if self.places.len == 0 {
            // With its memory, which was that of all that were ever queued.
            self.places = Places::default();
            self.heap = BinaryHeap::new();
        }
    }

    /// The task of least priority
    pub(super) fn first(&mut self, tasks: &TaskTable) -> Option<TaskId> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            let one = tasks.find(entry.task);
            if one.is_some_and(|one| one.queue_place.is_some() && one.serial == entry.serial) {
                return Some(entry.task);
            }
            self.heap.pop();
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.places.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.len == 0
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

    /// A queue of these tasks, whose heap has these entries: priority, number, task
    ///
    /// `added` is how many entries there were ever.
    pub(super) fn from_parts(
        tasks: &mut TaskTable,
        queued: &[TaskId],
        entries: &[(Option<Priority>, u64, TaskId)],
        added: u64,
    ) -> Self {
        let mut queue = Self {
            added,
            ..Self::default()
        };
        for &task in queued {
            queue.places.add(tasks, task);
        }
        for &(priority, order, task) in entries {
            let priority = priority.map_or(PriorityOrNone::NONE, PriorityOrNone::some);
            let serial = tasks[task].serial;
            queue
                .heap
                .push(Reverse(Entry::new(priority, order, task, serial)));
        }
        queue
    }

    /// How many tasks were queued so far
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// The tasks in the order in which they were queued
    pub(super) fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        let tasks = self.places.tasks.iter().copied();
        tasks.filter(|&task| task != TaskId::HOLE)
    }
}

/// The tasks in the order in which they were queued, each of which knows its place: looking for one
/// of 10⁶ tasks in an index would wait for memory
#[derive(Debug, Default)]
struct Places {
    tasks: VecDeque<TaskId>,
    /// How many there are, holes aside
    len: usize,
    /// The place of the first in `tasks`
    first: u32,
}

impl Places {
    /// Adds a task that is not there at the end
    fn add(&mut self, tasks: &mut TaskTable, task: TaskId) {
        let length = self.tasks.len();
        if length > PACKED_MIN && length > 2 * self.len || self.place(length).is_none() {
            self.pack(tasks);
        }
        tasks[task].queue_place = self.place(self.tasks.len());
        self.tasks.push_back(task);
        self.len += 1;
    }

    fn remove(&mut self, tasks: &mut TaskTable, task: TaskId) {
        let Some(place) = tasks[task].queue_place.take() else {
            return;
        };
        self.tasks[(place.get() - 1 - self.first) as usize] = TaskId::HOLE;
        self.len -= 1;
        while self.tasks.front() == Some(&TaskId::HOLE) {
            self.tasks.pop_front();
            self.first += 1;
        }
    }

    /// The place that is so far from the first, if there is a number for it
    fn place(&self, distance: usize) -> Option<NonZeroU32> {
        let distance = u32::try_from(distance).ok()?;
        NonZeroU32::MIN.checked_add(self.first.checked_add(distance)?)
    }

    /// Closes the holes, and begins to count anew
    fn pack(&mut self, tasks: &mut TaskTable) {
        // A task that was forgotten meanwhile needs no update.
        self.tasks.retain(|&task| {
            tasks
                .find(task)
                .is_some_and(|one| one.queue_place.is_some())
        });
        self.first = 0;
        for (place, &task) in (1..).zip(&self.tasks) {
            tasks[task].queue_place = NonZeroU32::new(place);
        }
    }
}

/// Places that are packed if most of them are holes
const PACKED_MIN: usize = 64;

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::TaskState;
    use crate::scheduler::ids::GroupId;

    /// Upstream's `HeapSet`, with a list for the heap
    #[derive(Default)]
    struct Naive {
        tasks: Vec<TaskId>,
        heap: Vec<(u32, u64, TaskId)>,
        added: u64,
    }

    impl Naive {
        fn add(&mut self, task: TaskId, priority: u32) {
            if !self.tasks.contains(&task) {
                self.tasks.push(task);
                self.heap.push((priority, self.added, task));
                self.heap.sort_unstable();
                self.added += 1;
            }
        }

        fn remove(&mut self, task: TaskId) {
            self.tasks.retain(|&one| one != task);
            if self.tasks.is_empty() {
                self.heap.clear();
            }
        }

        fn first(&mut self) -> Option<TaskId> {
            let is_left = |&(_, _, task): &(u32, u64, TaskId)| self.tasks.contains(&task);
            let place = self.heap.iter().position(is_left);
            self.heap.drain(..place.unwrap_or(self.heap.len()));
            self.heap.first().map(|&(_, _, task)| task)
        }
    }

    #[test]
    fn one_alone_without_a_priority_is_not_taken() {
        for has_priority in [true, false] {
            let mut tasks = TaskTable::default();
            for number in 0..3_u8 {
                let (key, group) = (Arc::from(&[number][..]), GroupId::at(0));
                let task = tasks.add(key, group, TaskState::Queued);
                if has_priority == (number < 2) {
                    tasks[task].priority = PriorityOrNone::some(Priority([0.0; 3]));
                }
            }
            let mut queue = TaskQueue::default();
            assert!(queue.add(&mut tasks, TaskId::at(0)));
            assert!(queue.add(&mut tasks, TaskId::at(1)));
            assert!(!queue.add(&mut tasks, TaskId::at(2)));
            assert_eq!((queue.len(), queue.added()), (2, 2));
            // Its entry stays, as in upstream's heap.
            assert_eq!(queue.entries().len(), 3);
            // Nothing is left of the others once they have gone.
            queue.remove(&mut tasks, TaskId::at(0));
            queue.remove(&mut tasks, TaskId::at(1));
            assert!(queue.add(&mut tasks, TaskId::at(2)));
            assert_eq!(queue.first(&tasks), Some(TaskId::at(2)));
        }
    }

    proptest! {
        #[test]
        fn a_queue_is_a_heap_set(
            steps in prop::collection::vec((0_usize..150, 0_u8..8), 0..2000)
        ) {
            let mut tasks = TaskTable::default();
            for number in 0..150_u8 {
                let (key, group) = (Arc::from(&[number][..]), GroupId::at(0));
                let task = tasks.add(key, group, TaskState::Queued);
                let priority = Priority([0.0, 0.0, f64::from(number % 7)]);
                tasks[task].priority = PriorityOrNone::some(priority);
            }
            let (mut queue, mut naive) = (TaskQueue::default(), Naive::default());
            for (number, step) in steps {
                let task = TaskId::at(number);
                match step {
                    0..=3 => {
                        prop_assert!(queue.add(&mut tasks, task));
                        naive.add(task, number as u32 % 7);
                    }
                    4..=5 => {
                        queue.remove(&mut tasks, task);
                        naive.remove(task);
                    }
                    _ => {
                        let first = queue.first(&tasks);
                        prop_assert_eq!(first, naive.first());
                        if let Some(first) = first {
                            queue.remove(&mut tasks, first);
                            naive.remove(first);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), naive.tasks.len());
                prop_assert_eq!(tasks[task].queue_place.is_some(), naive.tasks.contains(&task));
            }
            prop_assert_eq!(queue.iter().collect::<Vec<_>>(), naive.tasks);
        }
    }
}
