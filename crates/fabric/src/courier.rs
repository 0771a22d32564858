//! Carries leases between two processes: descriptors of memory one way, receipts the other.
//!
//! Beside the rings, two peers on one host keep the Unix socket on which they met, and a completion table in
//! shared memory. Who lends sends the descriptor of the memory over the socket, then the frame
//! that says so through the ring; who borrows writes into the table when it needs the memory no
//! more, which takes no call of the system. The courier outlives the connection: what was
//! borrowed stays valid after it, so the lender goes on listening until the borrower shuts its
//! direction of the socket down, by hand or by dying.
//!
//! What was borrowed may be lent again: [`passage`].

mod passage;

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_proto::ProtocolError;
use backhaul_shm::arena::{Arena, Sweep};
use backhaul_shm::completion::{
    self, CompletionTable, Export, ExportedLeases, ImportedLeases, Receipt, Ticket,
};
use backhaul_shm::leased::{Reexport, reexport};
use backhaul_shm::pool::ALIGNMENT_BYTES;
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use smallvec::smallvec;

use self::passage::{DESCRIPTORS_MAX, Descriptors, Passage, Shelf};
use crate::runtime::{Engine, Source, SourceId, lock};

/// What a courier is made of, before there is a connection
pub(crate) struct Parts {
    pub(crate) socket: OwnedFd,
    pub(crate) table: CompletionTable,
}

/// Both directions of a connection
///
/// Dropped with the connection; the giver goes on until nothing is lent, the taker until nothing
/// is borrowed.
pub(crate) struct Courier {
    giver: Arc<Giver>,
    taker: Arc<Taker>,
}

/// Lends memory of ours
struct Giver {
    socket: Arc<OwnedFd>,
    arena: Option<Arena>,
    lent: Mutex<Lent>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
}

/// What the peer has of ours
struct Lent {
    leases: ExportedLeases,
    /// Nothing more is lent: nobody would notice that it is back
    ended: bool,
    /// When to look what is back; set while something is out
    sweep_at: Option<Instant>,
}

/// Borrows memory of the peer; shared with what was borrowed
struct Taker {
    socket: Arc<OwnedFd>,
    taken: ImportedLeases,
    /// The process that borrows; one forked from it has copies of everything
    pid: u32,
    /// What came over the socket and is kept to be passed on
    shelf: Mutex<Shelf>,
}

/// What a receipt keeps
struct Line {
    _taker: Arc<Taker>,
    /// Set once the lease has come, if it can be lent again
    passage: OnceLock<Passage>,
}

/// Memory that the peer has lent us, and that we have not mapped
pub(crate) struct Loan {
    pub(crate) memory: OwnedFd,
    /// Where it begins in `memory`, in bytes
    pub(crate) offset: u64,
    /// What the peer calls it
    pub(crate) ticket: u64,
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
            lent: Mutex::new(Lent {
                leases: parts.table.exported,
                ended: false,
                sweep_at: None,
            }),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
        });
        if let Some(arena) = arena {
            let sweep: Weak<dyn Sweep> = Arc::downgrade(&(Arc::clone(&giver) as Arc<dyn Sweep>));
            arena.on_shortage(sweep);
        }
        let taker = Arc::new(Taker {
            socket,
            taken: parts.table.imported,
            pid: std::process::id(),
            shelf: Mutex::default(),
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
        // What is received is aligned, wherever in the peer's memory it lies.
        if !memory.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES) {
            return None;
        }
        let arena = self.giver.arena.as_ref();
        let lending = match arena.and_then(|arena| arena.lease(memory.as_ptr(), memory.len())) {
            Some(lease) => Export::from(lease),
            None => Export::from(reexport(memory)?),
        };
        self.giver.give(lending).map(u64::from)
    }

    /// Takes what the peer has lent under a ticket
    pub(crate) fn take(&self, ticket: u64, bytes: u64) -> Result<Loan, LoanError> {
        let broken = |detail: String| LoanError::Broken(ProtocolError::BadLease { ticket, detail });
        let line = Arc::new(Line {
            _taker: Arc::clone(&self.taker),
            passage: OnceLock::new(),
        });
        let receipt = self
            .taker
            .taken
            .receipt(
                Ticket::from(ticket),
                Arc::clone(&line) as Arc<dyn Any + Send + Sync>,
            )
            .map_err(|error| broken(error.to_string()))?;
        let (packet, descriptors) = self
            .taker
            .receive()
            .map_err(|error| broken(format!("no descriptor as said: {error}")))?;
        if packet.bytes != bytes {
            let detail = format!("{} bytes lent where {bytes} were said", packet.bytes);
            return Err(broken(detail));
        }
        let mut descriptors = descriptors.ok_or(LoanError::NoDescriptor)?;
        let memory = descriptors.remove(0);
        let is_lent_again = !descriptors.is_empty();
        let passage = Passage::new(
            &mut lock(&self.taker.shelf),
            &memory,
            packet.offset,
            descriptors,
            &self.taker.socket,
        );
        match passage {
            Ok(passage) => drop(line.passage.set(passage)),
            // Without lifelines it would not stay what it is.
            Err(error) if is_lent_again => return Err(broken(error.to_string())),
            Err(error) => tracing::debug!(%error, "a loan cannot be lent again"),
        }
        Ok(Loan {
            memory,
            offset: packet.offset,
            ticket,
            receipt,
        })
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        // What the peer has sent and we have not taken is back, though something is held.
        self.taker.taken.close();
        self.giver.leave();
    }
}

impl Giver {
    /// Sends a lease to the peer, unless it has ended, has too many, or takes no packets
    fn give(&self, lending: Export) -> Option<Ticket> {
        // To the end of this: what is given after the end of the peer would never come back.
        let mut lent = lock(&self.lent);
        let is_full = lent.leases.outstanding() == completion::SLOTS && lent.leases.sweep() == 0;
        if lent.ended || is_full {
            return None;
        }
        if let Err(error) = self.send(&lending) {
            tracing::debug!(%error, "a descriptor was not taken; the bytes are sent");
            return None;
        }
        let ticket = lent.leases.issue(lending);
        let ticket = ticket.expect("a slot is free: looked at under this lock");
        if lent.sweep_at.is_none()
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            let at = Instant::now() + SWEEP_INTERVAL;
            lent.sweep_at = Some(at);
            drop(lent);
            engine.schedule(*id, at);
        }
        Some(ticket)
    }

    /// Sends descriptors; an error means that the peer has nothing of it
    fn send(&self, lending: &Export) -> io::Result<()> {
        let (offset, descriptors): (_, Descriptors<'_>) = match lending {
            Export::Own(lease) => (lease.offset(), smallvec![lease.descriptor()]),
            Export::Reexport(again) => {
                let passage = passage_of(again).ok_or(io::ErrorKind::Unsupported)?;
                let descriptors = passage.descriptors().ok_or(io::ErrorKind::Unsupported)?;
                (passage.offset() + again.offset() as u64, descriptors)
            }
        };
        let packet = Packet {
            offset,
            bytes: lending.bytes() as u64,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
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

    /// The connection is over: without anything lent, there is nothing to listen for
    fn leave(&self) {
        self.sweep();
        let mut lent = lock(&self.lent);
        if lent.leases.outstanding() == 0 {
            self.end(&mut lent);
        }
    }

    /// Stops listening, once
    fn end(&self, lent: &mut Lent) {
        if !std::mem::replace(&mut lent.ended, true)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            engine.unwatch(&*self.socket);
            engine.deregister(*id);
        }
    }

    /// Whether the peer has dropped all that it borrowed, or is dead
    fn peer_has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // An error would leave the event pending, and this would be asked again.
        poll(&mut polled, Some(&now)) == Ok(1)
    }
}

impl Sweep for Giver {
    fn sweep(&self) {
        let returned = lock(&self.lent).leases.take_returned();
        // Not under the lock: pages may go back to the system.
        drop(returned);
    }
}

impl Source for Giver {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        // Not on the word of the event: it may be one of another source, which had our id when the
        // engine fetched it.
        if self.peer_has_ended() {
            let mut lent = lock(&self.lent);
            self.end(&mut lent);
            lent.leases.return_all();
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let at = lock(&self.lent).sweep_at?;
        if now < at {
            return Some(at);
        }
        self.sweep();
        let mut lent = lock(&self.lent);
        let is_lent = lent.leases.outstanding() > 0;
        lent.sweep_at = is_lent.then(|| now + SWEEP_INTERVAL);
        lent.sweep_at
    }

    fn on_stop(self: Arc<Self>) {
        // Nobody listens any more, and the peer may have it mapped for as long as it lives.
        let mut lent = lock(&self.lent);
        lent.ended = true;
        if self.peer_has_ended() {
            lent.leases.return_all();
        } else {
            lent.leases.abandon_all();
        }
    }
}

impl Taker {
    /// Receives what belongs to the next lease, the memory first; `None` if a descriptor was lost
    fn receive(&self) -> io::Result<(Packet, Option<Vec<OwnedFd>>)> {
        let mut bytes = [0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut was_reset = false;
        let received = loop {
            let outcome = rustix::net::recvmsg(
                &*self.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            );
            match outcome {
                Err(Errno::INTR) => {}
                // Said once, if the peer died with packets of ours unread; its own are here.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                outcome => break outcome?,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let is_cut = received.flags.contains(ReturnFlags::TRUNC);
        let is_lost = received.flags.contains(ReturnFlags::CTRUNC);
        let are_said = if is_lost {
            descriptors.len() < DESCRIPTORS_MAX
        } else {
            !descriptors.is_empty()
        };
        if received.bytes != PACKET_BYTES || is_cut || !are_said {
            let what = format!(
                "a packet of {}{} bytes and {} descriptors",
                received.bytes,
                if is_cut { " or more" } else { "" },
                descriptors.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok((Packet::decode(&bytes), (!is_lost).then_some(descriptors)))
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

/// What it takes to lend a lease again, if that is possible
fn passage_of(again: &Reexport) -> Option<&Passage> {
    let line = again.receipt().keep().downcast_ref::<Line>()?;
    line.passage.get()
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

/// How often to look what is back while something is lent
///
/// An arena that needs memory looks at once. This is for one that needs none, whose freed blocks
/// would else keep their pages, and for what was lent on, whose owner waits.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

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
