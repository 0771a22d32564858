//! The context in which a thread calls CUDA.

use std::cell::Cell;
use std::ffi::c_uint;
use std::ptr::NonNull;

use cudarc::driver::sys::{CUcontext, CUctx_st};

use crate::driver::Driver;
use crate::error::CudaError;

/// A context of CUDA, which lives as long as the process
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Context(NonNull<CUctx_st>);

// SAFETY: a context may be made current on any thread, and on several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context that the driver has named; `None` for null
    pub(crate) fn new(context: CUcontext) -> Option<Self> {
        NonNull::new(context).map(Self)
    }

    /// As the driver names it
    pub(crate) fn raw(self) -> CUcontext {
        self.0.as_ptr()
    }
}

/// A context is current on this thread; the one before it is again when this is dropped
///
/// Meanwhile calls of this thread do not end a capture of a CUDA graph that another one is making. They are
/// dropped in the reverse order.
#[must_use]
pub struct Current<'d> {
    /// `None` if the context was entered by us already
    driver: Option<&'d Driver>,
    /// Effect on captures of this thread's calls before
    mode: c_uint,
    /// Context that this thread had entered before
    before: CUcontext,
}

thread_local! {
    /// The context that this thread has entered last, and not left; null if there is none
    static ENTERED: Cell<CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

impl<'d> Current<'d> {
    pub(crate) fn enter(driver: &'d Driver, context: Context) -> Result<Self, CudaError> {
        let before = ENTERED.get();
        if before == context.raw() {
            return Ok(Self {
                driver: None,
                mode: CAPTURE_RELAXED,
                before,
            });
        }
        // SAFETY: the context is never destroyed, being that of a device, or belongs to the owner
        // of memory that is in use.
        unsafe { driver.api.cuCtxPushCurrent_v2(context.raw()) }?;
        ENTERED.set(context.raw());
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: a mode that there is, and the place for the one before.
        if let Err(error) = unsafe { driver.api.cuThreadExchangeStreamCaptureMode(&raw mut mode) } {
            tracing::debug!(%error, "captures of other threads may end");
        }
        Ok(Self {
            driver: Some(driver),
            mode,
            before,
        })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.driver else {
            return;
        };
        ENTERED.set(self.before);
        // SAFETY: the mode that the driver gave for this one.
        let outcome = unsafe {
            let mode = &raw mut self.mode;
            driver.api.cuThreadExchangeStreamCaptureMode(mode)
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a thread no longer minds captures of others");
        }
        let mut popped = std::ptr::null_mut();
        // SAFETY: pushed by `enter`, on this thread, as this type goes to no other.
        let outcome = unsafe { driver.api.cuCtxPopCurrent_v2(&raw mut popped) };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a context of CUDA stays current");
        }
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: what is called here touches no stream that is being captured
const CAPTURE_RELAXED: c_uint = 2;
