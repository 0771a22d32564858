//! A device that exists in tests only.
//!
//! Its memory lies in a table of the process that nothing but this module reads: to the fabric it is
//! an address and a length, as the memory of a real device is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backhaul::{Device, DeviceAllocator, DeviceError, DeviceMemory, Vendor};

/// A device of [`Vendor::Experimental`]
#[derive(Clone, Debug)]
pub struct ToyDevice {
    device: Device,
    memory: Arc<Mutex<Memory>>,
}

/// Content of the device, by address
#[derive(Debug)]
struct Memory {
    blocks: BTreeMap<u64, Vec<u8>>,
    next: u64,
    free_bytes: usize,
}

/// Keeps a block of the device, as what owns [`DeviceMemory`]
struct Block {
    memory: Arc<Mutex<Memory>>,
    base: u64,
}

impl ToyDevice {
    /// A device with that much memory
    pub fn new(ordinal: u16, bytes: usize) -> Self {
        Self {
            device: Device {
                vendor: Vendor::Experimental,
                ordinal,
            },
            memory: Arc::new(Mutex::new(Memory {
                blocks: BTreeMap::new(),
                // Not zero, and nothing that the host could have mapped.
                next: 0xdead_0000_0000_1000,
                free_bytes: bytes,
            })),
        }
    }

    /// How the fabric calls it
    pub fn device(&self) -> Device {
        self.device
    }

    /// Copies bytes to new memory of the device
    ///
    /// # Panics
    ///
    /// If the device has no memory left.
    pub fn upload(&self, bytes: &[u8]) -> DeviceMemory {
        let memory = self.allocate(self.device, bytes.len()).unwrap();
        write(&memory, 0, bytes);
        memory
    }

    /// Blocks that have a holder
    pub fn blocks_held(&self) -> usize {
        lock(&self.memory).blocks.len()
    }
}

impl DeviceAllocator for ToyDevice {
    fn allocate(&self, device: Device, bytes: usize) -> Result<DeviceMemory, DeviceError> {
        let error = |detail: &str| DeviceError {
            device,
            bytes,
            detail: detail.to_owned(),
        };
        if device.vendor != Vendor::Experimental {
            return Err(error("not a toy"));
        }
        let mut memory = lock(&self.memory);
        if bytes > memory.free_bytes {
            return Err(error("the device is full"));
        }
        memory.free_bytes -= bytes;
        let base = memory.next;
        // Apart, so that an address belongs to one block.
        memory.next += (bytes as u64 + 1).next_multiple_of(256);
        memory.blocks.insert(base, vec![0; bytes]);
        drop(memory);
        let owner = Block {
            memory: Arc::clone(&self.memory),
            base,
        };
        Ok(DeviceMemory::new(
            self.device,
            base,
            bytes,
            None,
            Arc::new(owner),
        ))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut memory = lock(&self.memory);
        if let Some(block) = memory.blocks.remove(&self.base) {
            memory.free_bytes += block.len();
        }
    }
}

/// Content of memory of a toy device
pub fn download(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    read(memory, 0, &mut bytes);
    bytes
}

/// Copies from a place in memory of a toy device to the host
///
/// # Panics
///
/// If it is memory of another device, or the place is not within.
pub fn read(memory: &DeviceMemory, offset: usize, target: &mut [u8]) {
    with_bytes(memory, offset, target.len(), |bytes| {
        target.copy_from_slice(bytes);
    });
}

/// Copies from the host to a place in memory of a toy device
///
/// # Panics
///
/// As [`read`].
pub fn write(memory: &DeviceMemory, offset: usize, source: &[u8]) {
    with_bytes(memory, offset, source.len(), |bytes| {
        bytes.copy_from_slice(source);
    });
}

fn with_bytes(memory: &DeviceMemory, offset: usize, bytes: usize, work: impl FnOnce(&mut [u8])) {
    assert!(offset + bytes <= memory.len(), "beyond {memory:?}");
    let owner: &Block = (**memory.owner()).downcast_ref().expect("a toy's memory");
    let start = (memory.pointer() - owner.base) as usize + offset;
    let mut table = lock(&owner.memory);
    let block = table.blocks.get_mut(&owner.base);
    work(&mut block.expect("kept by its owner")[start..start + bytes]);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
