//! What lies behind a pointer: which allocation of which device, and how another process gets at it.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{CUmemoryPool, CUpointer_attribute};
use thiserror::Error;

use crate::context::Context;
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
        /// What is there: address and bytes
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
        let found = Attributes::of(driver, pointer)?;
        let device = u16::try_from(found.ordinal).ok();
        let device = device.and_then(|ordinal| driver.device(ordinal));
        let (Some(device), MEMORY_OF_DEVICE) = (device, found.memory) else {
            return Err(MemoryError::NotOfDevice { pointer });
        };
        let (base, size) = (found.base, found.bytes as u64);
        let end = pointer.checked_add(bytes);
        if pointer < base || end.is_none_or(|end| end > base + size) {
            return Err(MemoryError::OutOfRange {
                pointer,
                bytes,
                range: (base, size),
            });
        }
        Ok(Self {
            device: device.ordinal(),
            context: context_of(driver, device, &found)?,
            base,
            bytes: size,
            id: found.id,
            sharing: found.sharing(),
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
fn context_of(driver: &Driver, device: &Device, found: &Attributes) -> Result<Context, CudaError> {
    if found.context.is_null() {
        device.context(driver)
    } else {
        Ok(Context(found.context.cast()))
    }
}

/// What the driver says of a pointer
struct Attributes {
    context: *mut c_void,
    memory: c_uint,
    id: u64,
    is_managed: c_uint,
    ordinal: c_int,
    is_legacy: c_uint,
    base: u64,
    bytes: usize,
    handles: u64,
    pool: CUmemoryPool,
}

impl Attributes {
    fn of(driver: &Driver, pointer: u64) -> Result<Self, CudaError> {
        let mut found = Self {
            context: std::ptr::null_mut(),
            memory: 0,
            id: 0,
            is_managed: 0,
            ordinal: -1,
            is_legacy: 0,
            base: 0,
            bytes: 0,
            handles: 0,
            pool: std::ptr::null_mut(),
        };
        let mut asked = [
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        ];
        let mut places: [*mut c_void; 10] = [
            (&raw mut found.context).cast(),
            (&raw mut found.memory).cast(),
            (&raw mut found.id).cast(),
            (&raw mut found.is_managed).cast(),
            (&raw mut found.ordinal).cast(),
            (&raw mut found.is_legacy).cast(),
            (&raw mut found.base).cast(),
            (&raw mut found.bytes).cast(),
            (&raw mut found.handles).cast(),
            (&raw mut found.pool).cast(),
        ];
        // SAFETY: a place for each answer, at least as large as the documentation says (a flag may
        // be one byte or four: the rest is zero). Any address may be asked for.
        unsafe {
            driver.api.cuPointerGetAttributes(
                asked.len() as c_uint,
                asked.as_mut_ptr(),
                places.as_mut_ptr(),
                pointer,
            )
        }?;
        Ok(found)
    }

    fn sharing(&self) -> Sharing {
        if self.is_managed != 0 {
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
            0 => Sharing::None("it was not made to be shared"),
            _ => Sharing::Descriptor,
        }
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

    /// Number of its device in this process
    #[must_use]
    pub fn device(&self) -> u16 {
        self.device
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
