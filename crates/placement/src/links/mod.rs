//! Estimates of links, learned from what has travelled.
//!
//! The receiver of a message knows when its bytes came. [`NicClock`] says how long it would have
//! taken alone, [`Estimator`] keeps the last few messages of a peer and picks from them, and
//! [`LinkTable`] collects what all receivers say and answers for any two workers, also for those
//! that have never met.

mod busy_clock;
mod class;
mod estimate;
mod estimator;
mod host_pair;
mod load;
mod nic;
mod ring;
mod table;

pub use self::busy_clock::BusyClock;
pub use self::class::{Memory, SizeClass, TIMED_BYTES_MIN};
pub use self::estimate::{Estimate, EstimateError, LinkEstimate};
pub use self::estimator::{Estimator, SampleError};
pub use self::load::Traffic;
pub use self::nic::{Alone, Begun, NicClock};
pub use self::table::{
    Answer, Link, LinkTable, Origin, Prior, Priors, ProcessId, Report, TableError, WorkerId,
};
