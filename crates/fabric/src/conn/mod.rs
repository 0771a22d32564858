//! One connection: the state that callers and the engine share, and who moves it along when.
//!
//! Callers put commands into an inbox and then try the lock of the link; whoever holds it works
//! through the inbox before and after letting go, so nobody waits for a lock while another copies
//! data. Reading is done by the engine, woken by the lane's bell, or by a caller that polls; the
//! two take turns by *arming*: an armed link wakes the engine, a link that a caller drives does
//! not (it is then *hot*, see [`crate::runtime`]).

mod at_once;
mod borrowing;
mod ending;
mod incoming;
mod interest;
mod link;
mod operations;
mod outgoing;
mod posting;
mod spin;

use std::convert::Infallible;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use backhaul_proto::{Hello, LaneKind, MessageKind, Selector};
use rustix::event::epoll::EventFlags;

use crate::buffer::{Message, Received, RecvBuffer, Segments};
use crate::config::Config;
use crate::error::{CloseReason, RecvError, SendError};
use crate::request::{Completer, Drive, Operation, Request, Wakes};
use crate::runtime::{Engine, Source, SourceId, lock};
use crate::statistics::Counters;

use interest::Interest;
use interest::PORT_BELL;
pub(crate) use link::{Link, MessageMemory};
use link::{Outcome, Work};
use spin::SpinPolicy;

/// A connection
///
/// Lock order: `link` before `inbox`, `interest` and `watchers`; none is held while a waker runs.
pub(crate) struct Conn {
    pub(crate) facts: Facts,
    pub(crate) counters: Counters,
    engine: Arc<Engine>,
    id: SourceId,
    interest: Interest,
    inbox: Mutex<Vec<Command>>,
    /// The inbox may hold something
    dirty: AtomicBool,
    link: Mutex<Link>,
    /// Threads that wait for the link's lock: who holds it while nothing happens lets go
    wanted: AtomicU32,
    /// Callers that poll now
    inline: AtomicU32,
    /// Polls that had found what they waited for at the last tick: tells whether a hot link is in use
    inline_hits_seen: AtomicU64,
    /// The engine looks at this link each tick
    hot: AtomicBool,
    /// Callers drive the link: its bell does not wake the engine, which looks each tick
    muted: AtomicBool,
    spin: SpinPolicy,
    /// Set before `closed`, when a graceful close has begun
    closing: AtomicBool,
    /// Set once, when the link has ended
    closed: OnceLock<CloseReason>,
    watchers: Mutex<Vec<Completer<CloseReason, Infallible>>>,
    next_operation: AtomicU64,
    linger: Duration,
}

/// What is known of a connection from the start
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) lane: LaneKind,
    /// Why this lane
    pub(crate) reason: String,
    pub(crate) peer_hello: Hello,
}

/// What a caller asks of the link
pub(crate) enum Command {
    Send {
        operation: u64,
        kind: MessageKind,
        segments: Segments,
        /// Their sizes in all
        bytes: u64,
        /// Nobody will write to the memory any more: it may be lent
        shared: bool,
        /// `None` if the caller holds the link and looks after it
        completer: Option<Completer<(), SendError>>,
        started: Option<Instant>,
    },
    Recv {
        operation: u64,
        selector: Selector,
        target: Target,
        started: Option<Instant>,
    },
    Cancel {
        operation: u64,
    },
    Close {
        completer: Completer<(), CloseReason>,
    },
    Abort,
}

/// Where a receive goes
pub(crate) enum Target {
    Into(Box<dyn RecvBuffer>, Completer<Received, RecvError>),
    Allocate(Completer<Message, RecvError>),
}

impl Conn {
    /// Makes a connection and has the engine watch it under `id`, which may be another source's
    /// until now
    pub(crate) fn start(
        engine: &Arc<Engine>,
        id: SourceId,
        facts: Facts,
        link: Link,
        socket: Arc<TcpStream>,
        bell: Option<OwnedFd>,
        config: &Config,
    ) -> std::io::Result<Arc<Self>> {
        let conn = Arc::new(Self {
            interest: Interest::new(id, socket, bell),
            inbox: Mutex::default(),
            dirty: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            inline: AtomicU32::new(0),
            inline_hits_seen: AtomicU64::new(0),
            hot: AtomicBool::new(false),
            muted: AtomicBool::new(false),
            spin: SpinPolicy::new(config.spin),
            closing: AtomicBool::new(false),
            closed: OnceLock::new(),
            watchers: Mutex::default(),
            next_operation: AtomicU64::new(0),
            linger: config.linger,
            engine: Arc::clone(engine),
            id,
            counters: Counters::new(),
            facts,
            link: Mutex::new(link),
        });
        engine.replace(id, Arc::clone(&conn) as Arc<dyn Source>);
        conn.interest.begin(engine)?;
        if let Some(at) = conn.with_link(|link, _| link.poll_timeout()) {
            engine.schedule(id, at);
        }
        // Bytes may have come with the handshake, or lie in the ring already.
        conn.drive();
        Ok(conn)
    }

    /// Closes gracefully
    pub(crate) fn close(self: &Arc<Self>) -> Request<(), CloseReason> {
        self.closing.store(true, Ordering::Release);
        let (request, completer) = Request::pending(self.operation(self.next_operation()));
        self.submit(Command::Close { completer });
        request
    }

    /// Ends the link at once
    pub(crate) fn abort(&self) {
        if self.closed.get().is_none() {
            self.closing.store(true, Ordering::Release);
            self.submit(Command::Abort);
        }
    }

    /// Whether the link has ended or is being closed here
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire) || self.closed.get().is_some()
    }

    /// Why the link ended, if it has
    pub(crate) fn close_reason(&self) -> Option<&CloseReason> {
        self.closed.get()
    }

    /// Completes when the link has ended
    pub(crate) fn watch_close(self: &Arc<Self>) -> Request<CloseReason, Infallible> {
        let (request, completer) = Request::pending(self.operation(self.next_operation()));
        let mut watchers = lock(&self.watchers);
        if let Some(reason) = self.closed.get() {
            completer.complete(Ok(reason.clone()), &mut Wakes::new());
        } else {
            watchers.retain(|watcher| !watcher.is_abandoned());
            watchers.push(completer);
        }
        request
    }

    /// State of the protocol, for reports; `None` while somebody moves data
    pub(crate) fn protocol_statistics(&self) -> Option<backhaul_proto::ConnectionStatistics> {
        let statistics = self.link.try_lock().ok().map(|link| link.statistics());
        self.take_over();
        statistics
    }

    fn operation(self: &Arc<Self>, id: u64) -> Operation {
        Operation {
            driver: Arc::clone(self) as Arc<dyn Drive>,
            id,
        }
    }

    fn next_operation(&self) -> u64 {
        // Only uniqueness matters.
        self.next_operation.fetch_add(1, Ordering::Relaxed)
    }

    fn submit(&self, command: Command) {
        // Past the inbox if nobody holds the link; what lies in there comes first all the same.
        match self.try_link() {
            Some(link) => {
                let outcome = self.work_on(link, Some(command), Work::SUBMIT);
                self.settle(outcome);
            }
            None => self.leave(command),
        }
    }

    /// Leaves a command in the inbox for whoever holds the link
    fn leave(&self, command: Command) {
        lock(&self.inbox).push(command);
        self.dirty.store(true, Ordering::SeqCst);
        self.settle(Outcome::default());
    }

    /// Ends a hold of the link for a command, or an attempt at one
    fn settle(&self, outcome: Outcome) {
        // Pairs with the fence in `progress`: either our attempt at the link succeeds, or the
        // holder sees `dirty` after it has let go. And it is the look at `dirty` after our own
        // hold.
        fence(Ordering::SeqCst);
        let more = self.dirty.load(Ordering::SeqCst) && self.progress(Work::SUBMIT).more;
        if outcome.more || more {
            self.interest.call_engine(&self.engine);
        }
    }

    /// Takes the link unless somebody holds it
    fn try_link(&self) -> Option<MutexGuard<'_, Link>> {
        match self.link.try_lock() {
            Ok(link) => Some(link),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Works on the link for one slice of data, then lets go of it
    fn work_on(
        &self,
        mut link: MutexGuard<'_, Link>,
        command: Option<Command>,
        work: Work,
    ) -> Outcome {
        let mut wakes = Wakes::new();
        let outcome = link.advance(self, command, work, &mut wakes);
        drop(link);
        for waker in wakes {
            waker.wake();
        }
        outcome
    }

    /// Works on the link for one slice of data
    ///
    /// Gives up when somebody else holds the link and `work` may not wait: they will see what we
    /// posted.
    fn progress(&self, work: Work) -> Outcome {
        let mut total = Outcome::default();
        loop {
            let link = match self.try_link() {
                Some(link) => link,
                None if work.waits => self.wait_for_link(),
                None => return total,
            };
            let outcome = self.work_on(link, None, work);
            total.moved |= outcome.moved;
            total.more = outcome.more;
            total.midway = outcome.midway;
            // Pairs with the fence in `settle`.
            fence(Ordering::SeqCst);
            if !self.dirty.load(Ordering::SeqCst) {
                return total;
            }
        }
    }

    /// Works on the link in a way of its own, waiting for it if need be
    fn with_link<T>(&self, work: impl FnOnce(&mut Link, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::new();
        let result = work(&mut self.wait_for_link(), &mut wakes);
        for waker in wakes {
            waker.wake();
        }
        self.take_over();
        result
    }

    fn wait_for_link(&self) -> MutexGuard<'_, Link> {
        // Steers who lets go when; the lock itself orders.
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let link = lock(&self.link);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        link
    }

    /// Holds the link while nothing happens, for a moment, then works on it
    ///
    /// To hold it saves taking it for each look: what comes is seen when it comes. Whoever wants
    /// the link meanwhile is seen too.
    fn watch(&self) -> bool {
        let Some(link) = self.try_link() else {
            return false;
        };
        for _ in 1..LOOKS_PER_HOLD {
            if link.is_stalled {
                std::hint::spin_loop();
            } else if !link.is_at_rest() {
                break;
            }
            // The inbox is looked at, too, by whoever works on the link.
            if self.dirty.load(Ordering::Relaxed) || self.wanted.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        let outcome = self.work_on(link, None, Work::POLL);
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        outcome.moved | (self.dirty.load(Ordering::SeqCst) && self.progress(Work::POLL).moved)
    }

    /// Works through the inbox if a caller left something there while we held the link
    ///
    /// Whoever has held the link must end with this, or with a look at `dirty` of its own.
    fn take_over(&self) {
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        if self.dirty.load(Ordering::SeqCst) && self.progress(Work::SUBMIT).more {
            self.interest.call_engine(&self.engine);
        }
    }

    /// Hands the link to the engine: from now on its lane's bell wakes it
    fn arm(&self) {
        self.muted.store(false, Ordering::SeqCst);
        if self.progress(Work::ARM).more {
            self.interest.call_engine(&self.engine);
        }
    }

    /// Takes what callers have posted since the last time
    fn take_commands(&self, commands: &mut Vec<Command>) {
        // Who sets it after this look has it seen after the hold.
        if self.dirty.load(Ordering::Relaxed) && self.dirty.swap(false, Ordering::SeqCst) {
            commands.append(&mut lock(&self.inbox));
        }
    }

    /// Records why the link has ended
    fn record_closed(&self, reason: &CloseReason) {
        // The link ends once, so this is the only call that sets it.
        self.closed.get_or_init(|| reason.clone());
    }

    /// Tells whoever watches that the link has ended, and lets go of the engine
    fn tell_closed(&self, wakes: &mut Wakes) {
        let mut watchers = lock(&self.watchers);
        if let Some(reason) = self.closed.get() {
            for watcher in watchers.drain(..) {
                watcher.complete(Ok(reason.clone()), wakes);
            }
        }
        drop(watchers);
        self.interest.end(&self.engine);
        self.engine.deregister(self.id);
    }

    /// Has the engine look at the link each tick, while callers drive it
    fn become_hot(&self) {
        if !self.hot.load(Ordering::SeqCst)
            && !self.hot.swap(true, Ordering::SeqCst)
            && !self.engine.busy_poll(self.id)
        {
            self.hot.store(false, Ordering::SeqCst);
        }
    }

    /// Polls for a moment on a hot link, returning whether `done` is set
    fn poll_for(&self, patience: Duration, done: &AtomicBool) -> bool {
        // Nobody else polls a link that is not hot, and the peer would ring for each message.
        if !self.hot.load(Ordering::Relaxed) || !self.muted.load(Ordering::Relaxed) {
            return false;
        }
        let started = Instant::now();
        loop {
            self.watch();
            if done.load(Ordering::Acquire) {
                // Also tells the tick that there was one.
                self.counters.spins_hit.add(1);
                // The tick may have armed the link before our last look at it, which may have left
                // something to write that nobody is called for.
                self.become_hot();
                return true;
            }
            if started.elapsed() >= patience || self.closed.get().is_some() {
                return false;
            }
        }
    }

    /// How long the engine polls in the middle of a transfer: the peer is at it, on another CPU
    fn midway_budget(&self) -> Duration {
        match self.facts.lane {
            LaneKind::Shm => self.spin.budget(),
            // Within a process the other end may wait for this very thread; a socket wakes us.
            _ => Duration::ZERO,
        }
    }

    /// Moves what can be moved, as the engine: for a bounded amount, then after the others again
    fn drive(&self) {
        let patience = self.midway_budget();
        let work = if patience.is_zero() {
            Work::ARM
        } else {
            Work::DRIVE
        };
        self.muted.store(false, Ordering::SeqCst);
        let mut slices = 0;
        let mut moved_at = Instant::now();
        loop {
            let outcome = self.progress(work);
            if outcome.more || (outcome.moved && !patience.is_zero()) {
                slices += 1;
                if slices == SLICES_MAX {
                    self.interest.call_engine(&self.engine);
                    return;
                }
                moved_at = Instant::now();
            } else if outcome.midway && moved_at.elapsed() < patience {
                std::thread::yield_now();
            } else {
                break;
            }
        }
        if !patience.is_zero() {
            self.arm();
        }
    }
}

impl Drive for Conn {
    fn poll_inline(&self, done: &AtomicBool) -> bool {
        self.step();
        if done.load(Ordering::Acquire) || self.closed.get().is_some() || !self.spin.allows() {
            return done.load(Ordering::Acquire);
        }
        self.inline.fetch_add(1, Ordering::SeqCst);
        if !self.muted.swap(true, Ordering::SeqCst) {
            self.progress(Work::MUTE);
        }
        let found = self.spin.until(|| {
            let moved = self.watch();
            (done.load(Ordering::Acquire), moved)
        });
        let last = self.inline.fetch_sub(1, Ordering::SeqCst) == 1;
        if found {
            // Also tells the tick that there was one.
            self.counters.spins_hit.add(1);
            if last {
                self.become_hot();
            }
        } else {
            self.counters.spins_missed.add(1);
            if last {
                self.arm();
            }
        }
        done.load(Ordering::Acquire)
    }

    fn poll_briefly(&self, done: &AtomicBool) -> bool {
        self.poll_for(BRIEFLY, done)
    }

    fn step(&self) {
        if self.progress(Work::STEP).more {
            self.interest.call_engine(&self.engine);
        }
    }

    fn cancel(&self, operation: u64) {
        self.submit(Command::Cancel { operation });
    }
}

impl Source for Conn {
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags) {
        self.counters.wakeups.add(1);
        if port == PORT_BELL {
            self.interest.silence();
            if self.inline.load(Ordering::SeqCst) == 0 {
                self.drive();
            }
        } else if self.facts.lane == LaneKind::Tcp {
            let is_usual = (EventFlags::IN | EventFlags::OUT).contains(flags);
            // What is to be written waits for a caller only while one polls.
            let gives_way = || {
                self.muted.load(Ordering::SeqCst)
                    && (flags == EventFlags::IN || self.inline.load(Ordering::SeqCst) > 0)
            };
            if is_usual && gives_way() {
                self.interest.set(&self.engine, Some(false), Some(false));
                // A caller that armed the link meanwhile has found it watched still.
                if gives_way() {
                    return;
                }
            }
            self.drive();
        } else if let Some(detail) = self.interest.sentinel_ended() {
            // What the peer wrote before it ended is still in the ring.
            while self.progress(Work::DRIVE).moved {}
            self.with_link(|link, wakes| link.peer_ended(&self, &detail, wakes));
        }
    }

    fn on_tick(self: Arc<Self>) -> bool {
        if self.closed.get().is_some() {
            return false;
        }
        let hits = self.counters.spins_hit.value();
        let used = self.inline_hits_seen.swap(hits, Ordering::Relaxed) != hits;
        if used || self.inline.load(Ordering::SeqCst) > 0 {
            return true;
        }
        // In this order: a caller that found it hot was here before we arm.
        self.hot.store(false, Ordering::SeqCst);
        self.drive();
        false
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        if self.closed.get().is_some() {
            return None;
        }
        let next = self.with_link(|link, wakes| link.handle_deadline(&self, now, wakes));
        self.drive();
        next
    }

    fn on_stop(self: Arc<Self>) {
        self.abort();
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("facts", &self.facts)
            .field("closed", &self.closed.get())
            .finish_non_exhaustive()
    }
}

/// A few times what a short message takes to a peer that polls, and back
const BRIEFLY: Duration = Duration::from_micros(3);

/// Looks at the lane while the link is held
const LOOKS_PER_HOLD: u32 = 64;

/// Slices of data that the engine moves on one link before it looks after the others
const SLICES_MAX: u32 = 8;

#[cfg(test)]
mod tests;
