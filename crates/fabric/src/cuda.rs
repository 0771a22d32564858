//! Memory of NVIDIA's devices, for a caller that has a pointer or needs an allocation.
//!
//! Nothing here is needed to send or receive such memory, but a [`DeviceMemory`] that describes it.

use std::any::Any;
use std::sync::Arc;

use backhaul_cuda::memory::MemoryError;
use backhaul_cuda::{Allocation, Block, DevicePointer, Driver, Order, Place, Transfer, transfer};
use backhaul_proto::{Device, Vendor};
use thiserror::Error;

use crate::memory::DeviceMemory;

pub use backhaul_cuda::{CudaError, LoadError};

/// Memory of a device cannot be used
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CudaMemoryError {
    /// There is no CUDA in this process
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The memory is not what it is said to be
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The driver failed
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no such device
    #[error("there is no CUDA device {ordinal} in this process, which sees {count}")]
    NoDevice {
        /// The number that was asked for
        ordinal: u16,
        /// How many there are
        count: usize,
    },
}

/// Describes memory at an address of a device, which `owner` keeps
///
/// `stream` is what a transfer waits for before it touches the memory, as a `CUstream` in a number; `None`
/// if nothing is under way there. The default stream of the calling thread (2) is waited for here: on
/// another thread it would be another stream.
///
/// # Errors
///
/// [`CudaMemoryError`] if there is no driver, or no such memory.
pub fn describe(
    pointer: u64,
    bytes: usize,
    stream: Option<u64>,
    owner: Arc<dyn Any + Send + Sync>,
) -> Result<DeviceMemory, CudaMemoryError> {
    let driver = Driver::get()?;
    let allocation = Allocation::of(driver, pointer, bytes as u64)?;
    let device = nvidia(allocation.device());
    let memory = allocation.part(pointer, bytes as u64);
    let mut stream = stream;
    if let Some(STREAM_OF_THREAD) = stream {
        let order = Order::After(STREAM_OF_THREAD);
        transfer::wait(driver, &Place { memory, order })?;
        stream = None;
    }
    Ok(DeviceMemory::at(memory, device, stream, owner))
}

/// Allocates memory of a device, which other processes can open
///
/// # Errors
///
/// [`CudaMemoryError`] if there is no driver, no such device, or no memory left.
pub fn allocate(ordinal: u16, bytes: usize) -> Result<DeviceMemory, CudaMemoryError> {
    let driver = Driver::get()?;
    let count = driver.devices().len();
    let device = driver.device(ordinal);
    let device = device.ok_or(CudaMemoryError::NoDevice { ordinal, count })?;
    let block = device.arena(driver).take(bytes as u64)?;
    let memory = block.place()?;
    // The previous holder may have released the block while work on it was still queued.
    let stream = Some(STREAM_LEGACY);
    Ok(DeviceMemory::at(
        memory,
        nvidia(ordinal),
        stream,
        Arc::new(block),
    ))
}

/// Memory that [`allocate`] gave as an operation takes it: its stream is not waited for while nothing can be
/// under way there
#[must_use]
pub fn as_settled(memory: &DeviceMemory) -> DeviceMemory {
    match block_of(memory).is_some_and(Block::is_settled) {
        true => memory.settled(),
        false => memory.clone(),
    }
}

/// Says whether others may have work under way, from now on, in memory that [`allocate`] gave
pub fn set_settled(memory: &DeviceMemory, is_settled: bool) {
    if let Some(block) = block_of(memory) {
        block.set_settled(is_settled);
    }
}

fn block_of(memory: &DeviceMemory) -> Option<&Block> {
    memory.owner().downcast_ref()
}

/// Copies memory of a device to the host, and waits for it
///
/// # Errors
///
/// As [`describe`].
pub fn download(from: &DeviceMemory, to: &mut [u8]) -> Result<(), CudaMemoryError> {
    if to.is_empty() {
        return Ok(());
    }
    let driver = Driver::get()?;
    Ok(transfer::read(driver, &place_of(driver, from)?, to)?)
}

/// Copies memory of the host to a device, and waits for it
///
/// # Errors
///
/// As [`describe`].
pub fn upload(from: &[u8], to: &DeviceMemory) -> Result<(), CudaMemoryError> {
    if from.is_empty() {
        return Ok(());
    }
    let driver = Driver::get()?;
    Ok(transfer::write(driver, from, &place_of(driver, to)?)?)
}

/// Copies memory of a device to memory of the same or another one, and waits for it
///
/// # Errors
///
/// As [`describe`].
pub fn copy(from: &DeviceMemory, to: &DeviceMemory) -> Result<(), CudaMemoryError> {
    if from.is_empty() {
        return Ok(());
    }
    let driver = Driver::get()?;
    let kept = (from.clone(), to.clone());
    let (from, to) = (place_of(driver, from)?, place_of(driver, to)?);
    Ok(Transfer::copy(driver, &from, &to, kept)?.wait()?)
}

/// The devices that this process sees, in its order: UUID, as `nvidia-smi -L` writes it, and name
///
/// # Errors
///
/// [`LoadError`] if there is no driver, or no device.
pub fn devices() -> Result<Vec<(String, String)>, LoadError> {
    let devices = Driver::get()?.devices().iter();
    Ok(devices
        .map(|device| (device.uuid().to_string(), device.name().to_owned()))
        .collect())
}

/// Where memory of a device is, and what it has to wait for
pub(crate) fn place_of(driver: &Driver, memory: &DeviceMemory) -> Result<Place, MemoryError> {
    let (pointer, bytes) = (memory.pointer(), memory.len() as u64);
    Ok(Place {
        memory: match memory.place() {
            Some(place) => place,
            None => DevicePointer::of(driver, pointer, bytes)?,
        },
        order: memory.stream().map_or(Order::Any, Order::After),
    })
}

/// `CU_STREAM_PER_THREAD`
const STREAM_OF_THREAD: u64 = 2;

fn nvidia(ordinal: u16) -> Device {
    Device {
        vendor: Vendor::Nvidia,
        ordinal,
    }
}

/// The legacy default stream, which waits for all others that are not made to be apart from it
pub(crate) const STREAM_LEGACY: u64 = 1;
