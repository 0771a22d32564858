//! The order in which CPython's sets list their members.
//!
//! Dask walks over sets of keys, and where it does its result depends on how they list them. That
//! is settled by the hashes of the members, the sequence of insertions, and the size of the
//! table: open addressing with short linear runs, then jumps that mix in the high bits of the
//! hash. The scheme is that of `Objects/setobject.c` of CPython 3.11; the caller checks the model
//! against the interpreter it runs in.
//!
//! Only what shows in an order of tasks is modelled: sets that are built by adding, their
//! differences, and a difference of such a difference. Leaving out any of it changes the order of
//! one random graph in twenty or more. Sets that lose single members, or grow after that, are not
//! modelled; graphs in which they matter are refused.

use std::collections::{HashMap, HashSet};

use super::ids::{PerTask, TaskId};

/// A set that members are added to
#[derive(Debug)]
pub(super) struct Table<'h> {
    hashes: &'h PerTask<u64>,
    /// Number of a task, or `FREE`
    slots: Vec<u32>,
    used: usize,
}

/// Members of a finished set, in the order in which it lists them
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Listing {
    pub(super) members: Vec<TaskId>,
    /// Slots of the table behind it
    pub(super) slots: usize,
    /// True if members were removed and left marks behind
    pub(super) marked: bool,
}

impl<'h> Table<'h> {
    fn sized(hashes: &'h PerTask<u64>, slots: usize) -> Self {
        Self {
            hashes,
            slots: vec![FREE; slots],
            used: 0,
        }
    }

    /// A set that starts empty and is given members one by one, none of them twice
    pub(super) fn of(hashes: &'h PerTask<u64>, members: impl IntoIterator<Item = TaskId>) -> Self {
        let mut table = Self::sized(hashes, SLOTS_MIN);
        for member in members {
            table.place(member);
            if table.used * 5 >= (table.slots.len() - 1) * 3 {
                let slots = slots_after(table.used);
                table = Self::copied(hashes, slots, table.members());
            }
        }
        table
    }

    /// A table of that size with members that it has room for
    fn copied(
        hashes: &'h PerTask<u64>,
        slots: usize,
        members: impl Iterator<Item = TaskId>,
    ) -> Self {
        let mut table = Self::sized(hashes, slots);
        members.for_each(|member| table.place(member));
        table
    }

    /// The members, as the set lists them
    pub(super) fn members(&self) -> impl Iterator<Item = TaskId> + '_ {
        let taken = self.slots.iter().filter(|&&slot| slot != FREE);
        taken.map(|&slot| TaskId(slot))
    }

    fn listing(&self) -> Listing {
        Listing {
            members: self.members().collect(),
            slots: self.slots.len(),
            marked: false,
        }
    }

    fn place(&mut self, task: TaskId) {
        let place = Probe::new(self.hashes[task], self.slots.len())
            .find(|&place| self.slots[place] == FREE)
            .expect("a probe does not end");
        self.slots[place] = task.0;
        self.used += 1;
    }
}

impl Listing {
    /// The set without the members that another collection of `other_len` members holds too
    pub(super) fn difference(
        &self,
        hashes: &PerTask<u64>,
        other_len: usize,
        in_other: impl Fn(TaskId) -> bool,
    ) -> Self {
        let kept = self.members.iter().copied().filter(|&task| !in_other(task));
        if self.members.len() / 4 <= other_len {
            return Table::of(hashes, kept).listing();
        }
        // With little to remove, the set is copied and the members removed from the copy.
        let slots = match self.members.len() {
            used if used * 5 >= (SLOTS_MIN - 1) * 3 => slots_above(used * 2),
            _ => SLOTS_MIN,
        };
        let copied: Vec<TaskId> = if slots == self.slots && !self.marked {
            self.members.clone()
        } else {
            let members = self.members.iter().copied();
            Table::copied(hashes, slots, members).members().collect()
        };
        let members: Vec<TaskId> = copied.into_iter().filter(|&task| !in_other(task)).collect();
        // CPython makes the table anew once a quarter of its slots are marked as left. Here fewer
        // than a quarter of the members leave, and they take up at most half of the slots.
        Self {
            marked: members.len() < self.members.len(),
            members,
            slots,
        }
    }
}

/// How a set lists members that were added one by one
///
/// Members are given by their hashes. It shows a caller whether the model holds for its interpreter.
pub fn set_listing(added: &[isize]) -> Vec<isize> {
    let model = Numbered::new(added.iter());
    let table = Table::of(&model.hashes, added.iter().map(|hash| model.ids[hash]));
    model.hashes_of(table.members())
}

/// How the difference of a set and another collection lists its members
///
/// The members are given by their hashes, as the set lists them, with the number of slots in its
/// table. It shows a caller whether the model holds for its interpreter.
pub fn difference_listing(listed: &[isize], slots: usize, other: &[isize]) -> Vec<isize> {
    let model = Numbered::new(listed.iter().chain(other));
    let listing = Listing {
        members: listed.iter().map(|hash| model.ids[hash]).collect(),
        slots,
        marked: false,
    };
    let others: HashSet<TaskId> = other.iter().map(|hash| model.ids[hash]).collect();
    let difference = listing.difference(&model.hashes, others.len(), |task| others.contains(&task));
    model.hashes_of(difference.members)
}

/// Numbers for hashes
struct Numbered {
    ids: HashMap<isize, TaskId>,
    hashes: PerTask<u64>,
}

impl Numbered {
    fn new<'h>(hashes: impl Iterator<Item = &'h isize>) -> Self {
        let mut ids = HashMap::new();
        let mut numbered = Vec::new();
        for &hash in hashes {
            ids.entry(hash).or_insert_with(|| {
                numbered.push(hash as u64);
                TaskId(u32::try_from(numbered.len() - 1).expect("few members are tried"))
            });
        }
        Self {
            ids,
            hashes: numbered.into_iter().collect(),
        }
    }

    fn hashes_of(&self, members: impl IntoIterator<Item = TaskId>) -> Vec<isize> {
        members
            .into_iter()
            .map(|member| self.hashes[member] as isize)
            .collect()
    }
}

/// The slots to look at for a hash, one after the other
struct Probe {
    mask: usize,
    perturb: usize,
    base: usize,
    /// How far along the linear run
    along: usize,
}

impl Probe {
    const fn new(hash: u64, slots: usize) -> Self {
        let mask = slots - 1;
        Self {
            mask,
            perturb: hash as usize,
            base: hash as usize & mask,
            along: 0,
        }
    }
}

impl Iterator for Probe {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let run = if self.base + LINEAR_PROBES <= self.mask {
            LINEAR_PROBES
        } else {
            0
        };
        if self.along > run {
            self.perturb >>= PERTURB_SHIFT;
            self.base = self
                .base
                .wrapping_mul(5)
                .wrapping_add(1)
                .wrapping_add(self.perturb)
                & self.mask;
            self.along = 0;
        }
        let place = self.base + self.along;
        self.along += 1;
        Some(place)
    }
}

/// The slots of a table that is made anew for its members
const fn slots_after(used: usize) -> usize {
    slots_above(used * if used > QUADRUPLED_MAX { 2 } else { 4 })
}

/// The smallest power of two above a number, as far as tables go
const fn slots_above(members: usize) -> usize {
    let mut slots = SLOTS_MIN;
    while slots <= members {
        slots *= 2;
    }
    slots
}

/// No task has this number
const FREE: u32 = u32::MAX;
/// `PySet_MINSIZE`
const SLOTS_MIN: usize = 8;
/// `LINEAR_PROBES`: slots looked at after the first before jumping
const LINEAR_PROBES: usize = 9;
/// `PERTURB_SHIFT`
const PERTURB_SHIFT: u32 = 5;
/// Up to so many members a full table grows fourfold, above it twofold
const QUADRUPLED_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_hashes_list_in_rising_order() {
        assert_eq!(set_listing(&[3, 1, 2]), [1, 2, 3]);
    }

    #[test]
    fn collisions_list_in_order_of_insertion() {
        // All want the first slot of eight, and a run reaches no further than the table's end.
        assert_eq!(set_listing(&[16, 8, 0]), [16, 8, 0]);
    }

    #[test]
    fn members_move_when_the_table_grows() {
        // Five members in eight slots are too many; in thirty-two slots each has its own.
        assert_eq!(set_listing(&[12, 11, 10, 9]), [9, 10, 11, 12]);
        assert_eq!(set_listing(&[40, 4, 3, 2, 1]), [1, 2, 3, 4, 40]);
    }
}
