//! A set whose least member is taken first: `distributed.collections.HeapSet`.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::ids::TaskId;
use super::priority::Priority;
use crate::hashing::Set;

/// Tasks by priority, those of equal priority in the order in which they were added
///
/// A discarded task leaves its place behind until that is met. As in upstream, a task that is added
/// again before that has its old place, too, whatever its priority is now.
#[derive(Debug, Default)]
pub(super) struct Heap {
    places: BinaryHeap<Reverse<Place>>,
    members: Set<TaskId>,
    added: u64,
}

/// A place in the heap; of a task that has been forgotten and its number used again, `life` differs
#[derive(Clone, Debug)]
struct Place {
    priority: Priority,
    number: u64,
    task: TaskId,
    life: u32,
}

impl Heap {
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a task with the priority that it has now
    pub(super) fn add(&mut self, task: TaskId, life: u32, priority: Priority) {
        if self.members.insert(task) {
            let number = self.added;
            self.added += 1;
            self.places.push(Reverse(Place {
                priority,
                number,
                task,
                life,
            }));
        }
    }

    pub(super) fn discard(&mut self, task: TaskId) -> bool {
        let was_there = !self.members.is_empty() && self.members.remove(&task);
        if self.members.is_empty() {
            self.places.clear();
        }
        was_there
    }

    /// Returns the task that is next; `life` returns the life of each task
    pub(super) fn peek(&mut self, life: impl Fn(TaskId) -> u32) -> Option<(TaskId, &Priority)> {
        while let Some(Reverse(place)) = self.places.peek() {
            if self.members.contains(&place.task) && life(place.task) == place.life {
                break;
            }
            self.places.pop();
        }
        let Reverse(place) = self.places.peek()?;
        Some((place.task, &place.priority))
    }

    /// Takes the task that is next
    pub(super) fn pop(&mut self, life: impl Fn(TaskId) -> u32) -> Option<TaskId> {
        let (task, _) = self.peek(life)?;
        self.places.pop();
        self.members.remove(&task);
        if self.members.is_empty() {
            self.places.clear();
        }
        Some(task)
    }

    /// All places of tasks that there are, in order, those that were left behind among them
    pub(super) fn places(
        &self,
        life: impl Fn(TaskId) -> u32,
    ) -> impl Iterator<Item = (&Priority, u64, TaskId)> {
        let mut places: Vec<&Place> = self
            .places
            .iter()
            .map(|Reverse(place)| place)
            .filter(|place| life(place.task) == place.life)
            .collect();
        places.sort();
        let places = places.into_iter();
        places.map(|place| (&place.priority, place.number, place.task))
    }

    /// How many were ever added
    pub(super) const fn added(&self) -> u64 {
        self.added
    }

    /// Returns whether a task is a member
    pub(super) fn contains(&self, task: TaskId) -> bool {
        self.members.contains(&task)
    }

    /// Makes a heap from one that Dask's state machine had until now
    pub(super) fn inherited(
        added: u64,
        places: impl Iterator<Item = (Priority, u64, TaskId, u32)>,
        members: impl Iterator<Item = TaskId>,
    ) -> Self {
        let places = places.map(|(priority, number, task, life)| {
            Reverse(Place {
                priority,
                number,
                task,
                life,
            })
        });
        Self {
            places: places.collect(),
            members: members.collect(),
            added,
        }
    }

    /// The first members in the order in which they would be taken
    pub(super) fn first(&self, most: usize, life: impl Fn(TaskId) -> u32) -> Vec<TaskId> {
        if self.members.len() <= most {
            return self.sorted(life);
        }
        let mut found: BinaryHeap<&Place> = BinaryHeap::with_capacity(most + 1);
        for Reverse(place) in &self.places {
            let is_taken = self.members.contains(&place.task) && life(place.task) == place.life;
            if !is_taken || found.iter().any(|one| one.task == place.task) {
                continue;
            }
            if found.len() < most {
                found.push(place);
            } else if let Some(mut last) = found.peek_mut()
                && place < *last
            {
                *last = place;
            }
        }
        let sorted = found.into_sorted_vec().into_iter();
        sorted.map(|place| place.task).collect()
    }

    /// The members in the order in which they would be taken
    pub(super) fn sorted(&self, life: impl Fn(TaskId) -> u32) -> Vec<TaskId> {
        let mut places: Vec<&Place> = self
            .places
            .iter()
            .map(|Reverse(place)| place)
            .filter(|place| self.members.contains(&place.task) && life(place.task) == place.life)
            .collect();
        places.sort();
        let mut seen = Set::default();
        places
            .into_iter()
            .map(|place| place.task)
            .filter(|&task| seen.insert(task))
            .collect()
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = self.priority.cmp(&other.priority);
        by_priority.then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Place {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_taken_first_and_the_earliest_of_equals() {
        let mut heap = Heap::default();
        for (place, priority) in [(0, 2.0), (1, 1.0), (2, 1.0), (3, 0.0)] {
            heap.add(TaskId::at(place), 0, Priority::new(&[priority]));
        }
        assert!(heap.discard(TaskId::at(3)));
        let order: Vec<usize> = heap.sorted(|_| 0).iter().map(|task| task.index()).collect();
        assert_eq!(order, [1, 2, 0]);
        let taken = std::iter::from_fn(|| heap.pop(|_| 0)).map(TaskId::index);
        assert_eq!(taken.collect::<Vec<_>>(), order);
    }

    #[test]
    fn a_task_that_is_added_again_keeps_its_place_until_that_is_met() {
        let mut heap = Heap::default();
        heap.add(TaskId::at(0), 0, Priority::new(&[1.0]));
        heap.add(TaskId::at(1), 0, Priority::new(&[2.0]));
        heap.discard(TaskId::at(0));
        heap.add(TaskId::at(0), 0, Priority::new(&[3.0]));
        assert_eq!(heap.sorted(|_| 0)[0], TaskId::at(0));
        assert_eq!(heap.pop(|_| 0), Some(TaskId::at(0)));
        assert_eq!(heap.pop(|_| 0), Some(TaskId::at(1)));
        assert!(heap.is_empty());
    }

    #[test]
    fn the_place_of_a_forgotten_task_is_skipped() {
        let mut heap = Heap::default();
        heap.add(TaskId::at(0), 0, Priority::new(&[1.0]));
        heap.add(TaskId::at(1), 0, Priority::new(&[2.0]));
        heap.discard(TaskId::at(0));
        heap.add(TaskId::at(0), 1, Priority::new(&[3.0]));
        let life = |task: TaskId| u32::from(task.index() == 0);
        assert_eq!(heap.pop(life), Some(TaskId::at(1)));
        assert_eq!(heap.pop(life), Some(TaskId::at(0)));
    }
}
