//! The driver API with results in place of codes, for tests.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex};

pub(crate) use cudarc::driver::sys::CUpointer_attribute as Attribute;
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult, CUstream,
};

/// The result of a call
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// Calls a function of the driver
#[macro_export]
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the pointers that a test gives are to what lives until the call is over, or are
        // what the test is about, and the driver then has to refuse them.
        $crate::wrap::outcome(unsafe { cudarc::driver::sys::$name($($argument),*) })
    };
}

pub(crate) fn outcome(code: CUresult) -> Outcome {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(error),
    }
}

/// Starts the driver and makes the primary context of a device current
pub(crate) fn start(device: i32) -> Context {
    cu!(cuInit(0)).unwrap();
    let context = Context::retain(device);
    context.push();
    context
}

/// A primary context
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Context(pub(crate) CUcontext);

impl Context {
    pub(crate) fn retain(device: i32) -> Self {
        let mut context = std::ptr::null_mut();
        cu!(cuDevicePrimaryCtxRetain(&mut context, device)).unwrap();
        Self(context)
    }

    pub(crate) fn push(self) {
        cu!(cuCtxPushCurrent_v2(self.0)).unwrap();
    }

    pub(crate) fn pop() -> Outcome<Self> {
        let mut context = std::ptr::null_mut();
        cu!(cuCtxPopCurrent_v2(&mut context))?;
        Ok(Self(context))
    }
}

pub(crate) fn alloc(bytes: usize) -> Outcome<CUdeviceptr> {
    let mut address = 0;
    cu!(cuMemAlloc_v2(&mut address, bytes))?;
    Ok(address)
}

pub(crate) fn free(address: CUdeviceptr) -> Outcome {
    cu!(cuMemFree_v2(address))
}

/// Writes to a device, and waits until the bytes are there
pub(crate) fn write(address: CUdeviceptr, bytes: &[u8]) -> Outcome {
    cu!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()))?;
    cu!(cuStreamSynchronize(std::ptr::null_mut()))
}

/// Reads from a device
pub(crate) fn read(address: CUdeviceptr, count: usize) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; count];
    cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, count))?;
    Ok(bytes)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(pub(crate) CUstream);

impl Stream {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());
    pub(crate) const LEGACY: Self = Self(std::ptr::without_provenance_mut(1));
    pub(crate) const PER_THREAD: Self = Self(std::ptr::without_provenance_mut(2));

    pub(crate) fn create(flags: u32) -> Self {
        let mut stream = std::ptr::null_mut();
        cu!(cuStreamCreate(&mut stream, flags)).unwrap();
        Self(stream)
    }

    pub(crate) fn synchronize(self) {
        cu!(cuStreamSynchronize(self.0)).unwrap();
    }

    /// Whether all work is done
    pub(crate) fn is_idle(self) -> bool {
        match cu!(cuStreamQuery(self.0)) {
            Ok(()) => true,
            Err(CUresult::CUDA_ERROR_NOT_READY) => false,
            Err(error) => panic!("{error:?}"),
        }
    }

    pub(crate) fn fill(self, address: CUdeviceptr, value: u8, bytes: usize) {
        cu!(cuMemsetD8Async(address, value, bytes, self.0)).unwrap();
    }

    pub(crate) fn copy(self, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        cu!(cuMemcpyDtoDAsync_v2(to, from, bytes, self.0)).unwrap();
    }

    /// Makes all that follows wait until the gate opens
    pub(crate) fn stop_at(self, gate: &'static Gate) {
        self.launch(|gate| gate.pass(), gate);
    }

    /// Calls a function in its turn
    pub(crate) fn launch<T: Sync>(self, function: fn(&'static T), data: &'static T) {
        extern "C" fn run<T: Sync + 'static>(call: *mut c_void) {
            // SAFETY: it is the box that is made below, and each call runs once.
            let (function, data) = *unsafe { Box::from_raw(call.cast::<Call<T>>()) };
            function(data);
        }
        type Call<T> = (fn(&'static T), &'static T);
        let call: Box<Call<T>> = Box::new((function, data));
        let call = Box::into_raw(call).cast();
        cu!(cuLaunchHostFunc(self.0, Some(run::<T>), call)).unwrap();
    }

    pub(crate) fn record(self) -> Event {
        let mut event = std::ptr::null_mut();
        cu!(cuEventCreate(&mut event, DISABLE_TIMING)).unwrap();
        cu!(cuEventRecord(event, self.0)).unwrap();
        Event(event)
    }

    pub(crate) fn wait(self, event: Event) {
        cu!(cuStreamWaitEvent(self.0, event.0, 0)).unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event(pub(crate) CUevent);

impl Event {
    pub(crate) fn is_done(self) -> bool {
        match cu!(cuEventQuery(self.0)) {
            Ok(()) => true,
            Err(CUresult::CUDA_ERROR_NOT_READY) => false,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// What holds a stream up for as long as a test likes
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            open: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

pub(crate) fn alloc_managed(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    cu!(cuMemAllocManaged(&mut address, bytes, ATTACH_GLOBAL)).unwrap();
    address
}

pub(crate) fn alloc_host(bytes: usize) -> *mut u8 {
    let mut pointer = std::ptr::null_mut();
    cu!(cuMemHostAlloc(&mut pointer, bytes, 0)).unwrap();
    pointer.cast()
}

/// The handle of the allocation that an address is in
pub(crate) fn handle(address: CUdeviceptr) -> Outcome<CUipcMemHandle> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    cu!(cuIpcGetMemHandle(&mut handle, address))?;
    Ok(handle)
}

pub(crate) fn open(handle: CUipcMemHandle) -> Outcome<CUdeviceptr> {
    let mut address = 0;
    cu!(cuIpcOpenMemHandle_v2(
        &mut address,
        handle,
        LAZY_ENABLE_PEER_ACCESS
    ))?;
    Ok(address)
}

pub(crate) fn handle_bytes(handle: CUipcMemHandle) -> Vec<u8> {
    handle.reserved.map(|byte| byte as u8).to_vec()
}

pub(crate) fn handle_of(bytes: &[u8]) -> CUipcMemHandle {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    for (to, &from) in handle.reserved.iter_mut().zip(bytes) {
        *to = from as std::ffi::c_char;
    }
    handle
}

/// An attribute of a pointer, in the eight bytes that any fits in
pub(crate) fn attribute(attribute: Attribute, address: CUdeviceptr) -> Outcome<u64> {
    let mut value = 0_u64;
    cu!(cuPointerGetAttribute(
        (&raw mut value).cast(),
        attribute,
        address
    ))?;
    Ok(value)
}

/// The same by the call for several, which refuses no pointer
pub(crate) fn attribute_of_any(attribute: Attribute, address: CUdeviceptr) -> u64 {
    let (mut attribute, mut value) = (attribute, 0xAAAA_AAAA_AAAA_AAAA_u64);
    let mut to: *mut c_void = (&raw mut value).cast();
    // Four bytes may be written: see that they are.
    let before = value;
    cu!(cuPointerGetAttributes(1, &mut attribute, &mut to, address)).unwrap();
    if value >> 32 == before >> 32 {
        value & 0xFFFF_FFFF
    } else {
        value
    }
}

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
const ATTACH_GLOBAL: u32 = 1;

/// Memory of `cuMemCreate`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Memory(pub(crate) u64);

impl Memory {
    pub(crate) fn create(bytes: usize, handle_type: CUmemAllocationHandleType) -> Outcome<Self> {
        let mut handle = 0;
        cu!(cuMemCreate(
            &mut handle,
            bytes,
            &allocation_prop(handle_type),
            0
        ))?;
        Ok(Self(handle))
    }

    pub(crate) fn export(self) -> Outcome<OwnedFd> {
        let mut number = -1_i32;
        cu!(cuMemExportToShareableHandle(
            (&raw mut number).cast(),
            self.0,
            DESCRIPTOR,
            0
        ))?;
        // SAFETY: the driver has given this descriptor away.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) fn import(descriptor: BorrowedFd<'_>) -> Outcome<Self> {
        let mut handle = 0;
        cu!(cuMemImportFromShareableHandle(
            &mut handle,
            as_handle(descriptor),
            DESCRIPTOR
        ))?;
        Ok(Self(handle))
    }

    pub(crate) fn release(self) -> Outcome {
        cu!(cuMemRelease(self.0))
    }
}

pub(crate) fn allocation_prop(handle_type: CUmemAllocationHandleType) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_type,
        location: location(0),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub(crate) fn reserve(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    cu!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0)).unwrap();
    address
}

pub(crate) fn map(address: CUdeviceptr, bytes: usize, memory: Memory) -> Outcome {
    cu!(cuMemMap(address, bytes, 0, memory.0, 0))
}

pub(crate) fn unmap(address: CUdeviceptr, bytes: usize) -> Outcome {
    cu!(cuMemUnmap(address, bytes))
}

/// Lets a device read and write, or only read
pub(crate) fn allow(address: CUdeviceptr, bytes: usize, device: i32, write: bool) -> Outcome {
    let access = access(device, write);
    cu!(cuMemSetAccess(address, bytes, &access, 1))
}

/// A memory pool
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pool(pub(crate) CUmemoryPool);

impl Pool {
    pub(crate) fn default_of(device: i32) -> Self {
        let mut pool = std::ptr::null_mut();
        cu!(cuDeviceGetDefaultMemPool(&mut pool, device)).unwrap();
        Self(pool)
    }

    pub(crate) fn create(device: i32, handle_type: CUmemAllocationHandleType) -> Outcome<Self> {
        let mut pool = std::ptr::null_mut();
        let props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: handle_type,
            location: location(device),
            win32SecurityAttributes: std::ptr::null_mut(),
            reserved: [0; 64],
        };
        cu!(cuMemPoolCreate(&mut pool, &props))?;
        Ok(Self(pool))
    }

    pub(crate) fn alloc(self, bytes: usize, stream: Stream) -> Outcome<CUdeviceptr> {
        let mut address = 0;
        cu!(cuMemAllocFromPoolAsync(
            &mut address,
            bytes,
            self.0,
            stream.0
        ))?;
        Ok(address)
    }

    pub(crate) fn export(self) -> Outcome<OwnedFd> {
        let mut number = -1_i32;
        let to: *mut c_void = (&raw mut number).cast();
        cu!(cuMemPoolExportToShareableHandle(to, self.0, DESCRIPTOR, 0))?;
        // SAFETY: the driver has given this descriptor away.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) fn import(descriptor: BorrowedFd<'_>) -> Outcome<Self> {
        let mut pool = std::ptr::null_mut();
        cu!(cuMemPoolImportFromShareableHandle(
            &mut pool,
            as_handle(descriptor),
            DESCRIPTOR,
            0
        ))?;
        Ok(Self(pool))
    }

    pub(crate) fn import_pointer(self, data: &[u8]) -> Outcome<CUdeviceptr> {
        let mut address = 0;
        let reserved = data.try_into().unwrap();
        let mut data = CUmemPoolPtrExportData { reserved };
        cu!(cuMemPoolImportPointer(&mut address, self.0, &mut data))?;
        Ok(address)
    }

    pub(crate) fn allow(self, device: i32) -> Outcome {
        let access = access(device, true);
        cu!(cuMemPoolSetAccess(self.0, &access, 1))
    }

    pub(crate) fn destroy(self) -> Outcome {
        cu!(cuMemPoolDestroy(self.0))
    }
}

pub(crate) fn export_pointer(address: CUdeviceptr) -> Outcome<[u8; 64]> {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    cu!(cuMemPoolExportPointer(&mut data, address))?;
    Ok(data.reserved)
}

pub(crate) fn free_async(address: CUdeviceptr, stream: Stream) -> Outcome {
    cu!(cuMemFreeAsync(address, stream.0))
}

fn access(device: i32, write: bool) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: if write {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
        },
    }
}

fn location(device: i32) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

/// A descriptor as the driver takes it
fn as_handle(descriptor: BorrowedFd<'_>) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(descriptor.as_raw_fd()).unwrap())
}

pub(crate) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub(crate) const NO_HANDLE: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
