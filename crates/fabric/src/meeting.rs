//! Where two processes of one host meet to share memory.
//!
//! A listener's context has an abstract Unix socket. A peer that read its name, and the nonce of
//! its own connection, from our Hello connects there, shows by the nonce that it is that peer and
//! by its credentials that it is the same user, and hands over a memfd and two bells. Whoever
//! cannot do this is on another host, in another container or another user, and stays on TCP.
//!
//! Two contexts of one process meet in a table instead.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_shm::channel::Duplex;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use thiserror::Error;

use crate::carrier::lease;
use crate::identity::{Identity, random};
use crate::runtime::{Engine, Source, SourceId, lock};

/// Sixteen random bytes that name one handshake
pub(crate) type Nonce = [u8; 16];

/// What a peer hands over: its memory, the bells of both sides, and the socket it came by
pub(crate) struct Offer {
    /// The rings
    pub(crate) memory: OwnedFd,
    /// The completion table of leases
    pub(crate) table: OwnedFd,
    /// Rung to wake the peer that made the offer
    pub(crate) their_bell: OwnedFd,
    /// Rung to wake the side that takes the offer
    pub(crate) our_bell: OwnedFd,
    /// Stays open as the lease channel
    pub(crate) socket: OwnedFd,
}

/// One end of a pair of rings within this process
pub(crate) struct Half {
    pub(crate) rings: Duplex,
    pub(crate) their_bell: OwnedFd,
    pub(crate) our_bell: OwnedFd,
    pub(crate) lease: lease::LeaseParts,
}

/// The abstract Unix socket of a context
pub(crate) struct Meeting {
    name: String,
    socket: OwnedFd,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
    /// When to watch again after the system ran out of descriptors
    resume_at: Mutex<Option<Instant>>,
    /// Handshakes that may get an offer
    expected: Mutex<HashMap<Nonce, Expected>>,
}

struct Expected {
    source: SourceId,
    offer: Option<Offer>,
}

impl Meeting {
    /// Opens the socket under a random name and has the engine watch it
    pub(crate) fn open(engine: &Arc<Engine>) -> io::Result<Arc<Self>> {
        let name: String = random().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("backhaul-{name}");
        let socket = unix_socket()?;
        rustix::net::bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        rustix::net::listen(&socket, BACKLOG)?;
        let meeting = Arc::new(Self {
            name,
            socket,
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
            resume_at: Mutex::default(),
            expected: Mutex::default(),
        });
        let id = engine.register(Arc::clone(&meeting) as Arc<dyn Source>);
        meeting.id.get_or_init(|| id);
        engine.watch(id, 0, &meeting.socket, EventFlags::IN)?;
        Ok(meeting)
    }

    /// Name of the socket, as a Hello carries it
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets a handshake get an offer; `source` is called when it comes
    pub(crate) fn expect(&self, nonce: Nonce, source: SourceId) {
        let expected = Expected {
            source,
            offer: None,
        };
        lock(&self.expected).insert(nonce, expected);
    }

    /// Takes the offer of a handshake, if it has come
    pub(crate) fn take(&self, nonce: &Nonce) -> Option<Offer> {
        lock(&self.expected).get_mut(nonce)?.offer.take()
    }

    /// Ends what [`Meeting::expect`] began
    pub(crate) fn forget(&self, nonce: &Nonce) {
        lock(&self.expected).remove(nonce);
    }

    /// Leaves callers in the kernel's queue for a while, when the system refuses to accept
    fn rest(&self, engine: &Engine, error: Errno) {
        tracing::warn!(%error, "cannot accept on the meeting socket; trying again shortly");
        if let Some(id) = self.id.get() {
            // An error would mean that it is not watched, which is what is asked for.
            let _ = engine.rewatch(*id, 0, &self.socket, EventFlags::empty());
        }
        let at = Instant::now() + ACCEPT_PAUSE;
        *lock(&self.resume_at) = Some(at);
        if let Some(id) = self.id.get() {
            engine.schedule(*id, at);
        }
    }

    fn hand_in(&self, nonce: &Nonce, offer: Offer) {
        let source = {
            let mut expected = lock(&self.expected);
            let Some(expected) = expected.get_mut(nonce) else {
                tracing::warn!("an offer of shared memory names no handshake of ours");
                return;
            };
            expected.offer = Some(offer);
            expected.source
        };
        if let Some(source) = self
            .engine
            .upgrade()
            .and_then(|engine| engine.source(source))
        {
            source.on_ready(PORT_OFFER, EventFlags::empty());
        }
    }
}

impl Source for Meeting {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        for _ in 0..BACKLOG {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => return self.rest(&engine, error),
            };
            if let Err(error) = check_user(socket.as_fd()) {
                tracing::warn!(%error, "a caller of the meeting socket was refused");
                continue;
            }
            let caller = Arc::new(Caller {
                meeting: Arc::downgrade(&self),
                engine: Arc::downgrade(&engine),
                socket: Mutex::new(Some(socket)),
                id: OnceLock::new(),
                until: Instant::now() + CALLER_TIMEOUT,
            });
            let id = engine.register(Arc::clone(&caller) as Arc<dyn Source>);
            caller.id.get_or_init(|| id);
            if let Some(socket) = &*lock(&caller.socket)
                && engine.watch(id, 0, socket, EventFlags::IN).is_err()
            {
                engine.deregister(id);
            }
            engine.schedule(id, caller.until);
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut resume_at = lock(&self.resume_at);
        if resume_at.is_some_and(|at| at <= now) {
            *resume_at = None;
            if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
                let _ = engine.rewatch(*id, 0, &self.socket, EventFlags::IN);
            }
        }
        *resume_at
    }

    fn on_stop(self: Arc<Self>) {}
}

/// Somebody who has connected to the meeting socket and not handed anything over yet
struct Caller {
    meeting: Weak<Meeting>,
    engine: Weak<Engine>,
    socket: Mutex<Option<OwnedFd>>,
    id: OnceLock<SourceId>,
    until: Instant,
}

impl Caller {
    /// Stops watching, and returns the socket; `None` the second time
    fn end(&self) -> Option<OwnedFd> {
        // Once only: afterwards the id may be another source's.
        let socket = lock(&self.socket).take()?;
        if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
            engine.unwatch(&socket);
            engine.deregister(*id);
        }
        Some(socket)
    }
}

impl Source for Caller {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        let received = match &*lock(&self.socket) {
            Some(socket) => receive_offer(socket.as_fd()),
            None => return,
        };
        match received {
            Ok(None) => {}
            Ok(Some((nonce, [memory, table, our_bell, their_bell]))) => {
                if let (Some(meeting), Some(socket)) = (self.meeting.upgrade(), self.end()) {
                    let offer = Offer {
                        memory,
                        table,
                        their_bell,
                        our_bell,
                        socket,
                    };
                    meeting.hand_in(&nonce, offer);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "an offer of shared memory is malformed");
                self.end();
            }
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        if now < self.until {
            return Some(self.until);
        }
        self.end();
        None
    }

    fn on_stop(self: Arc<Self>) {
        self.end();
    }
}

/// Hands memory and bells to the peer whose Hello named the socket and the nonce
///
/// `offered` are the rings, the completion table, the peer's bell and ours, in this order. Returns
/// the socket.
pub(crate) fn make_offer(
    name: &str,
    nonce: &Nonce,
    offered: [BorrowedFd<'_>; OFFERED],
) -> Result<OwnedFd, OfferError> {
    let socket = unix_socket()?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    check_user(socket.as_fd())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFERED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&offered));
    let sent = rustix::net::sendmsg(
        &socket,
        &[IoSlice::new(nonce)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != nonce.len() {
        return Err(OfferError::Short { sent });
    }
    Ok(socket)
}

/// Reads an offer; `None` if none is there yet
fn receive_offer(
    socket: BorrowedFd<'_>,
) -> Result<Option<(Nonce, [OwnedFd; OFFERED])>, OfferError> {
    let mut nonce = Nonce::default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFERED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = match rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut nonce)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    ) {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let bytes = received.bytes;
    match <[OwnedFd; OFFERED]>::try_from(descriptors) {
        Ok(offered) if bytes == nonce.len() => Ok(Some((nonce, offered))),
        Ok(_) => Err(OfferError::Malformed {
            bytes,
            descriptors: OFFERED,
        }),
        Err(descriptors) => Err(OfferError::Malformed {
            bytes,
            descriptors: descriptors.len(),
        }),
    }
}

/// Leaves a half for a peer in this process
pub(crate) fn leave_half(nonce: Nonce, half: Half) {
    lock(halves()).insert(nonce, half);
}

/// Takes the half left for a handshake
pub(crate) fn take_half(nonce: &Nonce) -> Option<Half> {
    lock(halves()).remove(nonce)
}

fn halves() -> &'static Mutex<HashMap<Nonce, Half>> {
    static HALVES: OnceLock<Mutex<HashMap<Nonce, Half>>> = OnceLock::new();
    HALVES.get_or_init(Mutex::default)
}

/// Memory could not be handed over
#[derive(Debug, Error)]
pub(crate) enum OfferError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the process behind the meeting socket runs as user {theirs}, not {ours}")]
    OtherUser { theirs: u32, ours: u32 },
    #[error("only {sent} of 16 bytes went out")]
    Short { sent: usize },
    #[error("{bytes} bytes and {descriptors} descriptors came, not 16 and {OFFERED}")]
    Malformed { bytes: usize, descriptors: usize },
}

impl From<Errno> for OfferError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Memory is shared only between processes of one user: the kernel says who is at the other end
fn check_user(socket: BorrowedFd<'_>) -> Result<(), OfferError> {
    let theirs = rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw();
    let ours = Identity::current().uid;
    if theirs != ours {
        return Err(OfferError::OtherUser { theirs, ours });
    }
    Ok(())
}

/// Descriptors of an offer
const OFFERED: usize = 4;

/// Port under which a handshake hears of its offer; its socket has port 0
pub(crate) const PORT_OFFER: u8 = 2;

/// How long to rest when the system refuses to accept
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers in the kernel's queue
const BACKLOG: i32 = 1024;

/// How long a caller may take to hand something over, which takes no network
const CALLER_TIMEOUT: Duration = Duration::from_secs(10);
