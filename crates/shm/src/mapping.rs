//! Mappings that end when they are dropped

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Readable and writable memory from `mmap`, unmapped on drop
///
/// Whoever holds it may read and write `bytes` bytes from `address` for as long as it lives. It
/// hands out no reference: the memory may be shared with another process.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Page-aligned start of the mapping
    address: NonNull<u8>,
    /// Length asked of `mmap`, above 0
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread: any thread may use and unmap it.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives the address and the length only; who reads and writes there through it
// answers for the races.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private zero pages
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Ok(Self::own(address, bytes))
    }

    /// Maps the first `bytes` bytes of a file, shared with everybody else who maps it
    ///
    /// Touching a page past the end of the file is a SIGBUS: the caller has checked that the file
    /// is that long and cannot shrink.
    pub(crate) fn shared(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        Ok(Self::own(address, bytes))
    }

    /// Maps `bytes` bytes of a file from `offset`, a multiple of the page size; what is written there
    /// is private, and what is not yet written may still change with the file
    ///
    /// As for [`shared`](Self::shared), the caller has checked that the file is long enough.
    pub(crate) fn private(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
                file,
                offset,
            )
        }?;
        Ok(Self::own(address, bytes))
    }

    /// Has the kernel zero these private pages in a forked child, returning whether it will
    pub(crate) fn advise_wipe_on_fork(&self) -> bool {
        // SAFETY: the range is ours (`own`), and nothing changes in this process.
        unsafe {
            madvise(
                self.address.as_ptr().cast(),
                self.bytes,
                Advice::LinuxWipeOnFork,
            )
        }
        .is_ok()
    }

    /// Gives the pages of a part back: it reads as zeroes, here and for everybody who maps the file
    ///
    /// # Panics
    ///
    /// If the part is not within the mapping.
    ///
    /// # Safety
    ///
    /// - Nobody has a reference into the part, or relies on what is there.
    pub(crate) unsafe fn remove(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let start = self.at(offset);
        assert!(bytes <= self.bytes - offset);
        // SAFETY: the range is ours (`own`); that its bytes change is as the caller wants.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxRemove) }?;
        Ok(())
    }

    /// Has pages come as huge ones where the system has some, and at once if `populate`
    ///
    /// It is advice: where the kernel knows it not, or has no memory, pages come one by one when
    /// they are touched.
    pub(crate) fn advise_huge(&self, populate: bool) {
        let advices = [Advice::LinuxHugepage, Advice::LinuxPopulateWrite];
        for advice in advices.into_iter().take(1 + usize::from(populate)) {
            // SAFETY: the range is ours (`own`), and neither advice changes what is in it.
            let _refused = unsafe { madvise(self.address.as_ptr().cast(), self.bytes, advice) };
        }
    }

    /// Has the pages of the file be mapped before they are touched
    ///
    /// It is advice, as above (from Linux 5.14). A page that the file does not have yet it gets.
    pub(crate) fn advise_populate_read(&self) {
        // SAFETY: the range is ours (`own`), and the advice changes nothing in it.
        let _refused = unsafe {
            madvise(
                self.address.as_ptr().cast(),
                self.bytes,
                Advice::LinuxPopulateRead,
            )
        };
    }

    /// Start of the mapping
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Address of a byte of the mapping, or of its end
    ///
    /// # Panics
    ///
    /// If `offset` is beyond the end.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes);
        // SAFETY: within the mapping or at its end: asserted.
        unsafe { self.address.add(offset) }
    }

    /// Length of the mapping, in bytes
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn own(address: *mut std::ffi::c_void, bytes: usize) -> Self {
        let address = NonNull::new(address.cast()).expect("mmap without MAP_FIXED avoids page 0");
        Self { address, bytes }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `address` and `bytes` are what `mmap` returned and was asked for, and nobody
        // else unmaps them; users of the memory keep this value alive.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "munmap of our own mapping");
    }
}
