//! Recommendations of the scheduler's transitions.

use super::ids::TaskId;
use super::task::TaskState;

/// States that tasks should go to next
pub(super) type Recommendations = crate::recommendations::Recommendations<TaskId, TaskState>;
