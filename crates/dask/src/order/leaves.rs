//! How far off each leaf is: how many of its roots have not run.
//!
//! Once under way, Dask aims for a leaf that needs the fewest more roots.

use super::error::OrderError;
use super::ids::{PerTask, TaskId};

/// Leaves by the number of roots that they wait for
#[derive(Debug)]
pub(super) struct LeavesByDegree {
    /// Roots that a leaf waits for; 0 for what is no leaf, or waits for none
    degrees: PerTask<u32>,
    /// Where a leaf is in its bucket
    places: PerTask<usize>,
    buckets: Vec<Vec<TaskId>>,
    /// The first bucket that holds a leaf, else `end`
    lowest: usize,
    /// Above any bucket
    end: usize,
}

impl LeavesByDegree {
    /// Starts with every leaf that is no root, and how many roots it is connected to
    ///
    /// `tasks` is the number of ids, `end` of those that take part.
    pub(super) fn new(
        tasks: usize,
        end: usize,
        leaves: impl Iterator<Item = (TaskId, u32)>,
    ) -> Self {
        let mut by_degree = Self {
            degrees: PerTask::filled(0, tasks),
            places: PerTask::filled(0, tasks),
            buckets: Vec::new(),
            lowest: end,
            end,
        };
        for (leaf, degree) in leaves {
            by_degree.put(leaf, degree);
            by_degree.lowest = by_degree.lowest.min(degree as usize);
        }
        by_degree
    }

    /// The leaves that wait for the fewest roots, and for one at least; none if all wait for none
    pub(super) fn nearest(&self) -> &[TaskId] {
        self.buckets.get(self.lowest).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a leaf is among the nearest
    pub(super) fn is_nearest(&self, task: TaskId) -> bool {
        self.degrees[task] > 0 && self.degrees[task] as usize == self.lowest
    }

    /// Handles that a root of a leaf has run
    ///
    /// # Errors
    ///
    /// [`OrderError::Unexpected`] if the leaf waits for none.
    pub(super) fn handle_root_run(&mut self, leaf: TaskId) -> Result<(), OrderError> {
        let degree = self.degrees[leaf];
        if degree == 0 {
            return Err(OrderError::Unexpected {
                what: "a leaf has more roots than were counted",
            });
        }
        self.take(leaf, degree);
        if degree > 1 {
            self.put(leaf, degree - 1);
            self.lowest = self.lowest.min(degree as usize - 1);
        }
        while self.lowest < self.end && self.nearest().is_empty() {
            self.lowest += 1;
        }
        Ok(())
    }

    fn put(&mut self, leaf: TaskId, degree: u32) {
        let degree_index = degree as usize;
        if self.buckets.len() <= degree_index {
            self.buckets.resize(degree_index + 1, Vec::new());
        }
        self.degrees[leaf] = degree;
        self.places[leaf] = self.buckets[degree_index].len();
        self.buckets[degree_index].push(leaf);
    }

    fn take(&mut self, leaf: TaskId, degree: u32) {
        let bucket = &mut self.buckets[degree as usize];
        let place = self.places[leaf];
        bucket.swap_remove(place);
        if let Some(&moved) = bucket.get(place) {
            self.places[moved] = place;
        }
        self.degrees[leaf] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_leaves_follow_the_roots_that_ran() {
        let [near, far] = [TaskId(0), TaskId(1)];
        let mut leaves = LeavesByDegree::new(5, 5, [(near, 1), (far, 3)].into_iter());
        assert_eq!(leaves.nearest(), [near]);
        leaves.handle_root_run(near).expect("it waits for one");
        assert_eq!(leaves.nearest(), [far]);
        leaves.handle_root_run(far).expect("it waits for three");
        assert_eq!(leaves.nearest(), [far]);
        assert!(leaves.handle_root_run(near).is_err());
    }

    #[test]
    fn no_leaf_is_near_when_all_are_within_reach() {
        let mut leaves = LeavesByDegree::new(2, 2, [(TaskId(1), 1)].into_iter());
        leaves.handle_root_run(TaskId(1)).expect("it waits for one");
        assert_eq!(leaves.nearest(), []);
    }
}
