//! Timers: one deadline for each id, in order, so that only what is due is visited.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// Deadlines of some ids, at most one each
///
/// Both collections hold the same pairs.
#[derive(Debug)]
pub(super) struct Timers<Id> {
    in_order: BTreeSet<(Instant, Id)>,
    by_id: HashMap<Id, Instant>,
}

impl<Id: Copy + Eq + Hash + Ord> Timers<Id> {
    /// Sets the deadline of an id, unless it has an earlier one
    pub(super) fn schedule(&mut self, id: Id, at: Instant) {
        match self.by_id.get(&id) {
            Some(before) if *before <= at => return,
            Some(before) => {
                self.in_order.remove(&(*before, id));
            }
            None => {}
        }
        self.by_id.insert(id, at);
        self.in_order.insert((at, id));
    }

    /// Forgets the deadline of an id
    pub(super) fn cancel(&mut self, id: Id) {
        if let Some(at) = self.by_id.remove(&id) {
            self.in_order.remove(&(at, id));
        }
    }

    /// Takes the ids whose deadline has passed, earliest first
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Id> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.in_order.first()
            && at <= now
        {
            self.in_order.pop_first();
            self.by_id.remove(&id);
            due.push(id);
        }
        due
    }

    /// The earliest deadline
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }
}

impl<Id> Default for Timers<Id> {
    fn default() -> Self {
        Self {
            in_order: BTreeSet::new(),
            by_id: HashMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_earliest_deadline_of_an_id_wins() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::default();
        timers.schedule(1, at(5));
        timers.schedule(1, at(9));
        timers.schedule(2, at(7));
        assert_eq!(timers.earliest(), Some(at(5)));
        timers.schedule(2, at(3));
        assert_eq!(timers.take_due(at(4)), [2]);
        assert_eq!(timers.take_due(at(100)), [1]);
        assert_eq!(timers.earliest(), None);
    }

    proptest! {
        /// Against the naive model: a list of deadlines
        #[test]
        fn only_what_is_due_is_taken(
            steps in proptest::collection::vec((0_u8..3, 0_u8..8, 0_u64..50), 0..100),
        ) {
            let start = Instant::now();
            let mut timers = Timers::default();
            let mut model: Vec<Option<Instant>> = vec![None; 8];
            for (step, id, millis) in steps {
                let at = start + Duration::from_millis(millis);
                let slot = &mut model[usize::from(id)];
                match step {
                    0 => {
                        timers.schedule(id, at);
                        *slot = Some(slot.map_or(at, |before| before.min(at)));
                    }
                    1 => {
                        timers.cancel(id);
                        *slot = None;
                    }
                    _ => {
                        let mut expected: Vec<_> = (0_u8..8)
                            .filter_map(|id| Some((model[usize::from(id)]?, id)))
                            .filter(|(due, _)| *due <= at)
                            .collect();
                        expected.sort_unstable();
                        for (_, id) in &expected {
                            model[usize::from(*id)] = None;
                        }
                        let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
                        prop_assert_eq!(timers.take_due(at), expected);
                    }
                }
                prop_assert_eq!(timers.earliest(), model.iter().flatten().min().copied());
            }
        }
    }
}
