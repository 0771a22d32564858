//! Kernels of a dataframe exchange: hash partitioning, stable scatter, assembly
//!
//! An exchange redistributes the rows of N input partitions over P output partitions.
//!
//! - [`Partitioning`] maps each row of an input partition to an output partition.
//! - [`Layout`] and [`Partitioning::write`] group the rows by output partition in one *block*.
//! - [`Block`] reads a block, and [`assemble`] concatenates the pieces of one output partition.
//! - [`Join`] joins one output partition of two frames, and gathers the rows from the blocks.
//! - [`extract`] reads the piece of one output partition of a block that is in a file.
//!
//! All functions work on byte slices or read functions of the caller. No I/O, no threads, no Python, no Dask. Blocks
//! may come from another process, so that every length and offset in a block is checked.

#![forbid(unsafe_code)]

mod assemble;
mod block;
mod column;
mod extract;
mod hash;
mod join;
mod order;
mod partition;

pub use assemble::{Target, assemble, piece_bytes, piece_rows};
pub use block::{Block, Layout};
pub use column::{Column, Kind, Text};
pub use extract::extract;
pub use hash::hash_rows;
pub use join::{Join, JoinKind, Scratch, Side, Source};
pub use order::Order;
pub use partition::Partitioning;

use thiserror::Error;

/// The input of an exchange is inconsistent; a retry does not help
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ExchangeError {
    /// A column has another number of rows than the partition
    #[error("column of {found} bytes where {expected} are expected")]
    ColumnBytes {
        /// Bytes of the column
        found: usize,
        /// Bytes that the rows of the partition need
        expected: usize,
    },
    /// Text offsets decrease, or exceed the text
    #[error("text offsets {start}..{end} of {bytes} bytes")]
    TextOffsets {
        /// First byte of the value
        start: u64,
        /// End of the value
        end: u64,
        /// Bytes of the text
        bytes: usize,
    },
    /// More rows or partitions than this version handles
    #[error("{found} exceeds the limit of {limit}")]
    TooMany {
        /// The number
        found: usize,
        /// The largest number that is allowed
        limit: usize,
    },
    /// A partition column has an unsupported width
    #[error("partition numbers of {width} bytes")]
    NumberWidth {
        /// Bytes of one number
        width: usize,
    },
    /// A buffer has another size than the data that it receives
    #[error("target of {found} bytes where {expected} are expected")]
    TargetBytes {
        /// Bytes of the target
        found: usize,
        /// Bytes of the data
        expected: usize,
    },
    /// The block is truncated, corrupt, or of another version
    #[error("invalid block: {0}")]
    InvalidBlock(&'static str),
    /// Blocks of one exchange differ in their columns or partitions
    #[error("blocks of one exchange differ in their columns or partitions")]
    Mismatch,
}

/// Reads the little-endian word at an index of a slice of words
pub(crate) fn word(words: &[[u8; 8]], index: usize) -> Option<u64> {
    words.get(index).map(|&bytes| u64::from_le_bytes(bytes))
}
