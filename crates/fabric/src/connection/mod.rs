//! One connection: the state that callers and the engine share, and who moves it along when.
//!
//! Callers put commands into an inbox and then try the lock of the [`Port`], the driver of the link;
//! whoever holds it works through the inbox before and after letting go, so nobody waits for a lock
//! while another copies data. Reading is done by the engine, woken by the lane's doorbell, or by a
//! caller that polls; the two take turns by *arming*: an armed connection wakes the engine, one that
//! a caller polls does not (it is then *busy-polled*, see [`crate::runtime`]).

mod interest;
mod port;
mod posting;
mod spin;

use std::convert::Infallible;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use backhaul_proto::{CarrierKind, Hello, LaneKind};
use backhaul_shm::doorbell::Doorbell;
use rustix::event::epoll::EventFlags;

use crate::carrier::{Carriers, WayStatistics};
use crate::config::Config;
use crate::error::{CloseReason, RecvError, SendError};
use crate::lane::{Lane, LaneTraits};
use crate::link::{Delivery, Link, LinkEvent};
use crate::request::{Completer, Operation, Progress, Request, WakeList};
use crate::runtime::{Engine, LoopWatch, Member, Source, SourceId, lock};
use crate::statistics::Counters;

use interest::{Interest, PORT_DOORBELL};
use port::{Command, Outcome, RecvCompleter, Work};
pub(crate) use port::{Port, RecvToken, SendToken};
use spin::SpinPolicy;

/// A connection
///
/// Lock order: `port` before `inbox`, `interest` and `watchers`; none is held while a waker runs.
pub(crate) struct Conn {
    pub(crate) about: About,
    pub(crate) counters: Arc<Counters>,
    engine: Arc<Engine>,
    id: SourceId,
    interest: Arc<Interest>,
    traits: LaneTraits,
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
}

/// What is known of a connection from the start
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) lane: LaneKind,
    /// Why this lane
    pub(crate) reason: String,
    pub(crate) peer_hello: Hello,
    /// Carriers that both sides have on this lane
    pub(crate) carriers: Vec<CarrierKind>,
}

/// What a connection is made of
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
            inbox: Mutex::default(),
            dirty: AtomicBool::new(false),
            port: Mutex::new(port),
            wanted: AtomicU32::new(0),
            inline: AtomicU32::new(0),
            inline_hits_seen: AtomicU64::new(0),
            busy_polled: AtomicBool::new(false),
            masked: AtomicBool::new(false),
            spin: SpinPolicy::new(config.spin),
            blocked: AtomicU32::new(0),
            loop_pause: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            closed: OnceLock::new(),
            watchers: Mutex::default(),
            closers: Mutex::default(),
            next_operation: AtomicU64::new(0),
            linger: config.linger,
        });
        engine.replace(id, Arc::clone(&conn) as Arc<dyn Source>);
        conn.interest.begin()?;
        let timeout = conn.with_port(|port| {
            port.handle_read_ahead();
            port.link.poll_timeout()
        });
        if let Some(at) = timeout {
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
            completer.complete(Ok(reason.clone()), &mut WakeList::new());
        } else {
            watchers.retain(|watcher| !watcher.is_abandoned());
            watchers.push(completer);
        }
        request
    }

    /// State of the protocol, for reports; `None` while somebody moves data
    pub(crate) fn protocol_statistics(&self) -> Option<backhaul_proto::ConnectionStatistics> {
        let statistics = self.port.try_lock().ok();
        let statistics = statistics.map(|port| port.link.statistics());
        self.take_over();
        statistics
    }

    /// By which ways long messages come; empty while somebody moves data
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
        // Past the inbox if nobody holds the port; what lies in there comes first all the same.
        match self.try_port() {
            Some(port) => {
                let outcome = self.work_on(port, Some(command), Work::SUBMIT);
                self.settle(outcome);
            }
            None => self.leave(command),
        }
    }

    /// Leaves a command in the inbox for whoever holds the port
    fn leave(&self, command: Command) {
        lock(&self.inbox).push(command);
        self.dirty.store(true, Ordering::SeqCst);
        self.settle(Outcome::default());
    }

    /// Ends a hold of the port for a command, or an attempt at one
    fn settle(&self, outcome: Outcome) {
        // Pairs with the fence in `progress`: either our attempt at the port succeeds, or the
        // holder sees `dirty` after it has let go. And it is the look at `dirty` after our own
        // hold.
        fence(Ordering::SeqCst);
        let more = self.dirty.load(Ordering::SeqCst) && self.progress(Work::SUBMIT).more;
        if outcome.more || more {
            self.interest.call_engine();
        }
    }

    /// Takes the port unless somebody holds it
    fn try_port(&self) -> Option<MutexGuard<'_, Port>> {
        match self.port.try_lock() {
            Ok(port) => Some(port),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Works on the link for one slice of data, then lets go of it
    fn work_on(
        &self,
        mut port: MutexGuard<'_, Port>,
        command: Option<Command>,
        work: Work,
    ) -> Outcome {
        let mut wakes = WakeList::new();
        self.take_commands(&mut port, &mut wakes);
        if let Some(command) = command {
            port.handle(command);
        }
        let outcome = port.work(work);
        self.dispatch(&mut port, &mut wakes);
        drop(port);
        for waker in wakes {
            waker.wake();
        }
        outcome
    }

    /// Works on the link for one slice of data
    ///
    /// Gives up when somebody else holds the port and `work` may not wait: they will see what we
    /// posted.
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

    /// Holds the port while nothing happens, for a moment, then works on it
    ///
    /// To hold it saves taking it for each look: what comes is seen when it comes. Whoever wants
    /// the port meanwhile is seen too.
    fn watch(&self) -> bool {
        let Some(port) = self.try_port() else {
            return false;
        };
        for _ in 1..LOOKS_PER_HOLD {
            if port.is_stalled {
                std::hint::spin_loop();
            } else if !port.is_at_rest() {
                break;
            }
            // The inbox is looked at, too, by whoever works on the link.
            if self.dirty.load(Ordering::Relaxed) || self.wanted.load(Ordering::Relaxed) > 0 {
                break;
            }
        }
        let outcome = self.work_on(port, None, Work::POLL);
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        outcome.moved | (self.dirty.load(Ordering::SeqCst) && self.progress(Work::POLL).moved)
    }

    /// Works through the inbox if a caller left something there while we held the port
    ///
    /// Whoever has held the port must end with this, or with a look at `dirty` of its own.
    fn take_over(&self) {
        // Pairs with the fence in `settle`.
        fence(Ordering::SeqCst);
        if self.dirty.load(Ordering::SeqCst) && self.progress(Work::SUBMIT).more {
            self.interest.call_engine();
        }
    }

    /// Hands the connection to the engine: from now on news wake it
    fn arm(&self) {
        self.masked.store(false, Ordering::SeqCst);
        if self.progress(Work::ARM).more {
            self.interest.call_engine();
        }
    }

    /// Takes what callers have left in the inbox, returning whether there was anything
    ///
    /// Then the holder must work on the link: nobody else is called for it. What one command has
    /// completed is told before the next: a receive that was given up gives its message back before a
    /// later one is posted.
    fn take_commands(&self, port: &mut Port, wakes: &mut WakeList) -> bool {
        // Who sets it after this look has it seen after the hold.
        let is_dirty =
            self.dirty.load(Ordering::Relaxed) && self.dirty.swap(false, Ordering::SeqCst);
        if is_dirty {
            let commands = std::mem::take(&mut *lock(&self.inbox));
            for command in commands {
                if let Command::Send(send) = &command {
                    // The link counts it from now on: for a moment it is counted twice.
                    let bytes = send.segments.bytes();
                    port.handle(command);
                    self.counters.posted_bytes.sub(bytes);
                } else {
                    port.handle(command);
                }
                self.dispatch(port, wakes);
            }
        }
        is_dirty
    }

    /// Completes what the link says is over
    fn dispatch(&self, port: &mut Port, wakes: &mut WakeList) {
        while let Some(event) = port.poll_event() {
            self.dispatch_one(port, event, wakes);
        }
    }

    fn dispatch_one(
        &self,
        port: &mut Port,
        event: LinkEvent<SendToken, RecvToken>,
        wakes: &mut WakeList,
    ) {
        match event {
            LinkEvent::Sent { token, result } => {
                self.count_sent(&token, &result);
                if let Some(completer) = token.completer {
                    completer.complete(result, wakes);
                }
            }
            LinkEvent::Received { token, result } => {
                if let (Some(started), Ok(_)) = (token.started, &result) {
                    self.counters.recv_time_ns.bump(nanos_since(started));
                }
                if let Some(delivery) = complete_recv(token.completer, result, wakes) {
                    port.handle(Command::Restore(delivery));
                }
            }
            LinkEvent::Closed(reason) => self.handle_closed(port, &reason, wakes),
        }
    }

    /// Completes the watchers of the end of the link, and leaves the engine
    fn handle_closed(&self, port: &mut Port, reason: &CloseReason, wakes: &mut WakeList) {
        // First: the memory of sends that the end has overtaken is let go of when the peer can see it.
        self.interest.end();
        port.end();
        // The link ends once, so this is the only call that sets it.
        self.closed.get_or_init(|| reason.clone());
        for watcher in lock(&self.watchers).drain(..) {
            watcher.complete(Ok(reason.clone()), wakes);
        }
        for closer in lock(&self.closers).drain(..) {
            closer.complete(Ok(()), wakes);
        }
        self.engine.deregister(self.id);
    }

    /// Counts how long a send took that is over
    fn count_sent(&self, token: &SendToken, result: &Result<(), SendError>) {
        if let (Some(started), Ok(())) = (token.started, result) {
            self.counters.send_time_ns.bump(nanos_since(started));
        }
    }

    /// Has the engine look at the connection each tick, while callers poll it
    fn become_busy_polled(&self) {
        if !self.busy_polled.load(Ordering::SeqCst)
            && !self.busy_polled.swap(true, Ordering::SeqCst)
            && !self.engine.busy_poll(self.id)
        {
            self.busy_polled.store(false, Ordering::SeqCst);
        }
    }

    /// Polls for a moment where callers poll anyway, returning whether `done` is set
    fn poll_for(&self, patience: Duration, done: &AtomicBool) -> bool {
        // Else nobody polls it, and the peer would notify for each message.
        if !self.busy_polled.load(Ordering::Relaxed) || !self.masked.load(Ordering::Relaxed) {
            return false;
        }
        let started = Instant::now();
        loop {
            self.watch();
            let is_done = done.load(Ordering::Acquire);
            if is_done || started.elapsed() >= patience || self.closed.get().is_some() {
                if is_done {
                    // Also tells the tick that there was one.
                    self.counters.spins_hit.add(1);
                }
                // The tick may have armed the link before our last look at it, which may have left
                // something to write without a wake-up for it.
                self.become_busy_polled();
                return is_done;
            }
        }
    }

    /// How long the engine polls in the middle of a transfer: the peer is at it, on another CPU
    fn partial_budget(&self) -> Duration {
        if self.traits.waits_awake {
            self.spin.budget()
        } else {
            Duration::ZERO
        }
    }

    /// Moves what can be moved, as the engine: for a bounded amount, then after the others again
    fn drive(&self) {
        let patience = self.partial_budget();
        let work = if patience.is_zero() {
            Work::ARM
        } else {
            Work::DRIVE
        };
        self.masked.store(false, Ordering::SeqCst);
        let mut slices = 0;
        let mut moved_at = Instant::now();
        loop {
            let outcome = self.progress(work);
            if outcome.more || (outcome.moved && !patience.is_zero()) {
                slices += 1;
                if slices == SLICES_MAX {
                    self.interest.call_engine();
                    return;
                }
                moved_at = Instant::now();
            } else if outcome.partial && moved_at.elapsed() < patience {
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

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Completes a receive, returning its message if the receive was given up meanwhile
fn complete_recv(
    completer: RecvCompleter,
    result: Result<Delivery, RecvError>,
    wakes: &mut WakeList,
) -> Option<Delivery> {
    match completer {
        RecvCompleter::Into(completer) => completer
            .complete(result.map(Delivery::into_received), wakes)
            .map(Delivery::from),
        RecvCompleter::Allocate(completer) => completer
            .complete(result.map(Delivery::into_message), wakes)
            .map(Delivery::from),
    }
}

impl Progress for Conn {
    fn poll_inline(&self, done: &AtomicBool) -> bool {
        self.step();
        if done.load(Ordering::Acquire) || self.closed.get().is_some() || !self.spin.allows() {
            return done.load(Ordering::Acquire);
        }
        self.inline.fetch_add(1, Ordering::SeqCst);
        if !self.masked.swap(true, Ordering::SeqCst) {
            self.progress(Work::MASK);
        }
        let found = self.spin.until(|| {
            let moved = self.watch();
            (done.load(Ordering::Acquire), moved)
        });
        let last = self.inline.fetch_sub(1, Ordering::SeqCst) == 1;
        if found {
            // The tick sees by it that there was one.
            self.counters.spins_hit.add(1);
            if last {
                self.become_busy_polled();
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
            self.interest.call_engine();
        }
    }

    fn cancel(&self, operation: u64) {
        self.submit(Command::Cancel(operation));
    }

    fn restore(&self, delivery: Delivery) {
        self.submit(Command::Restore(delivery));
    }

    fn join_loop(self: Arc<Self>, watch: &Arc<LoopWatch>) {
        if !self.traits.has_doorbell || self.blocked.load(Ordering::Relaxed) > 0 {
            return;
        }
        // It steers effort and orders nothing, hence `Relaxed`.
        let pause = self.loop_pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.loop_pause.store(pause - 1, Ordering::Relaxed);
            return;
        }
        let member: Weak<dyn Member> = Arc::downgrade(&(Arc::clone(&self) as Arc<dyn Member>));
        self.interest.join_loop(watch, member);
        // One that blocks meanwhile has seen it with the loop, or is seen here.
        if self.blocked.load(Ordering::SeqCst) > 0 {
            self.interest.leave_loop();
        }
    }

    fn begin_block(&self) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        if self.interest.is_with_loop() {
            self.interest.leave_loop();
        }
    }

    fn end_block(&self) {
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Member for Conn {
    fn on_news(self: Arc<Self>) {
        self.counters.wakeups.add(1);
        self.interest.clear_doorbell();
        if self.inline.load(Ordering::SeqCst) > 0 {
            return;
        }
        self.masked.store(false, Ordering::SeqCst);
        let outcome = self.progress(Work::ARM);
        if outcome.more || outcome.partial {
            self.loop_pause.store(LOOP_PAUSE, Ordering::Relaxed);
            self.interest.call_engine();
        }
    }

    fn leave(&self) {
        self.interest.leave_loop();
    }
}

impl Source for Conn {
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags) {
        self.counters.wakeups.add(1);
        if port == PORT_DOORBELL {
            self.interest.clear_doorbell();
            if self.inline.load(Ordering::SeqCst) == 0 {
                self.drive();
            }
        } else if !self.interest.has_sentinel() {
            let is_usual = (EventFlags::IN | EventFlags::OUT).contains(flags);
            // What is to be written waits for a caller only while one polls.
            let gives_way = || {
                self.masked.load(Ordering::SeqCst)
                    && (flags == EventFlags::IN || self.inline.load(Ordering::SeqCst) > 0)
            };
            if is_usual && gives_way() {
                self.interest.set(Some(false), Some(false));
                // A caller that armed the link meanwhile has found it watched still.
                if gives_way() {
                    return;
                }
            }
            self.drive();
        } else if let Some(detail) = self.interest.sentinel_ended() {
            // What the peer wrote before it ended is still in the ring.
            while self.progress(Work::DRIVE).moved {}
            self.with_port(|port| port.handle_peer_ended(&detail));
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
        // Before arming: a caller that still finds it busy-polled has polled before that.
        self.busy_polled.store(false, Ordering::SeqCst);
        self.drive();
        false
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        if self.closed.get().is_some() {
            return None;
        }
        let next = self.with_port(|port| port.handle_timeout(now));
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
            .field("about", &self.about)
            .field("closed", &self.closed.get())
            .finish_non_exhaustive()
    }
}

/// A few times what a short message takes to a peer that polls, and back
const BRIEFLY: Duration = Duration::from_micros(3);

/// Looks at the lane while the port is held
const LOOKS_PER_HOLD: u32 = 64;

/// Waits after a long message before an event loop takes the connection over again: where one is,
/// there are more, which the engine moves without the interpreter
const LOOP_PAUSE: u32 = 64;

/// Slices of data that the engine moves on one connection before it looks after the others
const SLICES_MAX: u32 = 8;

#[cfg(test)]
mod tests;
