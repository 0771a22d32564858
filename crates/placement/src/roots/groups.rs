//! How near the targets of a plan are, by groups of those that have the same links.
//!
//! A thousand workers are a million pairs, but those of one host reach every other worker alike: what
//! is true of pairs of groups is worked out once, and a plan looks at groups.

use std::collections::HashMap;
use std::ops::Range;

use super::plan::Target;
use crate::cost::LinkCosts;

/// The targets by group, and what a byte costs between two groups
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// By target: its group
    of: Vec<u32>,
    /// Targets by group, lower ones first
    members: Vec<Vec<u32>>,
    /// Seconds of a byte in the slower direction, by group and group; what is on the diagonal is
    /// that of two members
    cost: Vec<f64>,
    worst: f64,
}

impl Groups {
    /// Groups targets by [`LinkCosts::group`]
    #[must_use]
    pub fn by_links(targets: &[Target], links: &dyn LinkCosts) -> Self {
        let capacities = links.capacities();
        let one_way = |a: u32, b: u32| links.route(a, b).seconds_per_byte(capacities);
        Self::new(
            targets.iter().map(|target| links.group(target.worker)),
            |a, b| {
                let (a, b) = (targets[a].worker, targets[b].worker);
                one_way(a, b).max(one_way(b, a))
            },
        )
    }

    /// Groups targets by what each is said to belong to; `cost` is asked for pairs of targets
    ///
    /// `cost` is the same in both directions, in any unit from 0.
    pub fn new(
        group_of: impl IntoIterator<Item = u32>,
        cost: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let mut numbers = HashMap::new();
        let mut groups = Self::default();
        for (target, named) in group_of.into_iter().enumerate() {
            let next = numbers.len() as u32;
            let group = *numbers.entry(named).or_insert(next);
            if group == next {
                groups.members.push(Vec::new());
            }
            groups.of.push(group);
            groups.members[group as usize].push(target as u32);
        }
        let count = groups.members.len();
        groups.cost = vec![0.0; count * count];
        for a in 0..count {
            for b in a..count {
                let first = groups.members[a][0] as usize;
                // A group with one member has no pair inside, so that cost stays 0.
                let Some(second) = groups.members[b].get(usize::from(a == b)) else {
                    continue;
                };
                let cost = cost(first, *second as usize);
                groups.cost[a * count + b] = cost;
                groups.cost[b * count + a] = cost;
                groups.worst = groups.worst.max(cost);
            }
        }
        groups
    }

    /// How many groups there are
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// All groups
    pub(super) fn all(&self) -> Range<usize> {
        0..self.len()
    }

    /// The group of a target
    pub(super) fn of(&self, target: usize) -> usize {
        self.of[target] as usize
    }

    /// The targets of a group, lower ones first
    pub(super) fn members(&self, group: usize) -> &[u32] {
        &self.members[group]
    }

    /// Seconds of a byte between a member of a group and one of each other group, and of its own
    fn costs(&self, group: usize) -> &[f64] {
        let count = self.len();
        &self.cost[group * count..][..count]
    }

    /// How near two groups are: 1 for no time at all, 0 over the slowest link
    pub(super) fn nearness(&self) -> Vec<f64> {
        let scale = if self.worst > 0.0 {
            1.0 / self.worst
        } else {
            0.0
        };
        self.cost.iter().map(|cost| 1.0 - cost * scale).collect()
    }

    /// Distance within which half of all targets lie from a member of each group: seconds of a byte
    pub(super) fn middles(&self) -> Vec<f64> {
        self.all()
            .map(|group| {
                let mut row: Vec<f64> = self
                    .of
                    .iter()
                    .map(|&of| self.costs(group)[of as usize])
                    .collect();
                // It reaches itself at once.
                row[self.members(group)[0] as usize] = 0.0;
                middle(&mut row)
            })
            .collect()
    }
}

/// The upper median, or 0 of nothing
pub(super) fn middle(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let half = values.len() / 2;
    *values.select_nth_unstable_by(half, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_as_near_as_one_another_to_all_others() {
        let groups = Groups::new([5, 2, 5, 2, 9], |a, b| {
            if a % 2 == b % 2 && a < 4 && b < 4 {
                1.0
            } else {
                4.0
            }
        });
        assert_eq!(groups.members(0), [0, 2]);
        assert_eq!(groups.members(1), [1, 3]);
        assert_eq!(groups.of(4), 2);
        assert_eq!(
            groups.nearness(),
            [0.75, 0.0, 0.0, 0.0, 0.75, 0.0, 0.0, 0.0, 1.0]
        );
        // Of five, one is itself, one is at 1 and three are at 4.
        assert_eq!(groups.middles(), [4.0; 3]);
        assert_eq!(middle(&mut [3.0, 1.0, 2.0, 9.0]), 3.0);
        assert_eq!(middle(&mut []), 0.0);
    }

    #[test]
    fn where_links_take_no_time_all_are_near() {
        let groups = Groups::new([0, 1], |_, _| 0.0);
        assert_eq!(groups.nearness(), [1.0; 4]);
    }
}
