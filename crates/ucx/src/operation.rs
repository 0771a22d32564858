//! Operations under way: what libucp may read from or write to belongs to them until they are over.
//!
//! A pointer to the operation travels through libucp as its user data, and comes back in the callback
//! that ends it. UCX calls that exactly once for an operation that it did not end at once.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::{
    Handle, IN_PROGRESS, OK, REQUEST_CALLBACK, REQUEST_FLAGS, REQUEST_USER_DATA, RawStatus,
    ReceiveCallback, RequestParam, STATUS_LAST, SendCallback,
};
use crate::error::Status;
use crate::library;
use crate::worker::UnderWay;

/// Result of a call that may go on
pub(crate) enum Begun {
    /// It is over, and its callback is not called
    Over(Result<(), Status>),
    /// Its callback will be called
    UnderWay,
}

impl Begun {
    /// Sorts what a call returned: a request, or a status in the place of one
    pub(crate) fn of(returned: Handle) -> Self {
        let word = returned.addr().cast_signed();
        let is_status = word <= 0 && word >= STATUS_LAST as isize;
        if is_status {
            Self::Over(Status::check(word as RawStatus))
        } else {
            Self::UnderWay
        }
    }
}

/// A send: its header, its memory, and its callback
pub(crate) struct SendOperation<M, F> {
    pub(crate) header: crate::Header,
    pub(crate) memory: M,
    pub(crate) done: F,
    pub(crate) under_way: UnderWay,
}

impl<M, F> SendOperation<M, F>
where
    M: Send + 'static,
    F: FnOnce(M, Result<(), Status>) + Send + 'static,
{
    /// The parameters of a call that is given `operation`
    pub(crate) fn parameters(operation: *mut Self, flags: u32) -> RequestParam {
        let mut parameters = RequestParam::zeroed();
        parameters.op_attr_mask = REQUEST_CALLBACK | REQUEST_USER_DATA | REQUEST_FLAGS;
        parameters.flags = flags;
        parameters.callback = Self::on_sent as SendCallback as *const _;
        parameters.user_data = operation.cast();
        parameters
    }

    /// Ends an operation
    pub(crate) fn finish(self, outcome: Result<(), Status>) {
        let Self {
            memory,
            done,
            under_way,
            ..
        } = self;
        done(memory, outcome);
        drop(under_way);
    }

    /// # Safety
    ///
    /// As [`end`], with an operation of this very type.
    unsafe extern "C" fn on_sent(request: Handle, status: RawStatus, user_data: Handle) {
        // SAFETY: what `parameters` was given, a box that its caller gave away; this is its only
        // callback.
        let operation = unsafe { Box::from_raw(user_data.cast::<Self>()) };
        end(request, || operation.finish(Status::check(status)));
    }
}

/// A receive: its memory, and its callback
pub(crate) struct ReceiveOperation<M, F> {
    pub(crate) memory: M,
    pub(crate) done: F,
    pub(crate) under_way: UnderWay,
}

impl<M, F> ReceiveOperation<M, F>
where
    M: Send + 'static,
    F: FnOnce(Result<M, Status>) + Send + 'static,
{
    /// The parameters of a call that is given `operation`
    pub(crate) fn parameters(operation: *mut Self) -> RequestParam {
        let mut parameters = RequestParam::zeroed();
        parameters.op_attr_mask = REQUEST_CALLBACK | REQUEST_USER_DATA;
        parameters.callback = Self::on_received as ReceiveCallback as *const _;
        parameters.user_data = operation.cast();
        parameters
    }

    /// Ends an operation
    pub(crate) fn finish(self, outcome: Result<(), Status>) {
        let Self {
            memory,
            done,
            under_way,
        } = self;
        done(outcome.map(|()| memory));
        drop(under_way);
    }

    /// # Safety
    ///
    /// As [`end`], with an operation of this very type.
    unsafe extern "C" fn on_received(
        request: Handle,
        status: RawStatus,
        _bytes: usize,
        user_data: Handle,
    ) {
        // SAFETY: as in `SendOperation::on_sent`.
        let operation = unsafe { Box::from_raw(user_data.cast::<Self>()) };
        end(request, || operation.finish(Status::check(status)));
    }
}

/// A flush or a close: its callback
pub(crate) struct PlainOperation<F>(pub(crate) F);

impl<F: FnOnce(Result<(), Status>) + Send + 'static> PlainOperation<F> {
    pub(crate) fn parameters(operation: *mut Self, flags: u32) -> RequestParam {
        let mut parameters = RequestParam::zeroed();
        parameters.op_attr_mask = REQUEST_CALLBACK | REQUEST_USER_DATA | REQUEST_FLAGS;
        parameters.flags = flags;
        parameters.callback = Self::on_done as SendCallback as *const _;
        parameters.user_data = operation.cast();
        parameters
    }

    pub(crate) fn finish(self, outcome: Result<(), Status>) {
        (self.0)(outcome);
    }

    /// # Safety
    ///
    /// As [`end`], with an operation of this very type.
    unsafe extern "C" fn on_done(request: Handle, status: RawStatus, user_data: Handle) {
        // SAFETY: as in `SendOperation::on_sent`.
        let operation = unsafe { Box::from_raw(user_data.cast::<Self>()) };
        end(request, || operation.finish(Status::check(status)));
    }
}

/// Ends an operation in its callback, and gives the request back
fn end(request: Handle, finish: impl FnOnce()) {
    in_callback(finish);
    if let Some(library) = library::loaded() {
        // SAFETY: a request that libucp made, which is over; each callback gets its own, once.
        unsafe { (library.api.request_free)(request) };
    }
}

/// Runs what a callback of libucp is for: a panic must not cross into C
pub(crate) fn in_callback<T>(work: impl FnOnce() -> T) -> Option<T> {
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(depth);
    if outcome.is_err() {
        tracing::error!("a callback of UCX panicked: a defect");
    }
    outcome.ok()
}

/// Returns whether this thread is within a callback of libucp
pub(crate) fn is_in_callback() -> bool {
    DEPTH.get() > 0
}

thread_local! {
    /// Callbacks of libucp that this thread is within
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

const _: () = assert!(OK == 0 && IN_PROGRESS == 1);
