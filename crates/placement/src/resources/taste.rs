//! Preference of one request in a pool: the unit that its inputs come to soonest.

use std::collections::BTreeMap;

use super::UnitId;

/// The unit that an input ran on, and the bytes of the input
pub type RanOn = (UnitId, f64);

/// Seconds a byte takes from one unit of a pool to another one, where that is known
pub type Ways = BTreeMap<(UnitId, UnitId), f64>;

/// Between units of one group, as GPUs are that NVLink connects: 20 GB/s, one link of a DGX-1
const WITHIN_GROUP_S: f64 = 1.0 / 20e9;

/// Between others: 6 GB/s, two sockets of a DGX-1
const BETWEEN_GROUPS_S: f64 = 1.0 / 6e9;

/// Preference score of one request; the lower, the better
pub(super) struct Taste<'a> {
    inputs: &'a [RanOn],
    /// The group of each input's unit; `None` if that is not there any more
    groups: Vec<Option<usize>>,
    ways: &'a Ways,
    near: &'a [UnitId],
    /// True if kept units are for it
    pub(super) keeps: bool,
}

impl<'a> Taste<'a> {
    pub(super) fn new(
        inputs: &'a [RanOn],
        ways: &'a Ways,
        near: &'a [UnitId],
        keeps: bool,
        group_of: impl Fn(UnitId) -> Option<usize>,
    ) -> Self {
        Self {
            inputs,
            groups: inputs.iter().map(|&(id, _)| group_of(id)).collect(),
            ways,
            near,
            keeps,
        }
    }

    /// Rank of one unit: what its inputs take to come there, then whether it is near
    pub(super) fn rank(&self, id: UnitId, group: usize) -> (u64, bool) {
        (
            picoseconds(self.seconds(id, group)),
            !self.near.contains(&id),
        )
    }

    /// Rank of the best `count` units of a group
    pub(super) fn liked(&self, group: usize, free: &[UnitId], count: usize) -> (u64, usize) {
        let mut ranks: Vec<_> = free.iter().map(|&id| self.rank(id, group)).collect();
        ranks.sort_unstable();
        ranks.truncate(count);
        let cost = ranks
            .iter()
            .fold(0u64, |sum, &(cost, _)| sum.saturating_add(cost));
        (cost, ranks.iter().filter(|&&(_, is_far)| is_far).count())
    }

    /// Returns the time of the inputs to a unit, one after another; nothing from one that is gone
    fn seconds(&self, id: UnitId, group: usize) -> f64 {
        let ways = self.inputs.iter().zip(&self.groups);
        ways.filter(|&(&(from, _), there)| from != id && there.is_some())
            .map(|(&(from, bytes), there)| {
                let usual = if *there == Some(group) {
                    WITHIN_GROUP_S
                } else {
                    BETWEEN_GROUPS_S
                };
                bytes * self.ways.get(&(from, id)).copied().unwrap_or(usual)
            })
            .sum()
    }
}

/// As a whole number, which has an order
fn picoseconds(seconds: f64) -> u64 {
    (seconds * 1e12) as u64
}
