//! What transitions recommend: a dict of Python's from tasks to states, of which the last is taken.

use super::hashing::Map;
use super::ids::TaskId;
use super::task::TaskState;

/// States that tasks should go to next, in the order in which their tasks were first named
///
/// Naming a task again changes its state and keeps its place, as in a dict. Upstream's transitions
/// return a dict each, and merge it into the outer one; writing into the outer one at once comes to
/// the same, since the task that is in transition has left it.
#[derive(Debug, Default)]
pub(super) struct Recommendations {
    entries: Vec<(TaskId, TaskState)>,
    /// Where each task is, if there are too many to search
    index: Option<Map<TaskId, u32>>,
}

impl Recommendations {
    pub(super) fn set(&mut self, task: TaskId, state: TaskState) {
        if let Some(place) = self.place(task) {
            self.entries[place].1 = state;
            return;
        }
        let place = self.entries.len() as u32;
        self.entries.push((task, state));
        if let Some(index) = &mut self.index {
            index.insert(task, place);
        } else if self.entries.len() > UNINDEXED_MAX {
            self.reindex();
        }
    }

    pub(super) fn state(&self, task: TaskId) -> Option<TaskState> {
        self.place(task).map(|place| self.entries[place].1)
    }

    pub(super) fn remove(&mut self, task: TaskId) {
        if let Some(place) = self.place(task) {
            self.entries.remove(place);
            if self.index.is_some() {
                self.reindex();
            }
        }
    }

    /// Takes the task that was named last
    pub(super) fn pop(&mut self) -> Option<(TaskId, TaskState)> {
        let (task, state) = self.entries.pop()?;
        if let Some(index) = &mut self.index {
            index.remove(&task);
            if self.entries.is_empty() {
                self.index = None;
            }
        }
        Some((task, state))
    }

    fn place(&self, task: TaskId) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&task).map(|&place| place as usize),
            // What was named last is what is named again
            None => self.entries.iter().rposition(|&(one, _)| one == task),
        }
    }

    fn reindex(&mut self) {
        self.index = Some(
            self.entries
                .iter()
                .enumerate()
                .map(|(place, &(task, _))| (task, place as u32))
                .collect(),
        );
    }
}

/// Entries that are searched one by one
const UNINDEXED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_named_again_keeps_its_place() {
        let mut recommendations = Recommendations::default();
        for place in 0..40 {
            recommendations.set(TaskId::at(place), TaskState::Released);
        }
        recommendations.set(TaskId::at(3), TaskState::Waiting);
        recommendations.remove(TaskId::at(5));
        let mut popped = Vec::new();
        while let Some((task, state)) = recommendations.pop() {
            popped.push(task.index());
            let waits = state == TaskState::Waiting;
            assert_eq!(waits, task.index() == 3);
        }
        let expected: Vec<usize> = (0..40).rev().filter(|&place| place != 5).collect();
        assert_eq!(popped, expected);
    }
}
