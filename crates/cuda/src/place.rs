//! Memory of a device, and when it may be touched.

use cudarc::driver::sys::CUstream;

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::{CudaError, NOT_READY, STREAM_CAPTURE_UNSUPPORTED};
use crate::memory::DevicePointer;

/// Work that has to be over before memory may be touched
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Nothing
    Any,
    /// Work that has been put on a stream of the memory's device, as a `CUstream` in a number: 0
    /// and 1 are the legacy default stream, 2 that of the calling thread
    After(u64),
}

/// Memory of a transfer, and when it may be touched
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The memory
    pub memory: DevicePointer,
    /// When it may be touched
    pub order: Order,
}

impl Place {
    pub(crate) fn device(&self, driver: &'static Driver) -> &'static Device {
        let device = driver.device(self.memory.device);
        device.expect("memory that was looked at is of a device of the driver")
    }
}

/// Returns whether a place may be touched now
///
/// # Errors
///
/// Errors that the driver reports for its stream, or for the device.
pub fn is_ready(driver: &'static Driver, place: &Place) -> Result<bool, CudaError> {
    let Order::After(stream) = place.order else {
        return Ok(true);
    };
    let device = place.device(driver);
    let _current = Current::enter(driver, device.context(driver)?)?;
    refuse_capture(driver, stream)?;
    // SAFETY: the stream is as described by the code that gave the memory.
    match unsafe { driver.api.cuStreamQuery(stream as usize as CUstream) } {
        Ok(()) => Ok(true),
        Err(error) if error.code == NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until a place may be touched
///
/// # Errors
///
/// Errors that the driver reports for its stream, or for the device.
pub fn wait(driver: &'static Driver, place: &Place) -> Result<(), CudaError> {
    let Order::After(stream) = place.order else {
        return Ok(());
    };
    let device = place.device(driver);
    let _current = Current::enter(driver, device.context(driver)?)?;
    refuse_capture(driver, stream)?;
    // SAFETY: the stream is as described by the code that gave the memory.
    unsafe { driver.api.cuStreamSynchronize(stream as usize as CUstream) }
}

/// Says that a stream is being captured for a CUDA graph, which any other question would spoil
pub(crate) fn refuse_capture(driver: &Driver, stream: u64) -> Result<(), CudaError> {
    let call = "cuStreamIsCapturing";
    let mut status = 0;
    // SAFETY: the stream is as described by the code that gave the memory; a place for the answer.
    unsafe {
        driver
            .api
            .cuStreamIsCapturing(stream as usize as CUstream, &raw mut status)
    }?;
    match status {
        0 => Ok(()),
        _ => Err(CudaError {
            call,
            code: STREAM_CAPTURE_UNSUPPORTED,
            name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".to_owned(),
        }),
    }
}
