//! Descriptions of memory by callers, in the layout of `cuda.h`.
//!
//! cudarc's types have Rust enums in them, which must not be read from a caller that may have put
//! anything there: here these are numbers.

use std::collections::HashMap;

use cudarc::driver::sys::{self, CUresult};

use crate::driver::Driver;
use crate::error::Outcome;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) flags: [u8; 8],
}

/// `CUmemPoolProps`, of which later versions use more of what is reserved here
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) reserved: [u8; 64],
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<PoolProps>() == size_of::<sys::CUmemPoolProps>());
const _: () = assert!(size_of::<AccessDesc>() == size_of::<sys::CUmemAccessDesc>());

/// Which devices may do what with memory that says so
pub(crate) type Access = HashMap<usize, u32>;

impl Location {
    /// The device that it is
    pub(crate) fn device(self, driver: &Driver) -> Outcome<usize> {
        if self.kind != DEVICE {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        driver.device(self.id)
    }

    /// A device as a location
    pub(crate) fn of(device: usize) -> Self {
        Self {
            kind: DEVICE,
            id: i32::try_from(device).expect("an ordinal was an int"),
        }
    }
}

impl AccessDesc {
    /// The device, and what it may do
    pub(crate) fn read(self, driver: &Driver) -> Outcome<(usize, u32)> {
        if !matches!(self.flags, NO_ACCESS | READ | READ_WRITE) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok((self.location.device(driver)?, self.flags))
    }
}

/// The device that memory of these properties is of, if there can be such
pub(crate) fn device_of(
    driver: &Driver,
    kind: u32,
    handle_types: u32,
    location: Location,
) -> Outcome<usize> {
    if kind != PINNED || handle_types & !POSIX_DESCRIPTOR != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    location.device(driver)
}

/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`
pub(crate) const NO_ACCESS: u32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READ`
pub(crate) const READ: u32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub(crate) const READ_WRITE: u32 = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(crate) const POSIX_DESCRIPTOR: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub(crate) const PINNED: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: u32 = 1;
