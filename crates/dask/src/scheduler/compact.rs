//! Values that a task may lack, in no more memory than the values: there are millions of tasks.

use std::cmp::Ordering;

use super::task::Priority;

/// A number, or none, for which the largest stands: that one is kept as the one before it
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NumberOrNone(u64);

impl NumberOrNone {
    pub(super) const NONE: Self = Self(u64::MAX);

    pub(super) const fn some(number: u64) -> Self {
        Self(if number == u64::MAX {
            number - 1
        } else {
            number
        })
    }

    pub(super) const fn get(self) -> Option<u64> {
        if self.0 == u64::MAX {
            None
        } else {
            Some(self.0)
        }
    }
}

/// A priority, or none, for which one stands that is no number, as none of a task is
#[derive(Clone, Copy, Debug)]
pub struct PriorityOrNone(Priority);

impl PriorityOrNone {
    pub(super) const NONE: Self = Self(Priority([f64::NAN; 3]));

    /// A priority
    pub const fn some(priority: Priority) -> Self {
        Self(priority)
    }

    /// The priority, or that which stands for none
    pub const fn or_nan(self) -> Priority {
        self.0
    }

    pub(super) const fn get(self) -> Option<Priority> {
        if self.0.0[0].is_nan() {
            None
        } else {
            Some(self.0)
        }
    }
}

impl PartialEq for PriorityOrNone {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

/// None comes first
impl PartialOrd for PriorityOrNone {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(match (self.get(), other.get()) {
            (Some(one), Some(other)) => one.order(&other),
            (one, other) => one.is_some().cmp(&other.is_some()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::task::Task;

    #[test]
    fn kept_values_are_returned() {
        assert_eq!(NumberOrNone::NONE.get(), None);
        for number in [0, 1, u64::MAX - 1] {
            assert_eq!(NumberOrNone::some(number).get(), Some(number));
        }
        assert_eq!(NumberOrNone::some(u64::MAX).get(), Some(u64::MAX - 1));
        assert_eq!(PriorityOrNone::NONE.get(), None);
        let priority = Priority([-0.0, f64::INFINITY, 3.0]);
        assert_eq!(PriorityOrNone::some(priority).get(), Some(priority));
    }

    #[test]
    fn a_task_is_small() {
        assert_eq!(size_of::<Option<Task>>(), 240);
    }
}
