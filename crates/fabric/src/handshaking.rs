//! A connection before it is one: the socket is connected, both sides say who they are, and a
//! lane is agreed on.
//!
//! Runs on the engine thread; the steps and their order are the protocol's
//! ([`backhaul_proto::Handshake`]), the means are found here and in [`crate::rendezvous`].

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use backhaul_proto::{
    Connection, Handshake, HandshakeError, HandshakeEvent, Hello, LaneKind, PeerLimits, Role,
};
use rustix::event::epoll::EventFlags;

use crate::address::canonical;
use crate::carrier::Carriers;
use crate::carrier::lease::LeaseCarrier;
use crate::connection::{About, Conn, ConnParts, PORT_SOCKET};
use crate::context::Core;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::flow::Inflow;
use crate::lane::{Lane, TcpLane};
use crate::link::{Link, LinkMemory, LinkParts};
use crate::listener::ListenerShared;
use crate::opening::Opening;
use crate::rendezvous::{self, Means};
use crate::request::{Completer, Progress, WakeList};
use crate::runtime::{Source, SourceId, lock};
use crate::statistics::Counters;

/// A connection whose handshake is under way
pub(crate) struct Handshaking {
    core: Arc<Core>,
    id: OnceLock<SourceId>,
    /// `None` once it is over
    state: Mutex<Option<State>>,
    /// The attempt at the host's next address, after this one failed
    next: Mutex<Option<Arc<Self>>>,
}

struct State {
    socket: Opening,
    proto: Handshake,
    local: Hello,
    peer: Option<Hello>,
    /// Bytes the socket has not taken yet
    out: Vec<u8>,
    means: Means,
    purpose: Purpose,
    done: Option<(LaneKind, String)>,
    /// The peer takes no messages
    deaf: bool,
    /// Bytes of frames that came behind the handshake
    staged: Vec<u8>,
}

enum Purpose {
    Connect {
        address: String,
        lanes: Vec<LaneKind>,
        /// Further addresses of the host, to try if this one fails
        others: VecDeque<SocketAddr>,
        completer: Completer<Endpoint, ConnectError>,
    },
    Accept {
        listener: Arc<ListenerShared>,
    },
}

/// Why a handshake ended without a connection
enum Failure {
    Io(io::Error),
    Handshake(HandshakeError),
    Cancelled,
}

impl Handshaking {
    /// Starts connecting; the completer gets the outcome
    pub(crate) fn connect(
        core: &Arc<Core>,
        address: String,
        mut found: VecDeque<SocketAddr>,
        lanes: Vec<LaneKind>,
        completer: Completer<Endpoint, ConnectError>,
    ) -> Option<Arc<Self>> {
        loop {
            let Some(next) = found.pop_front() else {
                unreachable!("a look-up without results is an error");
            };
            match Opening::connect(next) {
                Ok(socket) => {
                    let local = core.hello(&lanes, None);
                    let purpose = Purpose::Connect {
                        address,
                        lanes,
                        others: found,
                        completer,
                    };
                    return Self::begin(core, socket, local, Role::Connector, purpose);
                }
                Err(source) if found.is_empty() => {
                    let error = Err(ConnectError::Io { address, source });
                    finish(completer, error);
                    return None;
                }
                Err(_) => {}
            }
        }
    }

    /// Starts on a connection that came in
    pub(crate) fn accept(
        core: &Arc<Core>,
        listener: Arc<ListenerShared>,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        let socket = Opening {
            stream,
            peer,
            connecting: false,
            flags: EventFlags::IN,
        };
        let local = core.hello(&core.config.lanes, core.meeting());
        Self::begin(
            core,
            socket,
            local,
            Role::Acceptor,
            Purpose::Accept { listener },
        );
    }

    fn begin(
        core: &Arc<Core>,
        socket: Opening,
        local: Hello,
        role: Role,
        purpose: Purpose,
    ) -> Option<Arc<Self>> {
        let now = Instant::now();
        let proto = Handshake::new(role, local.clone(), now, core.config.handshake_timeout);
        let nonce = local.nonce;
        let handshaking = Arc::new(Self {
            core: Arc::clone(core),
            id: OnceLock::new(),
            next: Mutex::default(),
            state: Mutex::new(Some(State {
                socket,
                proto,
                local,
                peer: None,
                out: Vec::new(),
                means: Means::default(),
                purpose,
                done: None,
                deaf: false,
                staged: Vec::new(),
            })),
        });
        let engine = core.engine();
        let id = engine.register(Arc::clone(&handshaking) as Arc<dyn Source>);
        handshaking.id.get_or_init(|| id);
        if let (Role::Acceptor, Some(meeting)) = (role, core.meeting()) {
            meeting.expect(nonce, id);
        }
        engine.schedule(id, now + core.config.handshake_timeout);
        let watched = match &*lock(&handshaking.state) {
            Some(state) => engine.watch(id, PORT_SOCKET, &state.socket.stream, state.socket.flags),
            None => Ok(()),
        };
        match watched {
            // Either the engine saw the registration as it stopped, or we see that it has.
            Ok(()) if engine.is_stopping() => {
                handshaking.fail(Failure::Cancelled);
                None
            }
            Ok(()) => Some(handshaking),
            Err(error) => {
                handshaking.fail(Failure::Io(error));
                None
            }
        }
    }

    /// Does what can be done now
    fn step(&self) {
        let outcome = {
            let mut slot = lock(&self.state);
            let Some(state) = slot.as_mut() else {
                return;
            };
            match state.advance(&self.core) {
                Err(failure) => Err(failure),
                Ok(()) if state.done.is_some() && state.out.is_empty() => Ok(slot.take()),
                Ok(()) => {
                    self.rewatch(state);
                    Ok(None)
                }
            }
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(state)) => self.conclude(state),
            Err(failure) => self.fail(failure),
        }
    }

    fn rewatch(&self, state: &mut State) {
        let mut flags = EventFlags::IN;
        flags.set(
            EventFlags::OUT,
            state.socket.connecting || !state.out.is_empty(),
        );
        if let Some(id) = self.id.get()
            && flags != state.socket.flags
        {
            state.socket.flags = flags;
            let outcome = self
                .core
                .engine()
                .rewatch(*id, PORT_SOCKET, &state.socket.stream, flags);
            if let Err(error) = outcome {
                tracing::error!(%error, "cannot watch a socket");
            }
        }
    }

    /// Both sides agree: makes the connection and hands it out
    fn conclude(&self, state: State) {
        let State {
            socket,
            local,
            peer,
            means,
            purpose,
            done,
            staged,
            ..
        } = state;
        self.forget_meeting(&local);
        let (Some(id), Some(peer), Some((lane, reason))) = (self.id.get(), peer, done) else {
            unreachable!("the handshake ends with a peer and a lane");
        };
        let address = socket.peer;
        let outcome = self.start(*id, socket, peer, means, (lane, reason), &staged);
        match (purpose, outcome) {
            (Purpose::Connect { completer, .. }, Ok(endpoint)) => finish(completer, Ok(endpoint)),
            (Purpose::Accept { listener }, Ok(endpoint)) => listener.deliver(endpoint),
            (purpose, Err(error)) => {
                self.core.engine().deregister(*id);
                purpose.fail(address, Failure::Io(error));
            }
        }
    }

    fn start(
        &self,
        id: SourceId,
        socket: Opening,
        peer: Hello,
        means: Means,
        (lane, reason): (LaneKind, String),
        staged: &[u8],
    ) -> io::Result<Endpoint> {
        let core = &self.core;
        let stream = Arc::new(socket.stream);
        let (lane, doorbell, lease): (Box<dyn Lane>, _, _) = match means.into_lane(lane) {
            Some(found) => (found.lane, Some(found.our_bell), Some(found.lease)),
            None => (Box::new(TcpLane::new(Arc::clone(&stream))), None, None),
        };
        let mut carriers = Carriers::default();
        if let Some(parts) = lease {
            let arena = core.config.arena.as_ref();
            let populate = core.config.populate_leases;
            carriers.push(Box::new(LeaseCarrier::start(
                core.engine(),
                parts,
                arena,
                populate,
            )?));
        }
        let mut limits = core.config.limits.clone();
        limits.keep_alive = core.config.keep_alive.filter(|_| !lane.traits().is_local);
        let peer_limits = PeerLimits {
            credit_bytes: peer.credit_bytes,
            credit_messages: peer.credit_messages,
            message_bytes_max: peer.message_bytes_max,
            segments_max: peer.segments_max,
            data_chunk_bytes: u64::MAX,
        };
        let about = About {
            local: canonical(stream.local_addr()?),
            peer: canonical(socket.peer),
            lane: lane.kind(),
            reason,
            peer_hello: peer,
        };
        let now = Instant::now();
        let counters = Arc::new(Counters::new());
        let link = Link::new(LinkParts {
            core: Connection::new(limits.clone(), peer_limits, now),
            limits,
            peer: about.peer,
            staged: staged.to_vec(),
            memory: LinkMemory {
                pool: core.pool.clone(),
                device_allocator: None,
                carriers: carriers.reach(),
                give_bytes_min: core.config.lease_bytes_min,
            },
            meter: Box::new(Inflow::open(&core.flows, &about)),
            counters: Arc::clone(&counters),
            now,
        });
        let parts = ConnParts {
            about,
            link,
            lane,
            carriers,
            counters,
            socket: stream,
            doorbell,
        };
        let conn = Conn::start(core.engine(), id, parts, &core.config)?;
        Ok(Endpoint::new(conn, Arc::clone(core)))
    }

    fn fail(&self, failure: Failure) {
        let Some(state) = lock(&self.state).take() else {
            // Over; if because another address is being tried, that is what fails.
            let next = lock(&self.next).clone();
            if let Some(next) = next {
                next.fail(failure);
            }
            return;
        };
        self.forget_meeting(&state.local);
        if let Some(id) = self.id.get() {
            // A forked child may hold a copy of the socket, which would go on calling us.
            self.core.engine().unwatch(&state.socket.stream);
            self.core.engine().deregister(*id);
        }
        let State {
            socket, purpose, ..
        } = state;
        match (purpose, failure) {
            (
                Purpose::Connect {
                    address,
                    lanes,
                    others,
                    completer,
                },
                Failure::Io(_),
            ) if !others.is_empty() => {
                *lock(&self.next) = Self::connect(&self.core, address, others, lanes, completer);
            }
            (purpose, failure) => purpose.fail(socket.peer, failure),
        }
        // Last, so that who sees the end finds the reason recorded; and not by dropping it, as a
        // forked child may hold a copy. An error means that it has ended already.
        let _ = socket.stream.shutdown(Shutdown::Both);
    }

    fn forget_meeting(&self, local: &Hello) {
        if let Some(meeting) = self.core.meeting_if_open() {
            meeting.forget(&local.nonce);
        }
    }
}

impl State {
    fn advance(&mut self, core: &Core) -> Result<(), Failure> {
        if self.socket.connecting && !self.socket.finish_connect().map_err(Failure::Io)? {
            return Ok(());
        }
        loop {
            self.handle_events(core);
            self.check_peer()?;
            self.flush().map_err(Failure::Io)?;
            if self.done.is_some() || !self.read()? {
                self.handle_events(core);
                return self.flush().map_err(Failure::Io);
            }
        }
    }

    /// Refuses a peer that could not be talked to
    ///
    /// Frames may come behind the handshake, and only when they travel on this socket.
    fn check_peer(&self) -> Result<(), Failure> {
        if self.deaf {
            let what = "the peer grants no credit, so nothing could ever be sent";
            return Err(Failure::Io(io::Error::new(
                io::ErrorKind::InvalidData,
                what,
            )));
        }
        let allowed = matches!(self.done, Some((LaneKind::Tcp, _)));
        if self.staged.is_empty() || allowed {
            return Ok(());
        }
        let what = "bytes came before the handshake was over";
        Err(Failure::Io(io::Error::new(
            io::ErrorKind::InvalidData,
            what,
        )))
    }

    /// Reads once; `false` if nothing is there
    fn read(&mut self) -> Result<bool, Failure> {
        let mut buffer = [0; 4096];
        let bytes = match (&self.socket.stream).read(&mut buffer) {
            Ok(0) => return Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(Failure::Io(error)),
        };
        let used = self
            .proto
            .handle_bytes(Instant::now(), &buffer[..bytes])
            .map_err(Failure::Handshake)?;
        self.staged.extend_from_slice(&buffer[used..bytes]);
        Ok(true)
    }

    fn handle_events(&mut self, core: &Core) {
        while let Some(event) = self.proto.poll_event() {
            match event {
                HandshakeEvent::PeerHello(peer) => {
                    self.deaf = peer.credit_messages == 0;
                    if let Purpose::Connect { lanes, .. } = &self.purpose {
                        let (lane, reason) =
                            rendezvous::choose(core, lanes, &self.local, &peer, &mut self.means);
                        self.proto.select(lane, &reason);
                    }
                    self.peer = Some(peer);
                }
                HandshakeEvent::LaneSelected { lane, reason } => {
                    self.means.selected = Some((lane, reason));
                }
                HandshakeEvent::Done { lane, reason } => self.done = Some((lane, reason)),
            }
        }
        if let Some((lane, reason)) = &self.means.selected
            && let Some((lane, reason)) =
                rendezvous::take(core, *lane, reason.clone(), &self.local, &mut self.means)
        {
            self.means.selected = None;
            self.proto.answer(lane, &reason);
            self.handle_events(core);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.proto.poll_transmit() {
            self.out.extend_from_slice(&bytes);
        }
        while !self.out.is_empty() {
            match (&self.socket.stream).write(&self.out) {
                Ok(bytes) => {
                    self.out.drain(..bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Purpose {
    fn fail(self, peer: SocketAddr, failure: Failure) {
        match self {
            Self::Connect {
                address, completer, ..
            } => finish(completer, Err(failure.into_connect_error(address))),
            Self::Accept { listener } => listener.reject(peer, &failure.to_string()),
        }
    }
}

impl Failure {
    fn into_connect_error(self, address: String) -> ConnectError {
        match self {
            Self::Io(source) => ConnectError::Io { address, source },
            Self::Handshake(source) => ConnectError::Handshake { address, source },
            Self::Cancelled => ConnectError::Cancelled { address },
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Handshake(error) => error.fmt(f),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl Source for Handshaking {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        self.step();
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut failure = None;
        let next = {
            let mut slot = lock(&self.state);
            let state = slot.as_mut()?;
            if let Err(error) = state.proto.handle_timeout(now) {
                failure = Some(match state.socket.connecting {
                    true => Failure::Io(io::ErrorKind::TimedOut.into()),
                    false => Failure::Handshake(error),
                });
            }
            state.proto.poll_timeout()
        };
        match failure {
            Some(failure) => {
                self.fail(failure);
                None
            }
            None => next,
        }
    }

    fn on_stop(self: Arc<Self>) {
        self.fail(Failure::Cancelled);
    }
}

impl Progress for Handshaking {
    fn cancel(&self, _operation: u64) {
        self.fail(Failure::Cancelled);
    }
}

impl std::fmt::Debug for Handshaking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshaking").finish_non_exhaustive()
    }
}

/// Completes and wakes at once; no lock may be held
pub(crate) fn finish<T, E>(completer: Completer<T, E>, result: Result<T, E>) {
    let mut wakes = WakeList::new();
    completer.complete(result, &mut wakes);
    for waker in wakes {
        waker.wake();
    }
}
