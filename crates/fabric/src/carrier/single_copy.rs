//! The single-copy carrier: the receiver reads the sender's private memory, once, by
//! `process_vm_readv`.
//!
//! The sender offers the address of each segment when it announces a message, and keeps the memory
//! until the receiver says that it has read it. The addresses that a peer names are in its own
//! memory: a wrong one gets an error of the kernel here, or the peer's own bytes.

use std::io::IoSliceMut;
use std::sync::Arc;

use backhaul_proto::{CarrierKind, MemoryKind};
use backhaul_shm::peer_memory::{PeerMemory, PeerMemoryError};

use super::{Carrier, Payload, TakeError};
use crate::memory::Segment;

/// Reads the private memory of a peer on this host, and lets it read ours
#[derive(Debug)]
pub(crate) struct SingleCopy {
    peer: Arc<PeerMemory>,
}

impl SingleCopy {
    pub(crate) fn new(peer: Arc<PeerMemory>) -> Self {
        Self { peer }
    }
}

impl Carrier for SingleCopy {
    fn kind(&self) -> CarrierKind {
        CarrierKind::SingleCopy
    }

    fn takes(&self) -> fn(MemoryKind) -> bool {
        |memory| memory == MemoryKind::Host
    }

    fn offer(&mut self, segment: &Segment) -> Result<Option<u64>, String> {
        Ok(match segment {
            Segment::Private(bytes) => Some(bytes.as_ptr().addr() as u64),
            // To lend it costs no copy.
            Segment::Exported(_) | Segment::Device(_) => None,
        })
    }

    fn take(&mut self, ticket: u64, _bytes: u64) -> Result<Box<dyn Payload>, TakeError> {
        Ok(Box::new(PeerBytes {
            peer: Arc::clone(&self.peer),
            address: ticket,
        }))
    }
}

/// Bytes in the memory of the peer
struct PeerBytes {
    peer: Arc<PeerMemory>,
    /// Of the next one
    address: u64,
}

impl Payload for PeerBytes {
    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        match self.peer.read(self.address, targets) {
            Ok(bytes) => {
                self.address = self.address.wrapping_add(bytes as u64);
                Ok(bytes)
            }
            Err(error @ PeerMemoryError::BadAddress { .. }) => Err(TakeError::Broken {
                detail: error.to_string(),
            }),
            Err(error) => Err(TakeError::OutOfReach {
                detail: error.to_string(),
            }),
        }
    }
}
