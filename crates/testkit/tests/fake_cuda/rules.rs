//! Rules within one process: the start, devices, contexts, failures that are asked for.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult, CUuuid};

use crate::wrap::{Context, Outcome, Stream, alloc, free, handle, start};
use crate::{cu, driver_tests};

driver_tests! {
    fn nothing_works_before_the_start(FAKE_CUDA_VERSION = "12345") {
        let early = Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
        assert_eq!(alloc(1), early);
        assert_eq!(cu!(cuDeviceGetCount(&mut 0)), early.map(drop));
        assert_eq!(cu!(cuCtxGetCurrent(&mut std::ptr::null_mut())), early.map(drop));
        // But for these.
        let mut version = 0;
        cu!(cuDriverGetVersion(&mut version)).unwrap();
        assert_eq!(version, 12345);
        assert_eq!(name_of(CUresult::CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
        assert_eq!(cu!(cuInit(1)), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        cu!(cuInit(0)).unwrap();
        cu!(cuInit(0)).unwrap();
    }

    fn a_host_without_devices_has_no_driver_to_start(FAKE_CUDA_DEVICES = "0") {
        assert_eq!(cu!(cuInit(0)), Err(CUresult::CUDA_ERROR_NO_DEVICE));
        assert_eq!(alloc(1), Err(CUresult::CUDA_ERROR_NOT_INITIALIZED));
    }

    fn no_device_is_seen_behind_one_that_is_not_there(
        FAKE_CUDA_DEVICES = "3",
        CUDA_VISIBLE_DEVICES = "2,0,7,1"
    ) {
        cu!(cuInit(0)).unwrap();
        assert_eq!(device_count(), 2);
        assert_eq!([uuid(0)[3], uuid(1)[3]], [2, 0]);
        assert_eq!(bus_id(0), "0000:12:00.0");
        let no_device = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        assert_eq!(cu!(cuDeviceGet(&mut 0, 2)), no_device);
        assert_eq!(cu!(cuDeviceTotalMem_v2(&mut 0, -1)), no_device);
    }

    fn a_device_is_seen_by_its_uuid(
        FAKE_CUDA_DEVICES = "2",
        CUDA_VISIBLE_DEVICES = "GPU-face0001"
    ) {
        cu!(cuInit(0)).unwrap();
        assert_eq!(device_count(), 1);
        assert_eq!(&uuid(0), b"\xfa\xce\x00\x01fake-devices");
    }

    fn a_uuid_that_may_be_of_two_devices_names_none(
        FAKE_CUDA_DEVICES = "2",
        CUDA_VISIBLE_DEVICES = "1,GPU-face"
    ) {
        cu!(cuInit(0)).unwrap();
        assert_eq!(device_count(), 1);
    }

    fn no_device_is_seen_if_none_is_to_be(CUDA_VISIBLE_DEVICES = "") {
        assert_eq!(cu!(cuInit(0)), Err(CUresult::CUDA_ERROR_NO_DEVICE));
    }

    fn a_context_is_current_to_the_thread_that_pushed_it(FAKE_CUDA_DEVICES = "2") {
        let first = start(0);
        let second = Context::retain(1);
        second.push();
        assert_eq!(current_device(), Ok(1));
        std::thread::spawn(|| {
            assert_eq!(current_device(), Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
            assert_eq!(alloc(1), Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        })
        .join()
        .unwrap();
        assert_eq!(Context::pop(), Ok(second));
        assert_eq!(current_device(), Ok(0));
        // To set one replaces the top of the stack.
        cu!(cuCtxSetCurrent(second.0)).unwrap();
        assert_eq!(current_device(), Ok(1));
        cu!(cuCtxSetCurrent(first.0)).unwrap();
        cu!(cuCtxSetCurrent(std::ptr::null_mut())).unwrap();
        assert_eq!(Context::pop(), Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
        let mut none = first.0;
        cu!(cuCtxGetCurrent(&mut none)).unwrap();
        assert!(none.is_null());
    }

    fn what_needs_a_context_says_so() {
        cu!(cuInit(0)).unwrap();
        let context = Context::retain(0);
        context.push();
        let (address, stream) = (alloc(8).unwrap(), Stream::create(0));
        let event = stream.record();
        Context::pop().unwrap();
        let mut bytes = [0_u8; 8];
        let to = bytes.as_mut_ptr().cast();
        let calls: &[(&str, Outcome)] = &[
            ("alloc", cu!(cuMemAlloc_v2(&mut 0, 8))),
            ("managed", cu!(cuMemAllocManaged(&mut 0, 8, 1))),
            ("free", free(address)),
            ("info", cu!(cuMemGetInfo_v2(&mut 0, &mut 0))),
            ("range", cu!(cuMemGetAddressRange_v2(&mut 0, &mut 0, address))),
            ("host alloc", cu!(cuMemHostAlloc(&mut std::ptr::null_mut(), 8, 0))),
            ("register", cu!(cuMemHostRegister_v2(to, 8, 0))),
            ("handle", handle(address).map(drop)),
            ("close", cu!(cuIpcCloseMemHandle(address))),
            ("read", cu!(cuMemcpyDtoH_v2(to, address, 8))),
            ("fill", cu!(cuMemsetD8Async(address, 0, 8, stream.0))),
            ("stream", cu!(cuStreamCreate(&mut std::ptr::null_mut(), 0))),
            ("query", cu!(cuStreamQuery(stream.0))),
            ("synchronize", cu!(cuStreamSynchronize(stream.0))),
            ("wait", cu!(cuStreamWaitEvent(stream.0, event.0, 0))),
            ("destroy", cu!(cuStreamDestroy_v2(stream.0))),
            ("event", cu!(cuEventCreate(&mut std::ptr::null_mut(), 0))),
            ("record", cu!(cuEventRecord(event.0, stream.0))),
            ("synchronize event", cu!(cuEventSynchronize(event.0))),
            ("context", cu!(cuCtxSynchronize())),
            ("default stream", cu!(cuMemAllocAsync(&mut 0, 8, std::ptr::null_mut()))),
        ];
        for (name, outcome) in calls {
            assert_eq!(*outcome, Err(CUresult::CUDA_ERROR_INVALID_CONTEXT), "{name}");
        }
        // These ask for the stream or the event alone.
        cu!(cuMemAllocAsync(&mut 0, 8, stream.0)).unwrap();
        context.push();
        stream.synchronize();
        Context::pop().unwrap();
        assert!(event.is_done());
    }

    fn a_context_ends_with_its_last_owner() {
        let context = start(0);
        Context::retain(0);
        let (address, stream) = (alloc(1000).unwrap(), Stream::create(0));
        cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
        alloc(8).unwrap();
        cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
        assert_eq!(alloc(8), Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED));
        let invalid = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(cu!(cuCtxPushCurrent_v2(context.0)), invalid);
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), invalid);
        // A new one has nothing of the old.
        assert_eq!(Context::retain(0), context);
        assert_eq!(free(address), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(cu!(cuStreamQuery(stream.0)), Err(CUresult::CUDA_ERROR_INVALID_HANDLE));
        let (mut left, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut left, &mut total)).unwrap();
        assert_eq!(left, total);
    }

    fn the_child_of_a_fork_has_no_driver() {
        start(0);
        let address = alloc(8).unwrap();
        assert_eq!(in_child(|| {
            let lost = Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
            cu!(cuInit(0)) == lost && free(address) == lost && cu!(cuCtxSynchronize()) == lost
        }), Ended::With(true));
        free(address).unwrap();
    }

    fn the_host_cannot_touch_device_memory() {
        start(0);
        let address = alloc(8).unwrap() as *const u8;
        let touched = in_child(|| {
            // SAFETY: none: the memory is not for the host, and the child ends by it.
            unsafe { address.read_volatile() == 0 }
        });
        assert_eq!(touched, Ended::BySignal(libc::SIGSEGV));
    }

    fn a_call_fails_as_it_is_asked_to(FAKE_CUDA_FAIL = "cuIpcGetMemHandle=801, cuCtxSynchronize=2") {
        start(0);
        let address = alloc(8).unwrap();
        assert_eq!(handle(address).unwrap_err(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(cu!(cuCtxSynchronize()), Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }

    fn a_panic_does_not_cross(FAKE_CUDA_FAIL = "nonsense") {
        assert_eq!(cu!(cuInit(0)), Err(CUresult::CUDA_ERROR_UNKNOWN));
    }

    fn peers_are_enabled_once_and_both_ways_apart(FAKE_CUDA_DEVICES = "2") {
        let (first, second) = (start(0), Context::retain(1));
        assert_eq!([can_access(0, 1), can_access(1, 0), can_access(0, 0)], [1, 1, 0]);
        cu!(cuCtxEnablePeerAccess(second.0, 0)).unwrap();
        let again = Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(cu!(cuCtxEnablePeerAccess(second.0, 0)), again);
        let own = Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        assert_eq!(cu!(cuCtxEnablePeerAccess(first.0, 0)), own);
        cu!(cuCtxDisablePeerAccess(second.0)).unwrap();
        let off = Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
        assert_eq!(cu!(cuCtxDisablePeerAccess(second.0)), off);
    }

    fn devices_need_not_reach_each_other(FAKE_CUDA_DEVICES = "2", FAKE_CUDA_NO_PEER = "1") {
        start(0);
        assert_eq!(can_access(0, 1), 0);
        let refused = Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        assert_eq!(cu!(cuCtxEnablePeerAccess(Context::retain(1).0, 0)), refused);
    }

    fn every_function_is_there_by_its_name() {
        for name in NAMES {
            // SAFETY: the address is looked at and not called.
            let found = unsafe { sys::culib().get::<*const ()>(name.as_bytes()) };
            assert!(found.is_ok(), "{name} is missing");
        }
    }
}

/// How the child of a fork ended
#[derive(Debug, Eq, PartialEq)]
enum Ended {
    With(bool),
    BySignal(i32),
}

/// Runs something in the child of a fork
fn in_child(work: impl FnOnce() -> bool) -> Ended {
    // SAFETY: the child calls what it is given, which takes no lock that another thread may hold,
    // and ends without running anything else.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        let fine = work();
        // SAFETY: it ends the process, no more.
        unsafe { libc::_exit(i32::from(fine)) }
    }
    let mut status = 0;
    // SAFETY: the child is ours, and the status lives until the call is over.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        Ended::BySignal(libc::WTERMSIG(status))
    } else {
        Ended::With(libc::WEXITSTATUS(status) == 1)
    }
}

fn name_of(result: CUresult) -> String {
    let mut name = std::ptr::null();
    cu!(cuGetErrorName(result, &mut name)).unwrap();
    // SAFETY: the driver has given a string of its own.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
}

fn device_count() -> i32 {
    let mut count = 0;
    cu!(cuDeviceGetCount(&mut count)).unwrap();
    count
}

fn uuid(device: i32) -> [u8; 16] {
    let mut uuid = CUuuid { bytes: [0; 16] };
    cu!(cuDeviceGetUuid_v2(&mut uuid, device)).unwrap();
    uuid.bytes.map(|byte| byte as u8)
}

fn bus_id(device: i32) -> String {
    let mut text = [0; 64];
    cu!(cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, device)).unwrap();
    // SAFETY: the driver has written a string that fits.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_str()
        .unwrap()
        .to_owned()
}

fn current_device() -> Outcome<i32> {
    let mut device = -1;
    cu!(cuCtxGetDevice(&mut device))?;
    Ok(device)
}

fn can_access(device: i32, peer: i32) -> i32 {
    let mut can = -1;
    cu!(cuDeviceCanAccessPeer(&mut can, device, peer)).unwrap();
    can
}

/// Names that a binding of the driver may look for
const NAMES: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSynchronize",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuMemGetAddressRange_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocManaged",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuIpcCloseMemHandle",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuLaunchHostFunc",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemRetainAllocationHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAccess",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuCtxDisablePeerAccess",
];
