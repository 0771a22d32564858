//! Events from workers, clients and timers, one `handle_*` each.

mod clients;
mod replicas;
mod runs;
mod status;
mod timeouts;
mod workers;

pub use self::clients::Cancelled;
pub use self::replicas::PlacedResult;
pub use self::runs::{EndedRun, NBYTES_MAX, NO_RUN, TaskErred, TaskFinished};
pub use self::timeouts::TimedOut;
