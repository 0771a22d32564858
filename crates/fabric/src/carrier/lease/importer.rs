//! The importer: memory of the peer that is mapped here, or copied.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use backhaul_shm::completion::{ImportedLeases, Keep, Receipt, Ticket};
use backhaul_shm::leased::{Leased, MapError, ReadError, ReexportHandle, read_leased};
use backhaul_shm::pool::PoolBuf;
use rustix::net::Shutdown;

use super::channel::receive;
use super::reexport::{DescriptorCache, handle_of_lease};
use crate::carrier::{Payload, TakeError};
use crate::runtime::lock;

/// Imports memory of the peer; shared with what was imported
pub(super) struct Importer {
    socket: Arc<OwnedFd>,
    imported: ImportedLeases,
    /// The process that imports; one forked from it has copies of everything
    pid: u32,
    /// Descriptors that came over the channel and are kept to be passed on
    cache: Mutex<DescriptorCache>,
}

/// State that the receipt of a lease keeps
struct Kept {
    _importer: Arc<Importer>,
    /// Set once the lease has come, if it can be exported again
    handle: OnceLock<ReexportHandle>,
}

impl Keep for Kept {
    fn reexport_handle(&self) -> Option<&ReexportHandle> {
        self.handle.get()
    }
}

impl Importer {
    pub(super) fn new(socket: Arc<OwnedFd>, imported: ImportedLeases) -> Arc<Self> {
        Arc::new(Self {
            socket,
            imported,
            pid: std::process::id(),
            cache: Mutex::default(),
        })
    }

    /// Takes what the peer has exported under a ticket
    pub(super) fn take(
        self: &Arc<Self>,
        ticket: u64,
        bytes: u64,
        populate: bool,
    ) -> Result<LeasePayload, TakeError> {
        let broken = |detail: String| TakeError::Broken { detail };
        let kept = Arc::new(Kept {
            _importer: Arc::clone(self),
            handle: OnceLock::new(),
        });
        let receipt = self
            .imported
            .receipt(Ticket::from(ticket), Arc::clone(&kept) as Arc<dyn Keep>)
            .map_err(|error| broken(error.to_string()))?;
        let (packet, descriptors) = receive(&self.socket)
            .map_err(|error| broken(format!("no descriptor as said: {error}")))?;
        if packet.bytes != bytes {
            let detail = format!("{} bytes leased where {bytes} were said", packet.bytes);
            return Err(broken(detail));
        }
        let mut descriptors = descriptors.ok_or_else(|| TakeError::OutOfReach {
            detail: "a descriptor was lost on the way: this process can hold no more".to_owned(),
        })?;
        let memory = descriptors.remove(0);
        let is_reexported = !descriptors.is_empty();
        let handle = handle_of_lease(
            &mut lock(&self.cache),
            &memory,
            packet.offset,
            descriptors,
            &self.socket,
        );
        match handle {
            Ok(handle) => drop(kept.handle.set(handle)),
            // Without its keep-alive descriptors the owner may reuse the memory.
            Err(error) if is_reexported => return Err(broken(error.to_string())),
            Err(error) => tracing::debug!(%error, "a lease cannot be exported again"),
        }
        Ok(LeasePayload {
            state: State::Unmapped { memory, receipt },
            offset: packet.offset,
            left: bytes,
            populate,
        })
    }

    /// Says that nothing more will be taken
    pub(super) fn close(&self) {
        self.imported.close();
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        // Dropping the socket would not do: the exporter of this side may still need it, and a
        // forked child may hold a copy. An error means that the peer has gone first.
        if std::process::id() == self.pid {
            let _ = rustix::net::shutdown(&*self.socket, Shutdown::Write);
        }
    }
}

/// Memory that the peer has leased to us
pub(super) struct LeasePayload {
    state: State,
    /// Where the next bytes are in the memory
    offset: u64,
    left: u64,
    populate: bool,
}

enum State {
    /// Not mapped; the receipt gives it back when it is dropped
    Unmapped { memory: OwnedFd, receipt: Receipt },
    /// It has become the memory of the message
    Adopted,
}

impl Payload for LeasePayload {
    fn adopt(&mut self) -> Result<Option<PoolBuf>, TakeError> {
        let bytes = usize::try_from(self.left).map_err(|_| TakeError::OutOfReach {
            detail: format!("{} bytes are more than can be mapped", self.left),
        })?;
        let State::Unmapped { memory, receipt } =
            std::mem::replace(&mut self.state, State::Adopted)
        else {
            return Ok(None);
        };
        match Leased::map(memory, self.offset, bytes, self.populate, receipt) {
            Ok(leased) => Ok(Some(PoolBuf::from(leased))),
            Err(MapError::Refused(error)) => Err(TakeError::Broken {
                detail: error.to_string(),
            }),
            Err(MapError::System {
                source,
                fd,
                receipt,
            }) => {
                tracing::debug!(error = %source, "leased memory was not mapped; it is copied");
                self.state = State::Unmapped {
                    memory: fd,
                    receipt,
                };
                Ok(None)
            }
            Err(other) => Err(TakeError::OutOfReach {
                detail: other.to_string(),
            }),
        }
    }

    fn read(&mut self, targets: &mut [IoSliceMut<'_>]) -> Result<usize, TakeError> {
        let State::Unmapped { memory, .. } = &self.state else {
            return Ok(0);
        };
        let mut read = 0;
        for target in targets {
            match read_leased(memory.as_fd(), self.offset, target) {
                Ok(()) => {}
                Err(ReadError::Refused(error)) => {
                    return Err(TakeError::Broken {
                        detail: error.to_string(),
                    });
                }
                Err(error) => {
                    return Err(TakeError::OutOfReach {
                        detail: error.to_string(),
                    });
                }
            }
            self.offset += target.len() as u64;
            self.left -= target.len() as u64;
            read += target.len();
        }
        Ok(read)
    }
}
