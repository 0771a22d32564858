//! The way to a worker of another process, or of this one.

use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{
    CLOSE_FORCE, ENDPOINT_ADDRESS, ENDPOINT_ERR_HANDLER, ENDPOINT_ERR_MODE, ERR_MODE_PEER,
    EndpointParams, Handle, REQUEST_CALLBACK, REQUEST_FLAGS, REQUEST_USER_DATA, RawStatus,
    RequestParam, SEND_EAGER, SEND_RENDEZVOUS, SendCallback,
};
use crate::error::{Failed, Status, check};
use crate::library;
use crate::memory::{DeviceRange, Place};
use crate::message::{HEADER_BYTES, Header};
use crate::operation::{Begun, PlainOperation, SendOperation, in_callback, is_in_callback};
use crate::worker::{Core, MESSAGE_ID};

/// A way to another worker; closed, by force, as it is dropped
///
/// A close by force ends all that is under way, with an error, and releases its memory.
pub struct Endpoint {
    core: Arc<Core>,
    shared: Arc<Shared>,
    /// Offers that are not over
    offers: Arc<AtomicUsize>,
    /// `None` once closed; held over calls into libucp, and so never taken in a callback; before the
    /// lock of the worker
    open: Mutex<Option<Open>>,
}

/// A handle that is open
struct Open(Handle);

// SAFETY: the handle of an endpoint whose worker any thread may call in its turn.
unsafe impl Send for Open {}

/// State that libucp passes to the callback when the connection breaks
struct Shared {
    has_failed: AtomicBool,
    on_error: Box<dyn Fn(Status) + Send + Sync>,
}

/// A short message to send, to be used again once it is sent
#[derive(Default)]
pub struct ShortMessage {
    /// Its header
    pub header: Header,
    /// Its bytes
    pub bytes: Vec<u8>,
    /// Called, within libucp, when it has left that did not leave at once
    pub on_left: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Endpoint {
    pub(crate) fn connect(
        core: &Arc<Core>,
        address: &[u8],
        on_error: Box<dyn Fn(Status) + Send + Sync>,
    ) -> Result<Self, Failed> {
        let shared = Arc::new(Shared {
            has_failed: AtomicBool::new(false),
            on_error,
        });
        let mut parameters = EndpointParams::zeroed();
        parameters.field_mask = ENDPOINT_ADDRESS | ENDPOINT_ERR_MODE | ENDPOINT_ERR_HANDLER;
        parameters.address = address.as_ptr().cast();
        parameters.err_mode = ERR_MODE_PEER;
        parameters.err_callback = Some(on_error_of_endpoint);
        parameters.err_argument = Arc::as_ptr(&shared).cast_mut().cast();
        let mut handle = null_mut();
        let call = core.call();
        // SAFETY: an address of a worker, which libucp reads now; `shared` outlives the endpoint
        // (`close`).
        let status = unsafe {
            (core.api().endpoint_create)(core.handle(), &raw const parameters, &raw mut handle)
        };
        drop(call);
        check("ucp_ep_create", status)?;
        core.note_connect();
        Ok(Self {
            core: Arc::clone(core),
            shared,
            offers: Arc::default(),
            open: Mutex::new(Some(Open(handle))),
        })
    }

    /// Returns whether it can be used
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.shared.has_failed.load(Ordering::Acquire) && self.lock().is_some()
    }

    /// Sends a short message, returning it if it may be used again now
    ///
    /// Else it is kept until it has left.
    ///
    /// # Errors
    ///
    /// Errors of libucp, or that the endpoint is closed.
    pub fn send_short(
        &self,
        message: Box<ShortMessage>,
    ) -> Result<Option<Box<ShortMessage>>, Status> {
        let open = self.lock();
        let Some(Open(handle)) = &*open else {
            return Err(CLOSED);
        };
        let message = Box::into_raw(message);
        let mut parameters = RequestParam::zeroed();
        parameters.op_attr_mask = REQUEST_CALLBACK | REQUEST_USER_DATA | REQUEST_FLAGS;
        parameters.flags = SEND_EAGER;
        parameters.callback = on_short_sent as SendCallback as *const _;
        parameters.user_data = message.cast();
        // SAFETY: the box that was made of `message` above, which no other code has.
        let ShortMessage { header, bytes, .. } = unsafe { &*message };
        let call = self.core.call();
        // SAFETY: an endpoint that is open, as the lock is held; header and bytes stay in the box
        // until the callback, or the next lines.
        let returned = unsafe {
            (self.core.api().send)(
                *handle,
                MESSAGE_ID,
                header.as_ptr().cast(),
                HEADER_BYTES,
                bytes.as_ptr().cast(),
                bytes.len(),
                &raw const parameters,
            )
        };
        drop(call);
        match Begun::of(returned) {
            Begun::UnderWay => Ok(None),
            Begun::Over(outcome) => {
                // SAFETY: an operation that is over has no callback: the box is ours again.
                let message = unsafe { Box::from_raw(message) };
                outcome.map(|()| Some(message))
            }
        }
    }

    /// Offers memory to the peer, which may fetch it or refuse
    ///
    /// The memory stays until either, or until the endpoint fails or is closed; then `done` gets it,
    /// now or in a callback (see [`crate::Receiver`]). There is no other way to take it back.
    pub fn send_offer<M, F>(&self, header: Header, memory: M, done: F)
    where
        M: Deref<Target = [u8]> + Send + 'static,
        F: FnOnce(M, Result<(), Status>) + Send + 'static,
    {
        self.send_offer_of(header, memory, |memory| Place::read(memory), done);
    }

    /// As [`send_offer`](Self::send_offer), of memory of a device, which `keep` keeps until it is over
    pub fn send_device_offer<K, F>(&self, header: Header, range: DeviceRange, keep: K, done: F)
    where
        K: Send + 'static,
        F: FnOnce(K, Result<(), Status>) + Send + 'static,
    {
        self.send_offer_of(header, keep, |_| Place::of(range), done);
    }

    fn send_offer_of<M, F>(
        &self,
        header: Header,
        memory: M,
        place: impl FnOnce(&M) -> Place,
        done: F,
    ) where
        M: Send + 'static,
        F: FnOnce(M, Result<(), Status>) + Send + 'static,
    {
        let operation = Box::new(SendOperation {
            header,
            memory,
            done,
            under_way: self.core.count().and(&self.offers),
        });
        let open = self.lock();
        let Some(Open(handle)) = &*open else {
            drop(open);
            return operation.finish(Err(CLOSED));
        };
        let operation = Box::into_raw(operation);
        // SAFETY: the box above, which no other code has.
        let SendOperation { header, memory, .. } = unsafe { &*operation };
        let place = place(memory);
        let mut parameters = SendOperation::parameters(operation, SEND_RENDEZVOUS);
        place.describe(&mut parameters);
        let call = self.core.call();
        // SAFETY: as in `send_short`; the memory is the operation's.
        let returned = unsafe {
            (self.core.api().send)(
                *handle,
                MESSAGE_ID,
                header.as_ptr().cast(),
                HEADER_BYTES,
                place.start,
                place.bytes,
                &raw const parameters,
            )
        };
        drop(call);
        if let Begun::Over(outcome) = Begun::of(returned) {
            drop(open);
            // SAFETY: as in `send_short`.
            unsafe { *Box::from_raw(operation) }.finish(outcome);
        }
    }

    /// Makes progress until all that was sent has left, at most so long; `false` if it has not
    pub fn flush(&self, patience: Duration) -> bool {
        let over = Arc::new(AtomicBool::new(false));
        let is_flushed = Arc::new(AtomicBool::new(false));
        let told = (Arc::clone(&over), Arc::clone(&is_flushed));
        let done = move |outcome: Result<(), Status>| {
            told.1.store(outcome.is_ok(), Ordering::Relaxed);
            // Pairs with the load below.
            told.0.store(true, Ordering::Release);
        };
        {
            let open = self.lock();
            let Some(Open(handle)) = &*open else {
                return false;
            };
            let operation = Box::into_raw(Box::new(PlainOperation(done)));
            let parameters = PlainOperation::parameters(operation, 0);
            let call = self.core.call();
            // SAFETY: an endpoint that is open, as the lock is held.
            let returned =
                unsafe { (self.core.api().endpoint_flush)(*handle, &raw const parameters) };
            drop(call);
            if let Begun::Over(outcome) = Begun::of(returned) {
                // SAFETY: as in `send_short`.
                unsafe { *Box::from_raw(operation) }.finish(outcome);
            }
        }
        let mut since = None;
        while !over.load(Ordering::Acquire) {
            let moved = self.core.progress();
            if !moved {
                let since = since.get_or_insert_with(Instant::now);
                if since.elapsed() >= patience {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        is_flushed.load(Ordering::Relaxed)
    }

    /// Returns whether the peer has no memory of this side: all that was offered has been fetched,
    /// refused or cancelled
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.offers.load(Ordering::Acquire) == 0
    }

    /// Closes by force: all that is under way ends, with an error, as the worker makes progress
    ///
    /// To be called once the peer is known to be gone, or when nothing matters any more. Closing
    /// again is harmless.
    ///
    /// # Panics
    ///
    /// Within a callback.
    pub fn close(&self) {
        assert!(!is_in_callback(), "within a callback of UCX");
        let Some(Open(handle)) = self.lock().take() else {
            return;
        };
        let under_way = self.core.count();
        let shared = Arc::clone(&self.shared);
        let done = move |_outcome: Result<(), Status>| {
            // No error is reported behind this.
            drop(shared);
            drop(under_way);
        };
        let operation = Box::into_raw(Box::new(PlainOperation(done)));
        let parameters = PlainOperation::parameters(operation, CLOSE_FORCE);
        let call = self.core.call();
        // SAFETY: a handle that was open until now, and that is not used again: it was taken out.
        let returned = unsafe { (self.core.api().endpoint_close)(handle, &raw const parameters) };
        drop(call);
        if let Begun::Over(outcome) = Begun::of(returned) {
            // SAFETY: as in `send_short`.
            unsafe { *Box::from_raw(operation) }.finish(outcome);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

/// # Safety
///
/// `user_data` is a message that [`Endpoint::send_short`] gave away, and this its only callback.
unsafe extern "C" fn on_short_sent(request: Handle, _status: RawStatus, user_data: Handle) {
    // SAFETY: as the caller says.
    let message = unsafe { Box::from_raw(user_data.cast::<ShortMessage>()) };
    in_callback(|| {
        if let Some(on_left) = &message.on_left {
            on_left();
        }
    });
    if let Some(library) = library::loaded() {
        // SAFETY: a request that is over.
        unsafe { (library.api.request_free)(request) };
    }
}

/// # Safety
///
/// `argument` is what [`Endpoint::connect`] gave, and its endpoint is not closed.
unsafe extern "C" fn on_error_of_endpoint(argument: Handle, _endpoint: Handle, status: RawStatus) {
    // SAFETY: `shared`, which the endpoint keeps until it is closed.
    let shared = unsafe { &*argument.cast::<Shared>() };
    shared.has_failed.store(true, Ordering::Release);
    in_callback(|| (shared.on_error)(Status(status)));
}

/// Status of libucp itself for operations on a closed endpoint
const CLOSED: Status = Status(-16);
