//! A set that lists its members in the order in which they were added, as a Python dict without
//! values does.
//!
//! Dask keeps most of these in Python sets, whose order hangs on hashes. Here the order is this one,
//! always, so that the same events give the same decisions.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::hashing::Map;
use crate::ids::Id;

/// Members in the order of their addition; one that is removed and added again comes last
///
/// Three members need no memory of their own, as most tasks have no more of anything. Up to
/// [`UNINDEXED_MAX`] are searched; above that an index finds them, and removing leaves a hole until
/// half of the places are holes.
///
/// A clone shares the memory of more than three until either changes.
#[derive(Clone, Debug)]
pub(crate) struct OrderedSet<T>(Members<T>);

#[derive(Clone, Debug)]
enum Members<T> {
    Few { count: u8, members: [T; FEW] },
    Many(Arc<Many<T>>),
}

#[derive(Clone, Debug)]
struct Many<T> {
    places: Vec<T>,
    holes: usize,
    /// Where each member is, if there are too many to search
    index: Option<Map<u32, u32>>,
}

impl<T: Id> OrderedSet<T> {
    /// An empty set
    pub(crate) const fn new() -> Self {
        Self(Members::Few {
            count: 0,
            members: [T::HOLE; FEW],
        })
    }

    /// Adds a member at the end, returning whether it was missing
    pub(crate) fn insert(&mut self, member: T) -> bool {
        let missing = !self.contains(member);
        if missing {
            self.add(member);
        }
        missing
    }

    /// Adds a member that is known to be missing
    pub(crate) fn add(&mut self, member: T) {
        match &mut self.0 {
            Members::Few { count, members } => {
                let listed = usize::from(*count);
                if let Some(place) = members.get_mut(listed) {
                    *place = member;
                    *count += 1;
                    return;
                }
                let mut places = Vec::with_capacity(2 * FEW);
                places.extend_from_slice(members);
                places.push(member);
                self.0 = Members::Many(Arc::new(Many {
                    places,
                    holes: 0,
                    index: None,
                }));
            }
            Members::Many(many) => Arc::make_mut(many).add(member),
        }
    }

    /// Removes a member, returning whether it was there
    pub(crate) fn remove(&mut self, member: T) -> bool {
        match &mut self.0 {
            Members::Few { count, members } => {
                let listed = usize::from(*count);
                let Some(place) = members[..listed].iter().position(|&one| one == member) else {
                    return false;
                };
                members.copy_within(place + 1..listed, place);
                *count -= 1;
                true
            }
            Members::Many(many) => {
                let Some(place) = many.place(member) else {
                    return false;
                };
                let many = Arc::make_mut(many);
                many.remove(member, place);
                if many.holes == many.places.len() {
                    *self = Self::new();
                }
                true
            }
        }
    }

    /// Returns whether this is a member
    pub(crate) fn contains(&self, member: T) -> bool {
        match &self.0 {
            Members::Few { count, members } => members[..usize::from(*count)].contains(&member),
            Members::Many(many) => many.contains(member),
        }
    }

    /// How many members there are
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Members::Few { count, .. } => usize::from(*count),
            Members::Many(many) => many.places.len() - many.holes,
        }
    }

    /// The member that was added last
    pub(crate) fn last(&self) -> Option<T> {
        match &self.0 {
            Members::Few { count, members } => {
                let place = usize::from(*count).checked_sub(1)?;
                members.get(place).copied()
            }
            Members::Many(many) => {
                let places = many.places.iter().rev();
                places.copied().find(|&member| member != T::HOLE)
            }
        }
    }

    /// Returns whether there are none
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The members in their order
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        let places = match &self.0 {
            Members::Few { count, members } => &members[..usize::from(*count)],
            Members::Many(many) => &many.places[..],
        };
        places.iter().copied().filter(|&member| member != T::HOLE)
    }

    /// Makes room for so many members in all, as far as it has begun to take memory for them
    pub(crate) fn expect(&mut self, members: usize) {
        if let Members::Many(many) = &mut self.0
            && many.places.capacity() < members
            && members <= UNINDEXED_MAX
        {
            let many = Arc::make_mut(many);
            many.places.reserve_exact(members - many.places.len());
        }
    }

    /// Shares the memory of another set with the same members in the same order, until either
    /// changes
    pub(crate) fn share(&mut self, other: &Self) {
        if let (Members::Many(ours), Members::Many(theirs)) = (&mut self.0, &other.0)
            // A change of one copies it, so the copy has to be cheap.
            && ours.index.is_none()
            && theirs.index.is_none()
            && !Arc::ptr_eq(ours, theirs)
            && ours.places == theirs.places
        {
            *ours = Arc::clone(theirs);
        }
    }

    /// The members as they are now, to change the set while they are looked at
    pub(crate) fn listed(&self) -> SmallVec<[T; 4]> {
        let mut listed = SmallVec::with_capacity(self.len());
        listed.extend(self.iter());
        listed
    }
}

impl<T: Id> Many<T> {
    fn contains(&self, member: T) -> bool {
        self.place(member).is_some()
    }

    /// Adds one that is missing
    fn add(&mut self, member: T) {
        let place = self.places.len();
        self.places.push(member);
        match &mut self.index {
            Some(index) => {
                index.insert(member.number(), place as u32);
            }
            None if self.places.len() > UNINDEXED_MAX => self.pack(),
            None => {}
        }
    }

    /// Where a member is, if it is one
    fn place(&self, member: T) -> Option<usize> {
        match &self.index {
            None => self.places.iter().position(|&one| one == member),
            Some(index) => index.get(&member.number()).map(|&place| place as usize),
        }
    }

    /// Removes the member at a place
    fn remove(&mut self, member: T, place: usize) {
        let Some(index) = &mut self.index else {
            self.places.remove(place);
            return;
        };
        index.remove(&member.number());
        if place + 1 == self.places.len() {
            self.places.pop();
        } else {
            self.places[place] = T::HOLE;
            self.holes += 1;
            if 2 * self.holes > self.places.len() {
                self.pack();
            }
        }
    }

    /// Closes the holes, and indexes what is left if it is much
    fn pack(&mut self) {
        self.places.retain(|&member| member != T::HOLE);
        self.holes = 0;
        self.index = (self.places.len() > UNINDEXED_MAX / 2).then(|| {
            self.places
                .iter()
                .enumerate()
                .map(|(place, member)| (member.number(), place as u32))
                .collect()
        });
        if self.places.capacity() > 4 * self.places.len() {
            self.places.shrink_to(2 * self.places.len());
        }
    }
}

impl<T: Id> Default for OrderedSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Id> FromIterator<T> for OrderedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> Self {
        let mut set = Self::new();
        for member in members {
            set.insert(member);
        }
        set
    }
}

/// Members kept in the set itself
const FEW: usize = 3;
/// Members that are searched one by one
const UNINDEXED_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    crate::ids::ids! {
        /// A task
        TaskId;
    }

    #[test]
    fn a_set_of_a_task_is_small() {
        assert_eq!(size_of::<Option<OrderedSet<TaskId>>>(), 16);
    }

    proptest! {
        #[test]
        fn a_set_lists_as_a_list_without_repeats(
            steps in prop::collection::vec((0_u32..400, any::<bool>()), 0..1500)
        ) {
            let mut set = OrderedSet::new();
            let mut naive: Vec<TaskId> = Vec::new();
            for (number, adds) in steps {
                let member = TaskId::at(number as usize);
                let known = naive.contains(&member);
                if adds {
                    prop_assert_eq!(set.insert(member), !known);
                    if !known {
                        naive.push(member);
                    }
                } else {
                    prop_assert_eq!(set.remove(member), known);
                    naive.retain(|&one| one != member);
                }
                prop_assert_eq!(set.len(), naive.len());
                prop_assert_eq!(set.last(), naive.last().copied());
                prop_assert_eq!(set.contains(member), adds);
            }
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), naive);
        }

        #[test]
        fn sets_that_share_do_not_change_with_each_other(
            members in prop::collection::vec(0_u32..200, 0..150),
            steps in prop::collection::vec((0_u32..200, any::<bool>(), any::<bool>()), 0..40)
        ) {
            let of = |numbers: &[u32]| -> OrderedSet<TaskId> {
                numbers.iter().map(|&number| TaskId::at(number as usize)).collect()
            };
            let mut sets = [of(&members), of(&members)];
            let [one, other] = &mut sets;
            one.expect(150);
            one.share(other);
            let mut alone = [of(&members), of(&members)];
            for (number, adds, first) in steps {
                let member = TaskId::at(number as usize);
                for sets in [&mut sets, &mut alone] {
                    let set = &mut sets[usize::from(!first)];
                    if adds {
                        set.insert(member);
                    } else {
                        set.remove(member);
                    }
                }
            }
            for (shared, alone) in sets.iter().zip(&alone) {
                prop_assert_eq!(
                    shared.iter().collect::<Vec<_>>(),
                    alone.iter().collect::<Vec<_>>()
                );
            }
        }
    }
}
