//! Processes that have the fake driver, and memory of it that a program would have.

use std::ffi::c_void;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use backhaul::{DeviceMemory, cuda};
use backhaul_testkit::fake_cuda::library_folder;
use backhaul_testkit::watchdog::Watchdog;
use cudarc::driver::sys;

/// Calls the driver; panics with what it said
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: places and pointers of the test's own.
        let result = unsafe { sys::$function($($argument),*) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS, stringify!($function));
    };
}

/// Runs a test of this program in a process that has the driver, in each of some environments
///
/// On a real driver nothing can be made to fail, and no devices be made up.
pub(crate) fn run_in(name: &str, environments: &[&[(&str, &str)]]) {
    let is_over_ucx = |environment: &[(&str, &str)]| environment.contains(&OVER_UCX);
    let without_ucx = backhaul_testkit::ucx::library().err();
    if !is_real() {
        for environment in environments {
            match &without_ucx {
                Some(why) if is_over_ucx(environment) => println!("skipped: {why}"),
                _ => run(name, environment),
            }
        }
        return;
    }
    let is_set = |variable| {
        let mut variables = environments.iter().copied().flatten();
        variables.any(|(name, _)| *name == variable)
    };
    if is_set("FAKE_CUDA_FAIL") {
        println!("skipped: a real driver does not fail when it is told to");
    } else if is_set("FAKE_CUDA_DEVICES") && devices() < 2 {
        println!("skipped: there is one device");
    } else {
        run(name, &[]);
        run(name, &[("SPIN", "1")]);
        match &without_ucx {
            Some(why) => println!("skipped: {why}"),
            None if environments.iter().any(|them| is_over_ucx(them)) => run(name, &[OVER_UCX]),
            None => {}
        }
    }
}

/// Returns whether this process has been started for one test, with the driver
pub(crate) fn is_within() -> bool {
    std::env::var_os(WITHIN).is_some()
}

/// Returns whether the driver is that of this machine: `BACKHAUL_CUDA_DRIVER=real`
pub(crate) fn is_real() -> bool {
    std::env::var("BACKHAUL_CUDA_DRIVER").as_deref() == Ok("real")
}

fn devices() -> i32 {
    let mut count = 0;
    call!(cuInit(0));
    call!(cuDeviceGetCount(&raw mut count));
    count
}

fn run(name: &str, environment: &[(&str, &str)]) {
    let output = command(name, environment)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{name} with {environment:?}: {}\n{out}\n{error}",
        output.status
    );
}

/// A process that runs a test with the driver
pub(crate) fn command(name: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(WITHIN, "1")
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    if !is_real() {
        command.env("LD_LIBRARY_PATH", library_folder());
    }
    if environment.contains(&OVER_UCX) && std::env::var_os("UCX_TLS").is_none() {
        command.env("UCX_TLS", "tcp,cuda_copy");
    }
    command
}

/// Has a test run over UCX, by its sockets and by its module for CUDA
const OVER_UCX: (&str, &str) = ("LANE", "ucx");

/// Set in a process that has the driver
const WITHIN: &str = "CUDA_TEST_WITHIN";

/// How a program allocates
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Managed,
    DefaultPool,
    SharedPool,
    Mapped,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Plain,
        Self::Managed,
        Self::DefaultPool,
        Self::SharedPool,
        Self::Mapped,
    ];
}

/// Memory that a program has allocated, freed when it is dropped
#[derive(Debug)]
pub(crate) struct Memory {
    kind: Kind,
    device: i32,
    pointer: u64,
    bytes: usize,
}

/// Has a device's context current on this thread, as a program has
pub(crate) fn enter(device: i32) {
    // A test begins with it, and has its process for itself.
    static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
    WATCHDOG.get_or_init(|| Watchdog::start(std::thread::current().name().unwrap_or("a peer")));
    call!(cuInit(0));
    let mut context = std::ptr::null_mut();
    call!(cuDevicePrimaryCtxRetain(&raw mut context, device));
    call!(cuCtxSetCurrent(context));
}

pub(crate) fn stream() -> u64 {
    let mut stream = std::ptr::null_mut();
    call!(cuStreamCreate(&raw mut stream, 1));
    stream as u64
}

/// Captures the work that is put on a stream, as a program that makes a CUDA graph does, for all
/// threads
pub(crate) fn begin_capture(stream: u64) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    call!(cuStreamBeginCapture_v2(
        stream as usize as sys::CUstream,
        mode
    ));
}

/// Ends it; panics if something has spoilt it
pub(crate) fn end_capture(stream: u64) {
    let mut graph = std::ptr::null_mut();
    call!(cuStreamEndCapture(
        stream as usize as sys::CUstream,
        &raw mut graph
    ));
}

pub(crate) fn synchronize() {
    call!(cuCtxSynchronize());
}

impl Memory {
    /// Allocates on the device whose context is current
    pub(crate) fn new(kind: Kind, bytes: usize) -> Self {
        let mut pointer = 0;
        let mut device = 0;
        call!(cuCtxGetDevice(&raw mut device));
        match kind {
            Kind::Plain => {
                call!(cuMemAlloc_v2(&raw mut pointer, bytes));
            }
            Kind::Managed => {
                call!(cuMemAllocManaged(&raw mut pointer, bytes, 1));
            }
            Kind::DefaultPool => {
                call!(cuMemAllocAsync(
                    &raw mut pointer,
                    bytes,
                    std::ptr::null_mut()
                ));
                synchronize();
            }
            Kind::SharedPool => {
                let pool = shared_pool(device);
                call!(cuMemAllocFromPoolAsync(
                    &raw mut pointer,
                    bytes,
                    pool as sys::CUmemoryPool,
                    std::ptr::null_mut()
                ));
                synchronize();
            }
            Kind::Mapped => pointer = mapped(device, bytes.next_multiple_of(GRANULE)),
        }
        Self {
            kind,
            device,
            pointer,
            bytes,
        }
    }

    /// Puts other memory where this is, half by half
    pub(crate) fn map_anew_by_halves(&self) {
        assert_eq!((self.kind, self.bytes), (Kind::Mapped, 2 * GRANULE));
        call!(cuMemUnmap(self.pointer, 2 * GRANULE));
        for half in [self.pointer, self.pointer + GRANULE as u64] {
            map(self.device, half, GRANULE);
        }
    }

    pub(crate) fn pointer(&self) -> u64 {
        self.pointer
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        call!(cuMemcpyHtoD_v2(
            self.pointer,
            bytes.as_ptr().cast(),
            bytes.len()
        ));
        // From pageable memory it may still be under way.
        synchronize();
    }

    pub(crate) fn fill_later(&self, byte: u8, stream: u64) {
        let stream = stream as usize as sys::CUstream;
        call!(cuMemsetD8Async(self.pointer, byte, self.bytes, stream));
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        call!(cuMemcpyDtoH_v2(
            bytes.as_mut_ptr().cast::<c_void>(),
            self.pointer,
            self.bytes
        ));
        bytes
    }

    /// A part of it, as an operation takes it
    pub(crate) fn part(
        self: &Arc<Self>,
        offset: usize,
        bytes: usize,
        stream: Option<u64>,
    ) -> DeviceMemory {
        let owner = Arc::clone(self);
        cuda::describe(self.pointer + offset as u64, bytes, stream, owner).unwrap()
    }

    pub(crate) fn whole(self: &Arc<Self>) -> DeviceMemory {
        self.part(0, self.bytes, None)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        enter(self.device);
        match self.kind {
            Kind::Plain | Kind::Managed => {
                call!(cuMemFree_v2(self.pointer));
            }
            Kind::DefaultPool | Kind::SharedPool => {
                call!(cuMemFreeAsync(self.pointer, std::ptr::null_mut()));
            }
            Kind::Mapped => {
                call!(cuMemUnmap(
                    self.pointer,
                    self.bytes.next_multiple_of(GRANULE)
                ));
            }
        }
    }
}

fn shared_pool(device: i32) -> usize {
    // SAFETY: numbers and null pointers.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = DESCRIPTORS;
    properties.location = location(device);
    let mut pool = std::ptr::null_mut();
    call!(cuMemPoolCreate(&raw mut pool, &raw const properties));
    pool as usize
}

fn mapped(device: i32, bytes: usize) -> u64 {
    let mut pointer = 0;
    call!(cuMemAddressReserve(&raw mut pointer, bytes, 0, 0, 0));
    map(device, pointer, bytes);
    pointer
}

/// Has memory where addresses are reserved
fn map(device: i32, pointer: u64, bytes: usize) {
    // SAFETY: as above.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = DESCRIPTORS;
    properties.location = location(device);
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let mut handle = 0;
    call!(cuMemCreate(
        &raw mut handle,
        bytes,
        &raw const properties,
        0
    ));
    call!(cuMemMap(pointer, bytes, 0, handle, 0));
    call!(cuMemSetAccess(pointer, bytes, &raw const access, 1));
    call!(cuMemRelease(handle));
}

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

const DESCRIPTORS: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Granularity of mapped memory
pub(crate) const GRANULE: usize = 2 << 20;
