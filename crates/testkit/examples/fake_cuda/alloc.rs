//! Memory of devices, and managed memory.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::backing::Backing;
use crate::ffi::{Out, Stored, call};
use crate::space::{Kind, Place};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAlloc_v2(to: Out<CUdeviceptr>, bytes: usize) -> CUresult {
    call("cuMemAlloc_v2", |driver| {
        let device = driver.current()?;
        if bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = &mut *driver.state();
        state.use_memory(device, bytes)?;
        let made = Backing::create("mem", driver.physical(device), bytes)
            .and_then(|backing| Ok((backing, state.space.take(bytes, ALIGN)?)));
        let (backing, base) = made.inspect_err(|_| state.free_memory(device, bytes))?;
        let place = Place::Backing(Arc::new(backing), 0);
        let kind = Kind::Device { exported: false };
        state.space.insert(base, bytes, place, device, kind);
        to.put(base)
    })
}

/// Frees at once: an operation under way that was not waited for sees freed memory
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFree_v2(address: CUdeviceptr, spare: Stored) -> CUresult {
    call("cuMemFree_v2", |driver| {
        std::hint::black_box(spare);
        // A null pointer is freed by doing nothing, as with `cudaFree`.
        if address == 0 {
            return Ok(());
        }
        driver.current()?;
        let state = &mut *driver.state();
        match state.space.at(address).map(|allocation| &allocation.kind) {
            Some(Kind::Device { .. } | Kind::Managed) => {
                state.free(address);
                Ok(())
            }
            Some(Kind::Pooled { .. }) => {
                let allocation = state.take_pooled(address).expect("it was found");
                state.give_back_pooled(&allocation);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAllocManaged(
    to: Out<CUdeviceptr>,
    bytes: usize,
    flags: u32,
) -> CUresult {
    call("cuMemAllocManaged", |driver| {
        let device = driver.current()?;
        if bytes == 0 || !(flags == ATTACH_GLOBAL || flags == ATTACH_HOST) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = &mut *driver.state();
        state.use_memory(device, bytes)?;
        let backing = Backing::create("managed", driver.physical(device), bytes)
            .inspect_err(|_| state.free_memory(device, bytes))?;
        // Where the driver sees it, the application may look too.
        let base = backing.at(0).expose_provenance() as u64;
        let place = Place::Backing(Arc::new(backing), 0);
        state
            .space
            .insert(base, bytes, place, device, Kind::Managed);
        to.put(base)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAddressRange_v2(
    base: Out<CUdeviceptr>,
    bytes: Out<usize>,
    address: CUdeviceptr,
) -> CUresult {
    call("cuMemGetAddressRange_v2", |driver| {
        driver.current()?;
        let state = driver.state();
        let allocation = state.space.find(address);
        let allocation = allocation.filter(|it| !matches!(it.kind, Kind::Managed));
        let allocation = allocation.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        base.put_if_wanted(allocation.base)?;
        bytes.put_if_wanted(allocation.bytes)
    })
}

/// Alignment of allocations, at least, on a GPU
const ALIGN: u64 = 512;
const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;
