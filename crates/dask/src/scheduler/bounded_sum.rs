//! A sum of many numbers that change one by one, as bounds of what adding them up in turn gives.
//!
//! Adding up n numbers from the first to the last takes n steps and rounds at each, so that a sum
//! that is to have the same bits has to be added up anew. Most comparisons with it are far from
//! equal, and need less: integers keep the exact sum as one number after another changes, and a
//! bound of what rounding may do to it (N. J. Higham, Accuracy and Stability of Numerical
//! Algorithms, 2nd edition, section 4.2) tells whether a comparison is decided.

/// Numbers that were added and not removed again
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BoundedSum {
    /// The sum in units of 2⁻⁵⁰, each number cut off at one
    units: i128,
    /// How many are out of range: negative, too large, or no numbers
    wild: u64,
}

impl BoundedSum {
    /// Adds a number
    pub(super) fn add(&mut self, number: f64) {
        match units_of(number) {
            Some(units) => self.units += units,
            None => self.wild += 1,
        }
    }

    /// Removes a number that was added, which is to be the same to the bit
    pub(super) fn remove(&mut self, number: f64) {
        match units_of(number) {
            Some(units) => self.units -= units,
            None => self.wild -= 1,
        }
    }

    /// Returns bounds of the sum of `count` numbers, added up in any order
    ///
    /// `count` is to be as many as there are, zeros aside, or more. None if some are out of range.
    pub(super) fn bounds(&self, count: usize) -> Option<[f64; 2]> {
        if self.wild > 0 {
            return None;
        }
        let sum = self.units as f64 / UNITS;
        // Rounding at each of n - 1 steps: (n - 1) × 2⁻⁵³ of the sum, and a little of its square.
        // Cutting numbers off at units: n × 2⁻⁵⁰. This is twice as much, as it is itself rounded.
        let steps = count as f64 + 8.0;
        let slack = steps * (sum * f64::EPSILON + 2.0 / UNITS);
        Some([sum - slack, sum + slack])
    }
}

fn units_of(number: f64) -> Option<i128> {
    if (0.0..1024.0).contains(&number) {
        // The same, without a call
        Some(i128::from((number * UNITS) as i64))
    } else if (0.0..=NUMBER_MAX).contains(&number) {
        Some((number * UNITS) as i128)
    } else {
        None
    }
}

/// Units of one
const UNITS: f64 = (1_u64 << 50) as f64;
/// 2⁴⁰, 35,000 years in seconds: of these, 2³⁷ would have to be added before the integers overflow
const NUMBER_MAX: f64 = (1_u64 << 40) as f64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers() -> impl Strategy<Value = f64> {
        prop_oneof![
            0.0..1.0_f64,
            0.0..1e-12_f64,
            (0_u32..2000).prop_map(|millis| f64::from(millis) * 1e-3),
            0.0..NUMBER_MAX,
        ]
    }

    #[test]
    fn numbers_out_of_range_leave_no_bounds_until_they_are_removed() {
        for odd in [-1.0, f64::NAN, f64::INFINITY, 2.0 * NUMBER_MAX] {
            let mut sum = BoundedSum::default();
            sum.add(0.5);
            sum.add(odd);
            assert_eq!(sum.bounds(2), None);
            sum.remove(odd);
            assert!(
                sum.bounds(1)
                    .is_some_and(|[low, high]| low < 0.5 && 0.5 < high)
            );
        }
    }

    proptest! {
        #[test]
        fn sums_in_any_order_lie_within_the_bounds(
            mut kept in prop::collection::vec(numbers(), 0..300),
            removed in prop::collection::vec(numbers(), 0..300),
        ) {
            let mut sum = BoundedSum::default();
            for &number in kept.iter().chain(&removed) {
                sum.add(number);
            }
            for &number in &removed {
                sum.remove(number);
            }
            let [low, high] = sum.bounds(kept.len()).expect("all are in range");
            for _ in 0..3 {
                let in_turn: f64 = kept.iter().sum();
                prop_assert!(low < in_turn && in_turn < high);
                prop_assert!(high - low <= 1e-12 * in_turn + 2e-12);
                kept.reverse();
                let third = kept.len() / 3;
                kept.rotate_left(third);
            }
        }
    }
}
