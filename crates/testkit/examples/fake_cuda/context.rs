//! Contexts: the primary one of each device, and each thread's stack of them.

use std::cell::RefCell;
use std::collections::HashSet;

use cudarc::driver::sys::{CUcontext, CUdevice, CUresult};

use crate::driver::{Driver, State};
use crate::error::Outcome;
use crate::ffi::{Out, call};
use crate::settings::settings;
use crate::space::Kind;

/// The primary context of a device
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// How often it is retained; at 0 no call may use it
    retained: u32,
    /// The devices whose contexts it may reach
    peers: HashSet<usize>,
}

impl Driver {
    /// The device of the context that is current to this thread
    pub(crate) fn current(&self) -> Outcome<usize> {
        let device = STACK
            .with_borrow(|stack| stack.last().copied())
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if self.state().contexts[device].retained == 0 {
            return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        Ok(device)
    }

    /// The device of a context, which must be in use
    pub(crate) fn context(&self, handle: CUcontext) -> Outcome<usize> {
        (0..self.count())
            .find(|&device| handle_of(device) == handle)
            .filter(|&device| self.state().contexts[device].retained > 0)
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Returns whether the primary context of a device is in use
    pub(crate) fn is_retained(&self, device: usize) -> bool {
        self.state().contexts[device].retained > 0
    }

    /// Ends what the context of a device holds, once its streams are done
    fn reset(&self, device: usize) {
        let marks = self.streams().all_marks(device);
        for mark in marks {
            mark.wait();
        }
        self.streams().end(device);
        let state = &mut *self.state();
        state.contexts[device].peers.clear();
        state.events.retain(|_, event| event.context != device);
        let bases: Vec<u64> = state
            .space
            .allocations()
            .filter(|allocation| allocation.context() == Some(device))
            .map(|allocation| allocation.base)
            .collect();
        for base in bases {
            state.free(base);
        }
    }
}

impl State {
    /// Ends an allocation of any kind
    pub(crate) fn free(&mut self, base: u64) {
        let Some(allocation) = self.space.remove(base) else {
            return;
        };
        allocation.spoil();
        if matches!(allocation.kind, Kind::Device { .. } | Kind::Managed) {
            self.free_memory(allocation.device, allocation.bytes);
        }
        if self.space.reserves(base) {
            self.space.give_back(base);
        }
    }
}

/// The handle of the primary context of a device
pub(crate) fn handle_of(device: usize) -> CUcontext {
    std::ptr::without_provenance_mut(CONTEXTS + device * 64)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRetain(
    context: Out<CUcontext>,
    ordinal: CUdevice,
) -> CUresult {
    call("cuDevicePrimaryCtxRetain", |driver| {
        let device = driver.device(ordinal)?;
        context.put(handle_of(device))?;
        driver.state().contexts[device].retained += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: CUdevice) -> CUresult {
    call("cuDevicePrimaryCtxRelease_v2", |driver| {
        let device = driver.device(ordinal)?;
        let last = {
            let retained = &mut driver.state().contexts[device].retained;
            *retained = retained
                .checked_sub(1)
                .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
            *retained == 0
        };
        if last {
            driver.reset(device);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    call("cuCtxPushCurrent_v2", |driver| {
        let device = driver.context(context)?;
        STACK.with_borrow_mut(|stack| stack.push(device));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxPopCurrent_v2(context: Out<CUcontext>) -> CUresult {
    call("cuCtxPopCurrent_v2", |_| {
        let device = STACK
            .with_borrow_mut(Vec::pop)
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        context.put_if_wanted(handle_of(device))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    call("cuCtxSetCurrent", |driver| {
        let device = if context.is_null() {
            None
        } else {
            Some(driver.context(context)?)
        };
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(device);
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetCurrent(context: Out<CUcontext>) -> CUresult {
    call("cuCtxGetCurrent", |_| {
        let device = STACK.with_borrow(|stack| stack.last().copied());
        context.put(device.map_or(std::ptr::null_mut(), handle_of))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxGetDevice(ordinal: Out<CUdevice>) -> CUresult {
    call("cuCtxGetDevice", |driver| {
        let device = driver.current()?;
        ordinal.put(CUdevice::try_from(device).expect("an ordinal was an int"))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxSynchronize() -> CUresult {
    call("cuCtxSynchronize", |driver| {
        let device = driver.current()?;
        let marks = driver.streams().all_marks(device);
        for mark in marks {
            mark.wait();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuDeviceCanAccessPeer(
    can: Out<i32>,
    ordinal: CUdevice,
    peer: CUdevice,
) -> CUresult {
    call("cuDeviceCanAccessPeer", |driver| {
        let (device, peer) = (driver.device(ordinal)?, driver.device(peer)?);
        // A device is no peer of its own.
        can.put(i32::from(settings().peers && device != peer))
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) -> CUresult {
    call("cuCtxEnablePeerAccess", |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if peer == device {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        if !settings().peers {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if driver.state().contexts[device].peers.insert(peer) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuCtxDisablePeerAccess(peer: CUcontext) -> CUresult {
    call("cuCtxDisablePeerAccess", |driver| {
        let device = driver.current()?;
        let peer = driver.context(peer)?;
        if driver.state().contexts[device].peers.remove(&peer) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
        }
    })
}

thread_local! {
    /// The contexts that this thread has pushed: the last is current
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Handles of contexts, in no range of other handles
const CONTEXTS: usize = 0x3000_0000_0000_0000;
