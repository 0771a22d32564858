//! The functions of libcuda that are used, found in the library by their names.
//!
//! The types are named by `cudarc`. Its own functions panic where the library lacks one, and say what
//! a call came to as an enum, which no later driver may extend; so they are looked up here, once, and
//! return numbers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUhostFn, CUipcMemHandle,
    CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute, CUstream, CUuuid,
};
use libloading::Library;

use crate::error::{CudaError, LoadError};

macro_rules! functions {
    ($($name:ident ($($argument:ident: $type:ty),*);)*) => {
        /// The functions, as found in the library, which is never closed
        #[allow(non_snake_case, reason = "these are the names of CUDA")]
        pub(crate) struct Api {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            names: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
        }

        impl Api {
            /// Finds all of them
            fn find(library: &Library) -> Result<Self, LoadError> {
                Ok(Self {
                    // SAFETY: the types are those of the headers, by way of `cudarc`'s.
                    $($name: unsafe { find(library, stringify!($name)) }?,)*
                    // SAFETY: as above.
                    names: unsafe { find(library, "cuGetErrorName") }?,
                })
            }

            $(
                /// The function of that name; see the documentation of the driver
                ///
                /// # Safety
                ///
                /// As that function says of its arguments.
                #[allow(clippy::too_many_arguments, non_snake_case, reason = "as in CUDA")]
                pub(crate) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CudaError> {
                    // SAFETY: as the caller says.
                    let code = unsafe { (self.$name)($($argument),*) };
                    self.check(stringify!($name), code)
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CUdevice);
    cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuPointerGetAttributes(
        count: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
        pointer: CUdeviceptr
    );
    cuMemGetAddressRange_v2(
        base: *mut CUdeviceptr, bytes: *mut usize, pointer: CUdeviceptr
    );
    cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: CUdeviceptr);
    cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint);
    cuIpcCloseMemHandle(pointer: CUdeviceptr);
    cuMemGetAllocationGranularity(
        bytes: *mut usize, properties: *const CUmemAllocationProp, option: c_uint
    );
    cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize,
        properties: *const CUmemAllocationProp, flags: c_ulonglong
    );
    cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemAddressReserve(
        pointer: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr,
        flags: c_ulonglong
    );
    cuMemAddressFree(pointer: CUdeviceptr, bytes: usize);
    cuMemMap(
        pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong
    );
    cuMemUnmap(pointer: CUdeviceptr, bytes: usize);
    cuMemSetAccess(
        pointer: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize
    );
    cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
    cuMemExportToShareableHandle(
        shareable: *mut c_void, handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType, flags: c_ulonglong
    );
    cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void,
        kind: CUmemAllocationHandleType
    );
    cuMemPoolExportToShareableHandle(
        shareable: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType,
        flags: c_ulonglong
    );
    cuMemPoolImportFromShareableHandle(
        pool: *mut CUmemoryPool, shareable: *mut c_void, kind: CUmemAllocationHandleType,
        flags: c_ulonglong
    );
    cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, pointer: CUdeviceptr);
    cuMemPoolImportPointer(
        pointer: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData
    );
    cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    cuMemPoolDestroy(pool: CUmemoryPool);
    cuMemFree_v2(pointer: CUdeviceptr);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize, stream: CUstream
    );
    cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamSynchronize(stream: CUstream);
    cuStreamQuery(stream: CUstream);
    cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuLaunchHostFunc(stream: CUstream, function: CUhostFn, argument: *mut c_void);
}

impl Api {
    /// Opens the library and finds them
    pub(crate) fn load() -> Result<Self, LoadError> {
        // SAFETY: what is run is what libcuda does when it is opened.
        let open = |name: &&str| unsafe { Library::new(*name) }.ok();
        let library = FILES.iter().find_map(open).ok_or(LoadError::NotFound)?;
        // Never closed: threads of the driver run in it.
        Self::find(Box::leak(Box::new(library)))
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: any number may be asked for.
        unsafe { (self.names)(code, &raw mut name) };
        let name = if name.is_null() {
            "an error without a name".to_owned()
        } else {
            // SAFETY: a constant text of the library.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        };
        Err(CudaError { call, code, name })
    }
}

/// Finds a function
///
/// # Safety
///
/// `F` is the type of the function of that name.
unsafe fn find<F: Copy>(library: &Library, symbol: &'static str) -> Result<F, LoadError> {
    // SAFETY: the type is as the caller says.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found
        .map(|function| *function)
        .map_err(|_| LoadError::MissingSymbol {
            symbol,
            needs: NEEDS,
        })
}

/// Version whose driver has all of them: memory pools came with 11.2
const NEEDS: &str = "11.2";

/// Names of the library. The toolkit of CUDA has a stub with the second name, without a driver
const FILES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
