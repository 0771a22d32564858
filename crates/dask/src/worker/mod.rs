//! The state and transitions of a worker, equal to those of
//! `distributed.worker_state_machine.WorkerState`.
//!
//! Events in, instructions out: no clock, no I/O, no interpreter. Values, logs and time are the
//! caller's ([`Host`]). `docs/design/worker-core.md` says what it is for, and what is left to Dask.

mod core;
mod counter;
mod error;
mod events;
mod fetching;
mod heap;
mod host;
mod ids;
mod inherit;
mod priority;
mod state;
mod task;
mod transitions;
mod unwanted;
mod views;

pub use self::core::{Counters, Limits, WorkerCore};
pub use self::counter::{Group, TaskCounts};
pub use self::error::Refused;
pub use self::events::Asked;
pub use self::host::{Host, Instruction, Line, Stored};
pub use self::ids::{PayloadId, PeerId, PrefixId, TaskId};
pub use self::inherit::{InheritedHeap, InheritedTask};
pub use self::priority::Priority;
pub use self::state::State;
pub use self::views::{HeapView, TaskView};
