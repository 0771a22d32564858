//! Data that several tasks need, which Dask takes out of a graph before ordering.
//!
//! Such data is part of those tasks rather than something to run. It is numbered right before the
//! first task that needs it, and without it the rest of the graph is simpler.

use std::borrow::Cow;
use std::collections::HashMap;

use super::adjacency::Adjacency;
use super::error::OrderError;
use super::graph::{Graph, TaskKind};
use super::ids::{PerTask, TaskId};
use super::set_order::{Listing, Table};

/// A graph without its shared data
#[derive(Debug)]
pub(super) struct Trimmed<'g> {
    graph: &'g Graph,
    pub(super) dependencies: Cow<'g, Adjacency>,
    pub(super) dependents: Adjacency,
    /// Tasks without dependencies
    pub(super) roots: Vec<TaskId>,
    /// True if they are as Dask's set lists them
    pub(super) roots_listed: bool,
    removed: PerTask<bool>,
    removed_len: usize,
    /// The data that a task needs, in the order in which it is numbered
    data: HashMap<TaskId, Vec<TaskId>>,
}

impl<'g> Trimmed<'g> {
    /// Takes the shared data out
    ///
    /// # Errors
    ///
    /// [`OrderError::DataWithDependencies`], where Dask would trim further.
    pub(super) fn new(graph: &'g Graph) -> Result<Self, OrderError> {
        let tasks = graph.tasks();
        let dependents = graph.dependencies.reversed();
        let mut needed: PerTask<usize> = graph
            .dependencies
            .ids()
            .map(|task| graph.dependencies.of(task).len())
            .collect();
        let (ends, inner): (Vec<_>, Vec<_>) = graph
            .dependencies
            .ids()
            .partition(|&task| needed[task] == 0);
        if inner.iter().any(|&task| graph.kinds[task] != TaskKind::Run) {
            return Err(OrderError::DataWithDependencies);
        }
        let mut roots = Vec::with_capacity(ends.len());
        let mut new_roots = Vec::new();
        let mut removed = PerTask::filled(false, tasks);
        let mut removed_len = 0;
        let mut data: HashMap<TaskId, Vec<TaskId>> = HashMap::new();
        for root in as_set(graph, &ends) {
            if graph.kinds[root] == TaskKind::Run || dependents.of(root).len() < 2 {
                roots.push(root);
                continue;
            }
            removed[root] = true;
            removed_len += 1;
            for dependent in as_set(graph, dependents.of(root)) {
                data.entry(dependent).or_default().push(root);
                needed[dependent] -= 1;
                if needed[dependent] == 0 {
                    new_roots.push(dependent);
                }
            }
        }
        for needs in data.values_mut().filter(|needs| needs.len() > 1) {
            *needs = as_set(graph, needs);
        }
        roots.extend_from_slice(&new_roots);
        let dependencies = if removed_len == 0 {
            Cow::Borrowed(&graph.dependencies)
        } else {
            Cow::Owned(graph.dependencies.without(|task| removed[task]))
        };
        Ok(Self {
            graph,
            roots_listed: new_roots.is_empty(),
            roots,
            dependencies,
            dependents,
            removed,
            removed_len,
            data,
        })
    }

    /// How many tasks are left
    pub(super) fn left(&self) -> usize {
        self.graph.tasks() - self.removed_len
    }

    /// Returns whether a task was taken out
    pub(super) fn is_removed(&self, task: TaskId) -> bool {
        self.removed[task]
    }

    /// The shared data that a task needs
    pub(super) fn data_of(&self, task: TaskId) -> &[TaskId] {
        if self.data.is_empty() {
            return &[];
        }
        self.data.get(&task).map_or(&[], Vec::as_slice)
    }

    /// The tasks that depend on a task, as Dask's set lists them
    pub(super) fn dependents_listed(&self, task: TaskId) -> Vec<TaskId> {
        as_set(self.graph, self.dependents.of(task))
    }

    /// The dependencies of a task that are not done, as Dask's set lists them
    pub(super) fn pending(
        &self,
        task: TaskId,
        done_len: usize,
        done: &PerTask<bool>,
    ) -> Vec<TaskId> {
        let graph = self.graph;
        let dependencies = self.dependencies.of(task);
        if dependencies.iter().filter(|&&other| !done[other]).count() < 2 {
            return dependencies
                .iter()
                .copied()
                .filter(|&other| !done[other])
                .collect();
        }
        let mut listing = Listing {
            members: graph.dependencies.of(task).to_vec(),
            slots: graph.slots[task.index()] as usize,
            marked: false,
        };
        if self.removed_len > 0 {
            listing =
                listing.difference(&graph.hashes, self.removed_len, |other| self.removed[other]);
        }
        listing
            .difference(&graph.hashes, done_len, |other| done[other])
            .members
    }
}

/// Tasks as a set lists them that they were added to in this order
fn as_set(graph: &Graph, tasks: &[TaskId]) -> Vec<TaskId> {
    match tasks {
        [_] | [] => tasks.to_vec(),
        _ => Table::of(&graph.hashes, tasks.iter().copied())
            .members()
            .collect(),
    }
}
