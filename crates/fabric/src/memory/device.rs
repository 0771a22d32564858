//! Memory of a device: what is known of it here, which is never what lies in it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use backhaul_proto::Device;
use thiserror::Error;

/// Memory of a device, and what keeps it
///
/// Clones are the same memory.
#[derive(Clone)]
pub struct DeviceMemory {
    device: Device,
    /// Address on the device
    pointer: u64,
    bytes: usize,
    /// The stream behind whose work a transfer may touch the memory; `None`: it may at once
    stream: Option<u64>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Describes `bytes` bytes at `pointer` of a device, which `owner` keeps
    pub fn new(
        device: Device,
        pointer: u64,
        bytes: usize,
        stream: Option<u64>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            device,
            pointer,
            bytes,
            stream,
            owner,
        }
    }

    /// The device
    pub fn device(&self) -> Device {
        self.device
    }

    /// Address of the first byte on the device
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// How many bytes
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The stream behind whose work a transfer may touch it, as a `CUstream` in a number; `None`: at
    /// once
    pub fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// What keeps it
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }

    /// A part of it
    ///
    /// # Panics
    ///
    /// If the part is not within.
    #[must_use]
    pub fn slice(&self, offset: usize, bytes: usize) -> Self {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes from {offset} are not within {} bytes",
            self.bytes
        );
        Self {
            pointer: self.pointer + offset as u64,
            bytes,
            ..self.clone()
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &self.device)
            .field("pointer", &format_args!("{:#x}", self.pointer))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Gives memory of devices to what arrives
pub trait DeviceAllocator: fmt::Debug + Send + Sync {
    /// Allocates memory for a segment that lies on the peer's `device`
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: the message is then refused to its receive.
    fn allocate(&self, device: Device, bytes: usize) -> Result<DeviceMemory, DeviceError>;
}

/// Memory of a device was not to be had
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{bytes} bytes on {device}: {detail}")]
pub struct DeviceError {
    /// The device, as the peer calls it
    pub device: Device,
    /// Size of the memory, in bytes
    pub bytes: usize,
    /// What the device's library said
    pub detail: String,
}
