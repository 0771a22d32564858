//! Export of imported memory, and the descriptors that go with it.
//!
//! The peer that imports from us maps the owner's memory, and our lease stays out until it has given
//! back. Should we die before that, the owner must not take our end for the end of the lease. So with
//! the descriptor of the memory goes that of our lease channel to the owner, a *keep-alive
//! descriptor*: as long as the peer has it open, the owner sees no end. (All else that we had
//! imported from that owner stays out as long.) What was exported to us over others comes with their
//! keep-alive descriptors, and they all go along.
//!
//! With such a descriptor one could speak in our name. Peers on one host are of one user (the
//! bootstrap socket checks that), who can do so anyhow.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use backhaul_shm::leased::ReexportHandle;
use rustix::fs::{Stat, fcntl_get_seals, fstat};
use rustix::net::sockopt::socket_type;
use smallvec::SmallVec;

use crate::carrier::packets::DESCRIPTORS_MAX;

/// Descriptors to be sent: of memory, then those that keep it alive
pub(super) type Descriptors<'a> = SmallVec<[BorrowedFd<'a>; 4]>;

/// Makes a handle of what came with a lease, and the socket to who lent it
///
/// # Errors
///
/// Nothing may be kept: what came as a keep-alive descriptor is none, or it is too much.
pub(super) fn handle_of_lease(
    cache: &mut DescriptorCache,
    memory: &OwnedFd,
    offset: u64,
    keep_alives: Vec<OwnedFd>,
    socket: &Arc<OwnedFd>,
) -> io::Result<ReexportHandle> {
    let mut kept = Vec::with_capacity(keep_alives.len() + 1);
    for keep_alive in keep_alives {
        kept.push(cache.keep_socket(keep_alive)?);
    }
    kept.push(Arc::clone(socket));
    Ok(ReexportHandle::new(cache.keep_copy(memory)?, offset, kept))
}

/// Returns the descriptors to be sent along; none if the memory has been passed on too often
/// already
pub(super) fn descriptors_of(handle: &ReexportHandle) -> Option<Descriptors<'_>> {
    let descriptors: Descriptors<'_> = handle.descriptors().collect();
    (descriptors.len() <= DESCRIPTORS_MAX).then_some(descriptors)
}

/// Descriptors of a peer, one for each file, as the same come again and again
#[derive(Default)]
pub(super) struct DescriptorCache {
    /// By device and number; gone where nothing uses them
    kept: Vec<((u64, u64), Weak<OwnedFd>)>,
}

impl DescriptorCache {
    fn keep_socket(&mut self, socket: OwnedFd) -> io::Result<Arc<OwnedFd>> {
        // Only a socket has a type. To ask another file what it is may take for ever (FUSE).
        if socket_type(&socket).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "among the descriptors is one of no socket",
            ));
        }
        self.keep(&fstat(&socket)?, || Ok(socket))
    }

    fn keep_copy(&mut self, memory: &OwnedFd) -> io::Result<Arc<OwnedFd>> {
        // Only a memfd has seals; other files are not asked, as above. They are checked on mapping.
        fcntl_get_seals(memory)?;
        self.keep(&fstat(memory)?, || memory.try_clone())
    }

    fn keep(
        &mut self,
        found: &Stat,
        descriptor: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Arc<OwnedFd>> {
        let file = (found.st_dev, found.st_ino);
        let mut kept = self.kept.iter().filter(|(of, _)| *of == file);
        if let Some(descriptor) = kept.find_map(|(_, descriptor)| descriptor.upgrade()) {
            return Ok(descriptor);
        }
        self.kept
            .retain(|(_, descriptor)| descriptor.strong_count() > 0);
        if self.kept.len() >= KEPT_MAX {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("descriptors of more than {KEPT_MAX} files"),
            ));
        }
        let descriptor = Arc::new(descriptor()?);
        self.kept.push((file, Arc::downgrade(&descriptor)));
        Ok(descriptor)
    }
}

/// Most files of which descriptors of one peer are kept
///
/// An arena has few files, each as large as all before it.
const KEPT_MAX: usize = 64;
