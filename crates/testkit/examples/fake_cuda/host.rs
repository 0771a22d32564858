//! Pinned memory of the host.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::backing::Backing;
use crate::ffi::{Out, Stored, call};
use crate::space::{Kind, Place};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostAlloc(
    to: Out<*mut c_void>,
    bytes: usize,
    flags: u32,
) -> CUresult {
    call("cuMemHostAlloc", |driver| {
        let device = driver.current()?;
        // Write-combined memory would need a second address for the device.
        if bytes == 0 || flags & !(PORTABLE | DEVICEMAP) != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let backing = Backing::create("host", driver.physical(device), bytes)?;
        let pointer = backing.at(0);
        let base = pointer.expose_provenance() as u64;
        let place = Place::Backing(Arc::new(backing), 0);
        let space = &mut driver.state().space;
        space.insert(base, bytes, place, device, Kind::Pinned);
        to.put(pointer.cast())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemFreeHost(pointer: *mut c_void, spare: Stored) -> CUresult {
    call("cuMemFreeHost", |driver| {
        std::hint::black_box(spare);
        driver.current()?;
        let state = &mut *driver.state();
        let base = pointer.addr() as u64;
        match state.space.at(base).map(|allocation| &allocation.kind) {
            Some(Kind::Pinned) => {
                state.free(base);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostRegister_v2(
    pointer: *mut c_void,
    bytes: usize,
    flags: u32,
) -> CUresult {
    call("cuMemHostRegister_v2", |driver| {
        let device = driver.current()?;
        let base = pointer.expose_provenance();
        let space = &mut driver.state().space;
        let ours = space.reserves(base as u64);
        if pointer.is_null() || bytes == 0 || ours || flags & !(PORTABLE | DEVICEMAP) != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if space.overlaps(base as u64, bytes) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        space.insert(
            base as u64,
            bytes,
            Place::Host(base),
            device,
            Kind::Registered,
        );
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemHostUnregister(pointer: *mut c_void) -> CUresult {
    call("cuMemHostUnregister", |driver| {
        driver.current()?;
        let space = &mut driver.state().space;
        let base = pointer.addr() as u64;
        match space.at(base).map(|allocation| &allocation.kind) {
            Some(Kind::Registered) => {
                space.remove(base);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
    })
}

const PORTABLE: u32 = 1;
const DEVICEMAP: u32 = 2;
