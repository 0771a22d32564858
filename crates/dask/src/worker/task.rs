//! One task of a worker.

use smallvec::SmallVec;

use super::ids::{PeerId, PrefixId, TaskId};
use super::priority::Priority;
use super::state::State;
use crate::ordered_set::OrderedSet;

/// One task, as `distributed.worker_state_machine.TaskState`, without what only Python looks at
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) state: State,
    /// Set while it is cancelled or resumed: what it was
    pub(super) previous: Option<State>,
    /// Set while it is resumed: what it is to be
    pub(super) next: Option<State>,
    /// True if it has been run or fetched, and its transition is due
    pub(super) done: bool,
    /// True if it takes a thread of the pool, a thread beside it, or a transfer
    pub(super) executes: bool,
    pub(super) runs_long: bool,
    pub(super) in_flight: bool,
    /// True if it is in upstream's set `waiting`
    pub(super) waits: bool,
    /// State before the event that is handled, once the event has changed the state
    pub(super) before: Option<State>,
    /// True if it was made by the event that is handled
    pub(super) is_new: bool,
    pub(super) prefix: PrefixId,
    pub(super) run_id: i64,
    pub(super) nbytes: Option<i64>,
    pub(super) priority: Option<Priority>,
    pub(super) coming_from: Option<PeerId>,
    /// Which of the tasks that had this number it is
    pub(super) life: u32,
    /// How many tasks were made before it
    pub(super) born: u64,
    pub(super) dependencies: OrderedSet<TaskId>,
    pub(super) dependents: OrderedSet<TaskId>,
    pub(super) waiting_for_data: OrderedSet<TaskId>,
    pub(super) waiters: OrderedSet<TaskId>,
    /// In the order in which Python's set lists them
    pub(super) who_has: SmallVec<[PeerId; 2]>,
}

impl Task {
    pub(super) fn new(prefix: PrefixId, life: u32, born: u64) -> Self {
        Self {
            state: State::Released,
            previous: None,
            next: None,
            done: false,
            executes: false,
            runs_long: false,
            in_flight: false,
            waits: false,
            before: None,
            is_new: true,
            prefix,
            run_id: NO_RUN,
            nbytes: None,
            priority: None,
            coming_from: None,
            life,
            born,
            dependencies: OrderedSet::new(),
            dependents: OrderedSet::new(),
            waiting_for_data: OrderedSet::new(),
            waiters: OrderedSet::new(),
            who_has: SmallVec::new(),
        }
    }
}

/// The run of a task that was not requested: upstream's `RUN_ID_SENTINEL`
pub(super) const NO_RUN: i64 = -1;
