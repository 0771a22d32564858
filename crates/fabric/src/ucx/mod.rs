//! UCX in the fabric: one worker for each context, which its connections share.
//!
//! - [`devices`]: in whose context UCX calls CUDA.
//! - [`hub`]: the worker, who makes it progress, and when the engine is woken for it.
//! - [`inbox`]: what has come for one connection, and the doorbell that wakes it.
//! - [`peer`]: the one endpoint to a worker of a peer, however many connections there are to it.
//! - [`wire`]: the headers of our active messages.
//!
//! What UCX calls back may run on any thread that calls into it, on behalf of any connection. It only
//! puts things into inboxes and rings doorbells. No lock that it takes is held over a call into UCX.

mod devices;
mod fuzzing;
mod hub;
mod inbox;
mod peer;
mod wire;

pub use fuzzing::UcxMessages;
pub(crate) use hub::{Hub, UcxEnd};
pub(crate) use inbox::Inbox;
pub(crate) use wire::{Kind, header};

/// Bytes on their way to one side of a connection that it has not read, at most
///
/// As much as the rings of shared memory have by default.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;
