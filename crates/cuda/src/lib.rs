//! CUDA, loaded at run time: memory of devices that other processes can reach, and copies of it.
//!
//! - [`driver`]: finds and opens libcuda, once for each process, and its devices.
//! - [`memory`]: what lies behind a pointer, and how it can be shared.
//! - [`export`] and [`import`]: handles of memory for another process, and what they open.
//! - [`transfer`]: copies that run by themselves, on streams of our own, after work of others.
//!   Those within a device may take their way [through the host](Detour).
//! - [`arena`]: memory of devices that can be shared, beside any other allocations.
//!
//! Nothing here waits for a device, except functions whose names say so. A thread of the driver
//! reports that a device has finished; no function of CUDA may be called on that thread.

mod api;
pub mod arena;
mod by_host;
mod context;
pub mod driver;
mod error;
pub mod export;
pub mod import;
pub mod memory;
mod place;
mod stage;
mod stream;
pub mod transfer;

pub use arena::{Arena, Block};
pub use by_host::Detour;
pub use context::{Context, Current};
pub use driver::{Device, Driver, Uuid};
pub use error::{CudaError, LoadError};
pub use export::{Export, Handle};
pub use import::Mapping;
pub use memory::{Allocation, DevicePointer, Sharing};
pub use stage::{STAGE_BYTES, Stage};
pub use transfer::{Order, Place, Transfer};
