//! Handles by which another process of this host opens memory of ours.

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

/// What another process needs to open an allocation, and where in it something lies
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
        /// What is exported of the pointer
        pointer: [u8; HANDLE_BYTES],
    },
}

/// Makes handles, and keeps those that can be used again
#[derive(Debug, Default)]
pub struct Exporter {
    /// By address and id: another allocation at the address has another id
    allocations: HashMap<(u64, u64), (u64, Handle)>,
    pools: HashMap<PoolHandle, (u64, Arc<OwnedFd>)>,
    exported: u64,
}

impl Exporter {
    /// Makes a handle of the allocation in which an address lies; `None` if it has to be copied first
    ///
    /// # Errors
    ///
    /// What the driver says, which may know better than its description of the allocation.
    pub fn export(
        &mut self,
        driver: &Driver,
        allocation: &Allocation,
        pointer: u64,
    ) -> Result<Option<Export>, CudaError> {
        let _current = Current::enter(driver, allocation.context)?;
        let (id, handle) = match allocation.sharing() {
            Sharing::None(_) => return Ok(None),
            Sharing::Legacy | Sharing::Descriptor => self.handle_of(driver, allocation)?,
            Sharing::Pool(pool) => self.pool_handle(driver, pool, pointer)?,
        };
        let Some(device) = driver.device(allocation.device) else {
            return Ok(None);
        };
        // What is exported of a pointer of a pool is the address of that pointer itself.
        let (offset, allocation_bytes) = match handle {
            Handle::Pool { .. } => (0, allocation.base + allocation.bytes - pointer),
            Handle::Legacy(_) | Handle::Descriptor(_) => {
                (pointer - allocation.base, allocation.bytes)
            }
        };
        Ok(Some(Export {
            device: device.uuid(),
            id,
            allocation_bytes,
            offset,
            handle,
        }))
    }

    fn handle_of(
        &mut self,
        driver: &Driver,
        allocation: &Allocation,
    ) -> Result<(u64, Handle), CudaError> {
        let key = (allocation.base, allocation.id);
        if let Some((id, handle)) = self.allocations.get(&key) {
            return Ok((*id, handle.clone()));
        }
        let handle = match allocation.sharing() {
            Sharing::Legacy => Handle::Legacy(legacy_handle(driver, allocation.base)?),
            _ => Handle::Descriptor(Arc::new(descriptor(driver, allocation.base)?)),
        };
        let id = self.next_id();
        if allocation.id != 0 {
            if self.allocations.len() >= KEPT_MAX {
                self.allocations.clear();
            }
            self.allocations.insert(key, (id, handle.clone()));
        }
        Ok((id, handle))
    }

    fn pool_handle(
        &mut self,
        driver: &Driver,
        pool: PoolHandle,
        pointer: u64,
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
        // SAFETY: a place for the answer; a pointer that is of no pool is refused.
        unsafe { driver.api.cuMemPoolExportPointer(&raw mut data, pointer) }?;
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

/// A descriptor of memory of `cuMemCreate`, which keeps it
fn descriptor(driver: &Driver, base: u64) -> Result<OwnedFd, CudaError> {
    let mut handle = 0;
    let mut raw: c_int = -1;
    // SAFETY: an address that the driver has named, and places for the answers; the handle is released
    // on each way out.
    unsafe {
        driver
            .api
            .cuMemRetainAllocationHandle(&raw mut handle, base as usize as *mut _)?;
        let exported = driver.api.cuMemExportToShareableHandle(
            (&raw mut raw).cast(),
            handle,
            DESCRIPTOR_KIND,
            0,
        );
        let released = driver.api.cuMemRelease(handle);
        exported.and(released)?;
        Ok(OwnedFd::from_raw_fd(raw))
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
