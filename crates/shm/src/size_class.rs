//! Rounding of sizes

/// A size of blocks, four per doubling
///
/// Multiples of 64 bytes up to 256; from there `2^k * (4, 5, 6, 7) / 4`. Above 64 KiB these are
/// multiples of 16 KiB, so of any usual page.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct SizeClass {
    /// Counts the classes from 0, which is that of empty buffers; a byte, since every buffer has one
    index: u8,
}

impl SizeClass {
    /// Smallest class that holds `bytes`, or none if no address space could
    pub(crate) fn for_bytes(bytes: usize) -> Option<Self> {
        if bytes > BYTES_MAX {
            return None;
        }
        let units = bytes.div_ceil(ALIGNMENT_BYTES);
        if units <= STEPS {
            return Some(Self::at(units));
        }
        // `units - 1` has its highest bit at `doublings + 2`; the two bits below choose the step.
        let doublings = ((units - 1) / STEPS).ilog2() as usize;
        let step = ((units - 1) >> doublings) - STEPS;
        Some(Self::at(STEPS + doublings * STEPS + step + 1))
    }

    /// Size of its blocks, in bytes
    pub(crate) fn bytes(self) -> usize {
        let index = self.index();
        if index <= STEPS {
            return index * ALIGNMENT_BYTES;
        }
        let above = index - STEPS - 1;
        ((STEPS + above % STEPS + 1) * ALIGNMENT_BYTES) << (above / STEPS)
    }

    /// Position among the classes, below [`COUNT`](Self::COUNT)
    pub(crate) fn index(self) -> usize {
        usize::from(self.index)
    }

    fn at(index: usize) -> Self {
        debug_assert!(index < Self::COUNT);
        Self { index: index as u8 }
    }

    /// How many classes there are
    pub(crate) const COUNT: usize = STEPS + (BYTES_MAX_LOG2 - 8) * STEPS + 1;
}

/// Alignment of every block, in bytes: a cache line, and the widest vector register
pub(crate) const ALIGNMENT_BYTES: usize = 64;
/// Classes per doubling
const STEPS: usize = 4;
const BYTES_MAX_LOG2: usize = usize::BITS as usize - 2;
/// Half of what a Rust allocation may have; more than there is
const BYTES_MAX: usize = 1 << BYTES_MAX_LOG2;

const _: () = assert!(SizeClass::COUNT <= 256);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_are_multiples_of_a_line_in_rising_order() {
        let sizes: Vec<_> = (0..SizeClass::COUNT)
            .map(|index| SizeClass::at(index).bytes())
            .collect();
        assert_eq!(
            sizes[..11],
            [0, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768]
        );
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert!(sizes.iter().all(|bytes| bytes % ALIGNMENT_BYTES == 0));
        assert_eq!(sizes.last(), Some(&BYTES_MAX));
    }

    #[test]
    fn size_beyond_the_address_space_has_no_class() {
        assert!(SizeClass::for_bytes(BYTES_MAX).is_some());
        assert_eq!(SizeClass::for_bytes(BYTES_MAX + 1), None);
        assert_eq!(SizeClass::for_bytes(usize::MAX), None);
    }

    proptest! {
        #[test]
        fn class_is_the_smallest_that_fits(bits in 0_u32..62, low in any::<usize>()) {
            let bytes = (1 << bits) | (low & ((1 << bits) - 1));
            let class = SizeClass::for_bytes(bytes).unwrap();
            prop_assert!(class.bytes() >= bytes);
            prop_assert!(class.index() < SizeClass::COUNT);
            let smaller = SizeClass::at(class.index() - 1);
            prop_assert!(smaller.bytes() < bytes);
            prop_assert!(bytes <= 256 || class.bytes() - bytes < class.bytes() / 4);
        }
    }
}
