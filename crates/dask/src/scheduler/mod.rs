//! The scheduler's state and transitions, equal to those of `distributed.scheduler.SchedulerState`.
//!
//! Events in, messages out: no clock, no I/O, no interpreter. `docs/design/scheduler-core.md` has
//! the contract, the order of all collections, and the duties of the caller.

mod bounded_sum;
mod client;
mod compact;
mod config;
mod core;
mod decide;
mod error;
mod graph;
mod groups;
mod ids;
mod inherit;
mod key_table;
mod live;
mod loads;
mod looks;
mod messages;
mod names;
mod occupancy;
mod placing;
mod prefix_counts;
mod queue;
mod recent;
mod recent_runs;
mod recommendations;
mod replicas;
mod restrictions;
mod room;
mod room_view;
mod roots;
mod run_record;
mod slots;
mod stealing;
mod stealing_view;
mod stimuli;
mod task;
mod transitions;
mod views;
mod waiting_room;
mod worker;

pub use self::compact::PriorityOrNone;
pub use self::config::Config;
pub use self::core::SchedulerCore;
pub use self::error::{EventError, InheritError};
pub use self::graph::{Graph, GraphOutcome, GraphTask};
pub use self::inherit::Inherited;
pub use self::live::{Container, Front, ReplicatedTask, RunningTask, WorkerRoom};
pub use self::looks::{ClusterLoad, Noted, TaskSet, TaskValue, Watched, WorkerLoad};
pub use self::messages::{
    ClientMessage, ComputeTask, Holders, Message, TaskError, Transition, WorkerMessage,
};
pub use self::placing::{PlacingView, PlannedRoot};
pub use self::recent::PastTransition;
pub use self::room::Unmet;
pub use self::room_view::RoomView;
pub use self::run_record::{RecordedRun, RunRecord};
pub use self::stealing::{StealAnswered, StealRequested};
pub use self::stealing_view::{MoveView, StealingView};
pub use self::stimuli::{
    Cancelled, EndedRun, NBYTES_MAX, NO_RUN, PlacedResult, TaskErred, TaskFinished, TimedOut,
};
pub use self::task::{ErredTask, Key, Payload, Priority, Requirements, Spec, TaskState};
pub use self::views::{
    Amounts, ClusterView, CollectionView, GroupView, PrefixView, TaskView, WorkerView,
};
pub use self::worker::{WorkerJoins, WorkerStatus};
