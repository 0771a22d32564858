//! The context in which a thread calls CUDA.

use cudarc::driver::sys::CUcontext;

use crate::driver::Driver;
use crate::error::CudaError;

/// A context of CUDA, which lives as long as the process
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Context(pub(crate) CUcontext);

// SAFETY: a context may be made current on any thread, and on several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A context is current on this thread; the one before it is again when this is dropped
pub(crate) struct Current<'d> {
    driver: &'d Driver,
}

impl<'d> Current<'d> {
    pub(crate) fn enter(driver: &'d Driver, context: Context) -> Result<Self, CudaError> {
        // SAFETY: the context is never destroyed, being that of a device, or belongs to whoever owns
        // memory that is in use.
        unsafe { driver.api.cuCtxPushCurrent_v2(context.0) }?;
        Ok(Self { driver })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: pushed by `enter`, on this thread, as this type goes to no other.
        let outcome = unsafe { self.driver.api.cuCtxPopCurrent_v2(&raw mut popped) };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a context of CUDA stays current");
        }
    }
}
