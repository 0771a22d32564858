//! Pinned memory of the host, through which bytes of a device may take their way.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::context::Current;
use crate::driver::{Device, Driver};
use crate::error::CudaError;
use crate::stream::lock;

/// Memory of [`STAGE_BYTES`] for one copy at a time, given back when it is dropped
///
/// It must not be dropped before what was begun with it is over.
#[derive(Debug)]
pub struct Stage {
    device: &'static Device,
    pinned: Pinned,
}

/// Memory of `cuMemHostAlloc`, which stays
#[derive(Clone, Copy, Debug)]
struct Pinned(*mut u8);

// SAFETY: only handed to functions of the driver, which any thread may call.
unsafe impl Send for Pinned {}

/// The stages of a device
#[derive(Debug, Default)]
pub(crate) struct Stages(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    free: Vec<Pinned>,
    made: usize,
}

impl Stage {
    /// Takes one; `None` if all that there may be are in use
    ///
    /// # Errors
    ///
    /// Errors that the driver reports, such as that no more can be pinned.
    pub fn take(
        driver: &'static Driver,
        device: &'static Device,
    ) -> Result<Option<Self>, CudaError> {
        let mut state = lock(&device.stages.0);
        let pinned = match state.free.pop() {
            Some(pinned) => pinned,
            None if state.made >= STAGES_MAX => return Ok(None),
            None => {
                state.made += 1;
                drop(state);
                let made = Pinned::new(driver, device);
                made.inspect_err(|_| lock(&device.stages.0).made -= 1)?
            }
        };
        Ok(Some(Self { device, pinned }))
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.pinned.0
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        lock(&self.device.stages.0).free.push(self.pinned);
    }
}

impl Pinned {
    fn new(driver: &Driver, device: &Device) -> Result<Self, CudaError> {
        let _current = Current::enter(driver, device.context(driver)?)?;
        let mut address: *mut c_void = std::ptr::null_mut();
        let api = &driver.api;
        // SAFETY: a place for the answer.
        unsafe { api.cuMemHostAlloc(&raw mut address, STAGE_BYTES, PORTABLE) }?;
        Ok(Self(address.cast()))
    }
}

/// Size of each
pub const STAGE_BYTES: usize = 2 << 20;

/// Most of a device: what is pinned is taken from the host for good
const STAGES_MAX: usize = 16;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts
const PORTABLE: u32 = 1;
