//! The memory of a segment: a sealed memfd, and where it is mapped

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use rustix::io::Errno;

use super::copy_on_write;
use crate::mapping::Mapping;
use crate::memfd;

/// A sealed memfd, mapped for reading and writing
///
/// The descriptor is read-only where the system lets it be: peers are given it, and have no
/// business writing.
#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    /// Maps the file once more, to keep the page tables of copy-on-write blocks
    table: Mapping,
    file: OwnedFd,
}

impl Memory {
    /// Makes a segment of zeroes
    pub(super) fn create(bytes: usize, huge: bool) -> Result<Self, Errno> {
        let file = memfd::create("backhaul-arena", bytes as u64, |_| Ok(()))?;
        let map = || {
            Mapping::shared(file.as_fd(), bytes)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))
        };
        let (mapping, table) = (map()?, map()?);
        if huge {
            mapping.advise_huge(false);
        }
        let file = read_only(&file).unwrap_or(file);
        Ok(Self {
            mapping,
            table,
            file,
        })
    }

    /// Address of the first byte
    pub(super) fn base(&self) -> usize {
        self.mapping.address().as_ptr().addr()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Makes a part copy-on-write: the file keeps its bytes, later writes here stay private
    ///
    /// # Errors
    ///
    /// The system has no room for another mapping. The part is shared as before.
    pub(super) fn make_copy_on_write(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        let Self {
            mapping,
            table,
            file,
        } = self;
        copy_on_write::make_copy_on_write(mapping, table, file.as_fd(), offset, bytes)
    }

    /// Maps a part that is copy-on-write from the file again, dropping what was written to it
    ///
    /// # Errors
    ///
    /// The system has no room for another mapping: the part must not be used any more.
    ///
    /// # Safety
    ///
    /// - The part is copy-on-write, and its bytes are not used any more.
    pub(super) unsafe fn make_shared(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: the caller's.
        unsafe { copy_on_write::make_shared(&self.mapping, &self.table, offset, bytes) }
    }

    /// Maps a part privately in a forked child
    ///
    /// # Safety
    ///
    /// - No other process relies on what is written there.
    pub(super) unsafe fn make_private(&self, offset: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: the file is what is mapped there; the rest is the caller's.
        unsafe { self.mapping.make_private(self.file.as_fd(), offset, bytes) }
    }

    /// Bytes of the pages that there are
    pub(super) fn resident_bytes(&self) -> usize {
        // `st_blocks` counts 512 bytes, whatever the block size is.
        fstat(&self.file).map_or(0, |found| found.st_blocks as usize * 512)
    }

    /// Returns the descriptor that a peer needs to map it too
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Opens a file of this arena again, for reading only
///
/// Fails where `/proc` is not mounted.
fn read_only(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    // Another user that gets the descriptor cannot open it for writing in the same way.
    fchmod(file, Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
