//! One connection: the state that callers and the engine share, and who moves it along when.
//!
//! Callers put commands into an inbox and then try the lock of the [`Port`], the driver of the link;
//! the holder works through the inbox before and after it releases the lock, so no thread waits for
//! a lock while another copies data. Reading is done by the engine, woken by the lane's doorbell,
//! or by a caller that polls; the two take turns by *arming*: an armed connection wakes the engine,
//! one that a caller polls does not (it is then *busy-polled*, see [`crate::runtime`]).

mod dispatch;
mod inspection;
mod interest;
mod peer_process;
mod polling;
mod port;
mod posting;
mod recorder;
mod tap;
mod visits;

use std::convert::Infallible;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use backhaul_proto::{CarrierKind, Hello, LaneKind};
use backhaul_shm::doorbell::Doorbell;

use crate::carrier::{Carriers, WayStatistics};
use crate::config::Config;
use crate::error::CloseReason;
use crate::lane::{Lane, LaneTraits};
use crate::link::Link;
use crate::request::{Completer, Operation, Progress, Request, WakeList};
use crate::runtime::{Engine, Source, SourceId, SpinPolicy, lock};
use crate::statistics::Counters;
use crate::tls::TlsInfo;

use inspection::Waiting;
pub use inspection::overlooked_in_process;
use interest::Interest;
use peer_process::Membership;
pub(crate) use peer_process::{PeerProcess, PeerProcesses};
use port::{Command, Outcome, Work};
pub(crate) use port::{Port, RecvToken, SendToken};
use recorder::Recorder;
pub use recorder::{ConnectionEvent, EventKind};
use tap::Tap;
pub use tap::{FrameStream, Frames};

/// A connection
///
/// Lock order: `tap_running` before `port`, that before `inbox`, `interest`, `watchers` and `tap`;
/// but for the first none is held while a waker runs.
pub(crate) struct Conn {
    pub(crate) about: About,
    pub(crate) counters: Arc<Counters>,
    engine: Arc<Engine>,
    id: SourceId,
    interest: Arc<Interest>,
    traits: LaneTraits,
    /// Longest message that goes on the inline path
    eager_bytes_max: u64,
    inbox: Mutex<Vec<Command>>,
    /// The inbox may hold something
    dirty: AtomicBool,
    port: Mutex<Port>,
    /// Threads that wait for the lock: who holds it while nothing happens lets go
    wanted: AtomicU32,
    /// Callers that poll now
    inline: AtomicU32,
    /// Polls that had found what they waited for at the last tick: shows whether busy-polling pays
    inline_hits_seen: AtomicU64,
    /// The engine looks at this connection each tick
    busy_polled: AtomicBool,
    /// Callers poll: news do not wake the engine, which looks each tick
    masked: AtomicBool,
    spin: SpinPolicy,
    /// The same of callers that wait for what takes a peer more than an answer
    patient_spin: SpinPolicy,
    /// Threads that sleep until an operation is over: the engine moves it along then
    blocked: AtomicU32,
    /// Waits to let pass before an event loop may take the connection over again
    loop_pause: AtomicU32,
    /// Set before `closed`, when a graceful close has begun
    closing: AtomicBool,
    /// Set once, when the link has ended
    closed: OnceLock<CloseReason>,
    /// Completed when the link has ended
    watchers: Mutex<Vec<Completer<CloseReason, Infallible>>>,
    closers: Mutex<Vec<Completer<(), CloseReason>>>,
    next_operation: AtomicU64,
    linger: Duration,
    /// Reports the end of the peer's process, where that is known, until the link has ended
    process: Mutex<Option<Membership>>,
    recorder: Recorder,
    /// Work that the engine's last inspection found waiting
    seen_waiting: Mutex<Option<Waiting>>,
    /// Tap that gets untagged messages before receives do
    tap: Mutex<Option<Tap>>,
    /// There is one, as far as that is known without its lock
    is_tapped: AtomicBool,
    /// Something has arrived for it
    tap_due: AtomicBool,
    /// Held while its stream is called, or the tap is taken away
    tap_running: Mutex<()>,
}

/// Facts of a connection that are fixed from its start
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) lane: LaneKind,
    /// How the peers have met, if that was encrypted
    pub(crate) tls: Option<TlsInfo>,
    /// Why this lane
    pub(crate) reason: String,
    pub(crate) peer_hello: Hello,
    /// Carriers that both sides have on this lane
    pub(crate) carriers: Vec<CarrierKind>,
}

/// Parts of a connection
pub(crate) struct ConnParts {
    pub(crate) about: About,
    pub(crate) link: Link<SendToken, RecvToken>,
    pub(crate) lane: Box<dyn Lane>,
    pub(crate) carriers: Carriers,
    pub(crate) counters: Arc<Counters>,
    /// The first socket
    pub(crate) socket: Arc<TcpStream>,
    /// Notified by the peer, where the lane has a doorbell
    pub(crate) doorbell: Option<Doorbell>,
    /// The process at the other end, where that is known
    pub(crate) process: Option<Arc<PeerProcess>>,
}

impl Conn {
    /// Makes a connection and has the engine watch it under `id`, which may be another source's
    /// until now
    pub(crate) fn start(
        engine: &Arc<Engine>,
        id: SourceId,
        parts: ConnParts,
        config: &Config,
    ) -> std::io::Result<Arc<Self>> {
        let interest = Interest::new(engine, id, parts.socket, parts.doorbell);
        let traits = parts.lane.traits();
        let port = Port::new(
            parts.link,
            parts.lane,
            parts.carriers,
            Arc::clone(&interest),
        );
        let conn = Arc::new(Self {
            about: parts.about,
            counters: parts.counters,
            engine: Arc::clone(engine),
            id,
            interest,
            traits,
            eager_bytes_max: config.limits.eager_bytes_max,
            inbox: Mutex::default(),
            dirty: AtomicBool::new(false),
            port: Mutex::new(port),
            wanted: AtomicU32::new(0),
            inline: AtomicU32::new(0),
            inline_hits_seen: AtomicU64::new(0),
            busy_polled: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            spin: SpinPolicy::new(config.spin),
            patient_spin: SpinPolicy::patient(config.spin),
            blocked: AtomicU32::new(0),
            loop_pause: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            closed: OnceLock::new(),
            watchers: Mutex::default(),
            closers: Mutex::default(),
            next_operation: AtomicU64::new(0),
            linger: config.linger,
            process: Mutex::default(),
            recorder: Recorder::new(),
            seen_waiting: Mutex::default(),
            tap: Mutex::default(),
            is_tapped: AtomicBool::new(false),
            tap_due: AtomicBool::new(false),
            tap_running: Mutex::default(),
        });
        engine.replace(id, Arc::clone(&conn) as Arc<dyn Source>);
        if let Some(process) = parts.process {
            *lock(&conn.process) = Some(process.join(id));
        }
        conn.interest.begin()?;
        let timeout = conn.with_port(|port| {
            port.handle_read_ahead();
            port.link.poll_timeout()
        });
        if let Some(at) = timeout {
            engine.schedule(id, at);
        }
        engine.inspect(id);
        // Bytes may have come with the handshake, or lie in the ring already.
        conn.drive();
        Ok(conn)
    }

    /// Closes gracefully
    pub(crate) fn close(self: &Arc<Self>) -> Request<(), CloseReason> {
        self.closing.store(true, Ordering::Release);
        let (request, completer) = Request::pending(self.operation(self.next_operation()));
        let mut closers = lock(&self.closers);
        if self.closed.get().is_some() {
            drop(closers);
            crate::request::finish(completer, Ok(()));
            return request;
        }
        closers.push(completer);
        drop(closers);
        self.submit(Command::Close(self.linger));
        self.engine.schedule(self.id, Instant::now() + self.linger);
        request
    }

    /// Ends the link at once
    pub(crate) fn abort(&self) {
        if self.closed.get().is_none() {
            self.closing.store(true, Ordering::Release);
            self.submit(Command::Abort);
        }
    }

    /// Returns whether the link has ended or is being closed here
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
            completer.complete(Ok(reason.clone()), &mut WakeList::new());
        } else {
            watchers.retain(|watcher| !watcher.is_abandoned());
            watchers.push(completer);
        }
        request
    }

    /// Returns the last events, the oldest first
    pub(crate) fn recent_events(&self) -> Vec<ConnectionEvent> {
        self.recorder.recent()
    }

    /// Returns the state of the protocol, for reports; `None` while a thread moves data
    pub(crate) fn protocol_statistics(&self) -> Option<backhaul_proto::ConnectionStatistics> {
        let statistics = self.port.try_lock().ok();
        let statistics = statistics.map(|port| port.link.statistics());
        self.take_over();
        statistics
    }

    /// Returns the ways by which long messages come; empty while a thread moves data
    pub(crate) fn ways(&self) -> Vec<WayStatistics> {
        let port = self.port.try_lock().ok();
        let ways = port.map(|port| port.ways()).unwrap_or_default();
        self.take_over();
        ways
    }

    fn operation(self: &Arc<Self>, id: u64) -> Operation {
        Operation {
            driver: Arc::clone(self) as Arc<dyn Progress>,
            id,
        }
    }

    fn next_operation(&self) -> u64 {
        // Only uniqueness matters.
        self.next_operation.fetch_add(1, Ordering::Relaxed)
    }

    fn submit(&self, command: Command) {
        // Past the inbox if the port is free; the commands in the inbox come first all the same.
        match self.try_port() {
            Some(port) => {
                let outcome = self.work_on(port, Some(command), Work::SUBMIT);
                self.settle(outcome);
            }
            None => self.leave(command),
        }
    }

    /// Leaves a command in the inbox for the holder of the port
    fn leave(&self, command: Command) {
        self.recorder.note(EventKind::CommandLeft);
        lock(&self.inbox).push(command);
        self.dirty.store(true, Ordering::SeqCst);
        self.settle(Outcome::default());
    }

    /// Ends a hold of the port for a command, or an attempt at one
    fn settle(&self, outcome: Outcome) {
        // Pairs with the fence in `progress`: either our attempt at the port succeeds, or the
        // holder sees `dirty` after it has released the port. And it is the look at `dirty` after
        // our own hold.
        fence(Ordering::SeqCst);
        let more = self.dirty.load(Ordering::SeqCst) && self.work_again(Work::SUBMIT);
        if more || self.is_left_to_engine(outcome) {
            self.call_engine();
        }
        self.settle_tap();
    }

    /// Works on the link, as who holds the port
    fn work_within(&self, port: &mut Port, work: Work) -> Outcome {
        // Asked while the port is held: a tick that ends it takes the port after that, and arms.
        port.work(work.beside_pollers(self.busy_polled.load(Ordering::SeqCst)))
    }

    /// Has the engine come back to this connection soon
    fn call_engine(&self) {
        self.recorder.note(EventKind::EngineCalled);
        self.interest.call_engine();
    }

    /// Works on the link, returning whether the engine is to go on
    fn work_again(&self, work: Work) -> bool {
        let outcome = self.progress(work);
        self.is_left_to_engine(outcome)
    }

    /// Returns whether the engine is to go on immediately after a caller's work
    fn is_left_to_engine(&self, outcome: Outcome) -> bool {
        // Where callers poll, they bring what is due; or else the tick, which looks whether they do.
        outcome.more || (outcome.has_takes_due && !self.busy_polled.load(Ordering::SeqCst))
    }

    /// Takes the port unless another thread holds it
    fn try_port(&self) -> Option<MutexGuard<'_, Port>> {
        match self.port.try_lock() {
            Ok(port) => Some(port),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Works on the link for one slice of data, then releases it
    fn work_on(
        &self,
        mut port: MutexGuard<'_, Port>,
        command: Option<Command>,
        work: Work,
    ) -> Outcome {
        let mut wakes = WakeList::new();
        self.take_commands(&mut port, &mut wakes);
        if let Some(command) = command {
            self.handle(&mut port, command, &mut wakes);
        }
        let outcome = self.work_within(&mut port, work);
        self.dispatch(&mut port, &mut wakes);
        drop(port);
        for waker in wakes {
            waker.wake();
        }
        outcome
    }

    /// Works on the link for one slice of data
    ///
    /// Gives up when another thread holds the port and `work` may not wait: that thread will see
    /// what we posted.
    fn progress(&self, work: Work) -> Outcome {
        let mut total = Outcome::default();
        loop {
            let port = match self.try_port() {
                Some(port) => port,
                None if work.waits => self.wait_for_port(),
                None => return total,
            };
            let outcome = self.work_on(port, None, work);
            total.moved |= outcome.moved;
            total.more = outcome.more;
            total.partial = outcome.partial;
            total.offered_bytes = outcome.offered_bytes;
            total.patience = outcome.patience;
            total.has_takes_due = outcome.has_takes_due;
            // Pairs with the fence in `settle`.
            fence(Ordering::SeqCst);
            if !self.dirty.load(Ordering::SeqCst) {
                return total;
            }
        }
    }

    /// Works on the link in a way of its own, waiting for it if need be
    fn with_port<T>(&self, work: impl FnOnce(&mut Port) -> T) -> T {
        let mut wakes = WakeList::new();
        let mut port = self.wait_for_port();
        let result = work(&mut port);
        self.dispatch(&mut port, &mut wakes);
        drop(port);
        for waker in wakes {
            waker.wake();
        }
        self.take_over();
        result
    }

    fn wait_for_port(&self) -> MutexGuard<'_, Port> {
        // A hint for the holder; the lock itself orders, hence `Relaxed`.
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let port = lock(&self.port);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        port
    }

    /// Works through the inbox if a caller left something there while we held the port
    ///
    /// A holder of the port must end with this, or with a look at `dirty` of its own.
    fn take_over(&self) {
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        if self.dirty.load(Ordering::SeqCst) && self.work_again(Work::SUBMIT) {
            self.call_engine();
        }
        self.settle_tap();
    }

    /// Takes what callers have left in the inbox, returning whether there was anything
    ///
    /// Then the holder must work on the link, because no other thread is called for it. The
    /// completions of one command are reported before the next: a receive that was given up gives
    /// its message back before a later one is posted.
    #[inline]
    fn take_commands(&self, port: &mut Port, wakes: &mut WakeList) -> bool {
        // A thread that sets it after this look has it seen after the hold.
        let is_dirty =
            self.dirty.load(Ordering::Relaxed) && self.dirty.swap(false, Ordering::SeqCst);
        if is_dirty {
            self.empty_inbox(port, wakes);
        }
        is_dirty
    }

    fn empty_inbox(&self, port: &mut Port, wakes: &mut WakeList) {
        let commands = std::mem::take(&mut *lock(&self.inbox));
        for command in commands {
            if let Command::Send(send) = &command {
                // The link counts it from now on: for a moment it is counted twice.
                let bytes = send.segments.bytes();
                port.handle(command);
                self.counters.posted_bytes.sub(bytes);
            } else {
                self.handle(port, command, wakes);
            }
            self.dispatch(port, wakes);
        }
    }

    /// Has the link do what a caller wants, or the tap
    fn handle(&self, port: &mut Port, command: Command, wakes: &mut WakeList) {
        let command = if self.is_tapped.load(Ordering::SeqCst) {
            self.handle_behind_tap(port, command, wakes)
        } else {
            Some(command)
        };
        if let Some(command) = command {
            port.handle(command);
        }
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("about", &self.about)
            .field("closed", &self.closed.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
