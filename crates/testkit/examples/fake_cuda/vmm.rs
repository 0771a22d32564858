//! Virtual memory management: memory, addresses, and one put behind the other.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::backing::{Backing, Name};
use crate::driver::State;
use crate::error::Outcome;
use crate::ffi::{In, Out, call};
use crate::props::{
    Access, AccessDesc, AllocationProp, Location, NO_ACCESS, PINNED, POSIX_DESCRIPTOR, device_of,
};
use crate::settings::settings;
use crate::space::{Kind, Place};

/// Memory of this process that can be mapped, and its mappings
#[derive(Debug, Default)]
pub(crate) struct Vmm {
    memory: HashMap<u64, Memory>,
    /// Reserved ranges: where each starts, and how long it is
    reservations: BTreeMap<u64, usize>,
}

/// Memory of `cuMemCreate`, of this process or another
///
/// It is forgotten once neither a handle nor a mapping needs it. Its bytes live as long as any
/// process has them.
#[derive(Debug)]
struct Memory {
    backing: Arc<Backing>,
    device: usize,
    handle_types: u32,
    /// How often the handle has to be released
    references: u32,
    mappings: u32,
    /// True if it counts as memory of this process
    counted: bool,
}

impl Vmm {
    /// The reservation that a range is in: where it starts, and how long it is
    pub(crate) fn reservation(&self, address: u64) -> Option<(u64, usize)> {
        let (&base, &bytes) = self.reservations.range(..=address).next_back()?;
        (address - base < bytes as u64).then_some((base, bytes))
    }

    /// Which handle types memory may be exported as
    pub(crate) fn handle_types(&self, handle: u64) -> u32 {
        self.memory
            .get(&handle)
            .map_or(0, |memory| memory.handle_types)
    }

    fn memory(&mut self, handle: u64) -> Outcome<&mut Memory> {
        self.memory
            .get_mut(&handle)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

impl State {
    fn add_memory(&mut self, memory: Memory) -> u64 {
        let handle = self.next_handle() as u64;
        self.vmm.memory.insert(handle, memory);
        handle
    }

    /// Forgets memory that nothing needs any more
    fn settle(&mut self, handle: u64) {
        let memory = &self.vmm.memory[&handle];
        if memory.references > 0 || memory.mappings > 0 {
            return;
        }
        let memory = self.vmm.memory.remove(&handle).expect("it was there");
        if memory.counted {
            self.free_memory(memory.device, memory.backing.bytes());
        }
    }

    /// The mappings that make up a range exactly
    fn mappings(&self, address: u64, bytes: usize) -> Outcome<Vec<u64>> {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let end = address.checked_add(bytes as u64).ok_or(invalid)?;
        let (mut at, mut bases) = (address, Vec::new());
        while at < end {
            let mapping = self.space.find(at).filter(|mapping| {
                mapping.base == at && matches!(mapping.kind, Kind::Mapped { .. })
            });
            bases.push(at);
            at += mapping.ok_or(invalid)?.bytes as u64;
        }
        if at == end && !bases.is_empty() {
            Ok(bases)
        } else {
            Err(invalid)
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAllocationGranularity(
    to: Out<usize>,
    prop: In<AllocationProp>,
    option: u32,
) -> CUresult {
    call("cuMemGetAllocationGranularity", |driver| {
        let prop = prop.read()?;
        device_of(driver, prop.kind, prop.handle_types, prop.location)?;
        // Minimum and recommended are the same.
        if option > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        to.put(GRANULARITY)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemCreate(
    to: Out<u64>,
    bytes: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> CUresult {
    call("cuMemCreate", |driver| {
        let prop = prop.read()?;
        let device = device_of(driver, prop.kind, prop.handle_types, prop.location)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = &mut *driver.state();
        state.use_memory(device, bytes)?;
        let backing = Backing::create(KIND, driver.physical(device), bytes)
            .inspect_err(|_| state.free_memory(device, bytes))?;
        to.put(state.add_memory(Memory {
            backing: Arc::new(backing),
            device,
            handle_types: prop.handle_types,
            references: 1,
            mappings: 0,
            counted: true,
        }))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRelease(handle: u64) -> CUresult {
    call("cuMemRelease", |driver| {
        let state = &mut *driver.state();
        let memory = state.vmm.memory(handle)?;
        // Memory that is only mapped has no handle to release.
        memory.references = memory
            .references
            .checked_sub(1)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        state.settle(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    to: Out<AllocationProp>,
    handle: u64,
) -> CUresult {
    call("cuMemGetAllocationPropertiesFromHandle", |driver| {
        let state = &mut *driver.state();
        let memory = state.vmm.memory(handle)?;
        to.put(AllocationProp {
            kind: PINNED,
            handle_types: memory.handle_types,
            location: Location::of(memory.device),
            win32: 0,
            flags: [0; 8],
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemExportToShareableHandle(
    to: Out<c_void>,
    handle: u64,
    handle_type: u32,
    flags: u64,
) -> CUresult {
    call("cuMemExportToShareableHandle", |driver| {
        let state = &mut *driver.state();
        let memory = state.vmm.memory(handle)?;
        let allowed = handle_type == POSIX_DESCRIPTOR && memory.handle_types & handle_type != 0;
        if !allowed || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put_descriptor(to, &memory.backing)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemImportFromShareableHandle(
    to: Out<u64>,
    descriptor: *mut c_void,
    handle_type: u32,
) -> CUresult {
    call("cuMemImportFromShareableHandle", |driver| {
        let (backing, name) = take_descriptor(descriptor, handle_type, KIND)?;
        // Error that is reported for devices that a container hides
        let device = driver
            .ordinal_of(name.physical)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        to.put(driver.state().add_memory(Memory {
            backing: Arc::new(backing),
            device,
            handle_types: handle_type,
            references: 1,
            mappings: 0,
            counted: false,
        }))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRetainAllocationHandle(
    to: Out<u64>,
    address: *mut c_void,
) -> CUresult {
    call("cuMemRetainAllocationHandle", |driver| {
        let state = &mut *driver.state();
        let mapping = state.space.find(address.addr() as u64);
        let Some(Kind::Mapped { handle, .. }) = mapping.map(|mapping| &mapping.kind) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let handle = *handle;
        state.vmm.memory(handle)?.references += 1;
        to.put(handle)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressReserve(
    to: Out<CUdeviceptr>,
    bytes: usize,
    align: usize,
    _hint: CUdeviceptr,
    flags: u64,
) -> CUresult {
    call("cuMemAddressReserve", |driver| {
        let align = if align == 0 { GRANULARITY } else { align };
        let pages = bytes > 0 && bytes.is_multiple_of(HOST_PAGE);
        if !pages || !align.is_power_of_two() || flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let state = &mut *driver.state();
        let base = state.space.take(bytes, align.max(GRANULARITY) as u64)?;
        state.vmm.reservations.insert(base, bytes);
        to.put(base)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    call("cuMemAddressFree", |driver| {
        let state = &mut *driver.state();
        let whole = state.vmm.reservations.get(&address) == Some(&bytes);
        if !whole || state.space.overlaps(address, bytes) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.vmm.reservations.remove(&address);
        state.space.give_back(address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: u64,
) -> CUresult {
    call("cuMemMap", |driver| {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let state = &mut *driver.state();
        let (base, reserved) = state.vmm.reservation(address).ok_or(invalid)?;
        let space = &state.space;
        let memory = state.vmm.memory.get_mut(&handle).ok_or(invalid)?;
        let aligned = address.is_multiple_of(GRANULARITY as u64)
            && bytes > 0
            && bytes.is_multiple_of(GRANULARITY);
        // "Currently must be zero" is said of the offset.
        let fits = offset == 0
            && bytes <= memory.backing.bytes()
            && address - base + bytes as u64 <= reserved as u64;
        if !aligned || !fits || flags != 0 || space.overlaps(address, bytes) {
            return Err(invalid);
        }
        memory.mappings += 1;
        let place = Place::Backing(Arc::clone(&memory.backing), 0);
        let access = Access::new();
        let kind = Kind::Mapped { handle, access };
        state
            .space
            .insert(address, bytes, place, memory.device, kind);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    call("cuMemUnmap", |driver| {
        let state = &mut *driver.state();
        for base in state.mappings(address, bytes)? {
            let mapping = state.space.remove(base).expect("it was found");
            if let Kind::Mapped { handle, .. } = mapping.kind {
                state.vmm.memory(handle)?.mappings -= 1;
                state.settle(handle);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    descriptions: In<AccessDesc>,
    count: usize,
) -> CUresult {
    call("cuMemSetAccess", |driver| {
        let state = &mut *driver.state();
        let bases = state.mappings(address, bytes)?;
        let mut granted = Vec::new();
        for description in descriptions.read_all(count)? {
            let (device, flags) = description.read(driver)?;
            let owners = bases.iter().filter_map(|&base| state.space.find(base));
            if flags != NO_ACCESS
                && !settings().peers
                && owners.into_iter().any(|it| it.device != device)
            {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            granted.push((device, flags));
        }
        for base in bases {
            if let Some(Kind::Mapped { access, .. }) =
                state.space.at(base).map(|mapping| &mut mapping.kind)
            {
                access.extend(granted.iter().copied());
            }
        }
        Ok(())
    })
}

/// Gives a descriptor of memory, which the caller has to close
pub(crate) fn put_descriptor(to: Out<c_void>, backing: &Backing) -> Outcome {
    let descriptor = rustix::io::fcntl_dupfd_cloexec(backing.descriptor(), 0)
        .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    to.cast::<i32>().put(descriptor.into_raw_fd())
}

/// Imports the memory of a descriptor, which the caller keeps; it must be memory of this driver
pub(crate) fn take_descriptor(
    descriptor: *mut c_void,
    handle_type: u32,
    kind: &str,
) -> Outcome<(Backing, Name)> {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let number = i32::try_from(descriptor.addr()).map_err(|_| invalid)?;
    if handle_type != POSIX_DESCRIPTOR {
        return Err(invalid);
    }
    // SAFETY: the caller gives an open descriptor, which is borrowed for this call. Were it none,
    // to duplicate it would fail.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let descriptor = rustix::io::fcntl_dupfd_cloexec(descriptor, 0).map_err(|_| invalid)?;
    let name = Name::of(std::os::fd::AsFd::as_fd(&descriptor)).ok_or(invalid)?;
    if name.kind != kind {
        return Err(invalid);
    }
    Ok((Backing::from_descriptor(descriptor)?, name))
}

/// Name of this sort of memory
const KIND: &str = "vmm";
/// Granularity of GPUs
const GRANULARITY: usize = 2 << 20;
const HOST_PAGE: usize = 4096;
