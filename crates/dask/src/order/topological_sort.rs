//! The tasks, each after its dependencies.

use super::error::OrderError;
use super::ids::{PerTask, TaskId};
use super::trim::Trimmed;

/// Sorts all tasks that are left, each after its dependencies
///
/// # Errors
///
/// [`OrderError::Cycle`].
pub(super) fn sorted(trimmed: &Trimmed<'_>) -> Result<Vec<TaskId>, OrderError> {
    let dependencies = &trimmed.dependencies;
    let mut needed: PerTask<usize> = dependencies
        .ids()
        .map(|task| dependencies.of(task).len())
        .collect();
    let mut sorted = Vec::with_capacity(trimmed.left());
    sorted.extend(
        dependencies
            .ids()
            .filter(|&task| needed[task] == 0 && !trimmed.is_removed(task)),
    );
    let mut next = 0;
    while let Some(&task) = sorted.get(next) {
        next += 1;
        for &other in trimmed.dependents.of(task) {
            needed[other] -= 1;
            if needed[other] == 0 {
                sorted.push(other);
            }
        }
    }
    if sorted.len() == trimmed.left() {
        Ok(sorted)
    } else {
        Err(OrderError::Cycle)
    }
}
