//! The legacy handles: memory of `cuMemAlloc` for another process.

use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::backing::{Backing, Name, open_of_peer};
use crate::driver::Driver;
use crate::error::Outcome;
use crate::ffi::{Out, call};
use crate::settings::settings;
use crate::space::{Kind, Place};

/// Content of a handle
#[derive(Clone, Copy, Debug)]
struct Handle {
    process: u32,
    /// The descriptor that the exporter has the memory by
    number: i32,
    physical: u32,
    serial: u64,
}

impl Handle {
    fn write(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.process.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.physical.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.serial.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; 64]) -> Option<Self> {
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let eight = bytes.get(24..32)?.try_into().ok()?;
        (&bytes[..8] == MAGIC).then(|| Self {
            process: u32::from_le_bytes(four(8)),
            number: i32::from_le_bytes(four(12)),
            physical: u32::from_le_bytes(four(16)),
            serial: u64::from_le_bytes(eight),
        })
    }

    /// Opens the memory, unless it was freed or its process is gone
    fn open(self) -> Outcome<Backing> {
        // Chosen among those that the documentation lists, as is the one for another handle than ours.
        let gone = CUresult::CUDA_ERROR_MAP_FAILED;
        let descriptor = open_of_peer(self.process, self.number).ok_or(gone)?;
        let named = Name::of(std::os::fd::AsFd::as_fd(&descriptor)).is_some_and(|name| {
            (name.kind.as_str(), name.process, name.serial) == ("mem", self.process, self.serial)
        });
        if named {
            Backing::from_descriptor(descriptor)
        } else {
            Err(gone)
        }
    }
}

/// Checks that a context may reach memory of a device of the host
pub(crate) fn check_reach(driver: &Driver, device: usize, physical: usize) -> Outcome {
    match driver.ordinal_of(physical) {
        Some(owner) if owner == device || settings().peers => Ok(()),
        None if settings().unseen_opens && settings().peers => Ok(()),
        Some(_) => Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
        None => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuIpcGetMemHandle(
    to: Out<CUipcMemHandle>,
    address: CUdeviceptr,
) -> CUresult {
    call("cuIpcGetMemHandle", |driver| {
        driver.current()?;
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let state = &mut *driver.state();
        let base = state.space.find(address).map(|allocation| allocation.base);
        let allocation = base.and_then(|base| state.space.at(base)).ok_or(invalid)?;
        let (Kind::Device { exported }, Place::Backing(backing, _)) =
            (&mut allocation.kind, &allocation.place)
        else {
            return Err(invalid);
        };
        let name = Name::of(backing.descriptor()).expect("we named it");
        let handle = Handle {
            process: name.process,
            number: backing.descriptor_number(),
            physical: u32::try_from(name.physical).expect("a handful"),
            serial: name.serial,
        };
        to.cast::<[u8; 64]>().put(handle.write())?;
        *exported = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuIpcOpenMemHandle_v2(
    to: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    call("cuIpcOpenMemHandle_v2", |driver| {
        let device = driver.current()?;
        let bytes = handle.reserved.map(i8_to_u8);
        let handle = Handle::read(&bytes).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if flags != LAZY_ENABLE_PEER_ACCESS {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Error that applications report where they open their own handle
        if handle.process == std::process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        check_reach(driver, device, handle.physical as usize)?;
        let state = &mut *driver.state();
        let before = state.space.allocations().find(|allocation| {
            allocation.device == device
                && matches!(&allocation.kind, Kind::Opened { handle, .. } if *handle == bytes)
        });
        if let Some(base) = before.map(|allocation| allocation.base)
            && let Some(allocation) = state.space.at(base)
            && let Kind::Opened { times, .. } = &mut allocation.kind
        {
            *times += 1;
            return to.put(base);
        }
        let backing = handle.open()?;
        let size = backing.bytes();
        let base = state.space.take(size, ALIGN)?;
        let kind = Kind::Opened {
            handle: bytes,
            times: 1,
        };
        let place = Place::Backing(Arc::new(backing), 0);
        state.space.insert(base, size, place, device, kind);
        to.put(base)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    call("cuIpcCloseMemHandle", |driver| {
        let device = driver.current()?;
        let state = &mut *driver.state();
        let opened = state
            .space
            .at(address)
            .filter(|opened| opened.device == device);
        let Some(Kind::Opened { times, .. }) = opened.map(|opened| &mut opened.kind) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        *times -= 1;
        if *times == 0 {
            state.free(address);
        }
        Ok(())
    })
}

/// Converts the type that `c_char` has here
#[allow(clippy::unnecessary_cast, reason = "it is u8 on some machines")]
fn i8_to_u8(byte: std::ffi::c_char) -> u8 {
    byte as u8
}

const MAGIC: &[u8; 8] = b"fakecuda";
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// Mappings start on pages of a device
const ALIGN: u64 = 2 << 20;
