//! The exporter: what the peer has of our memory, and when it is back.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use backhaul_shm::arena::{Arena, Sweep};
use backhaul_shm::completion::{self, Export, ExportedLeases};
use backhaul_shm::leased::reexport;
use backhaul_shm::pool::ALIGNMENT_BYTES;
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::smallvec;

use super::channel::{Packet, send};
use super::reexport::{Descriptors, descriptors_of};
use crate::runtime::{Engine, Source, SourceId, lock};

/// Exports memory of this process
pub(super) struct Exporter {
    socket: Arc<OwnedFd>,
    arena: Option<Arena>,
    exported: Mutex<Exported>,
    engine: Weak<Engine>,
    id: OnceLock<SourceId>,
}

/// Exports that the peer holds
struct Exported {
    leases: ExportedLeases,
    /// Nothing more is exported: returns are not noticed any more
    ended: bool,
    /// When to look what is back; set while something is out
    sweep_at: Option<Instant>,
}

impl Exporter {
    /// Has the engine listen for the end of the peer
    pub(super) fn start(
        engine: &Arc<Engine>,
        socket: &Arc<OwnedFd>,
        leases: ExportedLeases,
        arena: Option<&Arena>,
    ) -> io::Result<Arc<Self>> {
        let exporter = Arc::new(Self {
            socket: Arc::clone(socket),
            arena: arena.cloned(),
            exported: Mutex::new(Exported {
                leases,
                ended: false,
                sweep_at: None,
            }),
            engine: Arc::downgrade(engine),
            id: OnceLock::new(),
        });
        if let Some(arena) = arena {
            let sweep: Weak<dyn Sweep> = Arc::downgrade(&(Arc::clone(&exporter) as Arc<dyn Sweep>));
            arena.on_shortage(sweep);
        }
        let id = engine.register(Arc::clone(&exporter) as Arc<dyn Source>);
        exporter.id.get_or_init(|| id);
        if let Err(error) = engine.watch(id, 0, &*exporter.socket, EventFlags::RDHUP) {
            engine.deregister(id);
            return Err(error);
        }
        Ok(exporter)
    }

    /// Exports memory to the peer, returning the ticket; `None` if it must be sent instead
    pub(super) fn give(&self, memory: &[u8]) -> Option<u64> {
        // Received memory is aligned, wherever in the peer's memory it lies.
        if !memory.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES) {
            return None;
        }
        let arena = self.arena.as_ref();
        let export = match arena.and_then(|arena| arena.lease(memory.as_ptr(), memory.len())) {
            Some(lease) => Export::from(lease),
            None => Export::from(reexport(memory)?),
        };
        self.export(export)
    }

    /// Exports a copy of memory
    pub(super) fn give_copy(&self, memory: &[u8]) -> Option<u64> {
        let arena = self.arena.as_ref()?;
        let copy = arena.take_copy(memory)?;
        // The lease keeps the block, whatever becomes of `copy`.
        self.export(Export::from(arena.lease(copy.as_ptr(), copy.len())?))
    }

    /// Sends a lease to the peer, unless it has ended, has too many, or takes no packets
    fn export(&self, export: Export) -> Option<u64> {
        // Held until the ticket is issued: what is exported after the end of the peer never returns.
        let mut exported = lock(&self.exported);
        let is_full =
            exported.leases.outstanding() == completion::SLOTS && exported.leases.sweep() == 0;
        if exported.ended || is_full {
            return None;
        }
        if let Err(error) = self.send(&export) {
            tracing::debug!(%error, "a descriptor was not taken; the bytes are sent");
            return None;
        }
        let ticket = exported.leases.issue(export);
        let ticket = ticket.expect("a slot is free: looked at under this lock");
        if exported.sweep_at.is_none()
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            let at = Instant::now() + SWEEP_INTERVAL;
            exported.sweep_at = Some(at);
            drop(exported);
            engine.schedule(*id, at);
        }
        Some(u64::from(ticket))
    }

    /// Sends descriptors; an error means that the peer has nothing of it
    fn send(&self, export: &Export) -> io::Result<()> {
        let (offset, descriptors): (_, Descriptors<'_>) = match export {
            Export::Own(lease) => (lease.offset(), smallvec![lease.descriptor()]),
            Export::Reexport(reexport) => {
                let handle = reexport.receipt().keep().reexport_handle();
                let handle = handle.ok_or(io::ErrorKind::Unsupported)?;
                let descriptors = descriptors_of(handle).ok_or(io::ErrorKind::Unsupported)?;
                (handle.offset() + reexport.offset() as u64, descriptors)
            }
        };
        let packet = Packet {
            offset,
            bytes: export.bytes() as u64,
        };
        send(&self.socket, &packet, &descriptors)
    }

    /// The connection is over: without anything exported, there is nothing to listen for
    pub(super) fn leave(&self) {
        self.sweep();
        let mut exported = lock(&self.exported);
        if exported.leases.outstanding() == 0 {
            self.end(&mut exported);
        }
    }

    /// Stops listening, once
    fn end(&self, exported: &mut Exported) {
        if !std::mem::replace(&mut exported.ended, true)
            && let (Some(engine), Some(id)) = (self.engine.upgrade(), self.id.get())
        {
            engine.unwatch(&*self.socket);
            engine.deregister(*id);
        }
    }

    /// Returns whether the peer has dropped all that it imported, or is dead
    fn peer_has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // After an error the event is still pending, so this is called again.
        poll(&mut polled, Some(&now)) == Ok(1)
    }
}

impl Sweep for Exporter {
    fn sweep(&self) {
        let mut exported = lock(&self.exported);
        let returned = exported.leases.take_returned();
        exported.leases.mark_freed();
        drop(exported);
        // Not under the lock: pages may go back to the system.
        drop(returned);
    }
}

impl Source for Exporter {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        if self.peer_has_ended() {
            let mut exported = lock(&self.exported);
            self.end(&mut exported);
            exported.leases.return_all();
        }
    }

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        let at = lock(&self.exported).sweep_at?;
        if now < at {
            return Some(at);
        }
        self.sweep();
        let mut exported = lock(&self.exported);
        let is_out = exported.leases.outstanding() > 0;
        exported.sweep_at = is_out.then(|| now + SWEEP_INTERVAL);
        exported.sweep_at
    }

    fn on_stop(self: Arc<Self>) {
        // The end of the peer will not be noticed, and it may keep the memory mapped until then.
        let mut exported = lock(&self.exported);
        exported.ended = true;
        if self.peer_has_ended() {
            exported.leases.return_all();
        } else {
            exported.leases.abandon_all();
        }
    }
}

/// How often to look what is back while something is exported
///
/// An arena that needs memory looks at once. This is for one that needs none, whose freed blocks
/// would else keep their pages, and for what was exported again, whose owner waits.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
