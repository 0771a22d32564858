//! Errors: why CUDA cannot be used here, and what a call of it came to.

use thiserror::Error;

/// CUDA cannot be used in this process
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no driver
    #[error(
        "no libcuda.so.1 can be opened: it comes with the driver of NVIDIA's devices (in a container, \
         with the container toolkit); no package of Python has it"
    )]
    NotFound,
    /// It lacks a function
    #[error("libcuda has no {symbol}: the driver is older than CUDA {needs}")]
    MissingSymbol {
        /// The name of the function
        symbol: &'static str,
        /// The first version that has all that is used
        needs: &'static str,
    },
    /// It refuses to start
    #[error("CUDA cannot be started: {0}")]
    Refused(#[from] CudaError),
    /// It sees no device
    #[error("CUDA sees no device (CUDA_VISIBLE_DEVICES={visible:?})")]
    NoDevice {
        /// Devices that the environment leaves visible
        visible: Option<String>,
    },
}

/// A call of libcuda failed
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    /// The name of the function
    pub call: &'static str,
    /// The number of the error
    pub code: i32,
    /// Its name, as libcuda says
    pub name: String,
}

impl CudaError {
    /// Returns whether there was no memory left on the device
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: i32 = 2;

/// `CUDA_ERROR_NO_DEVICE`
pub(crate) const NO_DEVICE: i32 = 100;

/// `CUDA_ERROR_NOT_READY`
pub(crate) const NOT_READY: i32 = 600;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
