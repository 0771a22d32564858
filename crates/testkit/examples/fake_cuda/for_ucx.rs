//! Functions that UCX's module for CUDA calls beside the others, and the library of management that
//! it is linked with.
//!
//! The management library (NVML) knows no device: UCX asks it for links between GPUs, and does without.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream, CUstreamCallback};

use crate::ffi::{In, Out, call, within_host_function};

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetId(context: CUcontext, id: Out<u64>) -> CUresult {
    call("cuCtxGetId", |driver| {
        let device = if context.is_null() {
            driver.current()?
        } else {
            driver.context(context)?
        };
        id.put(1 + device as u64)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxGetState(
    ordinal: CUdevice,
    flags: Out<c_uint>,
    is_active: Out<c_int>,
) -> CUresult {
    call("cuDevicePrimaryCtxGetState", |driver| {
        let device = driver.device(ordinal)?;
        flags.put(0)?;
        is_active.put(c_int::from(driver.is_retained(device)))
    })
}

/// Finds no function: what is asked for by name is newer than this driver
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuGetProcAddress_v2(
    _symbol: In<c_char>,
    function: Out<*mut c_void>,
    _version: c_int,
    _flags: u64,
    status: Out<c_uint>,
) -> CUresult {
    call("cuGetProcAddress_v2", |_| {
        function.put(std::ptr::null_mut())?;
        status.put_if_wanted(SYMBOL_NOT_FOUND)?;
        Err(CUresult::CUDA_ERROR_NOT_FOUND)
    })
}

/// Knows nothing of where managed memory lies
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuMemRangeGetAttribute(
    _data: *mut c_void,
    _bytes: usize,
    _attribute: c_uint,
    _address: CUdeviceptr,
    _range_bytes: usize,
) -> CUresult {
    call("cuMemRangeGetAttribute", |_| {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}

/// Takes that synchronous copies of an allocation are to wait: here they do
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuPointerSetAttribute(
    _value: In<c_void>,
    _attribute: c_uint,
    address: CUdeviceptr,
) -> CUresult {
    call("cuPointerSetAttribute", |driver| {
        let state = driver.state();
        let found = state.space.find(address).map(drop);
        found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamAddCallback(
    stream: CUstream,
    function: CUstreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> CUresult {
    call("cuStreamAddCallback", |driver| {
        driver.current()?;
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let found = driver.stream(stream)?;
        let (stream, data) = (stream.expose_provenance(), data.expose_provenance());
        driver.submit(&found, move || {
            static RUNNING: Mutex<()> = Mutex::new(());
            let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            within_host_function(|| {
                let stream = std::ptr::with_exposed_provenance_mut(stream);
                let data = std::ptr::with_exposed_provenance_mut(data);
                // SAFETY: the caller gave the function with the data to call it with.
                unsafe {
                    function(stream, CUresult::CUDA_SUCCESS, data);
                }
            });
        });
        Ok(())
    })
}

/// A call of the management library that finds nothing
macro_rules! not_supported {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name() -> c_int {
            NOT_SUPPORTED
        }
    )*};
}

not_supported! {
    nvmlInit_v2
    nvmlShutdown
    nvmlDeviceGetCount_v2
    nvmlDeviceGetHandleByIndex_v2
    nvmlDeviceGetFieldValues
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetPciInfo_v3
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(_code: c_int) -> *const c_char {
    c"Not Supported".as_ptr()
}

/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const SYMBOL_NOT_FOUND: c_uint = 1;

/// `NVML_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: c_int = 3;
