//! Which devices UCX copies from and to, and in whose context.
//!
//! UCX calls CUDA on whatever thread makes its worker progress. Newer versions find the context by the
//! memory; older ones take that of the thread, of which the engine's has none. So while anything of a
//! device is under way, a context is made current for each step.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use backhaul_cuda::{Current, DevicePointer, Driver};

use crate::runtime::lock;

/// Operations under way between UCX and devices
#[derive(Debug, Default)]
pub(super) struct Devices {
    count: AtomicUsize,
    /// Memory of the operation that began last
    last: Mutex<Option<DevicePointer>>,
}

/// An operation on memory of a device, until it is dropped
#[derive(Debug)]
pub(crate) struct DeviceOperation {
    devices: Arc<Devices>,
    memory: DevicePointer,
}

impl Devices {
    pub(super) fn begin(self: &Arc<Self>, memory: DevicePointer) -> DeviceOperation {
        *lock(&self.last) = Some(memory);
        // A thread that makes progress without seeing this makes it without the operation, too.
        self.count.fetch_add(1, Ordering::Relaxed);
        DeviceOperation {
            devices: Arc::clone(self),
            memory,
        }
    }

    /// Makes a context current, if something is under way
    #[inline]
    pub(super) fn enter(&self) -> Option<Current<'static>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let memory = *lock(&self.last);
        memory.and_then(enter)
    }
}

impl DeviceOperation {
    /// Makes the context of its memory current
    pub(crate) fn enter(&self) -> Option<Current<'static>> {
        enter(self.memory)
    }
}

impl Drop for DeviceOperation {
    fn drop(&mut self) {
        self.devices.count.fetch_sub(1, Ordering::Relaxed);
    }
}

fn enter(memory: DevicePointer) -> Option<Current<'static>> {
    let current = memory.enter(Driver::get().ok()?);
    if let Err(error) = &current {
        tracing::debug!(%error, "UCX has to find the context of a device by itself");
    }
    current.ok()
}
