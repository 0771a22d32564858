//! Tasks by number, and tables that are indexed by them.

use std::ops::{Index, IndexMut};

/// A task of one graph: its place in the order in which the graph lists its tasks
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TaskId(pub(super) u32);

impl TaskId {
    /// The place, from 0
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One value for each task
#[derive(Clone, Debug)]
pub(super) struct PerTask<T>(Vec<T>);

impl<T: Clone> PerTask<T> {
    pub(super) fn filled(value: T, tasks: usize) -> Self {
        Self(vec![value; tasks])
    }
}

impl<T> FromIterator<T> for PerTask<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T> Index<TaskId> for PerTask<T> {
    type Output = T;

    fn index(&self, task: TaskId) -> &T {
        &self.0[task.index()]
    }
}

impl<T> IndexMut<TaskId> for PerTask<T> {
    fn index_mut(&mut self, task: TaskId) -> &mut T {
        &mut self.0[task.index()]
    }
}
