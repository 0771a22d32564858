//! Recommendations of transitions: a Python dict from tasks to states, of which the last is taken.

use smallvec::SmallVec;

use crate::hashing::Map;
use crate::ids::Id;

/// States that tasks should go to next, in the order in which their tasks were first named
///
/// Naming a task again changes its state and keeps its place, as in a dict. Upstream's transitions
/// return a dict each, and merge it into the outer one; writing into the outer one at once comes to
/// the same, since the task that is in transition has left it.
#[derive(Clone, Debug)]
pub(crate) struct Recommendations<T, S> {
    entries: SmallVec<[(T, S); 2]>,
    /// Where each task is, by its number, if there are too many to search
    index: Option<Map<u32, u32>>,
}

impl<T: Id, S: Copy> Recommendations<T, S> {
    pub(crate) fn set(&mut self, task: T, state: S) {
        if let Some(place) = self.place(task) {
            self.entries[place].1 = state;
            return;
        }
        let place = self.entries.len() as u32;
        self.entries.push((task, state));
        if let Some(index) = &mut self.index {
            index.insert(task.number(), place);
        } else if self.entries.len() > UNINDEXED_MAX {
            self.reindex();
        }
    }

    pub(crate) fn state(&self, task: T) -> Option<S> {
        self.place(task).map(|place| self.entries[place].1)
    }

    pub(crate) fn remove(&mut self, task: T) {
        if let Some(place) = self.place(task) {
            self.entries.remove(place);
            if self.index.is_some() {
                self.reindex();
            }
        }
    }

    /// Takes the task that was named last
    pub(crate) fn pop(&mut self) -> Option<(T, S)> {
        let (task, state) = self.entries.pop()?;
        if let Some(index) = &mut self.index {
            index.remove(&task.number());
            if self.entries.is_empty() {
                self.index = None;
            }
        }
        Some((task, state))
    }

    /// Takes over what else is recommended, as `dict.update`
    pub(crate) fn update(&mut self, others: Self) {
        for (task, state) in others.entries {
            self.set(task, state);
        }
    }

    /// Returns the recommendations, in their order
    pub(crate) fn iter(&self) -> impl Iterator<Item = (T, S)> + '_ {
        self.entries.iter().copied()
    }

    fn place(&self, task: T) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&task.number()).map(|&place| place as usize),
            // A task that is named again is most often the last one
            None => self.entries.iter().rposition(|&(one, _)| one == task),
        }
    }

    fn reindex(&mut self) {
        self.index = Some(
            self.entries
                .iter()
                .enumerate()
                .map(|(place, &(task, _))| (task.number(), place as u32))
                .collect(),
        );
    }
}

impl<T, S> Default for Recommendations<T, S> {
    fn default() -> Self {
        Self {
            entries: SmallVec::new(),
            index: None,
        }
    }
}

/// Entries that are searched one by one
const UNINDEXED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    crate::ids::ids! {
        /// A task
        TaskId;
    }

    #[test]
    fn a_task_named_again_keeps_its_place() {
        let mut recommendations = Recommendations::default();
        for place in 0..40 {
            recommendations.set(TaskId::at(place), false);
        }
        recommendations.set(TaskId::at(3), true);
        recommendations.remove(TaskId::at(5));
        let mut popped = Vec::new();
        while let Some((task, is_named_again)) = recommendations.pop() {
            popped.push(task.index());
            assert_eq!(is_named_again, task.index() == 3);
        }
        let expected: Vec<usize> = (0..40).rev().filter(|&place| place != 5).collect();
        assert_eq!(popped, expected);
    }
}
