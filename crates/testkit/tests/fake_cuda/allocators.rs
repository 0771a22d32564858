//! The driver API for memory that is shared by descriptor: of `cuMemCreate`, and of pools.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool,
};

use crate::cu;
use crate::wrap::{Outcome, Stream};

/// Memory of `cuMemCreate`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Memory(pub(crate) u64);

impl Memory {
    pub(crate) fn create(bytes: usize, handle_type: CUmemAllocationHandleType) -> Outcome<Self> {
        let mut handle = 0;
        cu!(cuMemCreate(
            &mut handle,
            bytes,
            &allocation_prop(handle_type),
            0
        ))?;
        Ok(Self(handle))
    }

    pub(crate) fn export(self) -> Outcome<OwnedFd> {
        let mut number = -1_i32;
        cu!(cuMemExportToShareableHandle(
            (&raw mut number).cast(),
            self.0,
            DESCRIPTOR,
            0
        ))?;
        // SAFETY: the driver has given this descriptor away.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) fn import(descriptor: BorrowedFd<'_>) -> Outcome<Self> {
        let mut handle = 0;
        cu!(cuMemImportFromShareableHandle(
            &mut handle,
            as_handle(descriptor),
            DESCRIPTOR
        ))?;
        Ok(Self(handle))
    }

    pub(crate) fn release(self) -> Outcome {
        cu!(cuMemRelease(self.0))
    }
}

pub(crate) fn allocation_prop(handle_type: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_type,
        location: location(0),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub(crate) fn reserve(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    cu!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0)).unwrap();
    address
}

pub(crate) fn map(address: CUdeviceptr, bytes: usize, memory: Memory) -> Outcome {
    cu!(cuMemMap(address, bytes, 0, memory.0, 0))
}

pub(crate) fn unmap(address: CUdeviceptr, bytes: usize) -> Outcome {
    cu!(cuMemUnmap(address, bytes))
}

/// Lets a device read and write, or only read
pub(crate) fn allow(address: CUdeviceptr, bytes: usize, device: i32, write: bool) -> Outcome {
    let access = access(device, write);
    cu!(cuMemSetAccess(address, bytes, &access, 1))
}

/// A memory pool
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pool(pub(crate) CUmemoryPool);

impl Pool {
    pub(crate) fn default_of(device: i32) -> Self {
        let mut pool = std::ptr::null_mut();
        cu!(cuDeviceGetDefaultMemPool(&mut pool, device)).unwrap();
        Self(pool)
    }

    pub(crate) fn create(device: i32, handle_type: CUmemAllocationHandleType) -> Outcome<Self> {
        let mut pool = std::ptr::null_mut();
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: handle_type,
            location: location(device),
            win32SecurityAttributes: std::ptr::null_mut(),
            reserved: [0; 64],
        };
        cu!(cuMemPoolCreate(&mut pool, &props))?;
        Ok(Self(pool))
    }

    pub(crate) fn alloc(self, bytes: usize, stream: Stream) -> Outcome<CUdeviceptr> {
        let mut address = 0;
        cu!(cuMemAllocFromPoolAsync(
            &mut address,
            bytes,
            self.0,
            stream.0
        ))?;
        Ok(address)
    }

    pub(crate) fn export(self) -> Outcome<OwnedFd> {
        let mut number = -1_i32;
        let to: *mut c_void = (&raw mut number).cast();
        cu!(cuMemPoolExportToShareableHandle(to, self.0, DESCRIPTOR, 0))?;
        // SAFETY: the driver has given this descriptor away.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) fn import(descriptor: BorrowedFd<'_>) -> Outcome<Self> {
        let mut pool = std::ptr::null_mut();
        cu!(cuMemPoolImportFromShareableHandle(
            &mut pool,
            as_handle(descriptor),
            DESCRIPTOR,
            0
        ))?;
        Ok(Self(pool))
    }

    pub(crate) fn import_pointer(self, data: &[u8]) -> Outcome<CUdeviceptr> {
        let mut address = 0;
        let reserved = data.try_into().unwrap();
        let mut data = CUmemPoolPtrExportData { reserved };
        cu!(cuMemPoolImportPointer(&mut address, self.0, &mut data))?;
        Ok(address)
    }

    pub(crate) fn allow(self, device: i32) -> Outcome {
        let access = access(device, true);
        cu!(cuMemPoolSetAccess(self.0, &access, 1))
    }

    pub(crate) fn destroy(self) -> Outcome {
        cu!(cuMemPoolDestroy(self.0))
    }
}

pub(crate) fn export_pointer(address: CUdeviceptr) -> Outcome<[u8; 64]> {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    cu!(cuMemPoolExportPointer(&mut data, address))?;
    Ok(data.reserved)
}

pub(crate) fn free_async(address: CUdeviceptr, stream: Stream) -> Outcome {
    cu!(cuMemFreeAsync(address, stream.0))
}

fn access(device: i32, write: bool) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: if write {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
        },
    }
}

fn location(device: i32) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

/// A descriptor as the driver takes it
fn as_handle(descriptor: BorrowedFd<'_>) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(descriptor.as_raw_fd()).unwrap())
}

pub(crate) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub(crate) const NO_HANDLE: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
