//! Numbers that stand for tasks, workers, clients, groups, prefixes and names.

use std::fmt;
use std::num::NonZeroU32;

/// A number that [`super::OrderedSet`] can hold
pub(super) trait Id: Copy + Eq {
    /// Stands for nothing: marks a place whose member was removed
    const HOLE: Self;

    /// The number itself
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// One more than the number, so that none of them takes no more memory than one.
        #[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub(super) struct $name(NonZeroU32);

        impl $name {
            /// The id of a place in the table of its kind
            pub(super) const fn at(place: usize) -> Self {
                match NonZeroU32::new((place as u32).wrapping_add(1)) {
                    Some(number) => Self(number),
                    None => panic!("a table has less than 2³² places"),
                }
            }

            /// The place in the table of its kind
            pub(super) const fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl Id for $name {
            const HOLE: Self = Self(NonZeroU32::MAX);

            fn number(self) -> u32 {
                self.0.get() - 1
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.index())
            }
        }
    )*};
}

ids! {
    /// A task that the scheduler knows; used again once the task is forgotten and nothing refers to it
    TaskId;
    /// A worker, from when it joins; never used again, so that what outlives the worker cannot
    /// mistake the next one for it
    WorkerId;
    /// A client, from when it is first heard of; used again once it has gone
    ClientId;
    /// A group of tasks; used again once it is gone and no other group depends on it
    GroupId;
    /// A prefix of tasks
    PrefixId;
    /// A host, a resource, a type of results or an action that takes time
    NameId;
}
