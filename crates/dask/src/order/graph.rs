//! The graph to order, and how a caller puts it together.

use super::adjacency::Adjacency;
use super::error::OrderError;
use super::ids::{PerTask, TaskId};

/// Kind of a task, as far as its order depends on it
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskKind {
    /// Something to run
    Run,
    /// A value that is in the graph already; it depends on nothing
    Data,
    /// A key that tasks depend on but the graph does not hold; it gets no priority
    External,
}

/// Tasks, what each depends on, and what decides between tasks that are otherwise alike
///
/// Ties are broken as Dask breaks them: by the text of the key, and by the order in which CPython's
/// sets list their members, for which the hash of each key and the size of each set are here.
#[derive(Debug)]
pub struct Graph {
    /// As the set of dependencies lists them
    pub(super) dependencies: Adjacency,
    /// Slots in the table behind that set
    pub(super) slots: Vec<u32>,
    pub(super) kinds: PerTask<TaskKind>,
    pub(super) hashes: PerTask<u64>,
    pub(super) labels: Labels,
    /// How many are not external; those come first
    pub(super) listed: usize,
}

impl Graph {
    /// How many tasks there are, external ones included
    pub(super) fn tasks(&self) -> usize {
        self.dependencies.tasks()
    }
}

/// Puts a [`Graph`] together: every task first, then the dependencies of each
///
/// External keys are added when a dependency names them for the first time.
#[derive(Debug)]
pub struct GraphBuilder {
    dependencies: Adjacency,
    slots: Vec<u32>,
    kinds: Vec<TaskKind>,
    hashes: Vec<u64>,
    labels: Labels,
}

impl GraphBuilder {
    /// Starts with room for so many tasks
    pub fn with_capacity(tasks: usize) -> Self {
        Self {
            dependencies: Adjacency::new(),
            slots: Vec::with_capacity(tasks),
            kinds: Vec::with_capacity(tasks),
            hashes: Vec::with_capacity(tasks),
            labels: Labels::default(),
        }
    }

    /// Adds a task: the hash of its key as Python computes it, and the key as text
    ///
    /// # Errors
    ///
    /// [`OrderError::TooManyTasks`].
    pub fn add_task(
        &mut self,
        kind: TaskKind,
        hash: isize,
        label: &str,
    ) -> Result<TaskId, OrderError> {
        let task = u32::try_from(self.kinds.len())
            .ok()
            .filter(|&index| index < TASKS_MAX)
            .ok_or(OrderError::TooManyTasks)?;
        self.kinds.push(kind);
        self.hashes.push(hash as u64);
        self.labels.push(label);
        Ok(TaskId(task))
    }

    /// Adds the dependencies of the next task: as their set lists them, and how many slots the
    /// table behind it has
    ///
    /// # Panics
    ///
    /// If a dependency was not added as a task before.
    pub fn add_dependencies(&mut self, dependencies: &[TaskId], slots: usize) {
        assert!(
            dependencies
                .iter()
                .all(|dependency| dependency.index() < self.kinds.len()),
            "tasks are added before what depends on them"
        );
        self.dependencies.push(dependencies.iter().copied());
        self.slots.push(u32::try_from(slots).unwrap_or(u32::MAX));
    }

    /// The graph
    ///
    /// # Panics
    ///
    /// If not every task has been given its dependencies, or an external one was.
    pub fn build(mut self) -> Graph {
        let listed = self.dependencies.tasks();
        for (index, &kind) in self.kinds.iter().enumerate() {
            assert_eq!(
                kind == TaskKind::External,
                index >= listed,
                "the tasks of the graph come first, each with its dependencies"
            );
        }
        for _ in listed..self.kinds.len() {
            self.add_dependencies(&[], 0);
        }
        Graph {
            dependencies: self.dependencies,
            slots: self.slots,
            kinds: self.kinds.into_iter().collect(),
            hashes: self.hashes.into_iter().collect(),
            labels: self.labels,
            listed,
        }
    }
}

/// The keys as text, in one allocation
#[derive(Debug, Default)]
pub(super) struct Labels {
    text: String,
    ends: Vec<usize>,
}

impl Labels {
    fn push(&mut self, label: &str) {
        self.text.push_str(label);
        self.ends.push(self.text.len());
    }

    /// The text of one key, as bytes: they compare as the characters do
    pub(super) fn of(&self, task: TaskId) -> &[u8] {
        let start = match task.index() {
            0 => 0,
            index => self.ends[index - 1],
        };
        &self.text.as_bytes()[start..self.ends[task.index()]]
    }
}

/// The highest number marks a free slot in the tables of `set_order`
const TASKS_MAX: u32 = u32::MAX - 1;
