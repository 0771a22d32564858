//! How many roots each target has been given, and may be given.

use super::groups::Groups;
use super::plan::Target;

/// How many roots each target has, and may have; in each group, who has most room
pub(super) struct Loads<'a> {
    groups: &'a Groups,
    room: Vec<f64>,
    most: Vec<f64>,
    count: Vec<f64>,
    /// Roots that no whole share has room for
    spare: usize,
    /// By group: the member that is filled least and has room
    least: Vec<Option<u32>>,
}

impl<'a> Loads<'a> {
    /// Shares roots out by the shares of the targets
    pub(super) fn new(targets: &[Target], groups: &'a Groups, roots: usize) -> Self {
        let room = rooms(targets, roots);
        let whole: f64 = room.iter().sum();
        let mut loads = Self {
            groups,
            most: targets.iter().map(|target| target.roots_max).collect(),
            count: vec![0.0; targets.len()],
            spare: roots.saturating_sub(whole as usize),
            room,
            least: vec![None; groups.len()],
        };
        loads.look_at_all();
        loads
    }

    /// Returns whether a target may have one more
    pub(super) fn has_room(&self, at: usize) -> bool {
        let spare = f64::from(u8::from(self.spare > 0));
        self.count[at] < (self.room[at] + spare).min(self.most[at])
    }

    /// How much of its share a target has
    pub(super) fn filled(&self, at: usize) -> f64 {
        self.count[at] / self.room[at].max(1.0)
    }

    /// The member of a group that has room and is filled least; the lowest of several
    pub(super) fn least(&self, group: usize) -> Option<u32> {
        self.least[group]
    }

    /// Gives a target one more
    pub(super) fn add(&mut self, at: usize) {
        self.count[at] += 1.0;
        if self.count[at] > self.room[at] && self.spare > 0 {
            self.spare -= 1;
            // A target that had room for a spare root only has none now.
            if self.spare == 0 {
                self.look_at_all();
                return;
            }
        }
        let group = self.groups.of(at);
        self.least[group] = self.find_least(group);
    }

    fn look_at_all(&mut self) {
        for group in self.groups.all() {
            self.least[group] = self.find_least(group);
        }
    }

    fn find_least(&self, group: usize) -> Option<u32> {
        let members = self.groups.members(group).iter().copied();
        members
            .filter(|&at| self.has_room(at as usize))
            .min_by(|&a, &b| self.filled(a as usize).total_cmp(&self.filled(b as usize)))
    }
}

/// Whole roots of each target: by share, and no more than it may have
///
/// The roots that some may not have, the others share; that may be more than one of these may have.
fn rooms(targets: &[Target], roots: usize) -> Vec<f64> {
    let mut limited = vec![false; targets.len()];
    loop {
        let (mut left, mut left_share) = (roots as f64, 0.0);
        for (target, is_limited) in targets.iter().zip(&limited) {
            if *is_limited {
                left -= target.roots_max.floor();
            } else {
                left_share += target.share;
            }
        }
        let whole = |target: &Target| {
            (left.max(0.0) * target.share / left_share.max(f64::MIN_POSITIVE)).floor()
        };
        let mut has_more = false;
        for (target, is_limited) in targets.iter().zip(&mut limited) {
            if !*is_limited && target.roots_max < whole(target) {
                *is_limited = true;
                has_more = true;
            }
        }
        if !has_more {
            return targets
                .iter()
                .zip(&limited)
                .map(|(target, is_limited)| {
                    if *is_limited {
                        target.roots_max.floor()
                    } else {
                        whole(target)
                    }
                })
                .collect();
        }
    }
}
