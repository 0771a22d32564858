//! The driver API with results in place of codes, for tests.

use std::ffi::c_void;
use std::sync::{Condvar, Mutex};

pub(crate) use cudarc::driver::sys::CUpointer_attribute as Attribute;
use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUevent, CUipcMemHandle, CUresult, CUstream};

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

    /// Returns whether all work is done
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

/// Gate that holds a stream up for as long as a test likes
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
