//! Errors of a connection, by whose fault they are.

use thiserror::Error;

/// The peer broke the protocol; the connection is of no further use
///
/// The fault is the peer's, or of the lane between us. A retry on the same connection cannot
/// help.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame of a kind that this version does not know
    #[error("unknown frame kind {kind}")]
    UnknownKind {
        /// Kind found
        kind: u8,
    },
    /// A flag that is unknown, or that this kind of frame cannot carry
    #[error("flags {flags:#04x} are not allowed in a frame of kind {kind}")]
    UnknownFlags {
        /// Flags found
        flags: u8,
        /// Kind of the frame
        kind: u8,
    },
    /// A field that this kind of frame does not use is not zero
    #[error("{field} must be zero in a frame of kind {kind}, got {value}")]
    NotZero {
        /// Name of the field
        field: &'static str,
        /// Value found
        value: u64,
        /// Kind of the frame
        kind: u8,
    },
    /// A frame of a kind that always carries bytes carries none
    #[error("a frame of kind {kind} about message {message} carries no bytes")]
    NoBytes {
        /// Kind of the frame
        kind: u8,
        /// Number of the message
        message: u64,
    },
    /// A message is longer than we said we take
    #[error("message of {bytes} bytes, limit {max}")]
    MessageTooLarge {
        /// Size of the message, in bytes
        bytes: u64,
        /// Limit, in bytes
        max: u64,
    },
    /// A message has more segments than we said we take
    #[error("message of {segments} segments, limit {max}")]
    TooManySegments {
        /// Segments of the message
        segments: u32,
        /// Limit
        max: u32,
    },
    /// The segments do not add up to the message
    #[error("segments of a message of {message_bytes} bytes add up to {segment_bytes}")]
    SegmentsDisagree {
        /// Size of the message, in bytes
        message_bytes: u64,
        /// Bytes of the segments seen so far; [`u64::MAX`] where they exceed it
        segment_bytes: u64,
    },
    /// A message does not have the number after the one before
    #[error("message {message} came when {expected} was next")]
    OutOfOrder {
        /// Number found
        message: u64,
        /// Number that was next
        expected: u64,
    },
    /// More messages than we granted
    #[error("message {message} exceeds the {granted} messages granted")]
    MessageCreditExceeded {
        /// Number of the message, counted from 0
        message: u64,
        /// Messages granted since the start
        granted: u64,
    },
    /// More eager bytes than we granted
    #[error("eager message of {bytes} bytes, only {left} bytes of credit left")]
    ByteCreditExceeded {
        /// Size of the message, in bytes
        bytes: u64,
        /// Credit left, in bytes
        left: u64,
    },
    /// A frame about a message that is not in a state where that frame makes sense
    #[error("frame of kind {kind} about message {message}, which does not wait for it")]
    NotAwaited {
        /// Kind of the frame
        kind: u8,
        /// Number of the message
        message: u64,
    },
    /// More bytes of a message than it has left
    #[error("data of {bytes} bytes for message {message}, which lacks only {left}")]
    TooMuchData {
        /// Number of the message
        message: u64,
        /// Size of the data, in bytes
        bytes: u64,
        /// Bytes the message lacks
        left: u64,
    },
    /// A piece of a message is longer than we said we take
    #[error("a piece of {bytes} bytes of message {message}, limit {max}")]
    PieceTooLarge {
        /// Number of the message
        message: u64,
        /// Size of the piece, in bytes
        bytes: u64,
        /// Limit, in bytes
        max: u64,
    },
    /// Bytes by a carrier that was not agreed on
    #[error("bytes of message {message} by carrier {carrier}, which was not agreed on")]
    UnknownCarrier {
        /// Number of the carrier
        carrier: u8,
        /// Number of the message
        message: u64,
    },
    /// A segment in memory of a kind that this version does not know
    #[error("a segment of message {message} lies in memory of unknown kind {memory:#x}")]
    UnknownMemory {
        /// Number of the kind
        memory: u32,
        /// Number of the message
        message: u64,
    },
    /// A receive into memory of one kind met bytes in another, which were sent all the same
    #[error("bytes of message {message} came on the lane, but lie in {memory}")]
    NotOnTheLane {
        /// Number of the message
        message: u64,
        /// Where they lie
        memory: crate::memory::MemoryKind,
    },
    /// A carrier's ticket for memory that is not there, or not as it must be
    #[error("bad ticket {ticket:#x}: {detail}")]
    BadTicket {
        /// The ticket
        ticket: u64,
        /// Fault of the ticket
        detail: String,
    },
    /// There is no memory for what the peer says of a message before its bytes
    #[error("no memory for the table of {segments} segments")]
    NoMemory {
        /// Segments of the message
        segments: u32,
    },
    /// A frame of a message after the peer said there will be none
    #[error("frame of kind {kind} after close")]
    AfterClose {
        /// Kind of the frame
        kind: u8,
    },
    /// The peer closed with messages unfinished
    #[error("close with {unfinished} messages unfinished")]
    CloseTooEarly {
        /// Messages announced but not finished
        unfinished: usize,
    },
}

/// A send that was not taken; nothing about it is kept
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendRefused {
    /// The message is longer than the peer, or we, allow
    #[error("message of {bytes} bytes, limit {max}")]
    TooLarge {
        /// Size of the message, in bytes; [`u64::MAX`] if it exceeds that
        bytes: u64,
        /// Limit, in bytes
        max: u64,
    },
    /// The message has more segments than the peer, or we, allow
    #[error("message of {segments} segments, limit {max}")]
    TooManySegments {
        /// Segments of the message
        segments: usize,
        /// Limit
        max: u32,
    },
    /// Too many sends wait already; a retry can help once some are out
    #[error("{max} sends are queued, which is the limit")]
    QueueFull {
        /// Limit
        max: usize,
    },
    /// No carrier to this peer reaches the memory of a segment; nothing was sent
    #[error("no carrier to this peer takes {memory}: {detail}")]
    NoCarrier {
        /// Where the segment lies
        memory: crate::memory::MemoryKind,
        /// Which carriers there are, and what would help
        detail: String,
    },
    /// This side has been closed
    #[error("the connection was closed on this side")]
    Closed,
}

/// A receive that was not taken; nothing about it is kept
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RecvRefused {
    /// Too many receives wait already; a retry can help once some are done
    #[error("{max} receives are posted, which is the limit")]
    QueueFull {
        /// Limit
        max: usize,
    },
    /// No carrier from this peer reaches the memory of the buffer
    #[error("no carrier from this peer takes {memory}: {detail}")]
    NoCarrier {
        /// Where the buffer lies
        memory: crate::memory::MemoryKind,
        /// Which carriers there are, and what would help
        detail: String,
    },
    /// The peer has closed, and none of its messages left here matches
    #[error("the peer has closed, and no message left matches")]
    Closed,
}
