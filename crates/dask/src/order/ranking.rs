//! Criteria by which Dask prefers one task over another where its strategy leaves the choice open.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};

use super::connected::Connected;
use super::graph::{Graph, Labels};
use super::ids::{PerTask, TaskId};
use super::path_count::path_ranks;
use super::trim::Trimmed;

/// Compares tasks
#[derive(Debug)]
pub(super) struct Ranking<'g> {
    ranks: PerTask<Rank>,
    labels: &'g Labels,
    /// True if two tasks could not be distinguished
    ambiguous: Cell<bool>,
}

/// Criteria that are compared before the text of the keys
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Rank {
    paths: u64,
    dependencies: u32,
    /// Roots that it is connected to
    roots: u32,
    /// Most dependents of any of these roots
    dependents_max: Reverse<u32>,
}

impl<'g> Ranking<'g> {
    /// Weighs every task; `sorted` holds each after its dependencies
    pub(super) fn new(
        graph: &'g Graph,
        trimmed: &Trimmed<'_>,
        roots: &Connected,
        sorted: &[TaskId],
    ) -> Self {
        let paths = path_ranks(&trimmed.dependencies, sorted);
        let nothing = Rank {
            paths: 0,
            dependencies: 0,
            roots: 0,
            dependents_max: Reverse(0),
        };
        let mut ranks = PerTask::filled(nothing, graph.tasks());
        for &task in sorted {
            let dependencies = trimmed.dependencies.of(task);
            let dependents_max = dependencies
                .iter()
                .map(|&other| ranks[other].dependents_max.0)
                .max()
                .unwrap_or_else(|| count(trimmed.dependents.of(task)));
            ranks[task] = Rank {
                paths: paths[task],
                dependencies: count(dependencies),
                roots: roots.counts[task],
                dependents_max: Reverse(dependents_max),
            };
        }
        Self {
            ranks,
            labels: &graph.labels,
            ambiguous: Cell::new(false),
        }
    }

    /// Compares two tasks
    pub(super) fn compare(&self, one: TaskId, other: TaskId) -> Ordering {
        let order = self.ranks[one]
            .cmp(&self.ranks[other])
            .then_with(|| self.labels.of(one).cmp(self.labels.of(other)));
        if order == Ordering::Equal && one != other {
            self.ambiguous.set(true);
        }
        order
    }

    /// Puts tasks in rising order
    pub(super) fn sort(&self, tasks: &mut [TaskId]) {
        tasks.sort_unstable_by(|&one, &other| self.compare(one, other));
    }

    /// The highest
    pub(super) fn highest(&self, tasks: &[TaskId]) -> Option<TaskId> {
        tasks
            .iter()
            .copied()
            .max_by(|&one, &other| self.compare(one, other))
    }

    /// Returns whether two tasks could not be distinguished in any comparison so far
    pub(super) fn was_ambiguous(&self) -> bool {
        self.ambiguous.get()
    }
}

fn count(tasks: &[TaskId]) -> u32 {
    u32::try_from(tasks.len()).expect("tasks are counted in 32 bits")
}
