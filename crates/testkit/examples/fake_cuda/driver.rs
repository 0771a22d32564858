//! The one driver of a process: its devices, and what is behind its locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::context::Primary;
use crate::error::Outcome;
use crate::event::Event;
use crate::ffi::call_any_time;
use crate::pool::Pools;
use crate::queue::Streams;
use crate::settings::settings;
use crate::space::Space;
use crate::vmm::Vmm;

/// The driver, from `cuInit` on
///
/// A device is its ordinal here; `devices` tells which of the host's that is. No lock is held while
/// a thread waits for a stream, and that of the streams is taken last.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The devices of the host that this process sees
    devices: Vec<usize>,
    state: Mutex<State>,
    streams: Mutex<Streams>,
}

/// State that calls change
#[derive(Debug)]
pub(crate) struct State {
    /// Addresses, and the memory behind them
    pub(crate) space: Space,
    /// The primary context of each device
    pub(crate) contexts: Vec<Primary>,
    /// Events, by handle
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) vmm: Vmm,
    pub(crate) pools: Pools,
    /// Memory that is allocated on each device
    pub(crate) used_bytes: Vec<usize>,
    handles: usize,
}

impl Driver {
    /// The driver, if this process has started it
    pub(crate) fn running() -> Outcome<&'static Self> {
        DRIVER.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
    }

    /// How many devices there are
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// The device with this ordinal
    pub(crate) fn device(&self, ordinal: i32) -> Outcome<usize> {
        usize::try_from(ordinal)
            .ok()
            .filter(|&device| device < self.devices.len())
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Which of the host's devices this is
    pub(crate) fn physical(&self, device: usize) -> usize {
        self.devices[device]
    }

    /// The ordinal of a device of the host, if this process sees it
    pub(crate) fn ordinal_of(&self, physical: usize) -> Option<usize> {
        self.devices.iter().position(|&device| device == physical)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start() -> Outcome<Self> {
        let devices = settings().visible.clone();
        if devices.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        Ok(Self {
            state: Mutex::new(State {
                space: Space::reserve()?,
                contexts: devices.iter().map(|_| Primary::default()).collect(),
                events: HashMap::new(),
                vmm: Vmm::default(),
                pools: Pools::default(),
                used_bytes: vec![0; devices.len()],
                handles: 0,
            }),
            streams: Mutex::new(Streams::new(devices.len())),
            devices,
        })
    }
}

impl State {
    /// A handle that no other object has, or ever had
    pub(crate) fn next_handle(&mut self) -> usize {
        self.handles += 1;
        HANDLES + self.handles * 16
    }

    /// Counts memory of a device, if there is as much
    pub(crate) fn use_memory(&mut self, device: usize, bytes: usize) -> Outcome {
        let used_bytes = self.used_bytes[device].saturating_add(bytes);
        if used_bytes > settings().memory_bytes {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.used_bytes[device] = used_bytes;
        Ok(())
    }

    /// Takes back what [`State::use_memory`] counted
    pub(crate) fn free_memory(&mut self, device: usize, bytes: usize) {
        self.used_bytes[device] -= bytes;
    }
}

/// Returns whether this process is the child of the one that started the driver
pub(crate) fn forked() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuInit(flags: u32) -> CUresult {
    call_any_time("cuInit", || {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // One thread starts it; a second that comes meanwhile waits for the lock.
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if DRIVER.get().is_none() {
            let driver = Driver::start()?;
            PROCESS.store(std::process::id(), Ordering::Relaxed);
            DRIVER.get_or_init(|| driver);
        }
        Ok(())
    })
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// The process that started the driver, or zero. Only the process itself and its children read it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Far from what any process maps: to follow a handle is a fault
const HANDLES: usize = 0x4000_0000_0000_0000;
