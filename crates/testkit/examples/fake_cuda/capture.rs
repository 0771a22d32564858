//! Streams that are being captured for a CUDA graph: that they are, and what spoils it. Nothing is captured.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUgraph, CUresult, CUstream};

use crate::error::Outcome;
use crate::ffi::{Out, call};

/// A capture, by the handle of its stream
struct Capture {
    mode: u32,
    is_spoilt: bool,
}

static CAPTURES: LazyLock<Mutex<HashMap<usize, Capture>>> = LazyLock::new(Mutex::default);

thread_local! {
    /// Effect on captures of this thread's calls that are unsafe during one
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

fn captures() -> MutexGuard<'static, HashMap<usize, Capture>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a question about a stream that is being captured, which spoils the capture
pub(crate) fn ask(stream: CUstream) -> Outcome {
    match captures().get_mut(&stream.addr()) {
        Some(capture) => {
            capture.is_spoilt = true;
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Refuses a call that is unsafe while any thread captures, unless this thread has said that it is
/// not
pub(crate) fn unsafe_call() -> Outcome {
    if MODE.get() == RELAXED {
        return Ok(());
    }
    let mut captures = captures();
    let mut spoilt = captures
        .values_mut()
        .filter(|capture| capture.mode == GLOBAL)
        .map(|capture| capture.is_spoilt = true);
    match spoilt.next() {
        Some(()) => {
            spoilt.for_each(drop);
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) -> CUresult {
    call("cuStreamBeginCapture_v2", |driver| {
        driver.stream(stream)?;
        if mode > RELAXED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let is_spoilt = false;
        captures().insert(stream.addr(), Capture { mode, is_spoilt });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) -> CUresult {
    call("cuStreamEndCapture", |_| {
        let capture = captures().remove(&stream.addr());
        match capture.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)? {
            Capture { is_spoilt, .. } if is_spoilt => {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            }
            _ => graph.put(std::ptr::null_mut()),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamIsCapturing(stream: CUstream, status: Out<u32>) -> CUresult {
    call("cuStreamIsCapturing", |driver| {
        driver.stream(stream)?;
        status.put(match captures().get(&stream.addr()) {
            None => 0,
            Some(capture) if capture.is_spoilt => 2,
            Some(_) => 1,
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> CUresult {
    call("cuThreadExchangeStreamCaptureMode", |_| {
        // SAFETY: a caller gives null or what is valid for reads and writes.
        let place = unsafe { mode.as_mut() };
        let place = place.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if *place > RELAXED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        *place = MODE.replace(*place);
        Ok(())
    })
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`
const GLOBAL: u32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: u32 = 2;
