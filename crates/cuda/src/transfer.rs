//! Copies that a device makes by itself, on streams of our own.
//!
//! A transfer begins after what others have put on their streams, holds what it needs until it is over,
//! and tells somebody then who has asked for that. One that is given up goes on, since a device cannot be
//! stopped, and what it holds is let go of later.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUevent, CUstream};

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::{CudaError, NOT_READY, STREAM_CAPTURE_UNSUPPORTED};
use crate::memory::DevicePointer;

/// What has to be over before memory may be touched
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Nothing
    Any,
    /// What has been put on a stream of the memory's device, as a `CUstream` in a number: 0 and 1 are
    /// the legacy default stream, 2 that of the calling thread
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

/// What a device needs until it is through
type Kept = Option<Box<dyn Any + Send>>;

/// A stream of ours, with two events
#[derive(Debug)]
struct Slot {
    stream: CUstream,
    /// Recorded on streams of others, for ours to wait for
    before: CUevent,
    /// Recorded on ours, behind the work
    after: CUevent,
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

impl Transfer {
    /// Copies from one place to another of the same size
    ///
    /// `keep` is dropped on a thread that drops or begins a transfer, once this one is over.
    ///
    /// # Errors
    ///
    /// What the driver says. Nothing has begun then.
    pub fn copy(
        driver: &'static Driver,
        from: &Place,
        to: &Place,
        keep: impl Any + Send,
    ) -> Result<Self, CudaError> {
        let device = device_of(driver, &to.memory);
        let source = device_of(driver, &from.memory);
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

    /// Waits, on a stream of ours, for when a place may be touched; else as [`copy`](Self::copy)
    ///
    /// # Errors
    ///
    /// What the driver says. Nothing has begun then.
    pub fn after(
        driver: &'static Driver,
        place: &Place,
        keep: impl Any + Send,
    ) -> Result<Self, CudaError> {
        let device = device_of(driver, &place.memory);
        Self::begin(driver, device, &[*place], keep, |_| Ok(()))
    }

    /// Has a thread of the driver call `told` once this is over
    ///
    /// That takes the driver some 50 us, so whoever looks is sooner there. `told` must not call CUDA, nor
    /// drop what does. It is not called if the device fails, which [`is_over`](Self::is_over) says.
    ///
    /// # Errors
    ///
    /// What the driver says: it is not going to be called.
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
        // SAFETY: a stream of ours.
        unsafe { self.driver.api.cuStreamSynchronize(slot.stream) }?;
        self.is_known.store(true, Ordering::Release);
        Ok(())
    }

    fn begin(
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
        // SAFETY: an event and a stream of ours.
        unsafe { self.driver.api.cuEventRecord(slot.after, slot.stream) }?;
        worked
    }

    /// Has what others put on a stream of a device from now on wait until this is over
    ///
    /// # Errors
    ///
    /// What the driver says of the stream, or of the device.
    pub fn precede(&self, device: u16, stream: u64) -> Result<(), CudaError> {
        let (Some(slot), Some(device)) = (&self.slot, self.driver.device(device)) else {
            return Ok(());
        };
        let _current = Current::enter(self.driver, device.context(self.driver)?)?;
        // SAFETY: an event of ours, recorded behind the work; the stream is what whoever gave the
        // memory says it is.
        unsafe {
            self.driver
                .api
                .cuStreamWaitEvent(stream as usize as CUstream, slot.after, 0)
        }
    }

    /// Whether the device has finished
    ///
    /// # Errors
    ///
    /// The device has failed, now or before: what it should have done is not done.
    pub fn is_over(&self) -> Result<bool, CudaError> {
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

    /// Whether the device is known to have finished, without asking
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
            // If the device has failed it stays there: nobody knows what still runs.
            lock(&streams.given_up).push((slot, keep));
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

/// Whether a place may be touched now
///
/// # Errors
///
/// What the driver says of its stream, or of the device.
pub fn is_ready(driver: &'static Driver, place: &Place) -> Result<bool, CudaError> {
    let Order::After(stream) = place.order else {
        return Ok(true);
    };
    let device = device_of(driver, &place.memory);
    let _current = Current::enter(driver, device.context(driver)?)?;
    refuse_capture(driver, stream)?;
    // SAFETY: the stream is what whoever gave the memory says it is.
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
/// What the driver says of its stream, or of the device.
pub fn wait(driver: &'static Driver, place: &Place) -> Result<(), CudaError> {
    let Order::After(stream) = place.order else {
        return Ok(());
    };
    let device = device_of(driver, &place.memory);
    let _current = Current::enter(driver, device.context(driver)?)?;
    refuse_capture(driver, stream)?;
    // SAFETY: the stream is what whoever gave the memory says it is.
    unsafe { driver.api.cuStreamSynchronize(stream as usize as CUstream) }
}

/// Says that a stream is being captured for a CUDA graph, which any other question would spoil
fn refuse_capture(driver: &Driver, stream: u64) -> Result<(), CudaError> {
    let call = "cuStreamIsCapturing";
    let mut status = 0;
    // SAFETY: the stream is what whoever gave the memory says it is; a place for the answer.
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

/// Copies to memory of the host, and waits for it
///
/// # Errors
///
/// What the driver says; the memory holds anything then.
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
/// What the driver says; the device's memory holds anything then.
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

/// Puts work on a stream of ours, behind what a place waits for, and waits until it is done
fn wait_for(
    driver: &'static Driver,
    place: &Place,
    work: impl FnOnce(CUstream) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let device = device_of(driver, &place.memory);
    device.streams.sweep(driver, device);
    let slot = device.streams.take(driver, device)?;
    let put = slot.wait_for(driver, place).and_then(|()| {
        let _current = Current::enter(driver, device.context(driver)?)?;
        let worked = work(slot.stream);
        // SAFETY: a stream of ours. Waited for even if the work failed: the memory is the caller's.
        let waited = unsafe { driver.api.cuStreamSynchronize(slot.stream) };
        worked.and(waited)
    });
    match put {
        Ok(()) => device.streams.put_back(slot),
        Err(_) => lock(&device.streams.given_up).push((slot, None)),
    }
    put
}

impl Slot {
    fn new(driver: &Driver, device: &Device) -> Result<Self, CudaError> {
        let _current = Current::enter(driver, device.context(driver)?)?;
        let mut slot = Self {
            stream: std::ptr::null_mut(),
            before: std::ptr::null_mut(),
            after: std::ptr::null_mut(),
        };
        // SAFETY: places for the answers. What is made stays, to be used again.
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
    fn wait_for(&self, driver: &'static Driver, place: &Place) -> Result<(), CudaError> {
        let Order::After(stream) = place.order else {
            return Ok(());
        };
        let device = device_of(driver, &place.memory);
        let _current = Current::enter(driver, device.context(driver)?)?;
        refuse_capture(driver, stream)?;
        // Whether the stream is through is not asked: that takes the driver longer (H100: 1.3 to 1.7 us,
        // where copies are under way) than this does (0.4 to 0.9).
        let stream = stream as usize as CUstream;
        // An event is of the device whose stream it is recorded on. It may be recorded again at once:
        // what waits for it waits for what was recorded before.
        let lent = device.streams.take(driver, device)?;
        // SAFETY: an event of the stream's device, and a stream of ours.
        let waits = unsafe {
            driver
                .api
                .cuEventRecord(lent.before, stream)
                .and_then(|()| driver.api.cuStreamWaitEvent(self.stream, lent.before, 0))
        };
        device.streams.put_back(lent);
        waits
    }

    fn is_over(&self, driver: &Driver, device: &Device) -> Result<bool, CudaError> {
        let _current = Current::enter(driver, device.context(driver)?)?;
        // SAFETY: an event of ours.
        match unsafe { driver.api.cuEventQuery(self.after) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Streams {
    /// Takes a stream on which nothing runs
    fn take(&self, driver: &'static Driver, device: &Device) -> Result<Slot, CudaError> {
        match lock(&self.free).pop() {
            Some(slot) => Ok(slot),
            None => Slot::new(driver, device),
        }
    }

    fn put_back(&self, slot: Slot) {
        lock(&self.free).push(slot);
    }

    /// Lets go of what transfers held that were given up and are over now
    ///
    /// That may run code of the program, and so not where one of our contexts is taken to be current.
    fn sweep(&self, driver: &Driver, device: &Device) {
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

/// Called by a thread of the driver
unsafe extern "C" fn call_told(argument: *mut c_void) {
    // SAFETY: `tell` made it, for this one call.
    let told = unsafe { Box::from_raw(argument.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not go through frames of C.
    if catch_unwind(AssertUnwindSafe(told)).is_err() {
        tracing::error!("what was to be told of a transfer panicked");
    }
}

fn device_of(driver: &'static Driver, memory: &DevicePointer) -> &'static Device {
    let device = driver.device(memory.device);
    device.expect("memory that was looked at is of a device of the driver")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream
const STREAM_NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: u32 = 2;
