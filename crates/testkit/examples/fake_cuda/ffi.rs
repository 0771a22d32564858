//! The edge of the library: what every call checks first, and the pointers that callers give.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::sys::CUresult;

use crate::driver::{Driver, forked};
use crate::error::Outcome;
use crate::settings::settings;

/// A pointer that the caller gives for a result: null, or valid for one write
///
/// Calls take it in place of a bare pointer, so that what the documentation demands of callers is
/// relied on in one place. Only a caller from outside makes one.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Gives the result
    pub(crate) fn put(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a caller gives null or what is valid for a write, by the contract of each call.
        unsafe {
            self.0.write_unaligned(value);
        }
        Ok(())
    }

    /// Gives the result to a caller that asked for it
    pub(crate) fn put_if_wanted(self, value: T) -> Outcome {
        if self.0.is_null() {
            Ok(())
        } else {
            self.put(value)
        }
    }

    /// Gives several, into an array of as many
    pub(crate) fn put_all(self, values: impl IntoIterator<Item = T>) -> Outcome {
        for (index, value) in values.into_iter().enumerate() {
            Self(self.0.wrapping_add(index)).put(value)?;
        }
        Ok(())
    }

    /// The same place for a result of another type
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A pointer to what the caller gives: null, or valid to read as many as the call says
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns the value that it points to
    pub(crate) fn read(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a caller gives null or what is valid for a read, by the contract of each call.
        unsafe { Ok(self.0.read_unaligned()) }
    }

    /// Returns the values that it and its neighbours point to
    pub(crate) fn read_all(self, count: usize) -> Outcome<Vec<T>> {
        (0..count)
            .map(|index| Self(self.0.wrapping_add(index)).read())
            .collect()
    }
}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

/// A parameter that no caller gives, whatever its register holds
///
/// UCX hooks a function by 12 bytes of code at its beginning, where it finds no near place for its own, and
/// refuses one whose first 12 bytes speak of addresses relative to them. A function that stores two
/// parameters first, as this one is built, has none there.
pub(crate) type Stored = usize;

/// A call that needs a running driver
pub(crate) fn call(name: &str, work: impl FnOnce(&'static Driver) -> Outcome) -> CUresult {
    call_any_time(name, || work(Driver::running()?))
}

/// A call that may come before `cuInit`
pub(crate) fn call_any_time(name: &str, work: impl FnOnce() -> Outcome) -> CUresult {
    // Locks may be held by threads that the child of a fork does not have: ask before any is taken.
    if forked() {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    }
    if IN_HOST_FUNCTION.get() {
        return CUresult::CUDA_ERROR_NOT_PERMITTED;
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if let Some(&result) = settings().failures.get(name) {
            return Err(result);
        }
        work()
    }));
    match outcome {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(result)) => result,
        // The panic has told its story on standard error.
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// Runs a function of the application, in which this thread may make no call
pub(crate) fn within_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}
