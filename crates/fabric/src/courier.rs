//! Carries leases between two processes: descriptors of memory one way, receipts the other.
//!
//! Beside the rings, two peers on one host keep the Unix socket on which they met, and a board in
//! shared memory. Who lends sends the descriptor of the memory over the socket, then the frame
//! that says so through the ring; who borrows writes on the board when it needs the memory no
//! more, which takes no call of the system. The courier outlives the connection: what was
//! borrowed stays valid after it, so the lender goes on listening until the borrower shuts its
//! direction of the socket down, by hand or by dying.

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use backhaul_proto::ProtocolError;
use backhaul_shm::arena::{Arena, Lease, Sweep};
use backhaul_shm::board::{self, Board, GivenLeases, Receipt, TakenLeases, Ticket};
use backhaul_shm::pool::ALIGNMENT_BYTES;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};

use crate::engine::{Engine, Source, SourceId, lock};

/// What a courier is made of, before there is a connection
pub(crate) struct Parts {
    pub(crate) socket: OwnedFd,
    pub(crate) board: Board,
}

/// Both directions of a connection
pub(crate) struct Courier {
    giver: Arc<Giver>,
    taker: Arc<Taker>,
}

/// Lends memory of ours
struct Giver {
    socket: Arc<OwnedFd>,
    arena: Option<Arena>,
    given: Mutex<GivenLeases>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
    /// The peer takes and gives back nothing more
    ended: AtomicBool,
}

/// Borrows memory of the peer; shared with what was borrowed
struct Taker {
    socket: Arc<OwnedFd>,
    taken: TakenLeases,
    /// The process that borrows; one forked from it has copies of everything
    pid: u32,
}

/// Memory that the peer has lent us, and that we have not mapped
pub(crate) struct Loan {
    pub(crate) memory: OwnedFd,
    /// Where it begins in `memory`, in bytes
    pub(crate) offset: u64,
    /// Gives it back when dropped
    pub(crate) receipt: Receipt,
}

/// A loan that cannot be taken
pub(crate) enum LoanError {
    /// The peer's fault
    Broken(ProtocolError),
    /// The descriptor was lost on the way: this process can hold no more of them
    NoDescriptor,
}

impl Courier {
    /// Has the engine listen for the end of the peer
    pub(crate) fn start(
        engine: &Arc<Engine>,
        parts: Parts,
        arena: Option<&Arena>,
    ) -> io::Result<Self> {
        let socket = Arc::new(parts.socket);
        let giver = Arc::new(Giver {
            socket: Arc::clone(&socket),
            arena: arena.cloned(),
            given: Mutex::new(parts.board.given),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
            ended: AtomicBool::new(false),
        });
        if let Some(arena) = arena {
            let sweep: Weak<dyn Sweep> = Arc::downgrade(&(Arc::clone(&giver) as Arc<dyn Sweep>));
            arena.on_shortage(sweep);
        }
        let taker = Arc::new(Taker {
            socket,
            taken: parts.board.taken,
            pid: std::process::id(),
        });
        let id = engine.register(Arc::clone(&giver) as Arc<dyn Source>);
        giver.id.get_or_init(|| id);
        if let Err(error) = engine.watch(id, 0, &*giver.socket, EventFlags::RDHUP) {
            engine.deregister(id);
            return Err(error);
        }
        Ok(Self { giver, taker })
    }

    /// Lends memory to the peer, returning the ticket; `None` if it must be sent instead
    pub(crate) fn lend(&self, memory: &[u8]) -> Option<u64> {
        let giver = &self.giver;
        // What is received is aligned, wherever in the peer's memory it lies.
        let is_aligned = memory.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES);
        if !is_aligned || giver.ended.load(Ordering::Acquire) {
            return None;
        }
        let lease = giver.arena.as_ref()?.lease(memory.as_ptr(), memory.len())?;
        let mut given = lock(&giver.given);
        if given.outstanding() == board::SLOTS && given.sweep() == 0 {
            return None;
        }
        if let Err(error) = giver.send(&lease) {
            tracing::debug!(%error, "a descriptor was not taken; the bytes are sent");
            return None;
        }
        match given.issue(lease) {
            Ok(ticket) => Some(ticket.into()),
            Err(_lease) => None,
        }
    }

    /// Takes what the peer has lent under a ticket
    pub(crate) fn take(&self, ticket: u64, bytes: u64) -> Result<Loan, LoanError> {
        let broken = |detail: String| LoanError::Broken(ProtocolError::BadLease { ticket, detail });
        let keep = Arc::clone(&self.taker) as Arc<dyn Any + Send + Sync>;
        let receipt = self
            .taker
            .taken
            .receipt(Ticket::from(ticket), keep)
            .map_err(|error| broken(error.to_string()))?;
        let (packet, memory) = self
            .taker
            .receive()
            .map_err(|error| broken(format!("no descriptor came: {error}")))?;
        if packet.bytes != bytes {
            let detail = format!("{} bytes lent where {bytes} were said", packet.bytes);
            return Err(broken(detail));
        }
        Ok(Loan {
            memory: memory.ok_or(LoanError::NoDescriptor)?,
            offset: packet.offset,
            receipt,
        })
    }
}

impl Giver {
    /// Sends a descriptor; an error means that the peer has nothing of it
    fn send(&self, lease: &Lease) -> io::Result<()> {
        let packet = Packet {
            offset: lease.offset(),
            bytes: lease.bytes() as u64,
        };
        let descriptors = [lease.descriptor()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        rustix::net::sendmsg(
            &*self.socket,
            &[IoSlice::new(&packet.encode())],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Stops listening, once
    fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            engine.unwatch(&*self.socket);
            engine.deregister(*id);
        }
    }
}

impl Sweep for Giver {
    fn sweep(&self) {
        lock(&self.given).sweep();
    }
}

impl Source for Giver {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        // The peer has dropped all that it borrowed, or is dead.
        self.end();
        lock(&self.given).return_all();
    }

    fn on_stop(self: Arc<Self>) {
        // Nobody listens any more, and the peer may have it mapped for as long as it lives.
        self.ended.store(true, Ordering::Release);
        lock(&self.given).abandon_all();
    }
}

impl Taker {
    /// Receives what belongs to the next lease; the descriptor is missing if it was lost
    fn receive(&self) -> io::Result<(Packet, Option<OwnedFd>)> {
        let mut bytes = [0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let outcome = rustix::net::recvmsg(
                &*self.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            );
            match outcome {
                Err(Errno::INTR) => {}
                outcome => break outcome?,
            }
        };
        if received.bytes != PACKET_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let memory = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        Ok((Packet::decode(&bytes), memory))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // Not by dropping the socket: the giver of this side may still need it, and a forked child
        // may hold a copy. An error means that the peer has gone first.
        if std::process::id() == self.pid {
            let _ = rustix::net::shutdown(&*self.socket, Shutdown::Write);
        }
    }
}

/// What is said of a descriptor on the socket: docs/design/wire-format.md, section 2
struct Packet {
    offset: u64,
    bytes: u64,
}

impl Packet {
    fn encode(&self) -> [u8; PACKET_BYTES] {
        let mut encoded = [0; PACKET_BYTES];
        encoded[..8].copy_from_slice(&self.offset.to_le_bytes());
        encoded[8..].copy_from_slice(&self.bytes.to_le_bytes());
        encoded
    }

    fn decode(encoded: &[u8; PACKET_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| encoded[at + index]));
        Self {
            offset: word(0),
            bytes: word(8),
        }
    }
}

const PACKET_BYTES: usize = 16;

/// The two ends of a socket between couriers of one process
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        flags,
        None,
    )?)
}
