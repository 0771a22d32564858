//! Why a graph was not ordered.

use thiserror::Error;

/// Why a graph was not ordered; ask Dask itself then
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum OrderError {
    /// The caller's graph has a cycle
    #[error("the graph has a cycle")]
    Cycle,
    /// The caller's graph has data that depends on something, which Dask treats in its own way
    #[error("a data node has dependencies")]
    DataWithDependencies,
    /// Two keys are alike in all that decides, even as text: Dask would go by the order of a set
    #[error("two keys cannot be told apart by their text")]
    Ambiguous,
    /// Dask's strategy hangs on how a set lists its members, of which some left and others came
    #[error("the strategy depends on the history of a set")]
    UnknownListing,
    /// More tasks than can be numbered
    #[error("more than 2**32 - 2 tasks")]
    TooManyTasks,
    /// Something that holds for every graph in Dask's algorithm did not
    #[error("unexpected while ordering: {what}")]
    Unexpected {
        /// The condition that did not hold
        what: &'static str,
    },
}
