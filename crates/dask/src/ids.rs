//! Numbers that stand for things of one kind, each kind a type of its own.

/// A number that [`crate::ordered_set::OrderedSet`] can hold
pub(crate) trait Id: Copy + Eq {
    /// Stands for nothing: marks a place whose member was removed
    const HOLE: Self;

    /// The number itself
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $vis:vis $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// One more than the number, so that none of them takes no more memory than one.
        #[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
        $vis struct $name(std::num::NonZeroU32);

        impl $name {
            /// The id of a place in the table of its kind
            $vis const fn at(place: usize) -> Self {
                match std::num::NonZeroU32::new((place as u32).wrapping_add(1)) {
                    Some(number) => Self(number),
                    None => panic!("a table has less than 2³² places"),
                }
            }

            /// The place in the table of its kind
            $vis const fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }

        impl $crate::ids::Id for $name {
            const HOLE: Self = Self(std::num::NonZeroU32::MAX);

            fn number(self) -> u32 {
                self.0.get() - 1
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.index())
            }
        }
    )*};
}

pub(crate) use ids;
