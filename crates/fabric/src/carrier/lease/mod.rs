//! The lease carrier: the receiver maps memory that is not written to any more.
//!
//! Two peers on one host keep the Unix socket of the bootstrap, the *lease channel*, and a
//! completion table in shared memory. The exporter sends the descriptor of the memory over the
//! channel, then the frame that says so on the lane; the importer writes into the table when it needs
//! the memory no more, which takes no call of the system. All this outlives the connection: what was
//! imported stays valid after it, so the exporter goes on listening until the importer shuts its
//! direction of the channel down, or dies.
//!
//! Imported memory may be exported again: [`reexport`].

mod channel;
mod exporter;
mod importer;
mod reexport;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use backhaul_proto::{CarrierKind, MemoryKind};
use backhaul_shm::arena::Arena;
use backhaul_shm::completion::{CompletionTable, ImportedLeases};

use self::exporter::Exporter;
use self::importer::Importer;
use super::{Carrier, Payload, TakeError};
use crate::memory::Segment;
use crate::runtime::Engine;

/// Parts of the carrier, before there is a connection
pub(crate) struct LeaseParts {
    /// The lease channel
    pub(crate) socket: OwnedFd,
    /// The completion table
    pub(crate) table: CompletionTable,
}

/// Leases memory to a peer on this host, and from it
///
/// Dropped with the connection; the exporter goes on until nothing is exported, the importer until
/// nothing is imported.
pub(crate) struct LeaseCarrier {
    exporter: Arc<Exporter>,
    importer: Arc<Importer>,
    /// Pages of imported memory are mapped at once
    populate: bool,
}

impl LeaseCarrier {
    /// Has the engine listen for the end of the peer
    pub(crate) fn start(
        engine: &Arc<Engine>,
        parts: LeaseParts,
        arena: Option<&Arena>,
        populate: bool,
    ) -> io::Result<Self> {
        let socket = Arc::new(parts.socket);
        Ok(Self {
            exporter: Exporter::start(engine, &socket, parts.table.exported, arena)?,
            importer: Importer::new(socket, parts.table.imported),
            populate,
        })
    }
}

impl Carrier for LeaseCarrier {
    fn kind(&self) -> CarrierKind {
        CarrierKind::Lease
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| memory == MemoryKind::Host
    }

    fn give(&mut self, segment: &Segment, is_asked: bool) -> Option<u64> {
        match segment {
            Segment::Exported(memory) => self.exporter.give(memory),
            Segment::Private(memory) if is_asked => self.exporter.give_copy(memory),
            Segment::Private(_) | Segment::Device(_) => None,
        }
    }

    fn take(&mut self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        let payload = self.importer.take(ticket, bytes, self.populate)?;
        Ok(Box::new(payload))
    }
}

/// The leases of a peer, without a connection
pub struct LeasePackets(Arc<Importer>);

impl LeasePackets {
    /// Imports what comes on a socket
    pub fn new(socket: OwnedFd, imported: ImportedLeases) -> Self {
        Self(Importer::new(Arc::new(socket), imported))
    }

    /// Takes what the peer has exported under a ticket
    ///
    /// # Errors
    ///
    /// [`TakeError`].
    pub fn take(&self, ticket: u64, bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        Ok(Box::new(self.0.take(ticket, bytes, false)?))
    }
}

impl Drop for LeaseCarrier {
    fn drop(&mut self) {
        // Leases that the peer has sent and this side has not taken are given back, though others
        // are held.
        self.importer.close();
        self.exporter.leave();
    }
}
