//! Resources of a worker that tasks may hold: pools of ids and sums, and the leases on them.
//!
//! A pool is *indexed*, where each unit has an id and belongs to one group, or a *sum*, like bytes,
//! of which only the amount counts. [`Pools`] lends both to tasks on one worker; [`Places`] knows
//! of all workers how much of each is spoken for, and which one a task fits best; [`Admission`] is
//! a scheduler's part: which tasks are sent, which wait, and which go next.
//!
//! The scheme, indexed and sum pools in amounts of 1/10,000, of which a fraction comes from one id,
//! is that of HyperQueue's generalized resources (its documentation, "Resource management").

mod admission;
mod declare;
mod drain;
mod indexed;
mod lines;
mod near;
mod places;
mod pools;
mod quantity;
mod request;
mod taste;
mod turns;

pub use self::admission::{Admission, AdmissionView, Asked, BESIDE, CPU, Passed, declared_name};
pub use self::declare::{Coupled, Declaration, DeclareError, IDS_MAX, Indexed};
pub use self::drain::{Drain, Step};
pub use self::indexed::{Choice, IndexedPool};
pub use self::lines::LineKey;
pub use self::places::{AHEAD, Place, Places, PlacesError, RANKINGS_MAX, Signature};
pub use self::pools::{Held, Kind, LeaseId, Pools, TakeError, UnknownLease};
pub use self::quantity::{PER_ONE, Quantity, QuantityError};
pub use self::request::{Request, RequestError, Unmeetable};
pub use self::taste::{RanOn, Ways};
pub use self::turns::{PASSES_MAX, Turns, Waits};

/// Id of one unit of an indexed pool, as its declaration has it
pub type UnitId = u32;
