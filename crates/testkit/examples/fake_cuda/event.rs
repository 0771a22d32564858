//! Events: points in streams that others may wait for.

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::capture;
use crate::driver::Driver;
use crate::error::Outcome;
use crate::ffi::{Out, call};
use crate::queue::Mark;

/// Event, with the work that was captured at the last record
#[derive(Debug)]
pub(crate) struct Event {
    /// The device of its context
    pub(crate) context: usize,
    captured: Option<Mark>,
}

impl Driver {
    /// Returns the mark that an event has captured; nothing before its first record
    pub(crate) fn event_mark(&self, event: CUevent) -> Outcome<Option<Mark>> {
        let state = self.state();
        let event = state.events.get(&event.addr());
        Ok(event
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?
            .captured
            .clone())
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventCreate(to: Out<CUevent>, flags: u32) -> CUresult {
    call("cuEventCreate", |driver| {
        let context = driver.current()?;
        let unknown = flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0;
        let timed = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if unknown || timed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut state = driver.state();
        let handle = state.next_handle();
        to.put(std::ptr::without_provenance_mut(handle))?;
        let captured = None;
        state.events.insert(handle, Event { context, captured });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    call("cuEventRecord", |driver| {
        driver.current()?;
        let stream = driver.stream(stream)?;
        let mut state = driver.state();
        let event = state
            .events
            .get_mut(&event.addr())
            .filter(|event| event.context == stream.context)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        event.captured = Some(driver.streams().submit(&stream, Vec::new(), None));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    // The one call of these that is documented without CUDA_ERROR_INVALID_CONTEXT
    call("cuEventQuery", |driver| {
        capture::unsafe_call()?;
        if driver.event_mark(event)?.is_none_or(|mark| mark.is_done()) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_READY)
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    call("cuEventSynchronize", |driver| {
        driver.current()?;
        if let Some(mark) = driver.event_mark(event)? {
            mark.wait();
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    call("cuEventDestroy_v2", |driver| {
        driver.current()?;
        let event = driver.state().events.remove(&event.addr());
        event.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}

const BLOCKING_SYNC: u32 = 1;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
