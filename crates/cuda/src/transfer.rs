//! Copies that a device makes by itself, on streams of our own.
//!
//! A transfer begins after what others have put on their streams, holds what it needs until it is over,
//! and then notifies the caller that has asked for that. A transfer that is given up goes on, since
//! a device cannot be stopped, and its memory is released later.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::CudaError;
use crate::stream::{Kept, Slot};

pub use crate::place::{Order, Place, is_ready, wait};

/// Work of a device that is under way, or over
pub struct Transfer {
    driver: &'static Driver,
    device: &'static Device,
    /// Taken when it is given back
    slot: Option<Slot>,
    /// It is over, as a thread of the driver has said, or an answer of the driver
    is_known: Arc<AtomicBool>,
    /// Dropped once the device needs it no more
    keep: Kept,
}

impl Transfer {
    /// Copies from one place to another of the same size
    ///
    /// `keep` is dropped on a thread that drops or begins a transfer, once this one is over.
    ///
    /// # Errors
    ///
    /// Errors that the driver reports. Nothing has begun then.
    pub fn copy(
        driver: &'static Driver,
        from: &Place,
        to: &Place,
        keep: impl Any + Send,
    ) -> Result<Self, CudaError> {
        let device = to.device(driver);
        let source = from.device(driver);
        driver.enable_peer_access(device, source);
        Self::begin(driver, device, &[*from, *to], keep, |stream| {
            let bytes = from.memory.bytes.min(to.memory.bytes) as usize;
            let (source, target) = (from.memory, to.memory);
            // SAFETY: both were looked at, are of devices, and are kept.
            unsafe {
                if source.context == target.context {
                    driver
                        .api
                        .cuMemcpyAsync(target.address, source.address, bytes, stream)
                } else {
                    driver.api.cuMemcpyPeerAsync(
                        target.address,
                        target.context.raw(),
                        source.address,
                        source.context.raw(),
                        bytes,
                        stream,
                    )
                }
            }
        })
    }

    /// Waits, on a stream of this crate, for when a place may be touched; else as
    /// [`copy`](Self::copy)
    ///
    /// # Errors
    ///
    /// Errors that the driver reports. Nothing has begun then.
    pub fn after(
        driver: &'static Driver,
        place: &Place,
        keep: impl Any + Send,
    ) -> Result<Self, CudaError> {
        let device = place.device(driver);
        Self::begin(driver, device, &[*place], keep, |_| Ok(()))
    }

    /// Has a thread of the driver call `told` once this is over
    ///
    /// That takes the driver some 50 us, so a caller that looks is faster. `told` must not call
    /// CUDA, nor drop what does. It is not called if the device fails, which
    /// [`ask_over`](Self::ask_over) says.
    ///
    /// # Errors
    ///
    /// Errors that the driver reports: `told` is not going to be called.
    pub fn tell(&self, told: impl FnOnce() + Send + 'static) -> Result<(), CudaError> {
        let Some(slot) = &self.slot else {
            return Ok(());
        };
        let _current = Current::enter(self.driver, self.device.context(self.driver)?)?;
        let is_known = Arc::clone(&self.is_known);
        let told: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(move || {
            is_known.store(true, Ordering::Release);
            told();
        }));
        let argument = Box::into_raw(told);
        // SAFETY: the function takes what the argument is, once.
        let launched = unsafe {
            let argument = argument.cast::<c_void>();
            let api = &self.driver.api;
            api.cuLaunchHostFunc(slot.stream, Some(call_told), argument)
        };
        if launched.is_err() {
            // SAFETY: it is not going to be called.
            drop(unsafe { Box::from_raw(argument) });
        }
        launched
    }

    /// Waits until the device has finished
    ///
    /// # Errors
    ///
    /// The device has failed: what it should have done is not done.
    pub fn wait(&self) -> Result<(), CudaError> {
        let Some(slot) = &self.slot else {
            return Ok(());
        };
        let _current = Current::enter(self.driver, self.device.context(self.driver)?)?;
        // SAFETY: a stream of this crate.
        unsafe { self.driver.api.cuStreamSynchronize(slot.stream) }?;
        self.is_known.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn begin(
        driver: &'static Driver,
        device: &'static Device,
        places: &[Place],
        keep: impl Any + Send,
        work: impl FnOnce(CUstream) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        device.streams.sweep(driver, device);
        let _current = Current::enter(driver, device.context(driver)?)?;
        let slot = device.streams.take(driver, device)?;
        let transfer = Self {
            driver,
            device,
            slot: Some(slot),
            is_known: Arc::default(),
            keep: Some(Box::new(keep)),
        };
        // After an error it is dropped, and what was put on the stream before is waited for there.
        transfer.put(places, work)?;
        Ok(transfer)
    }

    /// Puts everything on the stream
    fn put(
        &self,
        places: &[Place],
        work: impl FnOnce(CUstream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let Some(slot) = &self.slot else {
            return Ok(());
        };
        for place in places {
            slot.wait_for(self.driver, place)?;
        }
        let worked = work(slot.stream);
        // SAFETY: an event and a stream of this crate.
        let marked = unsafe { self.driver.api.cuEventRecord(slot.after, slot.stream) };
        if marked.is_err() {
            // The event says of what was here before that it is over.
            // SAFETY: a stream of this crate.
            let _ = unsafe { self.driver.api.cuStreamSynchronize(slot.stream) };
        }
        marked.and(worked)
    }

    /// Has what others put on a stream of a device from now on wait until this is over
    ///
    /// # Errors
    ///
    /// Errors that the driver reports for the stream, or for the device.
    pub fn precede(&self, device: u16, stream: u64) -> Result<(), CudaError> {
        let (Some(slot), Some(device)) = (&self.slot, self.driver.device(device)) else {
            return Ok(());
        };
        let _current = Current::enter(self.driver, device.context(self.driver)?)?;
        // SAFETY: an event of this crate, recorded behind the work; the stream is as described by
        // the code that gave the memory says it is.
        unsafe {
            self.driver
                .api
                .cuStreamWaitEvent(stream as usize as CUstream, slot.after, 0)
        }
    }

    /// Asks whether the device has finished, unless that is known
    ///
    /// # Errors
    ///
    /// The device has failed, now or before: what it should have done is not done.
    pub fn ask_over(&self) -> Result<bool, CudaError> {
        if self.is_known() {
            return Ok(true);
        }
        let is_over = match &self.slot {
            Some(slot) => slot.is_over(self.driver, self.device)?,
            None => true,
        };
        if is_over {
            self.is_known.store(true, Ordering::Release);
        }
        Ok(is_over)
    }

    /// Returns whether the device is known to have finished, without asking
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        let keep = self.keep.take();
        let streams = &self.device.streams;
        if self.is_known() || slot.is_over(self.driver, self.device) == Ok(true) {
            drop(keep);
            streams.put_back(slot);
        } else {
            streams.give_up(slot, keep);
        }
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("device", &self.device.ordinal())
            .field("is_known", &self.is_known)
            .finish_non_exhaustive()
    }
}

/// Copies to memory of the host, and waits for it
///
/// # Errors
///
/// Errors that the driver reports; the memory holds anything then.
pub fn read(driver: &'static Driver, from: &Place, to: &mut [u8]) -> Result<(), CudaError> {
    let bytes = to.len().min(from.memory.bytes as usize);
    wait_for(driver, from, |stream| {
        // SAFETY: so many bytes are there on both sides, until this returns.
        unsafe {
            driver.api.cuMemcpyDtoHAsync_v2(
                to.as_mut_ptr().cast(),
                from.memory.address,
                bytes,
                stream,
            )
        }
    })
}

/// Copies from memory of the host, and waits for it
///
/// # Errors
///
/// Errors that the driver reports; the device's memory holds anything then.
pub fn write(driver: &'static Driver, from: &[u8], to: &Place) -> Result<(), CudaError> {
    let bytes = from.len().min(to.memory.bytes as usize);
    wait_for(driver, to, |stream| {
        // SAFETY: so many bytes are there on both sides, until this returns.
        unsafe {
            driver
                .api
                .cuMemcpyHtoDAsync_v2(to.memory.address, from.as_ptr().cast(), bytes, stream)
        }
    })
}

/// Puts work on a stream of this crate, behind what a place waits for, and waits until it is done
fn wait_for(
    driver: &'static Driver,
    place: &Place,
    work: impl FnOnce(CUstream) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let device = place.device(driver);
    device.streams.sweep(driver, device);
    let slot = device.streams.take(driver, device)?;
    let put = slot.wait_for(driver, place).and_then(|()| {
        let _current = Current::enter(driver, device.context(driver)?)?;
        let worked = work(slot.stream);
        // SAFETY: a stream of this crate. Waited for even if the work failed: the memory is the
        // caller's.
        let waited = unsafe { driver.api.cuStreamSynchronize(slot.stream) };
        worked.and(waited)
    });
    match put {
        Ok(()) => device.streams.put_back(slot),
        Err(_) => device.streams.give_up(slot, None),
    }
    put
}

/// Called by a thread of the driver
unsafe extern "C" fn call_told(argument: *mut c_void) {
    // SAFETY: `tell` made it, for this one call.
    let told = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not go through frames of C.
    if catch_unwind(AssertUnwindSafe(told)).is_err() {
        tracing::error!("the callback of a transfer panicked");
    }
}
