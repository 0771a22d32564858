//! Memory of a device: what is known of it here, which is never what lies in it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use backhaul_cuda::{Context, DevicePointer};
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
    /// The stream behind whose work a transfer may touch the memory; [`NO_STREAM`]: it may at once
    stream: u64,
    /// The context that CUDA's driver has named, so that it need not be asked again
    context: Option<Context>,
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
            stream: stream.unwrap_or(NO_STREAM),
            context: None,
            owner,
        }
    }

    /// Describes memory that the driver knows
    pub(crate) fn at(
        place: DevicePointer,
        device: Device,
        stream: Option<u64>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let bytes = usize::try_from(place.bytes()).expect("memory that a process has");
        Self {
            context: Some(place.context()),
            ..Self::new(device, place.address(), bytes, stream, owner)
        }
    }

    /// Returns the driver's description of it, if the driver was asked
    pub(crate) fn place(&self) -> Option<DevicePointer> {
        let (pointer, bytes) = (self.pointer, self.bytes as u64);
        let ordinal = self.device.ordinal;
        let context = self.context?;
        Some(DevicePointer::again(ordinal, context, pointer, bytes))
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

    /// Returns whether there are none
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The stream behind whose work a transfer may touch it, as a `CUstream` in a number; `None`: at
    /// once
    pub fn stream(&self) -> Option<u64> {
        (self.stream != NO_STREAM).then_some(self.stream)
    }

    /// The same, where it is known that nothing is under way there
    #[must_use]
    pub fn settled(&self) -> Self {
        Self {
            stream: NO_STREAM,
            ..self.clone()
        }
    }

    /// Returns the object that keeps the memory
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

/// No `CUstream` is that
const NO_STREAM: u64 = u64::MAX;

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

/// Memory of a device was not available
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{bytes} bytes on {device}: {detail}")]
pub struct DeviceError {
    /// The device, as the peer calls it
    pub device: Device,
    /// Size of the memory, in bytes
    pub bytes: usize,
    /// Error text of the device's library
    pub detail: String,
}
