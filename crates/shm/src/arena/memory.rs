//! The memory of a segment: a sealed memfd, and where it is mapped

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;

use crate::mapping::Mapping;
use crate::memfd;

/// A sealed memfd, mapped for reading and writing
///
/// The descriptor is read-only where the system lets it be: peers are given it, and have no
/// business writing.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    file: OwnedFd,
}

impl Memory {
    /// Makes a segment of zeroes
    pub(super) fn create(bytes: usize, huge: bool) -> Result<Self, Errno> {
        let file = memfd::create("backhaul-arena", bytes as u64, |_| Ok(()))?;
        let mapping = Mapping::shared(file.as_fd(), bytes)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        if huge {
            mapping.advise_huge(false);
        }
        let file = read_only(&file).unwrap_or(file);
        Ok(Self { mapping, file })
    }

    /// Address of the first byte
    pub(super) fn base(&self) -> usize {
        self.mapping.address().as_ptr().addr()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Maps it anew, at the same place, so that what is written there is this process's own
    ///
    /// # Safety
    ///
    /// - Nobody relies on others seeing what is written here.
    pub(super) unsafe fn make_private(&self) -> io::Result<()> {
        // SAFETY: the file is what is mapped there; the rest is the caller's.
        unsafe { self.mapping.make_private(self.file.as_fd()) }
    }

    /// Bytes of the pages that there are
    pub(super) fn resident_bytes(&self) -> usize {
        // `st_blocks` counts 512 bytes, whatever the block size is.
        fstat(&self.file).map_or(0, |found| found.st_blocks as usize * 512)
    }

    /// What a peer needs to map it too
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens a file of ours again, for reading only
///
/// Fails where `/proc` is not mounted.
fn read_only(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    // Another user, to whom the descriptor is passed, cannot open it for writing in the same way.
    fchmod(file, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
