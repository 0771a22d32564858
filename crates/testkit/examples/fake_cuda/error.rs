//! Results, their names, and the calls that tell them.

use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use cudarc::driver::sys::CUresult;

use crate::ffi::{Out, call_any_time};

/// Result of a call, before it crosses the edge of the library
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// The result with this code, if the driver has one
pub(crate) fn from_code(code: u32) -> Option<CUresult> {
    RESULTS
        .iter()
        .copied()
        .find(|&result| result as u32 == code)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorName(code: u32, name: Out<*const c_char>) -> CUresult {
    call_any_time("cuGetErrorName", || tell(code, name))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> CUresult {
    call_any_time("cuGetErrorString", || tell(code, text))
}

/// One text serves as name and description: callers should read no more into it
fn tell(code: u32, text: Out<*const c_char>) -> Outcome {
    let known = RESULTS.iter().position(|&result| result as u32 == code);
    match known {
        Some(index) => text.put(NAMES[index].as_ptr()),
        None => {
            text.put(std::ptr::null())?;
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }
}

static NAMES: LazyLock<Vec<&'static CStr>> = LazyLock::new(|| {
    let name = |result: &CUresult| {
        let name = std::ffi::CString::new(format!("{result:?}")).expect("a name has no NUL");
        &*Box::leak(name.into_boxed_c_str())
    };
    RESULTS.iter().map(name).collect()
});

/// Results that this driver gives or that a test may want it to give
const RESULTS: &[CUresult] = &[
    CUresult::CUDA_SUCCESS,
    CUresult::CUDA_ERROR_INVALID_VALUE,
    CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    CUresult::CUDA_ERROR_NOT_INITIALIZED,
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_STUB_LIBRARY,
    CUresult::CUDA_ERROR_NO_DEVICE,
    CUresult::CUDA_ERROR_INVALID_DEVICE,
    CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED,
    CUresult::CUDA_ERROR_INVALID_CONTEXT,
    CUresult::CUDA_ERROR_MAP_FAILED,
    CUresult::CUDA_ERROR_UNMAP_FAILED,
    CUresult::CUDA_ERROR_ALREADY_MAPPED,
    CUresult::CUDA_ERROR_NOT_MAPPED,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
    CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_OPERATING_SYSTEM,
    CUresult::CUDA_ERROR_INVALID_HANDLE,
    CUresult::CUDA_ERROR_ILLEGAL_STATE,
    CUresult::CUDA_ERROR_NOT_FOUND,
    CUresult::CUDA_ERROR_NOT_READY,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
    CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_TOO_MANY_PEERS,
    CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_NOT_PERMITTED,
    CUresult::CUDA_ERROR_NOT_SUPPORTED,
    CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
    CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED,
    CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUresult::CUDA_ERROR_TIMEOUT,
    CUresult::CUDA_ERROR_EXTERNAL_DEVICE,
    CUresult::CUDA_ERROR_UNKNOWN,
];
