//! Pools between processes.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{CUdeviceptr, CUmemoryPool, CUresult};

use crate::ffi::{In, Out, call};
use crate::pool::{ALIGN, KIND, Sort};
use crate::props::POSIX_DESCRIPTOR;
use crate::space::{Kind, Place};
use crate::vmm::{put_descriptor, take_descriptor};

/// An allocation as another process gets it
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PointerData {
    magic: [u8; 8],
    process: u64,
    pool: u64,
    offset: u64,
    bytes: u64,
    serial: u64,
    reserved: [u64; 2],
}

const _: () = assert!(size_of::<PointerData>() == 64);

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolExportToShareableHandle(
    to: Out<c_void>,
    pool: CUmemoryPool,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    call("cuMemPoolExportToShareableHandle", |driver| {
        let state = &mut *driver.state();
        let pool = state.pools.pool(pool)?;
        let allowed = handle_type == POSIX_DESCRIPTOR && pool.handle_types & handle_type != 0;
        let Sort::Own { exported } = &mut pool.sort else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        if !allowed || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put_descriptor(to, &pool.backing)?;
        *exported = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolImportFromShareableHandle(
    to: Out<CUmemoryPool>,
    descriptor: *mut c_void,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    call("cuMemPoolImportFromShareableHandle", |driver| {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (backing, name) = take_descriptor(descriptor, handle_type, KIND)?;
        let device = driver
            .ordinal_of(name.physical)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        let state = &mut *driver.state();
        let handle = state.insert_pool(backing, name, device, handle_type, Sort::Imported);
        to.put(std::ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolExportPointer(
    to: Out<PointerData>,
    address: CUdeviceptr,
) -> CUresult {
    call("cuMemPoolExportPointer", |driver| {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let state = &mut *driver.state();
        let allocation = state.space.at(address).ok_or(invalid)?;
        let (Kind::Pooled { pool, serial }, Place::Backing(_, offset)) =
            (&allocation.kind, &allocation.place)
        else {
            return Err(invalid);
        };
        // "From an already shared memory pool": drivers refuse it before.
        let pool = state.pools.pool(std::ptr::without_provenance_mut(*pool))?;
        if pool.sort != (Sort::Own { exported: true }) {
            return Err(invalid);
        }
        to.put(PointerData {
            magic: *MAGIC,
            process: u64::from(pool.name.process),
            pool: pool.name.serial,
            offset: *offset as u64,
            bytes: allocation.bytes as u64,
            serial: *serial,
            reserved: [0; 2],
        })
    })
}

/// Imports a pointer; one that is imported already comes back as it is, and the first free ends it
/// for all, as with drivers that have this fault (NVIDIA's bug 5570902)
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemPoolImportPointer(
    to: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    data: In<PointerData>,
) -> CUresult {
    call("cuMemPoolImportPointer", |driver| {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let data = data.read()?;
        let state = &mut *driver.state();
        let it = state.pools.pool(pool)?;
        let own = (u64::from(it.name.process), it.name.serial) == (data.process, data.pool);
        if it.sort != Sort::Imported || data.magic != *MAGIC || !own {
            return Err(invalid);
        }
        let size = |number| usize::try_from(number).map_err(|_| invalid);
        let (offset, bytes) = (size(data.offset)?, size(data.bytes)?);
        // A pointer that was freed meanwhile is no pointer any more.
        if !it.has(offset, bytes) || it.slot(offset).load(Ordering::Acquire) != data.serial {
            return Err(invalid);
        }
        let (device, backing) = (it.device, Arc::clone(&it.backing));
        let (pool, serial) = (pool.addr(), data.serial);
        let before = state.space.allocations().find(|allocation| {
            matches!(&allocation.kind, Kind::Pooled { pool: of, serial: its } if (*of, *its) == (pool, serial))
        });
        if let Some(before) = before {
            return to.put(before.base);
        }
        let base = state.space.take(bytes, ALIGN as u64)?;
        state.pools.count(pool);
        let place = Place::Backing(backing, offset);
        state
            .space
            .insert(base, bytes, place, device, Kind::Pooled { pool, serial });
        to.put(base)
    })
}

const MAGIC: &[u8; 8] = b"fakepool";
