//! The progress engine: one thread that sleeps in epoll on everything a context owns.
//!
//! It knows sources (links, listeners, handshakes) only by [`Source`]. Callers may move a link
//! along themselves; such a link is *hot*: its bell is muted and the engine looks at it once a
//! [`TICK`] instead, until its caller has gone quiet. The engine never runs foreign code other
//! than `Waker::wake`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use slab::Slab;

/// Something the engine watches
pub(crate) trait Source: Send + Sync {
    /// A descriptor registered under `port` is ready, or a bell was rung
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags);

    /// Looks at a hot source, returning whether it stays hot
    fn on_tick(self: Arc<Self>) -> bool {
        false
    }

    /// Time has passed; returns when to call next, if ever
    fn on_deadline(self: Arc<Self>, _now: Instant) -> Option<Instant> {
        None
    }

    /// The engine ends, because its owner dropped it or it failed
    fn on_stop(self: Arc<Self>);
}

/// The shared state of the engine thread
pub(crate) struct Engine {
    epoll: OwnedFd,
    /// Rung to have the thread look at `stopping`, `hot` and `deadline`
    bell: OwnedFd,
    sources: Mutex<Slab<Arc<dyn Source>>>,
    hot: Mutex<Vec<Arc<dyn Source>>>,
    /// Earliest time at which some source wants `on_deadline`
    deadline: Mutex<Option<Instant>>,
    /// The thread looks at hot sources each tick, so a new one needs no bell
    ticking: AtomicBool,
    stopping: AtomicBool,
}

/// Names a registered source
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SourceId(usize);

/// Ends the engine when the last handle that can start work is gone
#[derive(Debug)]
pub(crate) struct EngineGuard(Arc<Engine>);

impl Engine {
    /// Starts the thread
    pub(crate) fn start() -> io::Result<EngineGuard> {
        let engine = Arc::new(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: new_bell()?,
            sources: Mutex::default(),
            hot: Mutex::default(),
            deadline: Mutex::default(),
            ticking: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        epoll::add(
            &engine.epoll,
            &engine.bell,
            EventData::new_u64(BELL),
            EventFlags::IN,
        )?;
        let thread = Arc::clone(&engine);
        std::thread::Builder::new()
            .name("backhaul-engine".to_owned())
            .spawn(move || thread.run())?;
        Ok(EngineGuard(engine))
    }

    /// Registers a source; nothing is watched until [`Engine::watch`]
    pub(crate) fn register(&self, source: Arc<dyn Source>) -> SourceId {
        SourceId(lock(&self.sources).insert(source))
    }

    /// Forgets a source; its descriptors must be unwatched or closed
    pub(crate) fn deregister(&self, id: SourceId) {
        lock(&self.sources).try_remove(id.0);
    }

    /// The source registered under an id
    pub(crate) fn source(&self, id: SourceId) -> Option<Arc<dyn Source>> {
        lock(&self.sources).get(id.0).cloned()
    }

    /// Puts another source in the place of one
    pub(crate) fn replace(&self, id: SourceId, source: Arc<dyn Source>) {
        if let Some(slot) = lock(&self.sources).get_mut(id.0) {
            *slot = source;
        }
    }

    /// Starts watching a descriptor for a source
    pub(crate) fn watch(
        &self,
        id: SourceId,
        port: u8,
        fd: impl AsFd,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, event_data(id, port), flags)?)
    }

    /// Changes what a watched descriptor is watched for
    pub(crate) fn rewatch(
        &self,
        id: SourceId,
        port: u8,
        fd: impl AsFd,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, event_data(id, port), flags)?)
    }

    /// Stops watching a descriptor
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        // An error means that it was not watched, which is what is asked for.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Has a source looked at each tick, until its `on_tick` says otherwise
    pub(crate) fn add_hot(&self, source: Arc<dyn Source>) {
        lock(&self.hot).push(source);
        // Either the thread drops the entry as it ends, or we see that it has begun to: the entry
        // would keep the source, and the source us.
        if self.is_stopping() {
            lock(&self.hot).clear();
            return;
        }
        // Pairs with the swap in `run`: either the thread sees the entry, or we see that it
        // went to sleep and ring.
        if !self.ticking.swap(true, Ordering::SeqCst) {
            ring(self.bell.as_fd());
        }
    }

    /// Has `on_deadline` called on all sources at `at` or earlier
    pub(crate) fn schedule(&self, at: Instant) {
        let mut deadline = lock(&self.deadline);
        if deadline.is_none_or(|earliest| at < earliest) {
            *deadline = Some(at);
            drop(deadline);
            ring(self.bell.as_fd());
        }
    }

    /// Ends the thread, and with it every source
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        ring(self.bell.as_fd());
    }

    /// Whether sources registered from now on are never called
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    fn run(&self) {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| self.run_until_stopped()));
        if outcome.is_err() {
            tracing::error!("the progress engine failed; its endpoints are closed");
        }
        self.stopping.store(true, Ordering::SeqCst);
        let sources: Vec<_> = lock(&self.sources).drain().collect();
        lock(&self.hot).clear();
        for source in sources {
            source.on_stop();
        }
    }

    fn run_until_stopped(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut ticked_at = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "epoll failed");
                    return;
                }
            }
            for event in events.drain(..) {
                let data = event.data.u64();
                if data == BELL {
                    silence(self.bell.as_fd());
                } else {
                    self.dispatch(data, event.flags);
                }
            }
            if self.ticking.load(Ordering::SeqCst) && ticked_at.elapsed() >= TICK {
                self.tick();
                ticked_at = Instant::now();
            }
            self.check_deadline();
        }
    }

    fn dispatch(&self, data: u64, flags: EventFlags) {
        let id = usize::try_from(data >> 8).expect("made from a usize");
        let source = lock(&self.sources).get(id).cloned();
        if let Some(source) = source {
            source.on_ready((data & 0xff) as u8, flags);
        }
    }

    fn tick(&self) {
        let mut looked_at = std::mem::take(&mut *lock(&self.hot));
        looked_at.retain(|source| Arc::clone(source).on_tick());
        let mut hot = lock(&self.hot);
        hot.append(&mut looked_at);
        if hot.is_empty() {
            // Under the lock: a source added after this sees `false` and rings.
            self.ticking.store(false, Ordering::SeqCst);
        }
    }

    fn check_deadline(&self) {
        let now = Instant::now();
        {
            let mut deadline = lock(&self.deadline);
            if deadline.is_none_or(|at| now < at) {
                return;
            }
            *deadline = None;
        }
        let sources: Vec<_> = lock(&self.sources)
            .iter()
            .map(|(_, source)| Arc::clone(source))
            .collect();
        for source in sources {
            if let Some(at) = source.on_deadline(now) {
                let mut deadline = lock(&self.deadline);
                *deadline = Some(deadline.map_or(at, |earliest| earliest.min(at)));
            }
        }
    }

    /// How long to sleep; `None` is for ever
    fn timeout(&self) -> Option<Timespec> {
        let sleep = if self.ticking.load(Ordering::SeqCst) {
            TICK
        } else {
            // Rounded up, so that the deadline has passed on waking.
            lock(&self.deadline)
                .map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))?
        };
        Some(Timespec {
            tv_sec: i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(sleep.subsec_nanos()),
        })
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl EngineGuard {
    /// The engine, for those who must not keep it running
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Makes a bell: an eventfd that wakes one sleeper for any number of rings
pub(crate) fn new_bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Rings a bell
pub(crate) fn ring(bell: BorrowedFd<'_>) {
    // The only error of a valid eventfd is a full counter, and then the bell is ringing.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Silences a bell
pub(crate) fn silence(bell: BorrowedFd<'_>) {
    let mut count = [0; 8];
    // An error means that it was silent.
    let _ = rustix::io::read(bell, &mut count);
}

/// Locks a mutex whose data is valid even if a holder panicked
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event_data(id: SourceId, port: u8) -> EventData {
    EventData::new_u64((id.0 as u64) << 8 | u64::from(port))
}

/// Marks the engine's own bell among events; no source has this id
const BELL: u64 = u64::MAX;

/// Events taken from the kernel at once
const EVENTS_MAX: usize = 128;

/// How often the engine looks at links that their callers drive
///
/// It bounds how late a message is noticed that nobody waits for; a caller that goes to sleep
/// hands its link back at once.
const TICK: Duration = Duration::from_millis(1);
