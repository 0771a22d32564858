//! A handshake under way: drives the protocol's steps over a stream, and finds the resources of
//! the lane.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use backhaul_proto::{Handshake, HandshakeEvent, Hello, LaneKind, Role};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::selection::{Selection, insists_on_ucx};
use super::unix_socket::UnixSocket;
use super::{Callback, Established, Failure, Settings, Stream};
use crate::runtime::{Engine, Source, SourceId, lock};

/// A connection whose handshake is under way
pub(crate) struct Handshaking {
    engine: Arc<Engine>,
    unix_socket: Option<Arc<UnixSocket>>,
    id: OnceLock<SourceId>,
    /// `None` once it is over
    state: Mutex<Option<State>>,
}

struct State {
    stream: Box<dyn Stream>,
    peer_address: SocketAddr,
    is_open: bool,
    /// Events for which the engine watches the stream
    watched: EventFlags,
    proto: Handshake,
    role: Role,
    local: Hello,
    peer: Option<Hello>,
    selection: Selection,
    /// Bytes that the stream has not taken yet
    out: Vec<u8>,
    done: Option<(LaneKind, String)>,
    /// Bytes of frames that came behind the handshake
    staged: Vec<u8>,
    callback: Callback,
}

impl Handshaking {
    /// A handshake over a stream, which [`Handshaking::start`] starts
    ///
    /// The callback gets its outcome: on the engine thread, or on that of the caller who starts or
    /// cancels it.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        settings: Settings,
        stream: Box<dyn Stream>,
        peer_address: SocketAddr,
        callback: Callback,
    ) -> Arc<Self> {
        let Settings {
            role,
            hello,
            secret,
            shared_memory_uids,
            ring_bytes,
            ucx,
            experiment,
            timeout,
            unix_socket,
        } = settings;
        let now = Instant::now();
        let mut proto = Handshake::with_secret(role, hello.clone(), secret, now, timeout);
        let is_encrypted = stream.is_encrypted();
        if is_encrypted {
            proto = proto.encrypted();
        }
        Arc::new(Self {
            engine: Arc::clone(engine),
            unix_socket,
            id: OnceLock::new(),
            state: Mutex::new(Some(State {
                watched: stream.interest(false),
                stream,
                peer_address,
                is_open: false,
                proto,
                role,
                local: hello,
                peer: None,
                selection: Selection::new(
                    ring_bytes,
                    shared_memory_uids,
                    experiment,
                    ucx,
                    is_encrypted,
                ),
                out: Vec::new(),
                done: None,
                staged: Vec::new(),
                callback,
            })),
        })
    }

    /// Starts, unless it has been cancelled
    pub(crate) fn start(self: &Arc<Self>) {
        let watched = {
            let state = lock(&self.state);
            let Some(state) = &*state else {
                return;
            };
            // Holds the lock throughout, so that a cancelling thread finds everything that it has
            // to undo.
            let id = self.engine.register(Arc::clone(self) as Arc<dyn Source>);
            self.id.get_or_init(|| id);
            if let (Role::Acceptor, Some(unix_socket)) = (state.role, &self.unix_socket) {
                unix_socket.expect(state.local.nonce, id);
            }
            if let Some(at) = state.proto.poll_timeout() {
                self.engine.schedule(id, at);
            }
            let fd = state.stream.descriptor();
            self.engine.watch(id, PORT_STREAM, fd, state.watched)
        };
        match watched {
            // Either the engine saw the registration as it stopped, or we see that it has.
            Ok(()) if self.engine.is_stopping() => self.fail(Failure::Cancelled),
            Ok(()) => {}
            Err(error) => self.fail(error.into()),
        }
    }

    /// Gives up
    pub(crate) fn cancel(&self) {
        self.fail(Failure::Cancelled);
    }

    /// Gives up because others need the place
    pub(crate) fn give_way(&self) {
        self.fail(Failure::GaveWay);
    }

    /// Returns whether the peer has said who it is, or something is there to be read
    pub(crate) fn has_spoken(&self) -> bool {
        match &*lock(&self.state) {
            Some(state) => state.peer.is_some() || state.stream.has_heard() || state.has_input(),
            None => true,
        }
    }

    /// Does what can be done now
    fn step(&self) {
        let outcome = {
            let mut slot = lock(&self.state);
            let Some(state) = slot.as_mut() else {
                return;
            };
            match state.advance(self.unix_socket.as_deref()) {
                Err(failure) => Err(failure),
                Ok(()) if state.done.is_some() && state.out.is_empty() => Ok(slot.take()),
                Ok(()) => self.rewatch(state).map(|()| None).map_err(Failure::from),
            }
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(state)) => self.conclude(state),
            Err(failure) => self.fail(failure),
        }
    }

    fn rewatch(&self, state: &mut State) -> io::Result<()> {
        let flags = state.stream.interest(!state.out.is_empty());
        if flags == state.watched {
            return Ok(());
        }
        state.watched = flags;
        let id = self.id.get().copied();
        id.map_or(Ok(()), |id| {
            let fd = state.stream.descriptor();
            self.engine.rewatch(id, PORT_STREAM, fd, flags)
        })
    }

    /// Both sides agree: hands over what the connection is made of
    fn conclude(&self, state: State) {
        self.forget_offer(&state.local);
        let (Some(&id), Some(peer), Some((lane, reason))) = (self.id.get(), state.peer, state.done)
        else {
            // The protocol reports `Done` after the peer's Hello, and the engine calls by id.
            return (state.callback)(Err(Failure::Cancelled));
        };
        let resources = match state.selection.into_resources(lane) {
            Ok(resources) => resources,
            Err(error) => {
                self.engine.unwatch(state.stream.descriptor());
                self.engine.deregister(id);
                return (state.callback)(Err(error.into()));
            }
        };
        let (socket, session) = state.stream.into_parts();
        (state.callback)(Ok(Established {
            id,
            socket,
            session,
            peer_address: state.peer_address,
            local: state.local,
            peer,
            resources,
            reason,
            staged: state.staged,
        }));
    }

    fn fail(&self, failure: Failure) {
        let Some(mut state) = lock(&self.state).take() else {
            return;
        };
        self.forget_offer(&state.local);
        if let Some(id) = self.id.get() {
            // A forked child may hold a copy of the socket, which would go on calling us.
            self.engine.unwatch(state.stream.descriptor());
            self.engine.deregister(*id);
        }
        // A peer of another version gets our Hello, if there is room for it.
        if matches!(failure, Failure::Handshake(_)) {
            let _ = state.flush();
        }
        let State {
            stream, callback, ..
        } = state;
        callback(Err(failure));
        // After the callback, so that a peer that sees the end finds the reason recorded. By a
        // shutdown, as a forked child may hold a copy.
        stream.shutdown();
    }

    fn forget_offer(&self, local: &Hello) {
        if let Some(unix_socket) = &self.unix_socket {
            unix_socket.forget(&local.nonce);
        }
    }
}

impl State {
    fn advance(&mut self, unix_socket: Option<&UnixSocket>) -> Result<(), Failure> {
        if !self.is_open {
            self.is_open = self.stream.open()?;
            if !self.is_open {
                return Ok(());
            }
        }
        loop {
            self.handle_events(unix_socket)?;
            self.flush()?;
            if self.done.is_some() || !self.read()? {
                self.handle_events(unix_socket)?;
                return Ok(self.flush()?);
            }
        }
    }

    /// Returns whether a read would find something
    fn has_input(&self) -> bool {
        let stream = self.stream.descriptor();
        let mut polled = [PollFd::from_borrowed_fd(stream, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Reads once; `false` if nothing is there
    fn read(&mut self) -> Result<bool, Failure> {
        let mut buffer = [0; 4096];
        let bytes = match self.stream.read(&mut buffer) {
            Ok(0) => {
                let end = || Failure::Io(io::ErrorKind::UnexpectedEof.into());
                return Err(self.proto.handle_end().map_or_else(end, Failure::Handshake));
            }
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let used = self.proto.handle_bytes(Instant::now(), &buffer[..bytes])?;
        self.staged.extend_from_slice(&buffer[used..bytes]);
        Ok(true)
    }

    fn handle_events(&mut self, unix_socket: Option<&UnixSocket>) -> Result<(), Failure> {
        while let Some(event) = self.proto.poll_event() {
            match event {
                HandshakeEvent::PeerHello(peer) => {
                    if self.role == Role::Connector {
                        let (lane, reason) = self.selection.choose(&self.local, &peer);
                        self.check_lane(lane, &reason, Some(&peer))?;
                        self.proto.select(lane, &reason);
                    }
                    self.peer = Some(*peer);
                }
                HandshakeEvent::LaneSelected { lane, reason } => {
                    self.check_lane(lane, &reason, None)?;
                    self.selection.selected = Some((lane, reason));
                }
                HandshakeEvent::Done { lane, reason } => {
                    self.check_lane(lane, &reason, None)?;
                    self.done = Some((lane, reason));
                }
            }
        }
        let peer = self.peer.as_ref();
        if let Some((lane, reason)) = self.selection.answer(&self.local, peer, unix_socket) {
            self.check_lane(lane, &reason, None)?;
            self.proto.answer(lane, &reason);
            self.handle_events(unix_socket)?;
        }
        Ok(())
    }

    /// Refuses tcp where one side allows UCX alone: it was asked for by name
    fn check_lane(
        &self,
        lane: LaneKind,
        reason: &str,
        peer: Option<&Hello>,
    ) -> Result<(), Failure> {
        let (who, is_refused) = match peer {
            Some(peer) if insists_on_ucx(peer) => ("the peer", true),
            _ => ("this side", insists_on_ucx(&self.local)),
        };
        if lane == LaneKind::Tcp && is_refused {
            let reason = format!("{who} allows ucx alone; {reason}");
            return Err(Failure::NoLane { reason });
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.proto.poll_transmit() {
            self.out.extend_from_slice(&bytes);
        }
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
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

impl Source for Handshaking {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        self.step();
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let failure = {
            let mut slot = lock(&self.state);
            let state = slot.as_mut()?;
            match state.proto.handle_timeout(now) {
                Ok(()) => return state.proto.poll_timeout(),
                // No process answered the connect: that is not the fault of a peer.
                Err(_) if !state.is_open && state.role == Role::Connector => {
                    Failure::Io(io::ErrorKind::TimedOut.into())
                }
                Err(error) => error.into(),
            }
        };
        self.fail(failure);
        None
    }

    fn on_stop(self: Arc<Self>) {
        self.cancel();
    }
}

impl std::fmt::Debug for Handshaking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handshaking").finish_non_exhaustive()
    }
}

/// Port of the stream among what calls a handshake
const PORT_STREAM: u8 = 0;
