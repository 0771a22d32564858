//! What it takes to export again what was imported.
//!
//! The peer that imports from us maps the owner's memory, and our lease stays out until it has given
//! back. Should we die before that, the owner must not take our end for the end of the lease. So with
//! the descriptor of the memory goes that of our lease channel to the owner, a *keep-alive
//! descriptor*: as long as the peer has it open, the owner hears of no end. (All else that we had
//! imported from that owner stays out as long.) What was exported to us over others comes with their
//! keep-alive descriptors, and they all go along.
//!
//! With such a descriptor one could speak in our name. Peers on one host are of one user (the
//! bootstrap socket checks that), who can do so anyhow.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{Stat, fcntl_get_seals, fstat};
use rustix::net::sockopt::socket_type;
use smallvec::SmallVec;

/// What a third peer needs to import what we have imported
pub(super) struct ReexportHandle {
    memory: Arc<OwnedFd>,
    /// Where the lease begins in `memory`, in bytes
    offset: u64,
    /// Those that came with the lease, and our own
    keep_alives: SmallVec<[Arc<OwnedFd>; 2]>,
}

/// Descriptors to be sent: of memory, then those that keep it alive
pub(super) type Descriptors<'a> = SmallVec<[BorrowedFd<'a>; 4]>;

impl ReexportHandle {
    /// Makes it of what came with a lease, and the socket to its exporter
    ///
    /// # Errors
    ///
    /// Nothing may be kept: what came as a keep-alive descriptor is none, or it is too much.
    pub(super) fn new(
        cache: &mut DescriptorCache,
        memory: &OwnedFd,
        offset: u64,
        keep_alives: Vec<OwnedFd>,
        socket: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let mut kept = SmallVec::new();
        for keep_alive in keep_alives {
            kept.push(cache.keep_socket(keep_alive)?);
        }
        kept.push(Arc::clone(socket));
        Ok(Self {
            memory: cache.keep_copy(memory)?,
            offset,
            keep_alives: kept,
        })
    }

    /// Where the memory begins in its file, in bytes
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// What is to be sent along; none if it has come too far already
    pub(super) fn descriptors(&self) -> Option<Descriptors<'_>> {
        let all = [&self.memory].into_iter().chain(&self.keep_alives);
        (self.keep_alives.len() < DESCRIPTORS_MAX).then(|| all.map(AsFd::as_fd).collect())
    }
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

/// Most descriptors that come with a lease
pub(super) const DESCRIPTORS_MAX: usize = 8;
/// Most files of which descriptors of one peer are kept
///
/// An arena has few files, each as large as all before it.
const KEPT_MAX: usize = 64;
