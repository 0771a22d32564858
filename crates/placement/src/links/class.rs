//! Classes of messages that are estimated apart: by size and by the memory they lie in.

/// A class of message sizes: each but the first and the last is a factor of sixteen wide
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SizeClass(u8);

impl SizeClass {
    /// How many there are
    pub const COUNT: usize = 6;

    /// The class of a message of so many bytes
    #[must_use]
    pub const fn of(bytes: u64) -> Self {
        if bytes < Self(1).bytes_min() {
            return Self(0);
        }
        let class = (bytes.ilog2() - 12) / 4 + 1;
        // The last one has no upper end.
        Self(if class < 5 { class as u8 } else { 5 })
    }

    /// The class at a place in [`SizeClass::all`]; `None` where there is none
    #[must_use]
    pub const fn at(index: u8) -> Option<Self> {
        if (index as usize) < Self::COUNT {
            Some(Self(index))
        } else {
            None
        }
    }

    /// All classes, smallest first
    pub fn all() -> impl Iterator<Item = Self> {
        (0..6).map(Self)
    }

    /// Size of the smallest message of the class, in bytes
    #[must_use]
    pub const fn bytes_min(self) -> u64 {
        match self.0 {
            0 => 0,
            class => 1 << (8 + 4 * class),
        }
    }

    /// Returns whether messages of the class are timed: to read a clock takes longer than to move
    /// shorter ones
    #[must_use]
    pub const fn is_timed(self) -> bool {
        self.bytes_min() >= TIMED_BYTES_MIN
    }

    /// Its place in [`SizeClass::all`]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where the bytes of a message lie
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Memory {
    /// Memory of the host
    #[default]
    Host,
    /// Memory of a device, all of it or a part
    Device,
}

impl Memory {
    /// Both of them
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// `host` or `device`
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

/// Shorter messages are not timed: two looks at the clock are then no part of what they take
pub const TIMED_BYTES_MIN: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_classes_a_factor_of_sixteen_wide() {
        let class = |bytes| SizeClass::of(bytes).index();
        assert_eq!((class(0), class(4095)), (0, 0));
        assert_eq!((class(4096), class((64 << 10) - 1)), (1, 1));
        assert_eq!((class(64 << 10), class((1 << 20) - 1)), (2, 2));
        assert_eq!((class(1 << 20), class((16 << 20) - 1)), (3, 3));
        assert_eq!((class(16 << 20), class((256 << 20) - 1)), (4, 4));
        assert_eq!((class(256 << 20), class(u64::MAX)), (5, 5));
        assert_eq!(SizeClass::all().count(), SizeClass::COUNT);
        for class in SizeClass::all() {
            assert_eq!(SizeClass::of(class.bytes_min()), class);
            assert_eq!(class.is_timed(), class.index() >= 2);
            let index = u8::try_from(class.index()).expect("there are six");
            assert_eq!(SizeClass::at(index), Some(class));
        }
        assert_eq!(SizeClass::at(6), None);
    }
}
