//! Handles by which another process of this host opens memory of this process.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUipcMemHandle, CUmemAllocationHandleType, CUmemPoolPtrExportData, CUmemoryPool,
};

use crate::context::Current;
use crate::driver::{Driver, Uuid};
use crate::error::CudaError;
use crate::memory::{Allocation, PoolHandle, Sharing};

/// Handle by which another process opens an allocation, and the place of a segment inside
#[derive(Clone, Debug)]
pub struct Export {
    /// The device
    pub device: Uuid,
    /// Tells the allocation, or its pool, from others that this process exports
    pub id: u64,
    /// Size of the allocation, in bytes
    pub allocation_bytes: u64,
    /// Where in the allocation the memory begins
    pub offset: u64,
    /// How to open it
    pub handle: Handle,
}

/// How to open an allocation of another process
#[derive(Clone, Debug)]
pub enum Handle {
    /// By `cuIpcOpenMemHandle`
    Legacy([u8; HANDLE_BYTES]),
    /// By `cuMemImportFromShareableHandle`
    Descriptor(Arc<OwnedFd>),
    /// By `cuMemPoolImportFromShareableHandle`, then `cuMemPoolImportPointer`
    Pool {
        /// The pool
        pool: Arc<OwnedFd>,
        /// Exported handle of the pointer
        pointer: [u8; HANDLE_BYTES],
    },
}

/// Makes handles, and keeps those that can be used again
#[derive(Debug, Default)]
pub struct Exporter {
    /// By address and id: another allocation at the address has another id
    allocations: HashMap<(u64, u64), (u64, [u8; HANDLE_BYTES])>,
    /// By handle, which is not another memory's while it is kept; ids may be of the addresses alone
    descriptors: HashMap<u64, Kept>,
    pools: HashMap<PoolHandle, (u64, Arc<OwnedFd>)>,
    exported: u64,
}

/// Memory of `cuMemCreate` that was exported
#[derive(Debug)]
struct Kept {
    id: u64,
    descriptor: Arc<OwnedFd>,
    retained: Retained,
}

/// A reference to memory of `cuMemCreate`
#[derive(Debug)]
struct Retained {
    driver: &'static Driver,
    handle: u64,
}

impl Exporter {
    /// Makes a handle of the allocation in which an address lies; `None` if it has to be copied first
    ///
    /// # Errors
    ///
    /// Errors that the driver reports, which may know better than its description of the
    /// allocation.
    pub fn export(
        &mut self,
        driver: &'static Driver,
        allocation: &Allocation,
        pointer: u64,
    ) -> Result<Option<Export>, CudaError> {
        let _current = Current::enter(driver, allocation.context)?;
        let (id, handle) = match allocation.sharing() {
            Sharing::None(_) => return Ok(None),
            Sharing::Legacy => self.legacy_handle(driver, allocation)?,
            Sharing::Descriptor => self.descriptor(driver, allocation.base)?,
            Sharing::Pool(pool) => self.pool_handle(driver, pool, allocation.base)?,
        };
        let Some(device) = driver.device(allocation.device) else {
            return Ok(None);
        };
        Ok(Some(Export {
            device: device.uuid(),
            id,
            allocation_bytes: allocation.bytes,
            offset: pointer - allocation.base,
            handle,
        }))
    }

    fn legacy_handle(
        &mut self,
        driver: &Driver,
        allocation: &Allocation,
    ) -> Result<(u64, Handle), CudaError> {
        let key = (allocation.base, allocation.id);
        if let Some((id, handle)) = self.allocations.get(&key) {
            return Ok((*id, Handle::Legacy(*handle)));
        }
        let handle = legacy_handle(driver, allocation.base)?;
        let id = self.next_id();
        if allocation.id != 0 {
            if self.allocations.len() >= KEPT_MAX {
                self.allocations.clear();
            }
            self.allocations.insert(key, (id, handle));
        }
        Ok((id, Handle::Legacy(handle)))
    }

    fn descriptor(
        &mut self,
        driver: &'static Driver,
        base: u64,
    ) -> Result<(u64, Handle), CudaError> {
        let retained = Retained::of(driver, base)?;
        if let Some(kept) = self.descriptors.get(&retained.handle) {
            return Ok((kept.id, Handle::Descriptor(Arc::clone(&kept.descriptor))));
        }
        let descriptor = Arc::new(retained.descriptor()?);
        let id = self.next_id();
        if self.descriptors.len() >= KEPT_MAX {
            self.descriptors.clear();
        }
        let kept = Kept {
            id,
            descriptor: Arc::clone(&descriptor),
            retained,
        };
        self.descriptors.insert(kept.retained.handle, kept);
        Ok((id, Handle::Descriptor(descriptor)))
    }

    fn pool_handle(
        &mut self,
        driver: &Driver,
        pool: PoolHandle,
        base: u64,
    ) -> Result<(u64, Handle), CudaError> {
        let (id, descriptor) = match self.pools.get(&pool) {
            Some((id, descriptor)) => (*id, Arc::clone(descriptor)),
            None => {
                let descriptor = Arc::new(pool_descriptor(driver, pool.0)?);
                let id = self.next_id();
                if self.pools.len() >= KEPT_MAX {
                    self.pools.clear();
                }
                self.pools.insert(pool, (id, Arc::clone(&descriptor)));
                (id, descriptor)
            }
        };
        let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
        // SAFETY: a place for the answer; an address that begins nothing of a pool is refused.
        unsafe { driver.api.cuMemPoolExportPointer(&raw mut data, base) }?;
        let handle = Handle::Pool {
            pool: descriptor,
            pointer: data.reserved,
        };
        Ok((id, handle))
    }

    fn next_id(&mut self) -> u64 {
        self.exported += 1;
        self.exported
    }
}

fn legacy_handle(driver: &Driver, base: u64) -> Result<[u8; HANDLE_BYTES], CudaError> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: a place for the answer; what is no memory of this kind is refused.
    unsafe { driver.api.cuIpcGetMemHandle(&raw mut handle, base) }?;
    Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
}

impl Retained {
    /// The memory that was mapped at an address
    fn of(driver: &'static Driver, base: u64) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: an address that the driver has named, and a place for the answer.
        unsafe {
            driver
                .api
                .cuMemRetainAllocationHandle(&raw mut handle, base as usize as *mut _)
        }?;
        Ok(Self { driver, handle })
    }

    /// A descriptor of it, which keeps it
    fn descriptor(&self) -> Result<OwnedFd, CudaError> {
        let mut raw: c_int = -1;
        // SAFETY: a handle that is held, and a place for the answer, which is ours then.
        unsafe {
            self.driver.api.cuMemExportToShareableHandle(
                (&raw mut raw).cast(),
                self.handle,
                DESCRIPTOR_KIND,
                0,
            )?;
            Ok(OwnedFd::from_raw_fd(raw))
        }
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, by `of`.
        if let Err(error) = unsafe { self.driver.api.cuMemRelease(self.handle) } {
            tracing::debug!(%error, "memory of a device stays");
        }
    }
}

fn pool_descriptor(driver: &Driver, pool: CUmemoryPool) -> Result<OwnedFd, CudaError> {
    let mut raw: c_int = -1;
    // SAFETY: a pool that the driver has named, and a place for the answer, which is ours then.
    unsafe {
        driver.api.cuMemPoolExportToShareableHandle(
            (&raw mut raw).cast(),
            pool,
            DESCRIPTOR_KIND,
            0,
        )?;
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

/// Descriptors of Linux
pub(crate) const DESCRIPTOR_KIND: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Size of `CUipcMemHandle` and `CUmemPoolPtrExportData`
pub const HANDLE_BYTES: usize = 64;

/// Most handles that are kept; programs have few allocations, or pools that cut them up
const KEPT_MAX: usize = 1024;
