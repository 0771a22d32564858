//! Handle by which a third process maps memory that a peer has leased to this one

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Descriptors of a lease that is to be exported again
#[derive(Clone, Debug)]
pub struct ReexportHandle {
    memory: Arc<OwnedFd>,
    offset: u64,
    keep_alives: Vec<Arc<OwnedFd>>,
}

impl ReexportHandle {
    /// A lease that begins `offset` bytes into `memory`, which stays as it is while a process holds
    /// `keep_alives`
    pub fn new(memory: Arc<OwnedFd>, offset: u64, keep_alives: Vec<Arc<OwnedFd>>) -> Self {
        Self {
            memory,
            offset,
            keep_alives,
        }
    }

    /// Where the lease begins in its memory, in bytes
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The memory, then what keeps it
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = [&self.memory].into_iter().chain(&self.keep_alives);
        all.map(|descriptor| descriptor.as_fd())
    }
}
