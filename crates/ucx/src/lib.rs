//! UCX, loaded at run time: one worker, endpoints to others, and active messages, all owning.
//!
//! - [`library`]: finds and opens libucp, once for each process, and refuses what would crash.
//! - [`worker`]: a worker with its context; any thread makes it progress.
//! - [`endpoint`]: the way to a worker of another process.
//! - [`memory`]: what libucp reads and writes: memory of the host, or of a device.
//! - [`message`]: what comes: short messages by value, long ones as an [`Offer`].
//!
//! Nothing here waits but [`Endpoint::flush`] and the end of a worker, both for a bounded time. What UCX
//! calls back runs within a call into UCX, maybe on behalf of another connection: it may leave
//! something for others, and must not call back here.

mod abi;
mod api;
pub mod endpoint;
mod error;
pub mod library;
mod maps;
pub mod memory;
pub mod message;
mod operation;
pub mod worker;

pub use endpoint::Endpoint;
pub use error::{Failed, LoadError, Status, UcxError};
pub use library::{Library, Search, Version};
pub use memory::DeviceRange;
pub use message::{HEADER_BYTES, Header, Offer, Receiver};
pub use worker::{Armed, Worker};
