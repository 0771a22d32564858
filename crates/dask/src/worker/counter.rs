//! Task counts and seconds by prefix and state: `distributed.worker_state_machine.TaskCounter`.
//!
//! Upstream adds up the time of all groups for each event. Here the time of a group is added up when
//! the group changes or is read, so that an event costs no more where there are, or have been, many
//! prefixes. No clock: the caller says the time.

use super::ids::PrefixId;
use super::state::State;
use crate::hashing::{Map, Set};

/// Tasks and seconds by prefix and state
#[derive(Clone, Debug, Default)]
pub struct TaskCounts {
    /// Time of the last event, in seconds of the caller's clock
    previous_s: Option<f64>,
    /// Groups that have tasks
    live: Map<Group, Live>,
    /// Groups, each with its number in `live`, that have no seconds yet
    fresh: Vec<(Group, u64)>,
    /// Groups that have had tasks since counting was resumed
    spent: Map<Group, Spent>,
    /// Groups that have ended since the seconds were read
    ended: Set<Group>,
    /// Number of the next group that is added to `live`
    next_number: u64,
}

/// Tasks of one prefix in one state
pub type Group = (PrefixId, State);

/// A group that has tasks
#[derive(Clone, Copy, Debug)]
struct Live {
    tasks: i64,
    /// Time up to which the seconds of the group are added up
    since_s: f64,
    /// Place of the group in the order of groups
    number: u64,
}

/// Seconds of a group, summed over its tasks
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// Before counting was resumed, once the caller was asked
    earlier_s: Option<f64>,
    /// Since then
    seconds: f64,
    /// Place of the group in the order in which groups were met
    number: usize,
}

impl TaskCounts {
    /// Resumes counting from groups in their order, each with its tasks and seconds, if it has any
    pub fn resumed(
        previous_s: Option<f64>,
        groups: impl IntoIterator<Item = (Group, i64, Option<f64>)>,
    ) -> Self {
        let mut counts = Self {
            previous_s,
            ..Self::default()
        };
        for (group, tasks, seconds) in groups {
            let number = counts.insert(group, tasks);
            match seconds {
                Some(_) => counts.spent(group).earlier_s = seconds,
                None => counts.fresh.push((group, number)),
            }
        }
        counts
    }

    /// Returns the time of the last event
    pub const fn previous_s(&self) -> Option<f64> {
        self.previous_s
    }

    /// Returns the number of tasks of each group that has any, in the order of Python's dictionary
    pub fn current(&self) -> Vec<(Group, i64)> {
        let mut groups: Vec<_> = self.live.iter().collect();
        groups.sort_unstable_by_key(|(_, live)| live.number);
        groups
            .into_iter()
            .map(|(&group, live)| (group, live.tasks))
            .collect()
    }

    /// Returns the seconds, up to the last event, of groups that have had tasks since the last call
    ///
    /// In the order in which groups were met. `earlier_s` is asked once for each group: for its
    /// seconds before counting was resumed.
    pub fn read_changed(
        &mut self,
        mut earlier_s: impl FnMut(Group) -> Option<f64>,
    ) -> Vec<(Group, f64)> {
        let mut groups = std::mem::take(&mut self.ended);
        groups.extend(self.live.keys());
        let mut changed = Vec::with_capacity(groups.len());
        for group in groups {
            self.add_up(group);
            // A group that has come with the last event has no seconds yet.
            if let Some(spent) = self.spent.get_mut(&group) {
                let earlier_s = spent
                    .earlier_s
                    .get_or_insert_with(|| earlier_s(group).unwrap_or_default());
                changed.push((spent.number, group, *earlier_s + spent.seconds));
            }
        }
        changed.sort_unstable_by_key(|&(number, ..)| number);
        changed
            .into_iter()
            .map(|(_, group, seconds)| (group, seconds))
            .collect()
    }

    /// Starts an event, whose changes follow
    pub(super) fn count_time(&mut self, now_s: f64) {
        for (group, number) in std::mem::take(&mut self.fresh) {
            if self
                .live
                .get(&group)
                .is_some_and(|live| live.number == number)
            {
                self.spent(group);
            }
        }
        self.previous_s = Some(now_s);
    }

    pub(super) fn add(&mut self, group: Group) {
        self.add_up(group);
        match self.live.get_mut(&group) {
            Some(live) => live.tasks += 1,
            None => {
                let number = self.insert(group, 1);
                self.fresh.push((group, number));
            }
        }
    }

    /// Takes one of a group, which has one
    pub(super) fn take(&mut self, group: Group) {
        self.add_up(group);
        let live = self.live.get_mut(&group);
        debug_assert!(live.is_some(), "no task of {group:?}");
        let Some(live) = live else { return };
        live.tasks -= 1;
        if live.tasks <= 0 {
            self.live.remove(&group);
            self.ended.insert(group);
        }
    }

    fn insert(&mut self, group: Group, tasks: i64) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let since_s = self.previous_s.unwrap_or_default();
        self.live.insert(
            group,
            Live {
                tasks,
                since_s,
                number,
            },
        );
        number
    }

    /// Adds up the time of a group until the last event
    fn add_up(&mut self, group: Group) {
        let now_s = self.previous_s.unwrap_or_default();
        if let Some(live) = self.live.get_mut(&group)
            && live.since_s != now_s
        {
            let seconds = (now_s - live.since_s) * live.tasks as f64;
            live.since_s = now_s;
            self.spent(group).seconds += seconds;
        }
    }

    fn spent(&mut self, group: Group) -> &mut Spent {
        let number = self.spent.len();
        self.spent.entry(group).or_insert(Spent {
            earlier_s: None,
            seconds: 0.0,
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Upstream's way: each event adds up the time of all groups
    #[derive(Default)]
    struct Plain {
        previous_s: f64,
        current: Vec<(Group, i64)>,
        elapsed: Vec<(Group, f64)>,
    }

    impl Plain {
        fn count_time(&mut self, now_s: f64) {
            for &(group, tasks) in &self.current {
                let seconds = (now_s - self.previous_s) * tasks as f64;
                match self.elapsed.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, sum)) => *sum += seconds,
                    None => self.elapsed.push((group, seconds)),
                }
            }
            self.previous_s = now_s;
        }

        fn change(&mut self, group: Group, by: i64) {
            match self.current.iter_mut().find(|(known, _)| *known == group) {
                Some((_, tasks)) => *tasks += by,
                None => self.current.push((group, by)),
            }
            self.current.retain(|&(_, tasks)| tasks > 0);
        }
    }

    /// Groups of 40 prefixes
    fn group(number: usize) -> Group {
        let states = [State::Executing, State::Memory];
        (PrefixId::at(number / 2), states[number % 2])
    }

    /// Reads seconds as Python does: into a dictionary that has those of before
    fn read(counts: &mut TaskCounts, into: &mut Vec<(Group, f64)>) {
        let before = into.clone();
        let earlier = |group| before.iter().find(|(known, _)| *known == group);
        for (group, seconds) in counts.read_changed(|group| earlier(group).map(|found| found.1)) {
            match into.iter_mut().find(|(known, _)| *known == group) {
                Some((_, sum)) => *sum = seconds,
                None => into.push((group, seconds)),
            }
        }
    }

    proptest! {
        #[test]
        fn counts_and_seconds_are_those_of_a_sum_over_all_groups(
            events in prop::collection::vec(
                (0_u32..3, prop::collection::vec((0_usize..80, any::<bool>()), 0..6), 0_u32..12),
                0..120,
            )
        ) {
            let mut plain = Plain::default();
            let mut counts = TaskCounts::default();
            let mut seconds = Vec::new();
            let mut now_s = 1.0;
            for (passes, changes, look) in events {
                now_s += f64::from(passes);
                plain.count_time(now_s);
                counts.count_time(now_s);
                for (number, adds) in changes {
                    let group = group(number);
                    let has = plain.current.iter().any(|(known, _)| *known == group);
                    if adds {
                        plain.change(group, 1);
                        counts.add(group);
                    } else if has {
                        plain.change(group, -1);
                        counts.take(group);
                    }
                }
                if look < 2 {
                    read(&mut counts, &mut seconds);
                    prop_assert_eq!(&seconds, &plain.elapsed);
                    prop_assert_eq!(&counts.current(), &plain.current);
                }
                if look == 0 {
                    let known = |group| seconds.iter().find(|(known, _)| *known == group);
                    let groups = plain.current.iter().map(|&(group, tasks)| {
                        (group, tasks, known(group).map(|found| found.1))
                    });
                    counts = TaskCounts::resumed(counts.previous_s(), groups);
                }
            }
        }
    }
}
