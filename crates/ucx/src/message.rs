//! Incoming messages: short ones by value, long ones as an offer of their bytes.

use std::ffi::c_void;
use std::ops::DerefMut;
use std::sync::{Arc, Weak};

use crate::abi::{Handle, IN_PROGRESS, MESSAGE_RENDEZVOUS, MessageParam, OK, RawStatus};
use crate::error::Status;
use crate::memory::{DeviceRange, Place};
use crate::operation::{Begun, ReceiveOperation, in_callback, is_in_callback};
use crate::worker::Core;

/// Bytes of the header of each message
pub const HEADER_BYTES: usize = 24;

/// The header of a message; what it says is for both sides to know
pub type Header = [u8; HEADER_BYTES];

/// Gets what comes to a worker
///
/// Called within libucp, by the thread that makes the worker progress, or sends to a worker of this
/// process: it may leave things for others, and must not call this crate, nor take a lock that is
/// held over such a call. A message whose header has another length than [`HEADER_BYTES`] is
/// dropped before.
pub trait Receiver: Send + Sync {
    /// A short message; the bytes are gone when this returns
    fn receive(&self, header: &Header, bytes: &[u8]);

    /// A long message, of which nothing has come but the header
    fn receive_offer(&self, header: &Header, offer: Offer);
}

/// The bytes of a long message, which the sender keeps until they are fetched or refused
///
/// To drop it is to refuse: the sender's operation succeeds all the same.
pub struct Offer {
    /// `None` once the descriptor is libucp's again
    kept: Option<(Arc<Core>, Handle)>,
    bytes: usize,
}

// SAFETY: a descriptor belongs to its worker, which any thread may call in its turn.
unsafe impl Send for Offer {}
// SAFETY: as above; nothing is done by reference.
unsafe impl Sync for Offer {}

impl Offer {
    /// How many bytes it has
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fetches the bytes straight into memory, which is owned by that until it is over
    ///
    /// `done` gets the memory, now or in a callback (see [`Receiver`]).
    ///
    /// # Panics
    ///
    /// If the memory has another length than the message, or within a callback.
    pub fn receive<M, F>(self, memory: M, done: F)
    where
        M: DerefMut<Target = [u8]> + Send + 'static,
        F: FnOnce(Result<M, Status>) + Send + 'static,
    {
        assert_eq!(memory.len(), self.bytes, "memory for another message");
        self.receive_at(memory, |memory| Place::written(memory), done);
    }

    /// As [`receive`](Self::receive), into memory of a device, which `keep` keeps until it is over
    ///
    /// # Panics
    ///
    /// As there.
    pub fn receive_on_device<K, F>(self, range: DeviceRange, keep: K, done: F)
    where
        K: Send + 'static,
        F: FnOnce(Result<K, Status>) + Send + 'static,
    {
        assert_eq!(range.bytes, self.bytes, "memory for another message");
        self.receive_at(keep, |_| Place::of(range), done);
    }

    fn receive_at<M, F>(mut self, memory: M, place: impl FnOnce(&mut M) -> Place, done: F)
    where
        M: Send + 'static,
        F: FnOnce(Result<M, Status>) + Send + 'static,
    {
        let (core, descriptor) = self.kept.take().expect("taken once: here or in `drop`");
        let operation = Box::into_raw(Box::new(ReceiveOperation {
            memory,
            done,
            under_way: core.count(),
        }));
        // SAFETY: the box was made above, and no other code has it yet.
        let place = place(unsafe { &mut (*operation).memory });
        let mut parameters = ReceiveOperation::parameters(operation);
        place.describe(&mut parameters);
        let call = core.call();
        // SAFETY: a descriptor of this worker that was neither fetched nor released, as it was in
        // `kept`, and is libucp's from here on, even if the call fails; the memory, of as many bytes,
        // is the operation's until its callback, or the next lines.
        let returned = unsafe {
            (core.api().receive)(
                core.handle(),
                descriptor,
                place.start,
                place.bytes,
                &raw const parameters,
            )
        };
        drop(call);
        if let Begun::Over(outcome) = Begun::of(returned) {
            // SAFETY: an operation that is over has no callback: the box is ours again.
            unsafe { *Box::from_raw(operation) }.finish(outcome);
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some((core, descriptor)) = self.kept.take() {
            if is_in_callback() {
                // libucp has not seen yet that the descriptor is kept.
                core.release_later(descriptor);
            } else {
                core.release(descriptor);
            }
        }
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Argument of the callback that libucp calls with each message
pub(crate) struct Entry {
    /// Gone while the worker is taken down
    pub(crate) core: Weak<Core>,
    pub(crate) receiver: Arc<dyn Receiver>,
}

/// Callback of libucp for each message
///
/// # Safety
///
/// `argument` is an [`Entry`] that outlives the worker, and the rest what libucp says of a message.
pub(crate) unsafe extern "C" fn on_message(
    argument: Handle,
    header: *const c_void,
    header_bytes: usize,
    data: Handle,
    bytes: usize,
    parameters: *const MessageParam,
) -> RawStatus {
    if header_bytes != HEADER_BYTES || header.is_null() {
        return OK;
    }
    // SAFETY: `header_bytes` bytes, which is their number here.
    let header = unsafe { &*header.cast::<Header>() };
    // SAFETY: as the caller says.
    let entry = unsafe { &*argument.cast::<Entry>() };
    // SAFETY: libucp gives parameters with every message.
    let is_offer = unsafe { (*parameters).attributes } & MESSAGE_RENDEZVOUS != 0;
    if is_offer {
        let Some(core) = entry.core.upgrade() else {
            return OK;
        };
        let offer = Offer {
            kept: Some((core, data)),
            bytes,
        };
        // One that a panic drops is released later, as all that are dropped in a callback.
        in_callback(|| entry.receiver.receive_offer(header, offer));
        return IN_PROGRESS;
    }
    let bytes = if bytes == 0 {
        &[]
    } else {
        // SAFETY: `bytes` bytes that libucp keeps until this returns.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }
    };
    in_callback(|| entry.receiver.receive(header, bytes));
    OK
}
