//! The bootstrap socket: where two processes of one host hand memory over.
//!
//! A listener's context has an abstract Unix socket. A peer that read its name, and the nonce of
//! its own connection, from our Hello connects there, shows by the nonce that it is that peer and
//! by its credentials that it is the same user, or one that is allowed, and hands over memory and
//! doorbells. A peer that cannot do this is on another host, in another container or another user,
//! and stays on TCP; so does a peer that comes while this process has no descriptors left.
//!
//! Two contexts of one process use a table instead.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_shm::doorbell::Doorbell;
use backhaul_shm::{channel, completion};
use backhaul_sys::forks::{PerProcess, Uninherited};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use smallvec::SmallVec;
use thiserror::Error;

use super::introduction::{INTRODUCTION_BYTES, Introduction};
use super::{ChannelEnd, Reading};
use crate::carrier::lease;
use crate::identity::random;
use crate::runtime::{Engine, RepeatedWarning, Source, SourceId, lock};

/// Sixteen random bytes that name one handshake
pub(super) type Nonce = [u8; 16];

/// Handed over by a peer: its memory, the doorbells of both sides, and the socket of the transfer
pub(super) struct Offer {
    /// The rings
    memory: OwnedFd,
    /// The table of leases
    table: OwnedFd,
    /// Wakes the peer that made the offer
    their_doorbell: OwnedFd,
    /// Wakes the side that takes the offer
    our_doorbell: OwnedFd,
    /// The channel of the CUDA carrier, if both sides have it
    cuda: Option<OwnedFd>,
    /// Stays open as the lease channel
    socket: OwnedFd,
    /// Where the peer's memory may be tried to be read, if it wants that
    introduction: Option<Introduction>,
}

/// How far the offer is that a handshake waits for
pub(super) enum Offered {
    NotYet,
    Here(Offer),
    /// It cannot be received, for this reason
    Failed(String),
}

/// The bootstrap socket of a context
pub(crate) struct UnixSocket {
    name: String,
    socket: Uninherited<OwnedFd>,
    /// Users, beside our own, whose offers are taken
    uids: Vec<u32>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
    /// Why the system refuses to accept, and when to try again
    resting: Mutex<Option<Resting>>,
    /// Handshakes that may get an offer
    expected: Mutex<HashMap<Nonce, Expected>>,
    /// Warnings that the system refuses to accept
    refusals: RepeatedWarning,
    /// Warnings of offers that cannot be used
    bad_offers: RepeatedWarning,
}

/// Keeps the bootstrap socket open; dropping it closes the socket, after the handshakes under way
pub(crate) struct OpenUnixSocket(Arc<UnixSocket>);

impl OpenUnixSocket {
    /// The socket
    pub(crate) const fn socket(&self) -> &Arc<UnixSocket> {
        &self.0
    }
}

impl Drop for OpenUnixSocket {
    fn drop(&mut self) {
        if let (Some(engine), Some(id)) = (self.0.engine.upgrade(), self.0.id.get()) {
            // A forked child may hold a copy, which would go on listening and calling us.
            engine.unwatch(&self.0.socket);
            engine.deregister(*id);
        }
    }
}

struct Resting {
    until: Instant,
    error: Errno,
}

struct Expected {
    source: SourceId,
    offered: Offered,
}

impl UnixSocket {
    /// Opens the socket under a random name and has the engine watch it
    ///
    /// Offers are taken from processes of this user, and of those named.
    pub(crate) fn open(engine: &Arc<Engine>, uids: Vec<u32>) -> io::Result<OpenUnixSocket> {
        let name: String = random()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("backhaul-{name}");
        let socket = unix_socket()?;
        rustix::net::bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        rustix::net::listen(&socket, BACKLOG)?;
        let bootstrap = Arc::new(Self {
            name,
            socket: Uninherited::new(socket),
            uids,
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
            resting: Mutex::default(),
            expected: Mutex::default(),
            refusals: RepeatedWarning::default(),
            bad_offers: RepeatedWarning::default(),
        });
        let id = engine.register(Arc::clone(&bootstrap) as Arc<dyn Source>);
        bootstrap.id.get_or_init(|| id);
        if let Err(error) = engine.watch(id, 0, &bootstrap.socket, EventFlags::IN) {
            engine.deregister(id);
            return Err(error);
        }
        Ok(OpenUnixSocket(bootstrap))
    }

    /// Name of the socket, as a Hello carries it
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets a handshake get an offer; `source` is called when it comes, or cannot
    pub(super) fn expect(&self, nonce: Nonce, source: SourceId) {
        let expected = Expected {
            source,
            offered: Offered::NotYet,
        };
        lock(&self.expected).insert(nonce, expected);
    }

    /// Takes the offer of a handshake, if it has come
    pub(super) fn take(&self, nonce: &Nonce) -> Offered {
        let offered = lock(&self.expected)
            .get_mut(nonce)
            .map(|expected| std::mem::replace(&mut expected.offered, Offered::NotYet));
        match (offered, &*lock(&self.resting)) {
            // The offer may lie in the kernel's queue, from which it cannot be accepted now.
            (None | Some(Offered::NotYet), Some(Resting { error, .. })) => Offered::Failed(
                format!("the socket for its offer cannot be accepted: {error}"),
            ),
            (None, None) => Offered::NotYet,
            (Some(offered), _) => offered,
        }
    }

    /// Ends what [`UnixSocket::expect`] began
    pub(super) fn forget(&self, nonce: &Nonce) {
        lock(&self.expected).remove(nonce);
    }

    /// Leaves callers in the kernel's queue for a while, when the system refuses to accept
    ///
    /// Handshakes whose peers have selected shared memory are not kept waiting for them.
    fn rest(&self, engine: &Engine, error: Errno) {
        let now = Instant::now();
        if let Some(left_out) = self.refusals.admit(now) {
            tracing::warn!(%error, left_out, "no shared memory for new peers: cannot accept on the bootstrap socket");
        }
        let until = now + ACCEPT_PAUSE;
        *lock(&self.resting) = Some(Resting { until, error });
        if let Some(id) = self.id.get() {
            // An error means that it is not watched, as it is to be.
            let _ = engine.rewatch(*id, 0, &self.socket, EventFlags::empty());
            engine.schedule(*id, until);
        }
        let waiting: Vec<_> = lock(&self.expected)
            .values()
            .map(|one| one.source)
            .collect();
        for source in waiting {
            engine.visit(source, PORT_OFFER);
        }
    }

    /// Passes on what came for a handshake, good or bad
    fn hand_in(&self, nonce: &Nonce, offered: Offered) {
        let source = {
            let mut expected = lock(&self.expected);
            let Some(expected) = expected.get_mut(nonce) else {
                // Its handshake may have fallen back to tcp while the system refused to accept.
                return self.report_offer("it names no handshake of ours");
            };
            expected.offered = offered;
            expected.source
        };
        if let Some(engine) = self.engine.upgrade() {
            engine.visit(source, PORT_OFFER);
        }
    }

    fn report_offer(&self, why: &str) {
        if let Some(left_out) = self.bad_offers.admit(Instant::now()) {
            tracing::warn!(why, left_out, "an offer of shared memory was not taken");
        }
    }
}

impl Offer {
    /// Attaches the memory, and answers an introduction
    pub(super) fn attach(self) -> io::Result<ChannelEnd> {
        let mut reading = None;
        if let Some(theirs) = &self.introduction {
            Introduction::ours()?.send(self.socket.as_fd())?;
            reading = Some(Reading::of(theirs.open(self.socket.as_fd())));
        }
        let rings = channel::attach(self.memory).map_err(io::Error::other)?;
        let table = completion::attach_table(self.table).map_err(io::Error::other)?;
        // Both come from the peer: a descriptor that is no eventfd could block the engine.
        let their_doorbell = Doorbell::from_peer(self.their_doorbell).map_err(io::Error::other)?;
        let our_doorbell = Doorbell::from_peer(self.our_doorbell).map_err(io::Error::other)?;
        Ok(ChannelEnd {
            rings,
            their_doorbell,
            our_doorbell,
            lease: lease::LeaseParts {
                socket: self.socket,
                table,
            },
            cuda: self.cuda,
            reading,
        })
    }
}

impl Source for UnixSocket {
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
            if let Err(error) = check_user(socket.as_fd(), &self.uids) {
                self.report_offer(&error.to_string());
                continue;
            }
            let caller = Arc::new(Caller {
                bootstrap: Arc::downgrade(&self),
                engine: Arc::downgrade(&engine),
                socket: Mutex::new(Some(socket)),
                id: OnceLock::new(),
                until: Instant::now() + CALLER_TIMEOUT,
            });
            let id = engine.register(Arc::clone(&caller) as Arc<dyn Source>);
            caller.id.get_or_init(|| id);
            engine.schedule(id, caller.until);
            let watched = match &*lock(&caller.socket) {
                Some(socket) => engine.watch(id, 0, socket, EventFlags::IN),
                None => Ok(()),
            };
            if let Err(error) = watched {
                caller.end();
                let error = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
                return self.rest(&engine, error);
            }
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let mut resting = lock(&self.resting);
        if resting.as_ref().is_some_and(|resting| resting.until <= now) {
            *resting = None;
            if let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get()) {
                // Watched since it was opened, so there is nothing to allocate.
                let _ = engine.rewatch(*id, 0, &self.socket, EventFlags::IN);
            }
        }
        resting.as_ref().map(|resting| resting.until)
    }

    fn on_stop(self: Arc<Self>) {}
}

/// Peer that has connected to the bootstrap socket and not handed anything over yet
struct Caller {
    bootstrap: Weak<UnixSocket>,
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
        let Some(bootstrap) = self.bootstrap.upgrade() else {
            self.end();
            return;
        };
        match received {
            Ok(None) => {}
            Ok(Some((nonce, introduction, Ok((offered, cuda))))) => {
                let [memory, table, our_doorbell, their_doorbell] = offered;
                if let Some(socket) = self.end() {
                    let offer = Offer {
                        memory,
                        table,
                        their_doorbell,
                        our_doorbell,
                        cuda,
                        socket,
                        introduction,
                    };
                    bootstrap.hand_in(&nonce, Offered::Here(offer));
                }
            }
            Ok(Some((nonce, _, Err(error)))) => {
                self.end();
                bootstrap.report_offer(&error.to_string());
                bootstrap.hand_in(&nonce, Offered::Failed(error.to_string()));
            }
            Err(error) => {
                self.end();
                bootstrap.report_offer(&error.to_string());
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

/// Hands memory and doorbells to the peer whose Hello named the socket and the nonce
///
/// `uids` are users who may be at the other end, beside our own. `offered` are the rings, the table, the peer's doorbell and ours, in this order, and `cuda` the
/// peer's end of the channel of that carrier. With an introduction the peer answers with its own. Returns
/// the socket.
pub(super) fn make_offer(
    name: &str,
    nonce: &Nonce,
    uids: &[u32],
    introduction: Option<&Introduction>,
    offered: [BorrowedFd<'_>; OFFERED],
    cuda: Option<BorrowedFd<'_>>,
) -> Result<OwnedFd, OfferError> {
    let socket = unix_socket()?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    check_user(socket.as_fd(), uids)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFERED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: SmallVec<[_; OFFERED_MAX]> = offered.into_iter().chain(cuda).collect();
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let introduction = introduction.map(Introduction::encode);
    let introduction = introduction.as_ref().map_or(&[][..], |bytes| &bytes[..]);
    let bytes = nonce.len() + introduction.len();
    let sent = rustix::net::sendmsg(
        &socket,
        &[IoSlice::new(nonce), IoSlice::new(introduction)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != bytes {
        return Err(OfferError::Short { sent, bytes });
    }
    Ok(socket)
}

/// Descriptors that came with an offer, if they are all there
type Received = Result<([OwnedFd; OFFERED], Option<OwnedFd>), OfferError>;

/// Reads an offer: whose it is, and what came; `None` if none is there yet
///
/// # Errors
///
/// If it does not say whose it is.
fn receive_offer(
    socket: BorrowedFd<'_>,
) -> Result<Option<(Nonce, Option<Introduction>, Received)>, OfferError> {
    let mut nonce = Nonce::default();
    let mut introduction = [0; INTRODUCTION_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFERED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = match rustix::net::recvmsg(
        socket,
        &mut [
            IoSliceMut::new(&mut nonce),
            IoSliceMut::new(&mut introduction),
        ],
        &mut control,
        // A packet that is too long says how long, and is not taken for one that is not.
        RecvFlags::CMSG_CLOEXEC | RecvFlags::TRUNC,
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
    let introduction = match received.bytes.checked_sub(nonce.len()) {
        Some(0) => None,
        Some(INTRODUCTION_BYTES) => Some(Introduction::decode(&introduction)),
        _ => {
            return Err(OfferError::Malformed {
                bytes: received.bytes,
            });
        }
    };
    let is_cut_off = received.flags.contains(ReturnFlags::CTRUNC);
    let cuda = (descriptors.len() == OFFERED_MAX).then(|| descriptors.pop());
    let offered = <[OwnedFd; OFFERED]>::try_from(descriptors);
    let offered = match offered {
        // The kernel gives as many as this process may still have.
        Ok(offered) if !is_cut_off => Ok((offered, cuda.flatten())),
        Ok(_) => Err(OfferError::NoDescriptors {
            descriptors: OFFERED,
        }),
        Err(descriptors) => {
            let descriptors = descriptors.len();
            Err(match is_cut_off {
                true => OfferError::NoDescriptors { descriptors },
                false => OfferError::Incomplete { descriptors },
            })
        }
    };
    Ok(Some((nonce, introduction, offered)))
}

/// Takes the packet of an offer off a socket and attaches what came, as a handshake would
///
/// `false` if there is no packet yet.
///
/// # Errors
///
/// Describes the fault of the offer.
pub fn take_offer(socket: OwnedFd) -> Result<bool, String> {
    let received = receive_offer(socket.as_fd()).map_err(|error| error.to_string())?;
    let Some((_, introduction, offered)) = received else {
        return Ok(false);
    };
    let ([memory, table, our_doorbell, their_doorbell], cuda) =
        offered.map_err(|error| error.to_string())?;
    let offer = Offer {
        memory,
        table,
        their_doorbell,
        our_doorbell,
        cuda,
        socket,
        introduction,
    };
    offer.attach().map_err(|error| error.to_string())?;
    Ok(true)
}

/// Leaves an end for a peer in this process
pub(super) fn leave_end(nonce: Nonce, end: ChannelEnd) {
    lock(ends()).insert(nonce, end);
}

/// Takes the end left for a handshake
pub(super) fn take_end(nonce: &Nonce) -> Option<ChannelEnd> {
    lock(ends()).remove(nonce)
}

fn ends() -> &'static Mutex<HashMap<Nonce, ChannelEnd>> {
    static ENDS: PerProcess<Mutex<HashMap<Nonce, ChannelEnd>>> = PerProcess::new();
    ENDS.value()
}

/// Memory could not be handed over
#[derive(Debug, Error)]
pub(super) enum OfferError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the process behind the bootstrap socket runs as user {theirs}, not {ours}")]
    OtherUser { theirs: u32, ours: u32 },
    #[error("only {sent} of {bytes} bytes went out")]
    Short { sent: usize, bytes: usize },
    #[error("{bytes} bytes came, neither 16 nor 40")]
    Malformed { bytes: usize },
    #[error("{descriptors} descriptors came, not {OFFERED}")]
    Incomplete { descriptors: usize },
    #[error("no descriptors left in this process: {descriptors} of {OFFERED} could be received")]
    NoDescriptors { descriptors: usize },
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

/// Memory is shared between processes of one user, and of those allowed: the kernel says who is at the
/// other end
fn check_user(socket: BorrowedFd<'_>, uids: &[u32]) -> Result<(), OfferError> {
    let theirs = backhaul_sys::peer::credentials(socket)?.uid;
    let ours = rustix::process::getuid().as_raw();
    if theirs != ours && !uids.contains(&theirs) {
        return Err(OfferError::OtherUser { theirs, ours });
    }
    Ok(())
}

/// Descriptors of an offer
const OFFERED: usize = 4;

/// The same, with the channel of the CUDA carrier
const OFFERED_MAX: usize = OFFERED + 1;

/// Port by which the engine reports the offer to a handshake, whose socket has port 0
const PORT_OFFER: u8 = 2;

/// How long to rest when the system refuses to accept
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers in the kernel's queue
const BACKLOG: i32 = 1024;

/// How long a caller may take to hand something over, which takes no network
const CALLER_TIMEOUT: Duration = Duration::from_secs(10);
