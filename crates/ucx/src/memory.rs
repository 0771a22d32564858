//! Memory that libucp reads from and writes to: of this process, or of a device of NVIDIA's.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};

use crate::abi::{MEMORY_CUDA, REQUEST_MEMORY_TYPE, RequestParam};

/// Memory of a device of NVIDIA's, as an address
///
/// Nothing here touches it: libucp gets its type, and has the device copy it. An address that is
/// none of a device fails the operation, as it fails a copy of CUDA's. The caller keeps the memory
/// until the operation is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceRange {
    /// Address of the first byte
    pub address: u64,
    /// How many
    pub bytes: usize,
}

/// Where bytes lie
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) start: *mut c_void,
    pub(crate) bytes: usize,
    is_of_device: bool,
}

impl Place {
    /// Memory that is read
    pub(crate) fn read(memory: &impl Deref<Target = [u8]>) -> Self {
        Self {
            start: memory.as_ptr().cast_mut().cast(),
            bytes: memory.len(),
            is_of_device: false,
        }
    }

    /// Memory that is written to
    pub(crate) fn written(memory: &mut impl DerefMut<Target = [u8]>) -> Self {
        Self {
            start: memory.as_mut_ptr().cast(),
            bytes: memory.len(),
            is_of_device: false,
        }
    }

    /// Memory of a device
    pub(crate) fn of(range: DeviceRange) -> Self {
        Self {
            start: std::ptr::without_provenance_mut(range.address as usize),
            bytes: range.bytes,
            is_of_device: true,
        }
    }

    /// Says in the parameters of a call of which type it is
    ///
    /// Memory of the host is left for libucp to look at: it may be registered with a device.
    pub(crate) fn describe(self, parameters: &mut RequestParam) {
        if self.is_of_device {
            parameters.op_attr_mask |= REQUEST_MEMORY_TYPE;
            parameters.memory_type = MEMORY_CUDA;
        }
    }
}
