//! Listening: connections come in, shake hands, and wait to be accepted.

mod half_open;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_proto::Role;
use backhaul_sys::forks::Uninherited;
use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use crate::address::{Address, canonical};
use crate::bootstrap::{
    Established, Failure, Handshaking, OpenUnixSocket, PlainStream, Stream, TlsStream,
};
use crate::config::{ConfigError, check_encryption};
use crate::context::Core;
use crate::endpoint::Endpoint;
use crate::error::{AcceptError, ListenError};
use crate::establish::establish;
use crate::request::{Completer, Operation, Progress, Request, WakeList, finish};
use crate::runtime::{Engine, RepeatedWarning, Source, SourceId, lock};
use crate::statistics::Count;
use crate::tls::Tls;
use crate::trust::Trust;
use half_open::{HalfOpen, Room};

/// Accepts peers at one address
///
/// Dropping it closes it; endpoints it gave out live on.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<ListenerShared>,
    core: Arc<Core>,
}

/// Counts of a listener, at one instant
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenerStatistics {
    /// Peers that completed the handshake
    pub accepted: u64,
    /// Connections that did not: garbage, other versions, time-outs
    pub rejected: u64,
    /// Handshakes under way
    pub handshakes: usize,
    /// Endpoints that wait to be accepted
    pub waiting: usize,
    /// The last rejection, as `address: reason`
    pub last_rejection: Option<String>,
}

pub(crate) struct ListenerShared {
    core: Weak<Core>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
    local: SocketAddr,
    /// How its connections are encrypted, if they are
    tls: Option<Tls>,
    /// `None` once closed
    socket: Mutex<Option<Uninherited<TcpListener>>>,
    /// Where its peers hand memory over; `None` once closed
    unix_socket: Mutex<Option<Arc<OpenUnixSocket>>>,
    queue: Mutex<Queue>,
    /// The socket is not watched, because enough is under way
    paused: AtomicBool,
    /// When to watch again: the system ran out of descriptors, or all places were taken
    resume_at: Mutex<Option<Instant>>,
    /// Warnings that the system refuses to accept
    refusals: RepeatedWarning,
    /// Warnings of connections rejected
    rejections: RepeatedWarning,
    half_open: Mutex<HalfOpen<Weak<Handshaking>>>,
    accepted: Count,
    rejected: Count,
    last_rejection: Mutex<Option<String>>,
    next_operation: AtomicU64,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Endpoint>,
    waiters: VecDeque<(u64, Completer<Endpoint, AcceptError>)>,
    closed: bool,
}

impl Listener {
    pub(crate) fn bind(
        core: &Arc<Core>,
        text: &str,
        tls: Option<&Tls>,
    ) -> Result<Self, ListenError> {
        if let Some(tls) = tls {
            tls.check_listener().map_err(ConfigError::from)?;
            check_encryption(&core.config.lanes, true)?;
        }
        let io_error = |source: io::Error| ListenError::Io {
            address: text.to_owned(),
            source,
        };
        let found = Address::parse(text)?.resolve()?;
        let socket = bind(found[0], core.config.backlog).map_err(io_error)?;
        let local = socket.local_addr().map_err(io_error)?;
        // Before the first peer comes, so that its Hello can name it.
        let unix_socket = core.open_unix_socket();
        let engine = core.engine();
        let shared = Arc::new(ListenerShared {
            core: Arc::downgrade(core),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
            local,
            tls: tls.cloned(),
            socket: Mutex::new(Some(Uninherited::new(socket))),
            unix_socket: Mutex::new(unix_socket),
            queue: Mutex::default(),
            paused: AtomicBool::new(false),
            resume_at: Mutex::default(),
            refusals: RepeatedWarning::default(),
            rejections: RepeatedWarning::default(),
            half_open: Mutex::default(),
            accepted: Count::default(),
            rejected: Count::default(),
            last_rejection: Mutex::default(),
            next_operation: AtomicU64::new(0),
        });
        let id = engine.register(Arc::clone(&shared) as Arc<dyn Source>);
        shared.id.get_or_init(|| id);
        // Before anything can fail: dropped, it takes itself out of the engine.
        let listener = Self {
            shared,
            core: Arc::clone(core),
        };
        if let Some(socket) = &*lock(&listener.shared.socket) {
            engine
                .watch(id, 0, socket, EventFlags::IN)
                .map_err(io_error)?;
        }
        if engine.is_stopping() {
            return Err(io_error(io::Error::other("the context is closed")));
        }
        core.warn_if_open(listener.trust(), local);
        Ok(listener)
    }

    /// The address bound, with the port that was picked
    pub fn local_address(&self) -> SocketAddr {
        self.shared.local
    }

    /// Returns the proof that a peer has to show before it is accepted
    pub fn trust(&self) -> Trust {
        Trust::of(&self.core.config, self.shared.tls.is_some())
    }

    /// Returns a warning if every process that reaches the address can connect
    pub fn warning(&self) -> Option<String> {
        self.trust().warning(self.shared.local)
    }

    /// Waits for the next peer
    pub fn accept(&self) -> Request<Endpoint, AcceptError> {
        let shared = &self.shared;
        // Only uniqueness matters.
        let id = shared.next_operation.fetch_add(1, Ordering::Relaxed);
        let operation = Operation {
            driver: Arc::clone(shared) as Arc<dyn Progress>,
            id,
        };
        let (request, completer) = Request::pending(operation);
        let mut queue = lock(&shared.queue);
        if queue.closed {
            drop(queue);
            finish(completer, Err(AcceptError::Closed));
        } else if let Some(endpoint) = queue.ready.pop_front() {
            drop(queue);
            finish(completer, Ok(endpoint));
            shared.resume();
        } else {
            queue.waiters.push_back((id, completer));
        }
        request
    }

    /// Returns the counts of the listener
    pub fn statistics(&self) -> ListenerStatistics {
        let shared = &self.shared;
        ListenerStatistics {
            accepted: shared.accepted.value(),
            rejected: shared.rejected.value(),
            handshakes: lock(&shared.half_open).len(),
            waiting: lock(&shared.queue).ready.len(),
            last_rejection: lock(&shared.last_rejection).clone(),
        }
    }

    /// Stops listening; peers that were not accepted are disconnected
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

impl ListenerShared {
    /// A handshake succeeded
    fn deliver(&self, endpoint: Endpoint) {
        self.accepted.add(1);
        let mut wakes = WakeList::new();
        {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return;
            }
            // A waiter that was given up returns the endpoint.
            let mut left = Some(endpoint);
            while let Some(endpoint) = left.take() {
                match queue.waiters.pop_front() {
                    Some((_, completer)) => left = completer.complete(Ok(endpoint), &mut wakes),
                    None => queue.ready.push_back(endpoint),
                }
            }
        }
        for waker in wakes {
            waker.wake();
        }
        self.resume();
    }

    /// A handshake failed
    fn reject(&self, peer: SocketAddr, reason: &str) {
        let peer = canonical(peer);
        if let Some(left_out) = self.rejections.admit(Instant::now()) {
            tracing::warn!(%peer, reason, left_out, "a connection was rejected");
        }
        *lock(&self.last_rejection) = Some(format!("{peer}: {reason}"));
        self.rejected.add(1);
        self.resume();
    }

    fn accept_all(self: &Arc<Self>) -> io::Result<()> {
        let Some(core) = self.core.upgrade() else {
            return Ok(());
        };
        loop {
            if self.is_full(&core) && !self.make_room(&core) {
                self.pause();
                // A caller may have made room before it could see the pause.
                if !self.is_full(&core) {
                    self.resume();
                }
                return Ok(());
            }
            let accepted = match &*lock(&self.socket) {
                Some(socket) => socket.accept(),
                None => return Ok(()),
            };
            match accepted {
                Ok((stream, peer)) => {
                    if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                        self.shake_hands(&core, stream, peer);
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    // Out of descriptors, most likely: silent peers may have them.
                    _ if self.make_room(&core) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Starts on a connection that came in
    fn shake_hands(self: &Arc<Self>, core: &Arc<Core>, socket: TcpStream, peer: SocketAddr) {
        let unix_socket = core.unix_socket();
        let is_encrypted = self.tls.is_some();
        let hello = core.hello(&core.config.lanes, unix_socket.as_deref(), is_encrypted);
        let plain = PlainStream::connected(socket);
        let stream: io::Result<Box<dyn Stream>> = match &self.tls {
            None => Ok(Box::new(plain)),
            Some(tls) => TlsStream::accept(plain, tls).map(|stream| Box::new(stream) as Box<_>),
        };
        let (hello, stream) = match (hello, stream) {
            (Ok(hello), Ok(stream)) => (hello, stream),
            (Err(error), _) | (_, Err(error)) => return self.reject(peer, &error.to_string()),
        };
        let settings = core.settings(Role::Acceptor, hello);
        let (listener, its_core) = (Arc::clone(self), Arc::clone(core));
        let number = Arc::new(OnceLock::new());
        let its_number = Arc::clone(&number);
        let callback = Box::new(move |outcome: Result<Established, Failure>| {
            if let Some(number) = its_number.get() {
                lock(&listener.half_open).leave(*number);
            }
            match outcome {
                Ok(established) => match establish(&its_core, established) {
                    Ok(endpoint) => listener.deliver(endpoint),
                    Err(error) => listener.reject(peer, &error.to_string()),
                },
                Err(failure) => listener.reject(peer, &failure.to_string()),
            }
        });
        let handshake = Handshaking::new(core.engine(), settings, stream, peer, callback);
        let weak = Arc::downgrade(&handshake);
        let entered = lock(&self.half_open).enter(canonical(peer).ip(), Instant::now(), weak);
        number.get_or_init(|| entered);
        handshake.start();
    }

    /// Has a handshake give way, returning whether there was one that had its time
    fn make_room(&self, core: &Core) -> bool {
        if lock(&self.queue).ready.len() >= core.config.backlog as usize {
            return false;
        }
        let has_spoken = |handshake: &Weak<Handshaking>| {
            let handshake = handshake.upgrade();
            handshake.is_some_and(|handshake| handshake.has_spoken())
        };
        let room = lock(&self.half_open).make_room(Instant::now(), has_spoken);
        match room {
            Room::Of(handshake) => {
                if let Some(handshake) = handshake.upgrade() {
                    handshake.give_way();
                }
                true
            }
            Room::NotBefore(at) => {
                self.resume_at(at);
                false
            }
        }
    }

    /// Watches again at that instant, or before
    fn resume_at(&self, at: Instant) {
        *lock(&self.resume_at) = Some(at);
        if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            engine.schedule(*id, at);
        }
    }

    fn is_full(&self, core: &Core) -> bool {
        lock(&self.half_open).len() >= core.config.handshakes_max
            || lock(&self.queue).ready.len() >= core.config.backlog as usize
    }

    /// Leaves further connections to the kernel's queue
    fn pause(&self) {
        self.set_paused(true);
    }

    fn resume(&self) {
        self.set_paused(false);
    }

    /// Stops or starts watching; the flag and what is watched change under one lock, so that they
    /// agree in whatever order pauses and resumes come
    fn set_paused(&self, pause: bool) {
        let socket = lock(&self.socket);
        if self.paused.swap(pause, Ordering::SeqCst) == pause {
            return;
        }
        let flags = if pause {
            EventFlags::empty()
        } else {
            EventFlags::IN
        };
        if let (Some(engine), Some(id), Some(socket)) =
            (self.engine.upgrade(), self.id.get(), &*socket)
            && let Err(error) = engine.rewatch(*id, 0, socket, flags)
        {
            tracing::error!(%error, "cannot watch a listener");
        }
    }

    fn close(&self) {
        let (ready, waiters) = {
            let mut queue = lock(&self.queue);
            queue.closed = true;
            (
                std::mem::take(&mut queue.ready),
                std::mem::take(&mut queue.waiters),
            )
        };
        // Once only: afterwards the id may be another source's.
        if let Some(socket) = lock(&self.socket).take()
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            // A forked child may hold a copy, which would go on listening and calling us.
            engine.unwatch(&socket);
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            engine.deregister(*id);
        }
        drop(lock(&self.unix_socket).take());
        drop(ready);
        for (_, waiter) in waiters {
            finish(waiter, Err(AcceptError::Closed));
        }
    }
}

impl Source for ListenerShared {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        if let Err(error) = self.accept_all() {
            // Out of descriptors, most likely: give others time to close some.
            if let Some(left_out) = self.refusals.admit(Instant::now()) {
                let address = self.local;
                tracing::warn!(%error, %address, left_out, "cannot accept; trying again shortly");
            }
            self.pause();
            self.resume_at(Instant::now() + ACCEPT_PAUSE);
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut resume_at = lock(&self.resume_at);
        if resume_at.is_some_and(|at| at <= now) {
            *resume_at = None;
            drop(resume_at);
            self.resume();
            return None;
        }
        *resume_at
    }

    fn on_stop(self: Arc<Self>) {
        self.close();
    }
}

impl Progress for ListenerShared {
    fn cancel(&self, operation: u64) {
        let cancelled = {
            let mut queue = lock(&self.queue);
            let found = queue.waiters.iter().position(|(id, _)| *id == operation);
            found.and_then(|index| queue.waiters.remove(index))
        };
        if let Some((_, completer)) = cancelled {
            finish(completer, Err(AcceptError::Cancelled));
        }
    }
}

impl fmt::Debug for ListenerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

fn bind(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(TcpListener::from(socket))
}

/// How long a listener rests when the system refuses to accept
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
