//! Memory that the driver can touch: a memfd, and the driver's mapping of it.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUresult;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::Outcome;

/// Shared memory with the driver's mapping of it
///
/// Its name says what it is and on which device, to any process that gets the descriptor: see
/// [`Name`].
#[derive(Debug)]
pub(crate) struct Backing {
    descriptor: OwnedFd,
    memory: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, and is only ever read and written
// through raw pointers, as a device would.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    /// Makes memory of a device of the host
    pub(crate) fn create(kind: &str, physical: usize, bytes: usize) -> Outcome<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}:{kind}:{physical}:{}:{serial}", std::process::id());
        let descriptor = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        rustix::fs::ftruncate(&descriptor, bytes as u64)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Self::map(descriptor, bytes)
    }

    /// Maps memory that another process made
    pub(crate) fn from_descriptor(descriptor: OwnedFd) -> Outcome<Self> {
        let bytes = rustix::fs::fstat(&descriptor)
            .ok()
            .and_then(|stat| usize::try_from(stat.st_size).ok())
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        Self::map(descriptor, bytes)
    }

    fn map(descriptor: OwnedFd, bytes: usize) -> Outcome<Self> {
        // SAFETY: the kernel chooses the place, so nothing is mapped over.
        let memory = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &descriptor,
                0,
            )
        };
        Ok(Self {
            descriptor,
            memory: memory
                .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?
                .cast(),
            bytes,
        })
    }

    /// Where the driver sees this byte; the address of managed and pinned memory for everybody
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "{offset} is beyond {}", self.bytes);
        self.memory.wrapping_add(offset)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The number of the descriptor, which peers find it by
    pub(crate) fn descriptor_number(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Overwrites a part
    pub(crate) fn fill(&self, offset: usize, bytes: usize, value: u8) {
        assert!(
            offset + bytes <= self.bytes,
            "{offset} and {bytes} of {}",
            self.bytes
        );
        // SAFETY: the range is within the mapping, by the assertion.
        unsafe {
            ptr::write_bytes(self.memory.add(offset), value, bytes);
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, which has no user any more.
        unsafe {
            // It is a whole mapping of this value: nothing to be refused.
            let _ = rustix::mm::munmap(self.memory.cast::<c_void>(), self.bytes);
        }
    }
}

/// Content of the name of a memfd
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Name {
    /// Kind of memory that it was made for
    pub(crate) kind: String,
    /// The device of the host that it is memory of
    pub(crate) physical: usize,
    /// The process that made it
    pub(crate) process: u32,
    /// Which of that process's
    pub(crate) serial: u64,
}

impl Name {
    /// Reads the name of the memory behind a descriptor, if it is ours
    pub(crate) fn of(descriptor: BorrowedFd<'_>) -> Option<Self> {
        let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let target = std::fs::read_link(link).ok()?;
        let name = target.to_str()?.strip_prefix("/memfd:")?;
        let mut parts = name.split(' ').next()?.split(':');
        let ours = parts.next()? == PREFIX;
        let name = Self {
            kind: parts.next()?.to_owned(),
            physical: parts.next()?.parse().ok()?,
            process: parts.next()?.parse().ok()?,
            serial: parts.next()?.parse().ok()?,
        };
        ours.then_some(name)
    }
}

/// Opens a descriptor of another process, if it is there
pub(crate) fn open_of_peer(process: u32, number: i32) -> Option<OwnedFd> {
    let path = format!("/proc/{process}/fd/{number}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    Some(file.into())
}

const PREFIX: &str = "fake_cuda";
