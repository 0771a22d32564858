//! Streams of our own, each with the events that mark what is on it.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUevent, CUstream};

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::{CudaError, NOT_READY};
use crate::place::{Order, Place, refuse_capture};

/// Object that a device needs until it has finished
pub(crate) type Kept = Option<Box<dyn Any + Send>>;

/// A stream of this crate, with two events
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stream: CUstream,
    /// Recorded on streams of others, for ours to wait for
    pub(crate) before: CUevent,
    /// Recorded on ours, behind the work
    pub(crate) after: CUevent,
}

// SAFETY: only handed to functions of the driver, which any thread may call.
unsafe impl Send for Slot {}

/// The streams of a device that nothing runs on
#[derive(Debug, Default)]
pub(crate) struct Streams {
    free: Mutex<Vec<Slot>>,
    /// Transfers that were given up
    given_up: Mutex<Vec<(Slot, Kept)>>,
}

impl Slot {
    fn new(driver: &Driver, device: &Device) -> Result<Self, CudaError> {
        let _current = Current::enter(driver, device.context(driver)?)?;
        let mut slot = Self {
            stream: std::ptr::null_mut(),
            before: std::ptr::null_mut(),
            after: std::ptr::null_mut(),
        };
        // SAFETY: places for the answers. The new stream and events stay, to be used again.
        unsafe {
            driver
                .api
                .cuStreamCreate(&raw mut slot.stream, STREAM_NON_BLOCKING)?;
            driver
                .api
                .cuEventCreate(&raw mut slot.before, EVENT_DISABLE_TIMING)?;
            driver
                .api
                .cuEventCreate(&raw mut slot.after, EVENT_DISABLE_TIMING)?;
        }
        Ok(slot)
    }

    /// Has what follows on our stream wait until a place may be touched
    pub(crate) fn wait_for(&self, driver: &'static Driver, place: &Place) -> Result<(), CudaError> {
        let Order::After(stream) = place.order else {
            return Ok(());
        };
        let device = place.device(driver);
        let _current = Current::enter(driver, device.context(driver)?)?;
        refuse_capture(driver, stream)?;
        // Whether the stream is through is not asked: that takes the driver longer (H100: 1.3 to 1.7 us,
        // where copies are under way) than this does (0.4 to 0.9).
        let stream = stream as usize as CUstream;
        // An event is of the device whose stream it is recorded on. It may be recorded again at once:
        // what waits for it waits for what was recorded before.
        let lent = device.streams.take(driver, device)?;
        // SAFETY: an event of the stream's device, and a stream of this crate.
        let waits = unsafe {
            driver
                .api
                .cuEventRecord(lent.before, stream)
                .and_then(|()| driver.api.cuStreamWaitEvent(self.stream, lent.before, 0))
        };
        device.streams.put_back(lent);
        waits
    }

    pub(crate) fn is_over(&self, driver: &Driver, device: &Device) -> Result<bool, CudaError> {
        let _current = Current::enter(driver, device.context(driver)?)?;
        // SAFETY: an event of this crate.
        match unsafe { driver.api.cuEventQuery(self.after) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Streams {
    /// Takes a stream on which nothing runs
    pub(crate) fn take(&self, driver: &'static Driver, device: &Device) -> Result<Slot, CudaError> {
        match lock(&self.free).pop() {
            Some(slot) => Ok(slot),
            None => Slot::new(driver, device),
        }
    }

    pub(crate) fn put_back(&self, slot: Slot) {
        lock(&self.free).push(slot);
    }

    /// Keeps what a transfer holds that was given up
    ///
    /// If the device has failed it stays, because its work may still run.
    pub(crate) fn give_up(&self, slot: Slot, kept: Kept) {
        lock(&self.given_up).push((slot, kept));
    }

    /// Releases the objects of transfers that were given up and are over now
    ///
    /// That may run code of the program, and so not where one of our contexts is taken to be current.
    pub(crate) fn sweep(&self, driver: &Driver, device: &Device) {
        let over: Vec<_> = {
            let mut given_up = lock(&self.given_up);
            if given_up.is_empty() {
                return;
            }
            given_up
                .extract_if(.., |(slot, _)| slot.is_over(driver, device) == Ok(true))
                .collect()
        };
        for (slot, keep) in over {
            // Without the lock: it may close memory, or be dropped by a program's own code.
            drop(keep);
            self.put_back(slot);
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream
const STREAM_NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: u32 = 2;
