//! Lists of tasks, one for each task, in one allocation.

use super::ids::TaskId;

/// For each task a list of others: what it depends on, or what depends on it
#[derive(Clone, Debug)]
pub(super) struct Adjacency {
    /// Where each list ends, with a 0 in front
    bounds: Vec<usize>,
    others: Vec<TaskId>,
}

impl Adjacency {
    pub(super) fn new() -> Self {
        Self {
            bounds: vec![0],
            others: Vec::new(),
        }
    }

    /// Adds the list of the next task
    pub(super) fn push(&mut self, others: impl IntoIterator<Item = TaskId>) {
        self.others.extend(others);
        self.bounds.push(self.others.len());
    }

    /// How many tasks have a list
    pub(super) fn tasks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The list of a task
    pub(super) fn of(&self, task: TaskId) -> &[TaskId] {
        &self.others[self.bounds[task.index()]..self.bounds[task.index() + 1]]
    }

    /// All tasks, in order
    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.tasks()).map(|index| TaskId(u32::try_from(index).expect("the builder counted")))
    }

    /// The same arrows the other way; each list in the order of the tasks that the arrows left
    pub(super) fn reversed(&self) -> Self {
        let mut bounds = vec![0; self.tasks() + 1];
        for other in &self.others {
            bounds[other.index() + 1] += 1;
        }
        for index in 1..bounds.len() {
            bounds[index] += bounds[index - 1];
        }
        let mut free = bounds.clone();
        let mut others = vec![TaskId(0); self.others.len()];
        for task in self.ids() {
            for other in self.of(task) {
                others[free[other.index()]] = task;
                free[other.index()] += 1;
            }
        }
        Self { bounds, others }
    }

    /// The same without some tasks, whose own lists become empty
    pub(super) fn without(&self, gone: impl Fn(TaskId) -> bool) -> Self {
        let mut kept = Self::new();
        for task in self.ids() {
            let others = if gone(task) { &[] } else { self.of(task) };
            kept.push(others.iter().copied().filter(|&other| !gone(other)));
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reversed_lists_follow_the_order_of_tasks() {
        let mut arrows = Adjacency::new();
        arrows.push([TaskId(2), TaskId(1)]);
        arrows.push([TaskId(2)]);
        arrows.push([]);
        let back = arrows.reversed();
        assert_eq!(back.of(TaskId(0)), []);
        assert_eq!(back.of(TaskId(1)), [TaskId(0)]);
        assert_eq!(back.of(TaskId(2)), [TaskId(0), TaskId(1)]);
    }

    #[test]
    fn tasks_left_out_appear_in_no_list() {
        let mut arrows = Adjacency::new();
        arrows.push([TaskId(2), TaskId(1)]);
        arrows.push([TaskId(2)]);
        arrows.push([]);
        let kept = arrows.without(|task| task == TaskId(1));
        assert_eq!(kept.of(TaskId(0)), [TaskId(2)]);
        assert_eq!(kept.of(TaskId(1)), []);
    }
}
