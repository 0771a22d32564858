//! When a task is run: tuples of numbers, compared as Python compares them.

use std::cmp::Ordering;
use std::sync::Arc;

/// A priority: what is less comes first
///
/// Tasks share it with the inputs that they brought along, and with their places in heaps.
#[derive(Clone, Debug)]
pub struct Priority(Arc<[f64]>);

impl Priority {
    /// The priority that these numbers make; none of them is NaN
    pub fn new(numbers: &[f64]) -> Self {
        debug_assert!(!numbers.iter().any(|number| number.is_nan()));
        Self(numbers.into())
    }

    /// This priority, and a number behind it
    pub(super) fn followed_by(&self, number: i64) -> Self {
        let numbers = self.0.iter().copied();
        Self(numbers.chain([number as f64]).collect())
    }

    /// The numbers
    pub fn numbers(&self) -> &[f64] {
        &self.0
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        let both = self.0.iter().zip(other.0.iter());
        both.map(|(one, another)| one.partial_cmp(another).unwrap_or(Ordering::Equal))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| self.0.len().cmp(&other.0.len()))
    }
}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Priority {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Priority {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_compared_as_tuples() {
        let of = Priority::new;
        assert!(of(&[0.0, 5.0]) < of(&[1.0]));
        assert!(of(&[1.0]) < of(&[1.0, -1.0]));
        assert!(of(&[-0.0, 2.0]) == of(&[0.0, 2.0]));
        assert!(of(&[0.0, 2.0]).followed_by(-3) < of(&[0.0, 2.0]).followed_by(-2));
    }
}
