//! Mappings that end when they are dropped

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Readable and writable memory from `mmap`, unmapped on drop
///
/// Its holder may read and write `bytes` bytes from `address` for as long as it lives. It
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
        Self::file(file, 0, bytes, MapFlags::SHARED)
    }

    /// Maps `bytes` bytes of a file from `offset`, a multiple of the page size; what is written
    /// there is private, and what is not yet written may still change with the file
    ///
    /// As for [`shared`](Self::shared), the caller has checked that the file is long enough.
    pub(crate) fn private(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        Self::file(file, offset, bytes, MapFlags::PRIVATE)
    }

    /// Maps a part of a file, where the huge pages it may have fit
    ///
    /// A huge page can be mapped as one only at an address that is aligned as it is in the file.
    fn file(file: BorrowedFd<'_>, offset: u64, bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let readable = ProtFlags::READ | ProtFlags::WRITE;
        if bytes < HUGE_PAGE_BYTES {
            // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
            let address = unsafe { mmap(ptr::null_mut(), bytes, readable, flags, file, offset) }?;
            return Ok(Self::own(address, bytes));
        }
        let Some(reserved_bytes) = bytes.checked_add(HUGE_PAGE_BYTES) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        // SAFETY: as above.
        let reserved = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let mut reserved = Self::own(reserved, reserved_bytes);
        let misplaced = reserved.address.as_ptr().addr() as u64 % HUGE_PAGE_BYTES as u64;
        let wanted = offset % HUGE_PAGE_BYTES as u64;
        let skip = (wanted + HUGE_PAGE_BYTES as u64 - misplaced) as usize % HUGE_PAGE_BYTES;
        let start = reserved.at(skip).as_ptr().cast();
        let flags = flags | MapFlags::FIXED;
        // SAFETY: replaces a part of `reserved` (`skip` is below what was added), which is not in
        // use.
        let address = unsafe { mmap(start, bytes, readable, flags, file, offset) }?;
        reserved.shrink_to(skip, bytes);
        debug_assert_eq!(reserved.address.as_ptr().cast(), address);
        Ok(reserved)
    }

    /// Unmaps all but a part, which starts and ends at a page
    fn shrink_to(&mut self, offset: usize, bytes: usize) {
        let page = page_size();
        let end = offset + bytes.next_multiple_of(page);
        let start = self.at(offset);
        for (from, length) in [(0, offset), (end, self.bytes - end)] {
            if length > 0 {
                // SAFETY: a part of the mapping in which no address has been handed out.
                let unmapped = unsafe { munmap(self.at(from).as_ptr().cast(), length) };
                debug_assert_eq!(unmapped, Ok(()), "munmap of a part of our own mapping");
            }
        }
        (self.address, self.bytes) = (start, bytes);
    }

    /// Replaces a part of a mapping of a file by a private mapping at the same place
    ///
    /// # Panics
    ///
    /// If the part is not within the mapping.
    ///
    /// # Safety
    ///
    /// - `file` is the file that is mapped, from its start.
    /// - No other process has to see what is written here from now on.
    pub(crate) unsafe fn make_private(
        &self,
        file: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
    ) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let start = self.part(offset, bytes);
        let readable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range is ours (`own`), and its content stays, as the caller promises.
        unsafe { mmap(start, bytes, readable, flags, file, offset as u64) }?;
        Ok(())
    }

    /// Asks the kernel to zero these private pages in a forked child, returning whether it will
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
    /// - No code has a reference into the part, or relies on its content.
    pub(crate) unsafe fn remove(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let start = self.at(offset);
        assert!(bytes <= self.bytes - offset);
        // SAFETY: the range is ours (`own`); that its bytes change is as the caller wants.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxRemove) }?;
        Ok(())
    }

    /// Maps the pages of a part before they are read
    ///
    /// It is advice: where the kernel knows it not (before Linux 5.14), or has no memory, they come
    /// when they are touched.
    pub(crate) fn populate_read(&self, offset: usize, bytes: usize) {
        let start = self.at(offset);
        assert!(bytes <= self.bytes - offset);
        let skip = start.as_ptr().addr() % page_size();
        // SAFETY: the range is ours (`own`), and its content stays.
        let _refused = unsafe {
            madvise(
                start.as_ptr().sub(skip).cast(),
                skip + bytes,
                Advice::LinuxPopulateRead,
            )
        };
    }

    /// Asks for huge pages where the system has some, and for all pages at once if `populate`
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

    /// Address of a part, for the kernel
    ///
    /// # Panics
    ///
    /// If the part is not within the mapping.
    pub(crate) fn part(&self, offset: usize, bytes: usize) -> *mut std::ffi::c_void {
        let start = self.at(offset);
        assert!(bytes <= self.bytes - offset);
        start.as_ptr().cast()
    }

    /// Makes a mapping of its address and length
    ///
    /// # Safety
    ///
    /// - They are those of a mapping that was forgotten instead of dropped, and are used once.
    pub(crate) unsafe fn from_parts(address: NonNull<u8>, bytes: usize) -> Self {
        Self { address, bytes }
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
        // SAFETY: `address` and `bytes` are what `mmap` returned and was asked for, and no other
        // code unmaps them; users of the memory keep this value alive.
        let unmapped = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "munmap of our own mapping");
    }
}

/// Returns whether private mappings of files read as the files do: nothing was written
///
/// Of memory that is not mapped from a file it says so only if nothing was written, either.
pub(crate) fn is_as_in_file(start: *const u8, bytes: usize) -> io::Result<bool> {
    let pagemap = std::fs::File::open("/proc/self/pagemap")?;
    let first = start.addr() / page_size();
    let end = (start.addr() + bytes).div_ceil(page_size());
    let mut entries = Vec::new();
    entries.try_reserve_exact(PAGEMAP_STEP_BYTES)?;
    entries.resize(PAGEMAP_STEP_BYTES, 0);
    let mut at = first;
    while at < end {
        let bytes = ((end - at) * PAGEMAP_BYTES).min(entries.len());
        let entries = &mut entries[..bytes];
        pagemap.read_exact_at(entries, (at * PAGEMAP_BYTES) as u64)?;
        let (entries, _) = entries.as_chunks();
        // A copy of a page is in memory or swapped out, and it is of no file.
        let is_copy = |entry: &[u8; PAGEMAP_BYTES]| {
            let entry = u64::from_ne_bytes(*entry);
            entry >> PAGEMAP_SWAPPED & 3 != 0 && entry >> PAGEMAP_FILE & 1 == 0
        };
        if entries.iter().any(is_copy) {
            return Ok(false);
        }
        at += entries.len();
    }
    Ok(true)
}

/// Allocates the pages of a range before they are touched, as huge ones if `huge` and the system
/// can
///
/// The content stays. Where the kernel knows no such advice (before Linux 5.14), pages come one by
/// one when they are touched.
///
/// By default, files in memory get no huge pages when they are touched. But `MADV_COLLAPSE` makes
/// one out of what is there, whatever the default is (since Linux 6.1). It first waits until each
/// processor has emptied its lists of new pages, so it is better asked once for much.
///
/// Measured on a virtual machine (2 CPUs, Linux 6.18, huge pages for memory files off): to map and
/// fill a memfd of 2 MiB took 462 µs untouched, 277 µs populated and 51 µs collapsed; 4.0, 2.5 and
/// 0.5 ms at 16 MiB; 35, 24 and 17 ms at 128 MiB. A byte of every page is then read through a
/// private mapping of 128 MiB in 0.3 ms instead of 9.6, and the pages go back in 0.2 ms instead of
/// 5.4. But where the other processor was busy, `MADV_COLLAPSE` waited for up to 2.5 ms.
///
/// # Errors
///
/// The system has no memory for them.
///
/// # Safety
///
/// - The range is mapped for writing and starts at a page.
pub(crate) unsafe fn populate(start: NonNull<u8>, bytes: usize, huge: bool) -> Result<(), Errno> {
    let write = |offset: usize, bytes: usize| {
        // SAFETY: a part of the range of the caller; its content stays.
        let advised = unsafe {
            madvise(
                start.as_ptr().add(offset).cast(),
                bytes,
                Advice::LinuxPopulateWrite,
            )
        };
        match advised {
            Err(Errno::INVAL) => Ok(()),
            advised => advised,
        }
    };
    let first = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
    if huge && first < bytes {
        // Whole ones only: the rest of the last one may never be used.
        let huge_bytes = (bytes - first) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // A page to make each huge one of.
        for offset in (first..first + huge_bytes).step_by(HUGE_PAGE_BYTES) {
            write(offset, page_size())?;
        }
        // SAFETY: a part of the range of the caller; its content stays.
        let _refused =
            unsafe { c::madvise(start.as_ptr().add(first).cast(), huge_bytes, MADV_COLLAPSE) };
    }
    // Pages that have become huge are passed over fast.
    write(0, bytes)
}

mod c {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        /// For the advice that `rustix` has no name for
        pub(super) fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }
}

/// Size of an entry of `/proc/PID/pagemap`, see `admin-guide/mm/pagemap.rst`
const PAGEMAP_BYTES: usize = 8;
/// How much of it is read at once
const PAGEMAP_STEP_BYTES: usize = 64 << 10;
/// Bit that says that a page is of a file or shared
const PAGEMAP_FILE: u32 = 61;
/// Bit that says that a page is swapped out; the one above, that it is in memory
const PAGEMAP_SWAPPED: u32 = 62;
/// Size of a huge page where pages are 4 KiB; elsewhere only an alignment
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// `MADV_COLLAPSE` of `linux/mman.h`
const MADV_COLLAPSE: std::ffi::c_int = 25;
