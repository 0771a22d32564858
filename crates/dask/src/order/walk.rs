//! The walk through the graph that numbers its tasks.
//!
//! Again and again a leaf is chosen as target, and from it a path back to a root: the critical
//! path. It is then walked forwards; other tasks that a task on it still needs come first. Tasks
//! that become ready beside the path wait until [`Walk::process_runnables`] finds that running them
//! releases more than they hold.

use super::connected::Connected;
use super::error::OrderError;
use super::graph::{Graph, TaskKind};
use super::ids::{PerTask, TaskId};
use super::leaves::LeavesByDegree;
use super::ranking::Ranking;
use super::runnables::Path;
use super::topological_sort;
use super::trim::Trimmed;

/// The state of the walk
pub(super) struct Walk<'g> {
    graph: &'g Graph,
    pub(super) trimmed: &'g Trimmed<'g>,
    pub(super) ranking: Ranking<'g>,
    leaves_connected: Connected,
    is_root: PerTask<bool>,
    /// True if a task is a leaf and not numbered
    pub(super) is_leaf: PerTask<bool>,
    /// Leaves in the order in which they become targets, the first one last
    targets: Vec<TaskId>,
    /// Place of each leaf in rising order
    leaf_ranks: PerTask<u32>,
    leaves_by_degree: LeavesByDegree,

    /// Tasks in the order of their numbers, external ones left out
    sequence: Vec<TaskId>,
    pub(super) done: PerTask<bool>,
    pub(super) done_len: usize,
    /// Dependencies of each task that are not numbered
    pub(super) needed: PerTask<u32>,
    /// Tasks whose dependencies are all numbered, and which were not looked at since
    pub(super) runnable: Vec<TaskId>,
    /// Tasks on paths that could run without running another root
    pub(super) runnable_hull: PerTask<bool>,
    /// Tasks with a dependency that is numbered
    reachable_hull: TaskSet,
    /// Paths that lead to a task and could run, for tasks that need more than those
    pub(super) known_paths: PerTask<Option<Vec<Path>>>,
    critical_path: Vec<TaskId>,
}

impl<'g> Walk<'g> {
    /// Weighs the tasks and chooses a strategy
    ///
    /// # Errors
    ///
    /// [`OrderError::Cycle`].
    pub(super) fn new(graph: &'g Graph, trimmed: &'g Trimmed<'g>) -> Result<Self, OrderError> {
        let tasks = graph.tasks();
        let (dependencies, dependents) = (&*trimmed.dependencies, &trimmed.dependents);
        let sorted = topological_sort::sorted(trimmed)?;
        let roots_connected = Connected::new(dependencies, dependents, sorted.iter().copied());
        let leaves_connected =
            Connected::new(dependents, dependencies, sorted.iter().rev().copied());
        let ranking = Ranking::new(graph, trimmed, &roots_connected, &sorted);

        let is_leaf = |task| dependents.of(task).is_empty();
        let is_root = |task| dependencies.of(task).is_empty();
        let mut targets: Vec<TaskId> = sorted
            .iter()
            .copied()
            .filter(|&task| is_leaf(task))
            .collect();
        ranking.sort(&mut targets);
        let mut leaf_ranks = PerTask::filled(0, tasks);
        for (rank, &leaf) in (0..).zip(&targets) {
            leaf_ranks[leaf] = rank;
        }
        let leaves_by_degree = LeavesByDegree::new(
            tasks,
            trimmed.left(),
            targets
                .iter()
                .filter(|&&leaf| !is_root(leaf))
                .map(|&leaf| (leaf, roots_connected.counts[leaf])),
        );
        if !prefers_longest_path(trimmed, targets.len(), &leaves_connected.counts)? {
            targets.reverse();
        }
        let mut walk = Self {
            graph,
            trimmed,
            ranking,
            leaves_connected,
            is_root: PerTask::filled(false, tasks),
            is_leaf: PerTask::filled(false, tasks),
            targets,
            leaf_ranks,
            leaves_by_degree,
            sequence: Vec::with_capacity(graph.listed),
            done: PerTask::filled(false, tasks),
            done_len: 0,
            needed: PerTask::filled(0, tasks),
            runnable: Vec::new(),
            runnable_hull: PerTask::filled(false, tasks),
            reachable_hull: TaskSet::new(tasks),
            known_paths: PerTask::filled(None, tasks),
            critical_path: Vec::new(),
        };
        for &task in &sorted {
            walk.is_root[task] = is_root(task);
            walk.is_leaf[task] = is_leaf(task);
            walk.needed[task] =
                u32::try_from(dependencies.of(task).len()).expect("tasks are counted in 32 bits");
        }
        Ok(walk)
    }

    /// Numbers every task
    ///
    /// # Errors
    ///
    /// [`OrderError::Ambiguous`]; [`OrderError::Unexpected`].
    pub(super) fn run(mut self) -> Result<Vec<TaskId>, OrderError> {
        while self.done_len < self.graph.tasks() {
            let target = self.next_target()?;
            self.lay_critical_path(target);
            self.walk_critical_path()?;
            self.process_runnables()?;
            if self.ranking.was_ambiguous() {
                return Err(OrderError::Ambiguous);
            }
        }
        Ok(self.sequence)
    }

    /// The leaf to aim for
    fn next_target(&mut self) -> Result<TaskId, OrderError> {
        let nearest = self.leaves_by_degree.nearest();
        if self.reachable_hull.is_empty() || nearest.is_empty() {
            return self.targets.pop().ok_or(OrderError::Unexpected {
                what: "no leaf is left, yet tasks are",
            });
        }
        let rank = |task: &TaskId| self.leaf_ranks[*task];
        let reachable = &self.reachable_hull;
        let in_both = if reachable.len() < nearest.len() {
            let is_nearest = |task: &&TaskId| self.leaves_by_degree.is_nearest(**task);
            reachable
                .members()
                .iter()
                .filter(is_nearest)
                .min_by_key(|task| rank(task))
        } else {
            let is_reachable = |task: &&TaskId| reachable.contains(**task);
            nearest
                .iter()
                .filter(is_reachable)
                .min_by_key(|task| rank(task))
        };
        let target = in_both.or_else(|| nearest.iter().min_by_key(|task| rank(task)));
        Ok(*target.expect("a leaf is near"))
    }

    /// Goes back from the target to a root, along the highest dependency of each task
    fn lay_critical_path(&mut self, target: TaskId) {
        self.critical_path.push(target);
        let mut highest = self.ranking.highest(self.trimmed.dependencies.of(target));
        while let Some(task) = highest {
            self.critical_path.push(task);
            let pending = self.trimmed.pending(task, self.done_len, &self.done);
            self.critical_path.extend_from_slice(&pending);
            highest = self.ranking.highest(&pending);
        }
    }

    fn walk_critical_path(&mut self) -> Result<(), OrderError> {
        let mut walked_back = false;
        while let Some(task) = self.critical_path.pop() {
            if self.done[task] {
                continue;
            }
            if self.needed[task] > 0 {
                self.critical_path.push(task);
                walked_back |= self.walk_back(task);
                continue;
            }
            if walked_back && self.runnable.len() < self.critical_path.len() {
                self.process_runnables()?;
            }
            self.number(task)?;
        }
        Ok(())
    }

    /// Puts what a task needs on the path; returns whether that is more than one unknown task
    fn walk_back(&mut self, task: TaskId) -> bool {
        let mut needed: Vec<TaskId> = self.trimmed.dependencies.of(task).to_vec();
        needed.retain(|&other| !self.done[other]);
        self.ranking.sort(&mut needed);
        let path_len = self.critical_path.len();
        let known_paths = &self.known_paths;
        let unknown = needed.iter().filter(|&&other| known_paths[other].is_none());
        self.critical_path.extend(unknown);
        let unknown_len = self.critical_path.len() - path_len;
        for &other in &needed {
            for path in self.known_paths[other].take().unwrap_or_default() {
                self.critical_path.extend(path.iter().rev());
            }
        }
        unknown_len > 1
    }

    /// Gives a task the next number, and its only dependent too if that is free to run then
    pub(super) fn number(&mut self, task: TaskId) -> Result<(), OrderError> {
        let mut next = Some(task);
        while let Some(task) = next.take() {
            self.runnable_hull[task] = false;
            self.reachable_hull.remove(task);
            self.is_leaf[task] = false;
            if self.done[task] {
                continue;
            }
            for &data in self.trimmed.data_of(task) {
                if !self.done[data] {
                    self.finish(data);
                }
            }
            self.finish(task);
            if self.is_root[task] {
                self.approach_leaves(task)?;
            }
            next = self.release_dependents(task);
        }
        Ok(())
    }

    fn finish(&mut self, task: TaskId) {
        self.done[task] = true;
        self.done_len += 1;
        if self.graph.kinds[task] != TaskKind::External {
            self.sequence.push(task);
        }
    }

    /// Brings the leaves closer that a root is connected to
    fn approach_leaves(&mut self, root: TaskId) -> Result<(), OrderError> {
        let Self {
            leaves_connected,
            leaves_by_degree,
            is_leaf,
            ..
        } = self;
        let mut outcome = Ok(());
        leaves_connected.for_each(root, |leaf| {
            if is_leaf[leaf] && outcome.is_ok() {
                outcome = leaves_by_degree.handle_root_run(leaf);
            }
        });
        outcome
    }

    /// Counts a task off its dependents; returns its only dependent if that is free to run now
    fn release_dependents(&mut self, task: TaskId) -> Option<TaskId> {
        let dependents = self.trimmed.dependents.of(task);
        let mut freed = 0;
        for &other in dependents {
            self.needed[other] -= 1;
            self.reachable_hull.insert(other);
            freed += usize::from(self.needed[other] == 0);
        }
        match (dependents, freed) {
            (_, 0) => None,
            ([only], _) => Some(*only),
            (_, 1) => {
                let free = dependents.iter().filter(|&&other| self.needed[other] == 0);
                self.runnable.extend(free);
                None
            }
            _ => {
                let listed = self.trimmed.dependents_listed(task);
                let free = listed.iter().filter(|&&other| self.needed[other] == 0);
                self.runnable.extend(free);
                None
            }
        }
    }
}

/// Returns whether the leaf with the most behind it comes first, rather than the one with the least
///
/// It does where there are many more roots than leaves or the other way round, and where every
/// root leads to as many leaves as the others. As Dask compares with the first size that is not 0,
/// the order of the roots counts if some of them are leaves themselves.
fn prefers_longest_path(
    trimmed: &Trimmed<'_>,
    leaves: usize,
    leaves_connected: &PerTask<u32>,
) -> Result<bool, OrderError> {
    let roots = trimmed.roots.len();
    if roots.abs_diff(leaves) as f64 / roots as f64 >= SIMILAR_BELOW {
        return Ok(true);
    }
    let sizes = trimmed.roots.iter().map(|&root| leaves_connected[root]);
    let mut sizes_from_first = sizes.clone().skip_while(|&size| size == 0);
    let Some(first) = sizes_from_first.next() else {
        return Ok(true);
    };
    if sizes.clone().any(|size| size != 0 && size != first) {
        return Ok(false);
    }
    let some_are_leaves = sizes.clone().any(|size| size == 0);
    if some_are_leaves && !trimmed.roots_listed {
        return Err(OrderError::UnknownListing);
    }
    Ok(sizes_from_first.all(|size| size == first))
}

/// Relative difference of the numbers of roots and leaves below which symmetry is looked for
const SIMILAR_BELOW: f64 = 0.8;

/// A set of tasks that can be listed, in no particular order
#[derive(Debug)]
struct TaskSet {
    members: Vec<TaskId>,
    /// Place of each member, from 1
    places: PerTask<usize>,
}

impl TaskSet {
    fn new(tasks: usize) -> Self {
        Self {
            members: Vec::new(),
            places: PerTask::filled(0, tasks),
        }
    }

    fn members(&self) -> &[TaskId] {
        &self.members
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    fn contains(&self, task: TaskId) -> bool {
        self.places[task] > 0
    }

    fn insert(&mut self, task: TaskId) {
        if !self.contains(task) {
            self.members.push(task);
            self.places[task] = self.members.len();
        }
    }

    fn remove(&mut self, task: TaskId) {
        let place = std::mem::take(&mut self.places[task]);
        if place > 0 {
            self.members.swap_remove(place - 1);
            if let Some(&moved) = self.members.get(place - 1) {
                self.places[moved] = place;
            }
        }
    }
}
