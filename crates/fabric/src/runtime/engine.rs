//! The progress engine: one thread that sleeps in epoll on everything a context owns.
//!
//! It knows sources (links, listeners, handshakes) only by [`Source`]. Callers may move a link
//! along themselves; such a link is *busy-polled*: its doorbell does not wake the engine, which
//! looks at it once a [`TICK`] instead, until its caller has gone quiet. The engine never runs
//! foreign code other than `Waker::wake`.
//!
//! A source that panics is ended, and nothing else with it.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use backhaul_shm::doorbell::Doorbell;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::lock;
use super::sources::{Source, SourceId, Sources};
use super::spin::{Look, SpinPolicy};

/// The shared state of the engine thread
pub(crate) struct Engine {
    epoll: OwnedFd,
    /// Has the thread look at `stopping`, `busy_polled` and the deadlines
    doorbell: Doorbell,
    /// No other lock is taken, and nothing of a source called, while it is held
    sources: Mutex<Sources>,
    busy_polled: Mutex<Vec<SourceId>>,
    /// Looked at every [`INSPECTED_EVERY`]
    inspected: Mutex<Vec<SourceId>>,
    /// The thread looks at busy-polled sources each tick, so a new one need not wake it
    ticking: AtomicBool,
    stopping: AtomicBool,
    thread: OnceLock<ThreadId>,
    /// Something is likely to come very soon: the thread polls before it sleeps
    expects: AtomicBool,
    spin: SpinPolicy,
}

/// Ends the engine when the last handle that can start work is gone
#[derive(Debug)]
pub(crate) struct EngineGuard(Arc<Engine>);

impl Engine {
    /// Starts the thread, which polls for so long where something is expected
    ///
    /// # Errors
    ///
    /// Errors that the system reports, when it has no descriptor, memory or thread left.
    pub(crate) fn start(spin: Duration) -> io::Result<EngineGuard> {
        let engine = Arc::new(Self::new(spin)?);
        let thread = Arc::clone(&engine);
        std::thread::Builder::new()
            .name("backhaul-engine".to_owned())
            .spawn(move || thread.run())?;
        Ok(EngineGuard(engine))
    }

    fn new(spin: Duration) -> io::Result<Self> {
        let engine = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            doorbell: Doorbell::new()?,
            sources: Mutex::default(),
            busy_polled: Mutex::default(),
            inspected: Mutex::default(),
            ticking: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            thread: OnceLock::new(),
            expects: AtomicBool::new(false),
            spin: SpinPolicy::patient(spin),
        };
        epoll::add(
            &engine.epoll,
            &engine.doorbell,
            EventData::new_u64(DOORBELL),
            EventFlags::IN,
        )?;
        Ok(engine)
    }

    /// Registers a source; nothing is watched until [`Engine::watch`]
    pub(crate) fn register(&self, source: Arc<dyn Source>) -> SourceId {
        lock(&self.sources).insert(source)
    }

    /// Forgets a source and its deadline; its descriptors must be unwatched or closed
    pub(crate) fn deregister(&self, id: SourceId) {
        let source = lock(&self.sources).remove(id);
        // Without the lock: dropping a source may deregister others.
        drop(source);
    }

    /// Calls a source that something came for in another way than on a descriptor of its own
    pub(crate) fn visit(&self, id: SourceId, port: u8) {
        self.call(id, |source| source.on_ready(port, EventFlags::empty()));
    }

    /// Puts another source in the place of one, whose deadline is forgotten
    pub(crate) fn replace(&self, id: SourceId, source: Arc<dyn Source>) {
        let former = lock(&self.sources).replace(id, source);
        // Without the lock, as above.
        drop(former);
    }

    /// Starts watching a descriptor for a source
    ///
    /// # Errors
    ///
    /// Errors that the system reports, when it has no memory left or cannot watch such a
    /// descriptor.
    pub(crate) fn watch(
        &self,
        id: SourceId,
        port: u8,
        fd: impl AsFd,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, id.event_data(port), flags)?)
    }

    /// Changes what a watched descriptor is watched for
    ///
    /// # Errors
    ///
    /// Errors that the system reports, when the descriptor is not watched.
    pub(crate) fn rewatch(
        &self,
        id: SourceId,
        port: u8,
        fd: impl AsFd,
        flags: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, id.event_data(port), flags)?)
    }

    /// Stops watching a descriptor
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        // An error means that it was not watched, as it is to be.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Has a source looked at each tick, until its `on_tick` says otherwise
    ///
    /// Returns `false` if the id names no source.
    pub(crate) fn busy_poll(&self, id: SourceId) -> bool {
        if self.source(id).is_none() {
            return false;
        }
        lock(&self.busy_polled).push(id);
        // Pairs with the store in `tick`: either the thread sees the entry, or we see that it
        // went to sleep, and wake it.
        if !self.ticking.swap(true, Ordering::SeqCst) {
            self.doorbell.notify();
        }
        true
    }

    /// Has `on_inspect` of a source called every [`INSPECTED_EVERY`], until it says otherwise
    pub(crate) fn inspect(&self, id: SourceId) {
        let is_first = {
            let mut inspected = lock(&self.inspected);
            inspected.push(id);
            inspected.len() == 1
        };
        if is_first && self.thread.get() != Some(&std::thread::current().id()) {
            self.doorbell.notify();
        }
    }

    /// Has `on_deadline` of a source called at `at`, unless it has an earlier deadline
    pub(crate) fn schedule(&self, id: SourceId, at: Instant) {
        let is_earliest = lock(&self.sources).schedule(id, at);
        // The thread itself looks at the deadlines before it sleeps.
        if is_earliest && self.thread.get() != Some(&std::thread::current().id()) {
            self.doorbell.notify();
        }
    }

    /// Has the thread stay awake for a moment before it sleeps next, where that has paid lately
    ///
    /// A CPU with nothing to do sleeps, and takes longer to wake than an answer takes. For what the
    /// thread itself has handled: it is not woken for this.
    pub(crate) fn expect(&self) {
        self.expects.store(true, Ordering::Relaxed);
    }

    /// Ends the thread, and with it every source
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.doorbell.notify();
    }

    /// Returns whether sources registered from now on are never called
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The source registered under an id
    fn source(&self, id: SourceId) -> Option<Arc<dyn Source>> {
        lock(&self.sources).source(id)
    }

    fn run(&self) {
        self.thread.get_or_init(|| std::thread::current().id());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_until_stopped())) {
            let panic = panic_text(&*panic);
            tracing::error!(
                panic,
                "the progress engine failed; its endpoints are closed"
            );
        }
        self.stopping.store(true, Ordering::SeqCst);
        let sources = lock(&self.sources).drain();
        lock(&self.busy_polled).clear();
        lock(&self.inspected).clear();
        for source in sources {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| source.on_stop())) {
                report_panic(&*panic);
            }
        }
    }

    fn run_until_stopped(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut ticked_at = Instant::now();
        let mut inspected_at = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            if let Err(error) = self.wait(&mut events, inspected_at + INSPECTED_EVERY) {
                tracing::error!(%error, "epoll failed; the endpoints of its context are closed");
                return;
            }
            for event in events.drain(..) {
                let data = event.data.u64();
                if data == DOORBELL {
                    self.doorbell.clear();
                } else {
                    let (id, port) = SourceId::from_event_data(data);
                    self.call(id, |source| source.on_ready(port, event.flags));
                }
            }
            if self.ticking.load(Ordering::SeqCst) && ticked_at.elapsed() >= TICK {
                self.tick();
                ticked_at = Instant::now();
            }
            let now = Instant::now();
            self.visit_due(now);
            // Behind all that was ready: what a wake-up came for is no longer there.
            if now >= inspected_at + INSPECTED_EVERY {
                self.inspect_all();
                inspected_at = now;
            }
        }
    }

    /// Waits for events, for a deadline, or until it is time for an inspection
    ///
    /// # Errors
    ///
    /// None that the system documents for a valid descriptor and buffer.
    fn wait(&self, events: &mut Vec<epoll::Event>, inspection_at: Instant) -> io::Result<()> {
        if self.expects.swap(false, Ordering::Relaxed) && self.spin.take_turn() {
            let mut failure = None;
            let is_over = self.spin.until(|| {
                let looked = self.take_events(events, Some(&Timespec::default()));
                failure = looked.err();
                (!events.is_empty() || failure.is_some(), Look::default())
            });
            if is_over {
                return failure.map_or(Ok(()), Err);
            }
        }
        self.take_events(events, self.timeout(inspection_at).as_ref())
    }

    fn take_events(
        &self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<&Timespec>,
    ) -> io::Result<()> {
        match epoll::wait(&self.epoll, spare_capacity(events), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Calls a source, if there is one of this id; one that panics is ended
    fn call<T>(&self, id: SourceId, visit: impl FnOnce(Arc<dyn Source>) -> T) -> Option<T> {
        let source = self.source(id)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| visit(source)));
        outcome.map_err(|panic| self.end_failed(id, &*panic)).ok()
    }

    /// Ends a source that has panicked, and so is in no state to be called again
    pub(crate) fn end_failed(&self, id: SourceId, panic: &(dyn Any + Send)) {
        report_panic(panic);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            if let Some(source) = self.source(id) {
                source.on_stop();
            }
            self.deregister(id);
        }));
        if let Err(panic) = ended {
            report_panic(&*panic);
            let source = lock(&self.sources).remove(id);
            // Its drop might panic too.
            std::mem::forget(source);
        }
    }

    fn tick(&self) {
        let mut looked_at = std::mem::take(&mut *lock(&self.busy_polled));
        looked_at.retain(|id| self.call(*id, |source| source.on_tick()) == Some(true));
        let mut busy_polled = lock(&self.busy_polled);
        busy_polled.append(&mut looked_at);
        if busy_polled.is_empty() {
            // Under the lock: a source added after this sees `false` and wakes us.
            self.ticking.store(false, Ordering::SeqCst);
        }
    }

    fn inspect_all(&self) {
        let mut looked_at = std::mem::take(&mut *lock(&self.inspected));
        looked_at.retain(|id| self.call(*id, |source| source.on_inspect()) == Some(true));
        lock(&self.inspected).append(&mut looked_at);
    }

    /// Calls the sources whose deadline has passed, and no others
    fn visit_due(&self, now: Instant) {
        let due = lock(&self.sources).take_due(now);
        for id in due {
            if let Some(Some(at)) = self.call(id, |source| source.on_deadline(now)) {
                lock(&self.sources).schedule(id, at);
            }
        }
    }

    /// How long to sleep; `None` is for ever
    fn timeout(&self, inspection_at: Instant) -> Option<Timespec> {
        let sleep = if self.ticking.load(Ordering::SeqCst) {
            TICK
        } else {
            let inspection_at = (!lock(&self.inspected).is_empty()).then_some(inspection_at);
            let deadline = lock(&self.sources).earliest();
            let at = inspection_at.into_iter().chain(deadline).min()?;
            // Rounded up, so that the deadline has passed on waking.
            at.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
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

fn report_panic(panic: &(dyn Any + Send)) {
    let panic = panic_text(panic);
    tracing::error!(
        panic,
        "a connection or listener failed, and was ended: a defect"
    );
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic.downcast_ref::<String>().map_or("", String::as_str),
    }
}

/// Marks the engine's own doorbell among events; no source has this id
const DOORBELL: u64 = u64::MAX;

/// Events taken from the kernel at once
const EVENTS_MAX: usize = 128;

/// How often the engine looks at busy-polled connections
///
/// It bounds how late a message is noticed without a caller that waits; a caller that goes to sleep
/// arms its connection itself.
const TICK: Duration = Duration::from_millis(1);

/// How often the engine looks for what was overlooked
///
/// Far longer than a peer takes from writing to notifying on a busy machine. A look at a thousand
/// idle connections takes some 100 µs.
#[cfg(not(test))]
const INSPECTED_EVERY: Duration = Duration::from_secs(2);
#[cfg(test)]
const INSPECTED_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests;
