//! How many tasks are in each state, and for how long: `distributed.worker_state_machine.TaskCounter`.

use super::ids::PrefixId;
use super::state::State;

/// Tasks and seconds by prefix and state
#[derive(Clone, Debug, Default)]
pub struct TaskCounts {
    /// When time was counted last, in seconds of the caller's clock
    previous_s: Option<f64>,
    current: Vec<(Group, i64)>,
    elapsed: Vec<(Group, f64)>,
}

/// Tasks of one prefix in one state
pub type Group = (PrefixId, State);

impl TaskCounts {
    /// Counts that were kept elsewhere until now
    pub fn resumed(
        previous_s: Option<f64>,
        current: Vec<(Group, i64)>,
        elapsed: Vec<(Group, f64)>,
    ) -> Self {
        Self {
            previous_s,
            current,
            elapsed,
        }
    }

    /// When time was counted last
    pub const fn previous_s(&self) -> Option<f64> {
        self.previous_s
    }

    /// Tasks of each group
    pub fn current(&self) -> &[(Group, i64)] {
        &self.current
    }

    /// Seconds of each group, summed over its tasks
    pub fn elapsed(&self) -> &[(Group, f64)] {
        &self.elapsed
    }

    /// Counts the time until now
    pub(super) fn count_time(&mut self, now_s: f64) {
        if !self.current.is_empty() {
            let elapsed_s = now_s - self.previous_s.unwrap_or(now_s);
            for place in 0..self.current.len() {
                let (group, tasks) = self.current[place];
                *self.seconds(group) += elapsed_s * tasks as f64;
            }
        }
        self.previous_s = Some(now_s);
    }

    pub(super) fn add(&mut self, group: Group) {
        match self.current.iter_mut().find(|(known, _)| *known == group) {
            Some((_, tasks)) => *tasks += 1,
            None => self.current.push((group, 1)),
        }
    }

    /// Takes one of a group, which has one
    pub(super) fn take(&mut self, group: Group) {
        let place = self.current.iter().position(|(known, _)| *known == group);
        debug_assert!(place.is_some(), "no task of {group:?}");
        if let Some(place) = place {
            self.current[place].1 -= 1;
            if self.current[place].1 <= 0 {
                self.current.remove(place);
            }
        }
    }

    fn seconds(&mut self, group: Group) -> &mut f64 {
        let known = self.elapsed.iter().position(|(known, _)| *known == group);
        let place = known.unwrap_or_else(|| {
            self.elapsed.push((group, 0.0));
            self.elapsed.len() - 1
        });
        &mut self.elapsed[place].1
    }
}
