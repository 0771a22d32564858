//! Copy-on-write mappings of blocks, so that a receiver never sees a later write of the owner
//!
//! A segment is mapped twice. The owner's pointers lead into the first mapping. A block there is
//! *shared* (writes reach the file) until the block is lent or the process forks. Then
//! [`make_copy_on_write`] maps the block privately at the same address: every alias of the memory
//! stays valid, the file keeps the bytes of that moment for its readers, and a page that the owner
//! writes to is copied by the kernel. When no reader is left and the owner has freed the block,
//! [`make_shared`] drops these copies and maps the file again.
//!
//! Dropping the page table of a block would cost a page fault for each of its pages when the block
//! is used again. The second mapping of the segment keeps the table instead: `mremap` moves it
//! there and back. Measured once, by a program that was not kept, on a virtual machine (2 CPUs,
//! Linux 6.18), for 8 MiB in pages of 4 KiB: 3 µs to move the table, 95 µs to drop it and 1,540 µs
//! to fault the pages in for writing again. `benches/arena.rs` measures the whole.
//!
//! Both functions replace a mapping in one system call that holds the lock of the address space, so
//! another thread that touches the block meanwhile finds either the old mapping or the new one.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::mapping::Mapping;

/// Maps a part of a segment privately, at the same address
///
/// `mapping` and `table` both map `file` from its start; `table` receives the page table of the
/// part.
///
/// # Errors
///
/// The system has no room for another mapping. The part is shared as before.
///
/// # Panics
///
/// If the part is not within the mappings.
pub(super) fn make_copy_on_write(
    mapping: &Mapping,
    table: &Mapping,
    file: BorrowedFd<'_>,
    offset: usize,
    bytes: usize,
) -> Result<(), Errno> {
    let (start, kept) = (mapping.part(offset, bytes), table.part(offset, bytes));
    let readable = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
    let private = unsafe {
        mmap(
            ptr::null_mut(),
            bytes,
            readable,
            MapFlags::PRIVATE,
            file,
            offset as u64,
        )
    }?;
    // Before Linux 5.13 the table of a shared mapping cannot be kept, and is dropped below.
    // SAFETY: both ranges are parts of mappings of the same bytes of one file, so what is read and
    // written at either address stays the same.
    let _refused = unsafe { move_table(start, kept, bytes) };
    // SAFETY: `private` was mapped above and is used by nothing else; it maps the bytes that
    // are mapped at `start` now.
    match unsafe { remap(private, bytes, bytes, libc::MREMAP_MAYMOVE, start) } {
        Ok(()) => Ok(()),
        Err(errno) => {
            // SAFETY: as in `make_shared`; where the kernel left `start` mapped, the same bytes
            // are mapped there once more.
            let is_back = unsafe { remap(kept, 0, bytes, libc::MREMAP_MAYMOVE, start) };
            assert_eq!(is_back, Ok(()), "a block of the arena lost its mapping");
            // SAFETY: mapped above, and nothing points there.
            let unmapped = unsafe { rustix::mm::munmap(private, bytes) };
            debug_assert_eq!(unmapped, Ok(()), "munmap of our own mapping");
            Err(errno)
        }
    }
}

/// Maps a part of a segment from its file again, dropping what was written since
/// [`make_copy_on_write`]
///
/// # Errors
///
/// The system has no room for another mapping: the part must not be used any more.
///
/// # Panics
///
/// If the part is not within the mappings.
///
/// # Safety
///
/// - The part was passed to [`make_copy_on_write`] with the same mappings.
/// - The bytes of the part are not used any more.
pub(super) unsafe fn make_shared(
    mapping: &Mapping,
    table: &Mapping,
    offset: usize,
    bytes: usize,
) -> Result<(), Errno> {
    let (start, kept) = (mapping.part(offset, bytes), table.part(offset, bytes));
    // SAFETY: both ranges are ours, and that the bytes at `start` change is what the caller wants.
    match unsafe { move_table(kept, start, bytes) } {
        // Before Linux 5.13. An old size of 0 maps the same file pages a second time.
        // SAFETY: as above.
        Err(Errno::INVAL) => unsafe { remap(kept, 0, bytes, libc::MREMAP_MAYMOVE, start) },
        moved => moved,
    }
}

/// Replaces the mapping at `to` by that at `from`, page table included; `from` stays mapped and
/// gets a new table by page faults
///
/// # Safety
///
/// As for [`remap`].
unsafe fn move_table(from: *mut c_void, to: *mut c_void, bytes: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's.
    unsafe { remap(from, bytes, bytes, flags, to) }
}

/// Calls `mremap` with a fixed target
///
/// By way of libc, so that libraries that watch for changed mappings (UCX's registration cache)
/// notice the call.
///
/// # Safety
///
/// - Both ranges belong to the caller, and what is mapped at `to` may be replaced.
unsafe fn remap(
    from: *mut c_void,
    old_bytes: usize,
    bytes: usize,
    flags: i32,
    to: *mut c_void,
) -> Result<(), Errno> {
    let flags = flags | libc::MREMAP_FIXED;
    // SAFETY: the caller's.
    let moved = unsafe { libc::mremap(from, old_bytes, bytes, flags, to) };
    if moved == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM));
    }
    debug_assert_eq!(moved, to);
    Ok(())
}
