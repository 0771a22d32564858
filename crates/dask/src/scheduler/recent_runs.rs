//! Which tasks were sent last, by the numbers of their runs.
//!
//! A worker that ends a task names key and run. Those sent together end together, so that their
//! entries here are near each other, which they are not in a table of keys.

use super::ids::TaskId;

/// The task of each of the last [`RUNS_MAX`] runs; a caller has to check the task that it gets
#[derive(Debug, Default)]
pub(super) struct RecentRuns {
    tasks: Vec<Option<TaskId>>,
}

impl RecentRuns {
    pub(super) fn note(&mut self, run_id: u64, task: TaskId) {
        let place = place_of(run_id);
        if place >= self.tasks.len() {
            self.tasks.resize(place + 1, None);
        }
        self.tasks[place] = Some(task);
    }

    /// The task of a run, or of a later one, or of none
    pub(super) fn find(&self, run_id: u64) -> Option<TaskId> {
        self.tasks.get(place_of(run_id)).copied().flatten()
    }
}

fn place_of(run_id: u64) -> usize {
    (run_id % RUNS_MAX) as usize
}

/// As many as large clusters have in flight, in 256 KiB
const RUNS_MAX: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_runs_take_the_places_of_earlier_ones() {
        let mut runs = RecentRuns::default();
        assert_eq!(runs.find(7), None);
        runs.note(7, TaskId::at(1));
        runs.note(8, TaskId::at(2));
        assert_eq!(runs.find(7), Some(TaskId::at(1)));
        runs.note(7 + RUNS_MAX, TaskId::at(3));
        assert_eq!(runs.find(7), Some(TaskId::at(3)));
        assert_eq!(runs.find(8), Some(TaskId::at(2)));
        assert_eq!(runs.find(6), None);
    }
}
