//! Properties of a pointer: its allocation and device, and how another process can open it.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUmemoryPool, CUpointer_attribute};
use thiserror::Error;

use crate::context::{Context, Current};
use crate::driver::{Device, Driver};
use crate::error::CudaError;

/// An allocation of a device, as the driver describes it
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(crate) device: u16,
    /// Where it was allocated; that of the device where the driver names none
    pub(crate) context: Context,
    /// Address of its first byte
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// Tells it from others, those before it at the same address too; 0 where the driver does not
    pub(crate) id: u64,
    sharing: Sharing,
}

/// How another process gets at an allocation
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sharing {
    /// By a handle of 64 bytes: memory of `cuMemAlloc`, and what pools cut from it
    Legacy,
    /// By a descriptor: memory of `cuMemCreate` that was made for it
    Descriptor,
    /// By a descriptor of its pool, which was made for it
    Pool(PoolHandle),
    /// Not at all, for this reason: it has to be copied first
    None(&'static str),
}

/// A memory pool of the driver
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PoolHandle(pub(crate) CUmemoryPool);

// SAFETY: only handed to functions of the driver, any thread may call them.
unsafe impl Send for PoolHandle {}
// SAFETY: as above.
unsafe impl Sync for PoolHandle {}

/// Memory of a device, which has been looked at
#[derive(Clone, Copy, Debug)]
pub struct DevicePointer {
    pub(crate) device: u16,
    pub(crate) context: Context,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Memory that is none of a device, or not all of it
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The driver knows no such memory
    #[error("{pointer:#x} is no memory of a device")]
    NotOfDevice {
        /// The address
        pointer: u64,
    },
    /// There is less
    #[error("{bytes} bytes at {pointer:#x} are not within {} bytes at {:#x}", .range.1, .range.0)]
    OutOfRange {
        /// The address
        pointer: u64,
        /// How many were said to be there
        bytes: u64,
        /// Address and bytes of the memory there
        range: (u64, u64),
    },
    /// The driver failed
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Allocation {
    /// Describes the allocation in which `bytes` bytes at an address lie
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn of(driver: &Driver, pointer: u64, bytes: u64) -> Result<Self, MemoryError> {
        let known = Attributes::of(driver, pointer)?;
        let device = u16::try_from(known.ordinal).ok();
        let device = device.and_then(|ordinal| driver.device(ordinal));
        let (Some(device), MEMORY_OF_DEVICE) = (device, known.memory) else {
            return Err(MemoryError::NotOfDevice { pointer });
        };
        let context = context_of(driver, device, &known)?;
        let _current = Current::enter(driver, context)?;
        let found = Details::of(driver, pointer)?;
        let mut sharing = found.sharing(&known);
        let mut range = match found.bytes as u64 {
            // The driver keeps the range of managed memory to itself.
            0 => (pointer, bytes),
            size => (found.base, size),
        };
        if !contains(range, pointer, bytes) {
            return Err(MemoryError::OutOfRange {
                pointer,
                bytes,
                range,
            });
        }
        if sharing == Sharing::Descriptor {
            // So far it is the range of addresses that was reserved, of which this may be a part.
            match mapping_of(driver, pointer) {
                Ok(mapping) if contains(mapping, pointer, bytes) => range = mapping,
                _ => sharing = Sharing::None("it spans several allocations"),
            }
        }
        Ok(Self {
            device: device.ordinal(),
            context,
            base: range.0,
            bytes: range.1,
            id: found.id,
            sharing,
        })
    }

    /// How another process gets at it
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Number of its device in this process
    #[must_use]
    pub fn device(&self) -> u16 {
        self.device
    }

    /// A part of it
    #[must_use]
    pub fn part(&self, pointer: u64, bytes: u64) -> DevicePointer {
        DevicePointer {
            device: self.device,
            context: self.context,
            address: pointer,
            bytes,
        }
    }
}

/// The context to which memory belongs: another one than the primary if the program has made it
fn context_of(driver: &Driver, device: &Device, known: &Attributes) -> Result<Context, CudaError> {
    match Context::new(known.context.cast()) {
        Some(context) => Ok(context),
        None => device.context(driver),
    }
}

/// Returns the mapping that holds an address: its first address, and bytes
fn mapping_of(driver: &Driver, pointer: u64) -> Result<(u64, u64), CudaError> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: places for the answers; any address may be asked for.
    unsafe {
        driver
            .api
            .cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, pointer)
    }?;
    Ok((base, bytes as u64))
}

fn contains((base, size): (u64, u64), pointer: u64, bytes: u64) -> bool {
    let end = pointer.checked_add(bytes);
    pointer >= base && end.is_some_and(|end| end <= base.saturating_add(size))
}

/// Driver's description of any pointer, whatever context is current
struct Attributes {
    context: *mut c_void,
    memory: c_uint,
    is_managed: c_uint,
    ordinal: c_int,
}

impl Attributes {
    fn of(driver: &Driver, pointer: u64) -> Result<Self, CudaError> {
        let mut found = Self {
            context: std::ptr::null_mut(),
            memory: 0,
            is_managed: 0,
            ordinal: -1,
        };
        // SAFETY: a place for each answer, at least as large as the documentation says (a flag may
        // be one byte or four: the rest is zero).
        unsafe {
            ask(
                driver,
                pointer,
                [
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                ],
                [
                    (&raw mut found.context).cast(),
                    (&raw mut found.memory).cast(),
                    (&raw mut found.is_managed).cast(),
                    (&raw mut found.ordinal).cast(),
                ],
            )
        }?;
        Ok(found)
    }
}

/// Driver's description of memory of a device, once its context is current
struct Details {
    id: u64,
    is_legacy: c_uint,
    base: u64,
    bytes: usize,
    handles: u64,
    pool: CUmemoryPool,
}

impl Details {
    fn of(driver: &Driver, pointer: u64) -> Result<Self, CudaError> {
        let mut found = Self {
            id: 0,
            is_legacy: 0,
            base: 0,
            bytes: 0,
            handles: 0,
            pool: std::ptr::null_mut(),
        };
        // SAFETY: as in `Attributes::of`.
        unsafe {
            ask(
                driver,
                pointer,
                [
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                ],
                [
                    (&raw mut found.id).cast(),
                    (&raw mut found.is_legacy).cast(),
                    (&raw mut found.base).cast(),
                    (&raw mut found.bytes).cast(),
                    (&raw mut found.handles).cast(),
                    (&raw mut found.pool).cast(),
                ],
            )
        }?;
        Ok(found)
    }

    fn sharing(&self, known: &Attributes) -> Sharing {
        if known.is_managed != 0 {
            return Sharing::None("managed memory moves between host and devices");
        }
        if !self.pool.is_null() {
            return match self.handles & DESCRIPTORS {
                0 => Sharing::None("its pool was not made to be shared"),
                _ => Sharing::Pool(PoolHandle(self.pool)),
            };
        }
        if self.is_legacy != 0 {
            return Sharing::Legacy;
        }
        match self.handles & DESCRIPTORS {
            // Some drivers say so of memory of `cuMemAlloc`, too (UCX, `cuda_copy_md.c`), which alone
            // has a context. If it is none, the driver refuses a handle.
            0 if !known.context.is_null() => Sharing::Legacy,
            0 => Sharing::None("it was not made to be shared"),
            _ => Sharing::Descriptor,
        }
    }
}

/// Asks the driver what a pointer is
///
/// # Safety
///
/// Each place is as large as the answer to the attribute of its number.
unsafe fn ask<const N: usize>(
    driver: &Driver,
    pointer: u64,
    mut attributes: [CUpointer_attribute; N],
    mut places: [*mut c_void; N],
) -> Result<(), CudaError> {
    // SAFETY: as the caller says. Any address may be asked for.
    unsafe {
        driver.api.cuPointerGetAttributes(
            N as c_uint,
            attributes.as_mut_ptr(),
            places.as_mut_ptr(),
            pointer,
        )
    }
}

impl DevicePointer {
    /// Looks at memory that is said to be a device's
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn of(driver: &Driver, pointer: u64, bytes: u64) -> Result<Self, MemoryError> {
        Ok(Allocation::of(driver, pointer, bytes)?.part(pointer, bytes))
    }

    /// Names memory again that was looked at, by what was found then
    #[must_use]
    pub fn again(device: u16, context: Context, address: u64, bytes: u64) -> Self {
        Self {
            device,
            context,
            address,
            bytes,
        }
    }

    /// Number of its device in this process
    #[must_use]
    pub fn device(&self) -> u16 {
        self.device
    }

    /// The context in which copies name it
    #[must_use]
    pub fn context(&self) -> Context {
        self.context
    }

    /// Makes its context that of this thread, for a library that calls CUDA by itself
    ///
    /// # Errors
    ///
    /// Errors that the driver reports.
    pub fn enter<'d>(&self, driver: &'d Driver) -> Result<Current<'d>, CudaError> {
        Current::enter(driver, self.context)
    }

    /// A part of it
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Self {
        debug_assert!(offset + bytes <= self.bytes, "a part is within");
        Self {
            address: self.address + offset,
            bytes,
            ..*self
        }
    }

    /// Address of its first byte
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// `CU_MEMORYTYPE_DEVICE`
const MEMORY_OF_DEVICE: c_uint = 2;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const DESCRIPTORS: u64 = 1;
