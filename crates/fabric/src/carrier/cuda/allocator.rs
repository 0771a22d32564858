//! Memory of a device for what arrives without a place of its own.

use backhaul_proto::Device;

use crate::cuda::allocate;
use crate::memory::{DeviceAllocator, DeviceError, DeviceMemory};

/// Allocates on one device of this process, whichever the peer's is
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaAllocator {
    /// Number of the device in this process
    pub(crate) ordinal: u16,
}

impl DeviceAllocator for CudaAllocator {
    fn allocate(&self, device: Device, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        allocate(self.ordinal, bytes).map_err(|error| DeviceError {
            device,
            bytes,
            detail: error.to_string(),
        })
    }
}
