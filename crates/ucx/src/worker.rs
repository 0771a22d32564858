//! A worker, with a context of its own: what endpoints and messages of one `Context` share.
//!
//! Callers and an engine make it progress in turn. Each call into libucp is made under a lock of
//! this crate: in the thread mode that has locks of its own, some functions take none
//! (`ucp_am_data_release` of 1.21 sends without), and the others cost more. A worker is taken down
//! when the last of its endpoints and offers is gone.

use std::ffi::{CString, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::abi::{
    ATTRIBUTES_MEMORY_TYPES, BUSY, CONTEXT_FEATURES, CONTEXT_NAME, ContextAttributes,
    ContextParams, FEATURE_AM, FEATURE_WAKEUP, HANDLER_ARGUMENT, HANDLER_CALLBACK, HANDLER_ID,
    Handle, HandlerParam, MEMORY_CUDA, THREAD_MODE_SERIALIZED, WORKER_FLAGS, WORKER_IGNORE_LEAKS,
    WORKER_THREAD_MODE, WorkerParams,
};
use crate::api::Api;
use crate::endpoint::Endpoint;
use crate::error::{Failed, Status, check};
use crate::library::{Library, VERSION_MIN, Version};
use crate::message::{Entry, Receiver, on_message};
use crate::operation::is_in_callback;

/// A worker; clones are the same one
#[derive(Clone, Debug)]
pub struct Worker {
    core: Arc<Core>,
}

/// Result of arming a worker
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Armed {
    /// Its descriptor is readable when something comes
    Yes,
    /// Something is there already: progress first
    Busy,
}

/// The handles of a worker, taken down with it
pub(crate) struct Core {
    library: &'static Library,
    context: Handle,
    worker: Handle,
    address: Vec<u8>,
    /// A bit for each type of memory that the context's transports take
    memory_types: u64,
    /// It surely has a cache of registrations
    has_cache: bool,
    event_fd: c_int,
    /// Entry that libucp passes to the callbacks; freed behind the worker
    entry: *mut Entry,
    /// Held over every call that concerns the worker; never taken within a callback
    calls: Mutex<()>,
    /// Descriptors that were dropped in callbacks
    dropped: Mutex<Vec<DroppedDescriptor>>,
    has_dropped: AtomicBool,
    /// Operations that libucp has, with their memory
    under_way: Arc<AtomicUsize>,
    /// When the last endpoint was made
    connected_at: Mutex<Option<Instant>>,
}

struct DroppedDescriptor(Handle);

// SAFETY: the handles are those of a worker that any thread may call, one at a time
// (`THREAD_MODE_SERIALIZED`, `calls`), of its context, and of descriptors that belong to it; `entry` is
// only read, and `Sync`.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Worker {
    /// Starts a worker
    ///
    /// `settings` are names and values as in the environment, without the `UCX_` in front, and go
    /// before what is found there. `wants_devices` has it keep a cache of registrations, without which it
    /// takes no memory of devices.
    ///
    /// # Errors
    ///
    /// Settings that libucp refused, for example transports in `UCX_TLS` that this host has not.
    pub fn start(
        library: &'static Library,
        receiver: Arc<dyn Receiver>,
        settings: &[(String, String)],
        wants_devices: bool,
    ) -> Result<Self, Failed> {
        let (context, has_cache) = if wants_devices {
            make_context_with_cache(library, settings)?
        } else {
            (make_context(library, settings)?, false)
        };
        let worker = make_worker(library, context).inspect_err(|_| {
            // SAFETY: the context that was just made, and has no worker.
            unsafe { (library.api.cleanup)(context) };
        })?;
        let mut core = Core {
            library,
            context,
            worker,
            address: Vec::new(),
            memory_types: 0,
            has_cache,
            event_fd: -1,
            entry: null_mut(),
            calls: Mutex::default(),
            dropped: Mutex::default(),
            has_dropped: AtomicBool::new(false),
            under_way: Arc::default(),
            connected_at: Mutex::default(),
        };
        core.address = core.read_address()?;
        core.memory_types = core.read_memory_types()?;
        core.event_fd = core.read_event_fd()?;
        let mut entry = null_mut();
        let core = Arc::new_cyclic(|weak| {
            entry = Box::into_raw(Box::new(Entry {
                core: weak.clone(),
                receiver,
            }));
            core.entry = entry;
            core
        });
        let mut parameters = HandlerParam::zeroed();
        parameters.field_mask = HANDLER_ID | HANDLER_CALLBACK | HANDLER_ARGUMENT;
        parameters.id = MESSAGE_ID;
        parameters.callback = Some(on_message);
        parameters.argument = entry.cast();
        // SAFETY: a worker of this crate, and that no other code has yet; the entry outlives it
        // (`Core::drop`).
        let status = unsafe { (library.api.set_handler)(worker, &raw const parameters) };
        check("ucp_worker_set_am_recv_handler", status)?;
        Ok(Self { core })
    }

    /// Returns the address that another worker connects to
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.core.address
    }

    /// Returns whether its transports take memory of NVIDIA's devices
    ///
    /// That is so where libucp is of [`CUDA_VERSION_MIN`] or later, keeps a cache of registrations, looks at
    /// memory ([`Library::looks_at_memory`]) and has its module for CUDA, which found a driver, and `UCX_TLS`
    /// allows it.
    #[must_use]
    pub fn takes_cuda(&self) -> bool {
        let is_known = self.core.memory_types & (1 << MEMORY_CUDA) != 0;
        let library = self.core.library;
        let is_safe = self.core.has_cache && library.looks_at_memory();
        is_known && is_safe && library.version() >= CUDA_VERSION_MIN
    }

    /// Moves on what can be moved, returning whether that was anything
    ///
    /// It never waits; while another thread does the same it does nothing.
    pub fn progress(&self) -> bool {
        self.core.progress()
    }

    /// Has the descriptor become readable when there is something to do
    ///
    /// # Errors
    ///
    /// Errors of libucp.
    pub fn arm(&self) -> Result<Armed, Failed> {
        let call = self.core.call();
        // SAFETY: a worker that lives as long as its core, under its lock.
        let status = unsafe { (self.core.api().worker_arm)(self.core.worker) };
        drop(call);
        if status == BUSY {
            return Ok(Armed::Busy);
        }
        check("ucp_worker_arm", status).map(|()| Armed::Yes)
    }

    /// Connects to another worker; nothing is waited for, and an unreachable one shows later
    ///
    /// `on_error` is called, once, when the connection breaks: within libucp (see [`Receiver`]).
    ///
    /// # Errors
    ///
    /// Errors of libucp, for example that no transport of both sides reaches the other.
    pub fn connect(
        &self,
        address: &[u8],
        on_error: impl Fn(Status) + Send + Sync + 'static,
    ) -> Result<Endpoint, Failed> {
        Endpoint::connect(&self.core, address, Box::new(on_error))
    }
}

impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the worker keeps its descriptor open until it is destroyed, with its core.
        unsafe { BorrowedFd::borrow_raw(self.core.event_fd) }
    }
}

impl Core {
    pub(crate) fn api(&self) -> &'static Api {
        &self.library.api
    }

    pub(crate) fn handle(&self) -> Handle {
        self.worker
    }

    /// Counts an operation that libucp has, until that is dropped
    pub(crate) fn count(&self) -> UnderWay {
        // The count is compared with zero only when no other holder is left, hence `Relaxed`.
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(&self.under_way), None)
    }

    /// Notes that an endpoint is made
    pub(crate) fn note_connect(&self) {
        *self.lock_connected() = Some(Instant::now());
    }

    fn lock_connected(&self) -> MutexGuard<'_, Option<Instant>> {
        let connected = self.connected_at.lock();
        connected.unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this thread call libucp, alone
    ///
    /// # Panics
    ///
    /// Within a callback, which is within a call.
    pub(crate) fn call(&self) -> Call<'_> {
        assert!(!is_in_callback(), "within a callback of UCX");
        Call(self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn progress(&self) -> bool {
        assert!(!is_in_callback(), "within a callback of UCX");
        // The thread that has the lock does the same, or will be here soon.
        let call = match self.calls.try_lock() {
            Ok(call) => call,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // SAFETY: a worker that lives as long as its core, under its lock.
        let moved = unsafe { (self.api().worker_progress)(self.worker) } > 0;
        drop(call);
        // Pairs with the store in `release_later`, maybe of this very thread.
        if self.has_dropped.load(Ordering::Acquire) {
            self.release_dropped();
        }
        moved
    }

    /// Refuses a long message
    pub(crate) fn release(&self, descriptor: Handle) {
        let _call = self.call();
        // SAFETY: a descriptor that was kept (`IN_PROGRESS`) and not used yet, as its `Offer` was
        // there, and is gone; under the lock of the worker.
        unsafe { (self.api().release)(self.worker, descriptor) };
    }

    pub(crate) fn release_later(&self, descriptor: Handle) {
        self.lock_dropped().push(DroppedDescriptor(descriptor));
        self.has_dropped.store(true, Ordering::Release);
    }

    fn release_dropped(&self) {
        self.has_dropped.store(false, Ordering::Relaxed);
        let dropped = std::mem::take(&mut *self.lock_dropped());
        for DroppedDescriptor(descriptor) in dropped {
            self.release(descriptor);
        }
    }

    fn lock_dropped(&self) -> MutexGuard<'_, Vec<DroppedDescriptor>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_address(&self) -> Result<Vec<u8>, Failed> {
        let (mut address, mut bytes) = (null_mut(), 0);
        // SAFETY: a worker that is ours, and two places for what it says.
        let status =
            unsafe { (self.api().worker_address)(self.worker, &raw mut address, &raw mut bytes) };
        check("ucp_worker_get_address", status)?;
        // SAFETY: that many bytes at that place, until they are released below.
        let copy = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }.to_vec();
        // SAFETY: what the worker gave, once.
        unsafe { (self.api().worker_release_address)(self.worker, address) };
        Ok(copy)
    }

    fn read_memory_types(&self) -> Result<u64, Failed> {
        let mut attributes = ContextAttributes::zeroed();
        attributes.field_mask = ATTRIBUTES_MEMORY_TYPES;
        // SAFETY: a context that is ours, and a place of the size of the newest version.
        let status = unsafe { (self.api().query)(self.context, &raw mut attributes) };
        check("ucp_context_query", status)?;
        Ok(attributes.memory_types)
    }

    fn read_event_fd(&self) -> Result<c_int, Failed> {
        let mut fd = -1;
        // SAFETY: a worker that is ours, and a place for a number.
        let status = unsafe { (self.api().worker_event_fd)(self.worker, &raw mut fd) };
        check("ucp_worker_get_efd", status)?;
        Ok(fd)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.release_dropped();
        // Each endpoint was closed as it was dropped: what it had under way is cancelled, which takes
        // progress. A peer whose transport is about to connect to us is waited for, too: UCX's tcp
        // crashes where that is refused half-way (1.21).
        let started = Instant::now();
        let is_fresh = |at: Instant| started.saturating_duration_since(at) < FRESH;
        let is_fresh = self.lock_connected().is_some_and(is_fresh);
        let quiet = if is_fresh { QUIET_FRESH } else { QUIET };
        let mut moved_at = started;
        loop {
            let now = Instant::now();
            if self.progress() {
                moved_at = now;
            }
            let is_idle = self.under_way.load(Ordering::Acquire) == 0;
            if (is_idle && now - moved_at >= quiet) || now - started >= CLOSE_MAX {
                // The rest belongs to no caller any more, and its memory is not used again.
                break;
            }
            std::thread::yield_now();
        }
        // SAFETY: no code has the worker or an endpoint of it any more, and operations own their
        // memory even if they never end; the context has no other worker.
        unsafe {
            (self.api().worker_destroy)(self.worker);
            (self.api().cleanup)(self.context);
        }
        if !self.entry.is_null() {
            // SAFETY: the box of `start`, which only the worker had.
            drop(unsafe { Box::from_raw(self.entry) });
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}

fn make_context(library: &Library, settings: &[(String, String)]) -> Result<Handle, Failed> {
    let api = &library.api;
    let mut config = null_mut();
    // SAFETY: no prefix and no file of its own: the environment is read as it is for all of UCX.
    let status = unsafe { (api.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config) };
    check("ucp_config_read", status)?;
    for (name, value) in SETTINGS {
        // SAFETY: a configuration that is ours, and two texts that end with a zero.
        let status = unsafe { (api.config_modify)(config, name.as_ptr(), value.as_ptr()) };
        if let Err(error) = Status::check(status) {
            tracing::debug!(?name, %error, "UCX does not know a setting");
        }
    }
    for (name, value) in settings {
        if let Err(error) = set(api, config, name, value) {
            // SAFETY: the configuration that was read, which is not used any more.
            unsafe { (api.config_release)(config) };
            return Err(error);
        }
    }
    let mut parameters = ContextParams::zeroed();
    parameters.field_mask = CONTEXT_FEATURES | CONTEXT_NAME;
    parameters.features = FEATURE_AM | FEATURE_WAKEUP;
    parameters.name = c"backhaul".as_ptr();
    let mut context = null_mut();
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: parameters and configuration as made above; the version is that of the functions used,
    // as a library older than that version only complains.
    let status = unsafe {
        (api.init)(
            VERSION_MIN.major,
            VERSION_MIN.minor,
            &raw const parameters,
            config,
            &raw mut context,
        )
    };
    drop(starting);
    // SAFETY: the configuration that was read, which is not used any more.
    unsafe { (api.config_release)(config) };
    check("ucp_init", status).map(|()| context)
}

/// Makes a context that keeps a cache of registrations, if libucp can; whether it does
///
/// Without that cache 1.21 crashes when a peer dies that was offered memory of a device: it takes back the
/// registration from there (`ucp_memh_invalidate`). It has none where it cannot hook the C library and the
/// driver, and then says so only if the cache was asked for.
fn make_context_with_cache(
    library: &Library,
    settings: &[(String, String)],
) -> Result<(Handle, bool), Failed> {
    if let Some(wish) = wish(settings, CACHE) {
        // A cache that was asked for is there, or this fails; another wish is respected.
        let is_asked = ["y", "yes", "on", "1"].contains(&wish.to_lowercase().as_str());
        return Ok((make_context(library, settings)?, is_asked));
    }
    let mut with_cache = settings.to_vec();
    with_cache.push((CACHE.to_owned(), "y".to_owned()));
    match make_context(library, &with_cache) {
        Ok(context) => Ok((context, true)),
        Err(error) => {
            tracing::debug!(%error, "UCX keeps no cache of registrations, and so no memory of devices");
            Ok((make_context(library, settings)?, false))
        }
    }
}

/// Returns the value of an option that is set, here or in the environment
fn wish(settings: &[(String, String)], name: &str) -> Option<String> {
    let set = settings.iter().rev().find(|(each, _)| each == name);
    set.map(|(_, value)| value.clone())
        .or_else(|| std::env::var(format!("UCX_{name}")).ok())
}

fn set(api: &Api, config: Handle, name: &str, value: &str) -> Result<(), Failed> {
    let text = |text: &str| CString::new(text).map_err(|_| INVALID);
    let (name, value) = (text(name)?, text(value)?);
    // SAFETY: a configuration that is the caller's, and two texts that end with a zero.
    let status = unsafe { (api.config_modify)(config, name.as_ptr(), value.as_ptr()) };
    check("ucp_config_modify", status)
}

fn make_worker(library: &Library, context: Handle) -> Result<Handle, Failed> {
    let mut parameters = WorkerParams::zeroed();
    parameters.field_mask = WORKER_THREAD_MODE | WORKER_FLAGS;
    parameters.flags = WORKER_IGNORE_LEAKS;
    parameters.thread_mode = THREAD_MODE_SERIALIZED;
    for _ in 0..ATTEMPTS {
        let mut worker = null_mut();
        // SAFETY: the context was just made.
        let status =
            unsafe { (library.api.worker_create)(context, &raw const parameters, &raw mut worker) };
        check(NO_WORKER.call, status)?;
        if !worker.is_null() {
            return Ok(worker);
        }
        tracing::debug!(status, "UCX reports no error, and gives no worker");
    }
    Err(NO_WORKER)
}

/// The oldest version that is trusted with memory of devices
///
/// 1.18 and 1.19 crash when a peer dies that was offered some, in one of six tries over posix: they take
/// back its registration from a cache that they have not (`ucp_memh_invalidate`).
pub const CUDA_VERSION_MIN: Version = Version {
    major: 1,
    minor: 21,
};

/// Option that says whether a context keeps a cache of registrations: `try` by default
const CACHE: &str = "RCACHE_ENABLE";

/// Without these, shared memory is not used where a dead peer is to be noticed
const SETTINGS: [(&std::ffi::CStr, &std::ffi::CStr); 2] = [
    (c"POSIX_ERROR_HANDLING", c"y"),
    (c"SYSV_ERROR_HANDLING", c"y"),
];

/// Held while a context is made
///
/// The thread that loads UCX's modules is left with a pending error of `dlsym`. Where two threads make
/// the first two contexts of a process, that one may hold the lock of UCX's allocator when it first asks
/// for `sbrk` (`ucm_reloc_get_orig` calls `dlerror`, which allocates), and then waits for itself (1.21).
static STARTING: Mutex<()> = Mutex::new(());

/// Tries to make a worker: on a busy machine, about one in a thousand came to nothing without an
/// error (1.21)
const ATTEMPTS: u32 = 3;

/// `UCS_ERR_IO_ERROR`, for want of a reason
const NO_WORKER: Failed = Failed {
    call: "ucp_worker_create",
    status: Status(-3),
};

/// A text that no setting can have
const INVALID: Failed = Failed {
    call: "ucp_config_modify",
    status: Status(-5),
};

/// The one kind of message: what else there is to tell is in its header
pub(crate) const MESSAGE_ID: u32 = 0;

/// The right to call libucp about a worker
pub(crate) struct Call<'a>(#[expect(dead_code, reason = "kept, and let go")] MutexGuard<'a, ()>);

/// An operation that libucp has
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<AtomicUsize>, Option<Arc<AtomicUsize>>);

impl UnderWay {
    /// Counts it elsewhere too
    pub(crate) fn and(mut self, count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        self.1 = Some(Arc::clone(count));
        self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Pairs with the loads of `Core::drop` and `Endpoint::is_over`.
        self.0.fetch_sub(1, Ordering::Release);
        if let Some(count) = &self.1 {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// How long what is under way may take to end before its worker goes
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// How long nothing must have moved before a worker goes
const QUIET: Duration = Duration::from_millis(1);

/// As long, where a peer may still be connecting
const QUIET_FRESH: Duration = Duration::from_millis(20);

/// How long after an endpoint was made a peer may still be connecting
const FRESH: Duration = Duration::from_secs(1);
