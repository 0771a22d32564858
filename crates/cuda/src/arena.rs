//! Memory of devices that other processes can open, beside any other allocations.
//!
//! Where a program's own memory cannot be shared it is copied into a block first, and what arrives
//! without a place of its own gets one. Memory comes from `cuMemCreate`, which counts who has it open:
//! what lies in a block stays readable to a peer that has opened it, though its maker has died. Small
//! blocks are cut from chunks; sizes are powers of two up to a chunk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::{CUmemAllocationProp, CUmemAllocationType};

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::CudaError;
use crate::export::DESCRIPTOR_KIND;
use crate::import::{location_of, map_handle};
use crate::memory::DevicePointer;
use crate::stream::lock;

/// Memory of one device; clones are the same arena
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: &'static Driver,
    device: &'static Device,
    /// Size of which chunks are multiples, in bytes
    granule: OnceLock<u64>,
    free: Mutex<Free>,
}

/// Memory without a user
#[derive(Debug, Default)]
struct Free {
    /// By size
    blocks: HashMap<u64, Vec<Piece>>,
    /// Bytes of free blocks that are allocations of their own
    whole_bytes: u64,
}

/// A block of memory, given back when it is dropped
///
/// It must not be dropped before what was begun with it is over.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Inner>,
    /// Taken when it is given back
    piece: Option<Piece>,
    bytes: u64,
    /// Nothing is under way there, and no other process knows where it is
    is_settled: AtomicBool,
}

/// A part of a chunk, or all of it
#[derive(Debug)]
struct Piece {
    chunk: Arc<Chunk>,
    address: u64,
    /// A power of two, or the whole chunk
    size: u64,
    /// It has had no user yet
    is_fresh: bool,
}

/// Memory of `cuMemCreate`, mapped
#[derive(Debug)]
struct Chunk {
    driver: &'static Driver,
    device: &'static Device,
    base: u64,
    bytes: usize,
}

impl Arena {
    /// An arena of a device, empty so far
    #[must_use]
    pub fn new(driver: &'static Driver, device: &'static Device) -> Self {
        Self(Arc::new(Inner {
            driver,
            device,
            granule: OnceLock::new(),
            free: Mutex::default(),
        }))
    }

    /// Takes a block of at least so many bytes
    ///
    /// # Errors
    ///
    /// Errors that the driver reports, such as that the device has no memory left.
    pub fn take(&self, bytes: u64) -> Result<Block, CudaError> {
        let granule = self.0.granule()?;
        let size = size_of(bytes, granule);
        let mut free = lock(&self.0.free);
        let found = free.blocks.get_mut(&size).and_then(Vec::pop);
        let piece = match found {
            Some(piece) => {
                if size >= granule {
                    free.whole_bytes -= size;
                }
                piece
            }
            None => {
                drop(free);
                self.0.make(size, granule)?
            }
        };
        Ok(Block {
            arena: Arc::clone(&self.0),
            // The previous holder may have released it while work on it was still queued.
            is_settled: AtomicBool::new(piece.is_fresh),
            piece: Some(piece),
            bytes,
        })
    }

    /// The device
    #[must_use]
    pub fn device(&self) -> &'static Device {
        self.0.device
    }
}

impl Inner {
    fn properties(&self) -> CUmemAllocationProp {
        // SAFETY: numbers, and a pointer that may be null; 0 is a value of each field.
        let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = DESCRIPTOR_KIND;
        properties.location = location_of(self.device);
        properties
    }

    fn granule(&self) -> Result<u64, CudaError> {
        if let Some(granule) = self.granule.get() {
            return Ok(*granule);
        }
        let properties = self.properties();
        let mut bytes = 0;
        let _current = Current::enter(self.driver, self.device.context(self.driver)?)?;
        // SAFETY: a place for the answer, and a whole description.
        unsafe {
            self.driver
                .api
                .cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, 0)
        }?;
        Ok(*self.granule.get_or_init(|| bytes as u64))
    }

    /// Makes memory for a block, and for others of its size where it is small
    fn make(&self, size: u64, granule: u64) -> Result<Piece, CudaError> {
        let chunk = Arc::new(self.chunk(size.max(granule))?);
        let piece = |index: u64| Piece {
            address: chunk.base + index * size,
            chunk: Arc::clone(&chunk),
            size,
            is_fresh: true,
        };
        let others = (1..granule / size).map(piece);
        lock(&self.free)
            .blocks
            .entry(size)
            .or_default()
            .extend(others);
        Ok(piece(0))
    }

    fn chunk(&self, bytes: u64) -> Result<Chunk, CudaError> {
        let properties = self.properties();
        let bytes = bytes as usize;
        let mut handle = 0;
        let _current = Current::enter(self.driver, self.device.context(self.driver)?)?;
        let api = &self.driver.api;
        // SAFETY: a place for the answer, a whole description, and a handle that is released once it
        // is mapped.
        unsafe {
            api.cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)?;
            let mapped = map_handle(self.driver, self.device, handle, bytes);
            let released = api.cuMemRelease(handle);
            let base = mapped?;
            let chunk = Chunk {
                driver: self.driver,
                device: self.device,
                base,
                bytes,
            };
            released.map(|()| chunk)
        }
    }
}

impl Block {
    /// Address of its first byte
    #[must_use]
    pub fn address(&self) -> u64 {
        self.piece.as_ref().map_or(0, |piece| piece.address)
    }

    /// How many bytes were asked for
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of its device in this process
    #[must_use]
    pub fn device(&self) -> u16 {
        self.arena.device.ordinal()
    }

    /// Returns whether nothing is under way there, so that no stream has to be waited for
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Relaxed)
    }

    /// Says whether that is so from now on
    pub fn set_settled(&self, is_settled: bool) {
        self.is_settled.store(is_settled, Ordering::Relaxed);
    }

    /// Where it is
    ///
    /// # Errors
    ///
    /// Errors that the driver reports for the context of its device.
    pub fn place(&self) -> Result<DevicePointer, CudaError> {
        let context = self.arena.device.context(self.arena.driver)?;
        Ok(DevicePointer::again(
            self.device(),
            context,
            self.address(),
            self.bytes,
        ))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(mut piece) = self.piece.take() else {
            return;
        };
        piece.is_fresh = false;
        let mut free = lock(&self.arena.free);
        let is_whole = piece.size == piece.chunk.bytes as u64;
        if is_whole {
            if free.whole_bytes + piece.size > KEPT_BYTES_MAX {
                drop(free);
                // Back to the device.
                return drop(piece);
            }
            free.whole_bytes += piece.size;
        }
        free.blocks.entry(piece.size).or_default().push(piece);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let api = &self.driver.api;
        let closed = self.device.context(self.driver).and_then(|context| {
            let _current = Current::enter(self.driver, context)?;
            // SAFETY: mapped when this was made; no block of it is left.
            unsafe {
                api.cuMemUnmap(self.base, self.bytes)?;
                api.cuMemAddressFree(self.base, self.bytes)
            }
        });
        if let Err(error) = closed {
            tracing::debug!(%error, "memory of an arena of a device stays");
        }
    }
}

/// Size of the block for so many bytes
fn size_of(bytes: u64, granule: u64) -> u64 {
    if bytes >= granule {
        bytes.next_multiple_of(granule)
    } else {
        bytes.next_power_of_two().max(BLOCK_BYTES_MIN)
    }
}

/// Smallest block: what `cudaMalloc` aligns to
const BLOCK_BYTES_MIN: u64 = 256;

/// Bytes of free blocks, of a chunk each, that are kept for the next ones
const KEPT_BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_powers_of_two_up_to_a_granule_and_multiples_of_it_above() {
        let granule = 2 << 20;
        let sizes =
            [0, 1, 257, granule - 1, granule, granule + 1].map(|bytes| size_of(bytes, granule));
        assert_eq!(sizes, [256, 256, 512, granule, granule, 2 * granule]);
    }
}
