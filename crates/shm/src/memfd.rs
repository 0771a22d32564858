//! Sealed files in memory: how this process makes one, and the checks of a peer's file
//!
//! A file whose size is sealed can be mapped without fear: no page of it can go away, so touching
//! one is never a SIGBUS.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    FsWord, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use thiserror::Error;

/// Creates a file of zeroes without a name, has `fill` write to it, and seals its size
///
/// The descriptor is close-on-exec. Pages come when they are first written.
pub(crate) fn create(
    name: &str,
    bytes: u64,
    fill: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<OwnedFd, Errno> {
    let file = create_unsealed(name, bytes)?;
    fill(file.as_fd())?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Creates a file of zeroes without a name, which may be sealed later; otherwise as [`create`]
pub(crate) fn create_unsealed(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    // Beyond this limit `ftruncate` does not only fail, it sends a signal that ends the process.
    if getrlimit(Resource::Fsize)
        .current
        .is_some_and(|most| bytes > most)
    {
        return Err(Errno::FBIG);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3; from then on a system may insist on it.
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    }?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Checks that the size of a peer's file is final and its pages are ordinary, returning the
/// size in bytes
///
/// The result stays true: seals are never taken off.
pub(crate) fn sealed_bytes(file: BorrowedFd<'_>) -> Result<u64, SealError> {
    let system = |errno: Errno| SealError::System(io::Error::from(errno));
    let seals = match fcntl_get_seals(file) {
        // The kind of the file does not matter: it cannot be sealed.
        Err(Errno::INVAL) => SealFlags::empty(),
        seals => seals.map_err(system)?,
    };
    if !seals.contains(SEALS) {
        return Err(SealError::NotSealed {
            seals: seals.bits(),
            required: SEALS.bits(),
        });
    }
    if fstatfs(file).map_err(system)?.f_type == HUGETLBFS_MAGIC {
        return Err(SealError::HugePages);
    }
    Ok(fstat(file).map_err(system)?.st_size as u64)
}

/// Bytes of a file that have pages; 0 if the system does not tell
pub(crate) fn stored_bytes(file: BorrowedFd<'_>) -> u64 {
    // In units of 512 bytes, whatever the size of a block: stat(2).
    fstat(file).map_or(0, |stat| 512 * stat.st_blocks as u64)
}

/// Why a descriptor is not one whose memory can be relied on
///
/// Except for [`System`](Self::System) the peer's fault, and no retry helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SealError {
    /// The size could change under us; other files than memfds are among these
    #[error("memory is not sealed: seals {seals:#x}, required {required:#x}")]
    NotSealed {
        /// Seals on the file, as in `F_GET_SEALS`
        seals: u32,
        /// Seals that must be among them
        required: u32,
    },
    /// Reserved huge pages can run out when they are touched, which is a SIGBUS
    #[error("memory is made of reserved huge pages")]
    HugePages,
    /// The system refused to examine the descriptor
    #[error("cannot examine the descriptor")]
    System(#[source] io::Error),
}

/// Seals that a shared file must carry: its size can change no more, nor can that be undone
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);
/// `HUGETLBFS_MAGIC` of `linux/magic.h`
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;
