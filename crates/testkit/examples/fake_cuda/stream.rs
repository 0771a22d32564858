//! The calls on streams.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUevent, CUhostFn, CUresult, CUstream};

use crate::capture;
use crate::driver::Driver;
use crate::error::Outcome;
use crate::ffi::{Out, call, within_host_function};
use crate::queue::{Mark, Order, Stream};

impl Driver {
    /// The stream that a handle means
    pub(crate) fn stream(&self, handle: CUstream) -> Outcome<Arc<Stream>> {
        match handle.addr() {
            NULL | LEGACY => {
                let context = self.current()?;
                self.streams().legacy(context)
            }
            PER_THREAD => {
                let context = self.current()?;
                PER_THREAD_STREAMS.with_borrow_mut(|streams| {
                    if let Some(OfThread(stream)) = streams.get(&context)
                        && !stream.is_closed()
                    {
                        return Ok(Arc::clone(stream));
                    }
                    let stream = self.streams().start(context, Order::Blocking)?;
                    streams.insert(context, OfThread(Arc::clone(&stream)));
                    Ok(stream)
                })
            }
            handle => {
                let streams = self.streams();
                let stream = streams.by_handle.get(&handle);
                stream.cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
            }
        }
    }

    /// Submits work to a stream
    pub(crate) fn submit(
        &self,
        stream: &Arc<Stream>,
        work: impl FnOnce() + Send + 'static,
    ) -> Mark {
        self.streams()
            .submit(stream, Vec::new(), Some(Box::new(work)))
    }

    /// Waits until a stream is idle
    pub(crate) fn synchronize(&self, stream: &Arc<Stream>) {
        let marks = self.streams().marks_to_idle(stream);
        for mark in marks {
            mark.wait();
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamCreate(to: Out<CUstream>, flags: u32) -> CUresult {
    call("cuStreamCreate", |driver| {
        let context = driver.current()?;
        let order = match flags {
            0 => Order::Blocking,
            1 => Order::NonBlocking,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let handle = driver.state().next_handle();
        to.put(std::ptr::without_provenance_mut(handle))?;
        let mut streams = driver.streams();
        let stream = streams.start(context, order)?;
        streams.by_handle.insert(handle, stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    call("cuStreamDestroy_v2", |driver| {
        driver.current()?;
        let stream = driver.streams().by_handle.remove(&stream.addr());
        stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    call("cuStreamQuery", |driver| {
        driver.current()?;
        capture::ask(stream)?;
        let stream = driver.stream(stream)?;
        let marks = driver.streams().marks_to_idle(&stream);
        if marks.iter().all(Mark::is_done) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_READY)
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call("cuStreamSynchronize", |driver| {
        driver.current()?;
        driver.synchronize(&driver.stream(stream)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuStreamWaitEvent(
    stream: CUstream,
    event: CUevent,
    flags: u32,
) -> CUresult {
    call("cuStreamWaitEvent", |driver| {
        driver.current()?;
        let stream = driver.stream(stream)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let after = driver.event_mark(event)?;
        driver
            .streams()
            .submit(&stream, after.into_iter().collect(), None);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    data: *mut c_void,
) -> CUresult {
    call("cuLaunchHostFunc", |driver| {
        driver.current()?;
        let stream = driver.stream(stream)?;
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let data = data.expose_provenance();
        driver.submit(&stream, move || {
            // They "may be serialized": one that waits for another hangs.
            static RUNNING: Mutex<()> = Mutex::new(());
            let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            within_host_function(|| {
                // SAFETY: the caller gave the function with the data to call it with.
                unsafe {
                    function(std::ptr::with_exposed_provenance_mut(data));
                }
            });
        });
        Ok(())
    })
}

/// The stream of a thread, which ends with the thread
struct OfThread(Arc<Stream>);

impl Drop for OfThread {
    fn drop(&mut self) {
        self.0.close();
    }
}

thread_local! {
    /// Meaning of [`PER_THREAD`] for this thread, by context
    static PER_THREAD_STREAMS: RefCell<HashMap<usize, OfThread>> = RefCell::default();
}

const NULL: usize = 0;
/// `CU_STREAM_LEGACY`
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`
const PER_THREAD: usize = 2;
