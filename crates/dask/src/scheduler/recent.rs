//! The last transitions: what a story tells, and what a log shows after a defect.

use std::collections::VecDeque;
use std::sync::Arc;

use super::messages::Transition;

/// A transition, and what led to it
#[derive(Clone, Debug)]
pub struct PastTransition {
    /// Which
    pub transition: Transition,
    /// The event
    pub stimulus: Arc<str>,
    /// When it was, on the clock of the caller
    pub at_s: f64,
}

/// The last transitions, up to a number of them
#[derive(Debug)]
pub(super) struct RecentTransitions {
    entries: VecDeque<PastTransition>,
    capacity: usize,
}

impl RecentTransitions {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            capacity,
        }
    }

    /// Adds one in the place of the oldest; makes it only if it is kept
    pub(super) fn add(&mut self, make: impl FnOnce() -> PastTransition) {
        if self.capacity == 0 {
            return;
        }
        if self.entries.len() == self.capacity {
            self.entries.pop_front();
        }
        self.entries.push_back(make());
    }

    /// All of them, the oldest first
    pub(super) fn listed(&self) -> Vec<PastTransition> {
        self.entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::TaskState;

    fn past(number: u32) -> PastTransition {
        PastTransition {
            transition: Transition {
                key: Arc::from(number.to_string().as_bytes()),
                start: TaskState::Released,
                finish: TaskState::Waiting,
            },
            stimulus: Arc::from("graph"),
            at_s: f64::from(number),
        }
    }

    #[test]
    fn the_oldest_make_room() {
        let mut recent = RecentTransitions::new(3);
        for number in 0..5 {
            recent.add(|| past(number));
        }
        let times: Vec<f64> = recent.listed().iter().map(|one| one.at_s).collect();
        assert_eq!(times, [2.0, 3.0, 4.0]);
    }

    #[test]
    fn none_are_made_where_none_are_kept() {
        let mut recent = RecentTransitions::new(0);
        recent.add(|| panic!("nobody wants it"));
        assert!(recent.listed().is_empty());
    }
}
