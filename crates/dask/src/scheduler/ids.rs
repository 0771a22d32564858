//! Numbers that stand for tasks, workers, clients, groups, prefixes and names.

use std::fmt;

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
        #[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub(super) struct $name(pub(super) u32);

        impl $name {
            /// The place in the table of its kind
            pub(super) const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Id for $name {
            const HOLE: Self = Self(u32::MAX);

            fn number(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.0)
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
