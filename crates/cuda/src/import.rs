//! Memory of another process, opened here.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{
    CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType,
    CUmemPoolPtrExportData, CUmemoryPool,
};
use thiserror::Error;

use crate::context::Current;
use crate::driver::{Device, Driver, Uuid};
use crate::error::CudaError;
use crate::export::{DESCRIPTOR_KIND, Export, HANDLE_BYTES, Handle};
use crate::memory::{DevicePointer, PoolHandle};
use crate::stream::lock;

/// Memory of another process that is open here, until this is dropped
///
/// It must not be dropped on a thread of the driver, and not before what was begun with it is over.
pub struct Mapping {
    driver: &'static Driver,
    device: &'static Device,
    base: u64,
    bytes: u64,
    opened: Opened,
}

/// Opened memory, by the way to close it
enum Opened {
    Legacy,
    Mapped {
        reserved_bytes: usize,
    },
    /// The pool has to outlive its pointers
    Pointer {
        pool: Arc<Pool>,
    },
}

/// A pool of another process
#[derive(Debug)]
struct Pool {
    driver: &'static Driver,
    pool: PoolHandle,
    /// By address: how often it is in use here, and how often it was imported
    open: Mutex<HashMap<u64, (u32, u32)>>,
}

/// Opens memory of one process, and keeps open what is likely to come again
///
/// Kept memory is memory that its owner does not get back though it frees it, so it is bounded.
#[derive(Default)]
pub struct Importer {
    /// By id: what it was opened by, what it is, and when it was last used
    mappings: HashMap<u64, (Arc<Mapping>, u64)>,
    pools: HashMap<u64, Arc<Pool>>,
    uses: u64,
}

/// Memory of another process cannot be opened
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The device is not seen here
    #[error(
        "it lies on {device}, which this process does not see (CUDA_VISIBLE_DEVICES={visible:?}): have \
         each process see all devices of the host, its own first"
    )]
    NotSeen {
        /// The device
        device: Uuid,
        /// Devices that the environment leaves visible
        visible: Option<String>,
    },
    /// The described range does not fit
    #[error("{bytes} bytes from {offset} are not within {allocation_bytes} bytes")]
    OutOfRange {
        /// How many bytes
        bytes: u64,
        /// Where in the allocation they were said to begin
        offset: u64,
        /// Size of the allocation
        allocation_bytes: u64,
    },
    /// The driver refuses
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Importer {
    /// Opens what was exported, for `reader`, a device of this process
    ///
    /// Memory of a device that this process does not see is opened by the reader, where its handle allows
    /// that.
    ///
    /// # Errors
    ///
    /// [`ImportError`].
    pub fn open(
        &mut self,
        export: &Export,
        bytes: u64,
        reader: u16,
    ) -> Result<Arc<Mapping>, ImportError> {
        let end = export.offset.checked_add(bytes);
        if end.is_none_or(|end| end > export.allocation_bytes) {
            return Err(ImportError::OutOfRange {
                bytes,
                offset: export.offset,
                allocation_bytes: export.allocation_bytes,
            });
        }
        let driver = Driver::get().map_err(|error| match error {
            crate::LoadError::Refused(error) => ImportError::Cuda(error),
            _ => not_seen(export.device),
        })?;
        let seen = driver.find(export.device);
        let by_reader = || match export.handle {
            Handle::Legacy(_) => driver.device(reader),
            Handle::Descriptor(_) | Handle::Pool { .. } => None,
        };
        let device = seen.or_else(by_reader);
        let device = device.ok_or_else(|| not_seen(export.device))?;
        self.uses += 1;
        if let Some((mapping, used)) = self.mappings.get_mut(&export.id) {
            *used = self.uses;
            return Ok(Arc::clone(mapping));
        }
        let _current = Current::enter(driver, device.context(driver)?)?;
        let (base, opened) = match &export.handle {
            Handle::Legacy(handle) => match open_legacy(driver, handle) {
                Ok(base) => (base, Opened::Legacy),
                Err(_) if seen.is_none() => return Err(not_seen(export.device)),
                Err(error) => return Err(error.into()),
            },
            Handle::Descriptor(descriptor) => {
                let reserved_bytes = usize::try_from(export.allocation_bytes).unwrap_or(usize::MAX);
                let base = map(driver, device, descriptor.as_raw_fd(), reserved_bytes)?;
                (base, Opened::Mapped { reserved_bytes })
            }
            Handle::Pool { pool, pointer } => {
                let pool = self.pool(driver, device, export.id, pool.as_raw_fd())?;
                let base = pool.open(*pointer)?;
                (base, Opened::Pointer { pool })
            }
        };
        let mapping = Arc::new(Mapping {
            driver,
            device,
            base,
            bytes: export.allocation_bytes,
            opened,
        });
        // A pointer of a pool has to be given up before its owner frees it.
        if !matches!(export.handle, Handle::Pool { .. }) {
            self.keep(export.id, &mapping);
        }
        Ok(mapping)
    }

    fn keep(&mut self, id: u64, mapping: &Arc<Mapping>) {
        if self.mappings.len() >= KEPT_MAX {
            let oldest = self.mappings.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.mappings.remove(&oldest);
            }
        }
        self.mappings.insert(id, (Arc::clone(mapping), self.uses));
    }

    fn pool(
        &mut self,
        driver: &'static Driver,
        device: &Device,
        id: u64,
        descriptor: i32,
    ) -> Result<Arc<Pool>, CudaError> {
        if let Some(pool) = self.pools.get(&id) {
            return Ok(Arc::clone(pool));
        }
        let mut raw: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: a descriptor, which is passed in the place of a pointer, and a place for the answer.
        unsafe {
            driver.api.cuMemPoolImportFromShareableHandle(
                &raw mut raw,
                descriptor as usize as *mut _,
                DESCRIPTOR_KIND,
                0,
            )
        }?;
        let pool = Arc::new(Pool {
            driver,
            pool: PoolHandle(raw),
            open: Mutex::default(),
        });
        let access = access_from(device);
        // SAFETY: the pool was imported; one description.
        unsafe { driver.api.cuMemPoolSetAccess(raw, &raw const access, 1) }?;
        if self.pools.len() >= KEPT_MAX {
            self.pools.clear();
        }
        self.pools.insert(id, Arc::clone(&pool));
        Ok(pool)
    }
}

impl std::fmt::Debug for Importer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Importer")
            .field("mappings", &self.mappings.len())
            .field("pools", &self.pools.len())
            .finish_non_exhaustive()
    }
}

impl Mapping {
    /// A part of it
    ///
    /// # Errors
    ///
    /// Errors that the driver reports for the context of its device.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<DevicePointer, CudaError> {
        debug_assert!(offset + bytes <= self.bytes, "checked when it was opened");
        Ok(DevicePointer {
            device: self.device.ordinal(),
            context: self.device.context(self.driver)?,
            address: self.base + offset,
            bytes,
        })
    }

    fn close(&self) -> Result<(), CudaError> {
        let api = &self.driver.api;
        let _current = Current::enter(self.driver, self.device.context(self.driver)?)?;
        // SAFETY: opened by `Importer::open` in this context, and nothing uses it any more.
        unsafe {
            match &self.opened {
                Opened::Legacy => api.cuIpcCloseMemHandle(self.base),
                Opened::Mapped { reserved_bytes } => {
                    api.cuMemUnmap(self.base, *reserved_bytes)?;
                    api.cuMemAddressFree(self.base, *reserved_bytes)
                }
                Opened::Pointer { pool } => pool.close(self.base),
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::debug!(%error, "memory of a peer's device stays open");
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping")
            .field("device", &self.device.ordinal())
            .field("base", &format_args!("{:#x}", self.base))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens what its owner has exported of a pointer
    fn open(&self, pointer: [u8; HANDLE_BYTES]) -> Result<u64, CudaError> {
        let mut open = lock(&self.open);
        let mut data = CUmemPoolPtrExportData { reserved: pointer };
        let mut base = 0;
        // SAFETY: a pool that was imported, and places for the answers.
        unsafe {
            self.driver
                .api
                .cuMemPoolImportPointer(&raw mut base, self.pool.0, &raw mut data)
        }?;
        let (used, imported) = open.entry(base).or_default();
        *used += 1;
        *imported += 1;
        Ok(base)
    }

    /// Closes a pointer, once it is not used any more
    ///
    /// With some drivers the first of several closes ends them all (NVIDIA's bug 5570902), with others
    /// each is counted. It is over before the peer hears that it has its memory back, as it has to be.
    fn close(&self, base: u64) -> Result<(), CudaError> {
        let mut open = lock(&self.open);
        let Some((used, imported)) = open.get_mut(&base) else {
            return Ok(());
        };
        *used -= 1;
        if *used > 0 {
            return Ok(());
        }
        let imported = std::mem::take(imported);
        open.remove(&base);
        // SAFETY: imported so often, and nothing uses it any more.
        let mut closes = (0..imported).map(|_| unsafe { self.driver.api.cuMemFree_v2(base) });
        let first = closes.next().unwrap_or(Ok(()));
        closes.for_each(drop);
        first
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: imported, and nothing of it is open any more.
        if let Err(error) = unsafe { self.driver.api.cuMemPoolDestroy(self.pool.0) } {
            tracing::debug!(%error, "a peer's pool stays open");
        }
    }
}

fn not_seen(device: Uuid) -> ImportError {
    ImportError::NotSeen {
        device,
        visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
    }
}

fn open_legacy(driver: &Driver, handle: &[u8; HANDLE_BYTES]) -> Result<u64, CudaError> {
    let handle = CUipcMemHandle {
        reserved: handle.map(|byte| std::ffi::c_char::from_ne_bytes([byte])),
    };
    let mut base = 0;
    // SAFETY: 64 bytes of a peer, which the driver checks, and a place for the answer.
    unsafe {
        driver
            .api
            .cuIpcOpenMemHandle_v2(&raw mut base, handle, LAZY_PEER_ACCESS)
    }?;
    Ok(base)
}

/// Maps what a descriptor stands for
fn map(driver: &Driver, device: &Device, descriptor: i32, bytes: usize) -> Result<u64, CudaError> {
    let api = &driver.api;
    let mut handle = 0;
    // SAFETY: a descriptor, which is passed in the place of a pointer; places for the answers; what is
    // made is undone on the ways out. The handle may be released once it is mapped.
    unsafe {
        api.cuMemImportFromShareableHandle(
            &raw mut handle,
            descriptor as usize as *mut _,
            DESCRIPTOR_KIND,
        )?;
        let mapped = map_handle(driver, device, handle, bytes);
        let released = api.cuMemRelease(handle);
        mapped.and_then(|base| released.map(|()| base))
    }
}

/// Maps memory of `cuMemCreate`, for its device
///
/// # Safety
///
/// The handle is one of memory of so many bytes, and not released yet.
pub(crate) unsafe fn map_handle(
    driver: &Driver,
    device: &Device,
    handle: u64,
    bytes: usize,
) -> Result<u64, CudaError> {
    let api = &driver.api;
    let access = access_from(device);
    let mut base = 0;
    // SAFETY: a range that was just reserved, and the caller's handle; undone on the ways out.
    unsafe {
        api.cuMemAddressReserve(&raw mut base, bytes, 0, 0, 0)?;
        if let Err(error) = api.cuMemMap(base, bytes, 0, handle, 0) {
            let _ = api.cuMemAddressFree(base, bytes);
            return Err(error);
        }
        if let Err(error) = api.cuMemSetAccess(base, bytes, &raw const access, 1) {
            let _ = api.cuMemUnmap(base, bytes);
            let _ = api.cuMemAddressFree(base, bytes);
            return Err(error);
        }
    }
    Ok(base)
}

/// Reading and writing, for work of a device
fn access_from(device: &Device) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location_of(device),
        flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// A device, as the functions of memory name it
pub(crate) fn location_of(device: &Device) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: i32::from(device.ordinal()),
    }
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`
const LAZY_PEER_ACCESS: u32 = 1;

/// Allocations of a process that stay open: pools have few
const KEPT_MAX: usize = 64;
