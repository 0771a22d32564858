//! How many paths lead to each task: the first thing that Dask goes by.
//!
//! The counts grow as fast as products do, so they are added up in numbers of any size where 64
//! bits do not suffice. Only their order matters afterwards.

use std::cmp::Ordering;

use super::adjacency::Adjacency;
use super::ids::{PerTask, TaskId};

/// Numbers that compare as the counts of paths that end in each task: one, and those of all its
/// dependencies
///
/// `sorted` holds every task that counts, each after its dependencies.
pub(super) fn path_ranks(dependencies: &Adjacency, sorted: &[TaskId]) -> PerTask<u64> {
    small_counts(dependencies, sorted).unwrap_or_else(|| large_ranks(dependencies, sorted))
}

/// The counts themselves, if they fit
fn small_counts(dependencies: &Adjacency, sorted: &[TaskId]) -> Option<PerTask<u64>> {
    let mut counts = PerTask::filled(0u64, dependencies.tasks());
    for &task in sorted {
        counts[task] = dependencies
            .of(task)
            .iter()
            .try_fold(1u64, |sum, &other| sum.checked_add(counts[other]))?;
    }
    Some(counts)
}

/// For each task the place of its count among all counts
fn large_ranks(dependencies: &Adjacency, sorted: &[TaskId]) -> PerTask<u64> {
    let mut counts = PerTask::filled(Large::default(), dependencies.tasks());
    for &task in sorted {
        let mut sum = Large(vec![1]);
        for &other in dependencies.of(task) {
            sum.add(&counts[other]);
        }
        counts[task] = sum;
    }
    let mut by_count = sorted.to_vec();
    by_count.sort_unstable_by(|&one, &other| counts[one].cmp(&counts[other]));
    let mut ranks = PerTask::filled(0, dependencies.tasks());
    let mut rank = 0;
    for pair in by_count.windows(2) {
        rank += u64::from(counts[pair[0]] != counts[pair[1]]);
        ranks[pair[1]] = rank;
    }
    ranks
}

/// A natural number of any size: 64-bit digits, the lowest first, the highest not 0
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Large(Vec<u64>);

impl Large {
    fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut carry = false;
        for (index, digit) in self.0.iter_mut().enumerate() {
            let addend = other.0.get(index).copied().unwrap_or(0);
            let (sum, over) = digit.overflowing_add(addend);
            let (sum, over_by_carry) = sum.overflowing_add(u64::from(carry));
            *digit = sum;
            carry = over || over_by_carry;
        }
        if carry {
            self.0.push(1);
        }
    }
}

impl Ord for Large {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other) = (&self.0, &other.0);
        one.len()
            .cmp(&other.len())
            .then_with(|| one.iter().rev().cmp(other.iter().rev()))
    }
}

impl PartialOrd for Large {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_carry_into_new_digits() {
        let mut sum = Large(vec![u64::MAX, u64::MAX]);
        sum.add(&Large(vec![1]));
        assert_eq!(sum, Large(vec![0, 0, 1]));
        assert!(sum > Large(vec![u64::MAX, u64::MAX]));
    }

    #[test]
    fn counts_beyond_64_bits_keep_their_order() {
        // Each task depends on the two before it twice over: the counts grow exponentially.
        let tasks = 300u32;
        let mut dependencies = Adjacency::new();
        for task in 0..tasks {
            dependencies.push((task.saturating_sub(3)..task).map(TaskId));
        }
        let sorted: Vec<_> = dependencies.ids().collect();
        assert!(small_counts(&dependencies, &sorted).is_none());
        let ranks = path_ranks(&dependencies, &sorted);
        for pair in sorted.windows(2) {
            assert_eq!(ranks[pair[0]] + 1, ranks[pair[1]]);
        }
    }

    #[test]
    fn large_ranks_order_as_small_counts_do() {
        let mut dependencies = Adjacency::new();
        for task in 0..40u32 {
            dependencies.push((0..task).filter(|other| task % (other + 2) < 2).map(TaskId));
        }
        let sorted: Vec<_> = dependencies.ids().collect();
        let small = small_counts(&dependencies, &sorted).expect("few paths");
        let large = large_ranks(&dependencies, &sorted);
        for &one in &sorted {
            for &other in &sorted {
                assert_eq!(small[one].cmp(&small[other]), large[one].cmp(&large[other]));
            }
        }
    }
}
