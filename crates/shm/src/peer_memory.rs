//! Reading the memory of another process: one copy, by the kernel, from its memory to ours
//!
//! The peer names addresses, and [`PeerMemory`] copies from there by `process_vm_readv`, whatever
//! kind of memory lies there. Whether that is permitted depends on the system and the container, so
//! a peer first shows a [`Probe`]: only where its token can be read at its address, the process is
//! the right one and later reads are permitted.
//!
//! # Trust
//!
//! The process id must be one that the kernel reported (`SO_PEERCRED`), not one that the peer said:
//! otherwise a peer could name a process whose memory it may not read itself. Addresses may be
//! anything. The kernel checks them, a read changes nothing in either process, and what a peer can
//! make us read is its own memory. It may change its bytes while they are read: code that parses
//! them must tolerate that.
//!
//! A process that calls `exec` keeps its id and gets new memory. Reads from it are refused or give
//! bytes of the new program, until the end of the connection is noticed.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use crate::fork::Origin;

/// Length of a probe's token, in bytes
pub const TOKEN_BYTES: usize = 16;

/// Memory of another process, which this one may read
#[derive(Debug)]
pub struct PeerMemory {
    pid: Pid,
    /// Readable once the process has ended, even if another process has its id by then
    pidfd: OwnedFd,
}

impl PeerMemory {
    /// Opens the memory of a process, if the token of its [`Probe`] can be read at the address
    ///
    /// # Errors
    ///
    /// [`PeerMemoryError`]: use another way to move the bytes.
    pub fn open(
        pid: u32,
        probe_address: u64,
        expected: &[u8; TOKEN_BYTES],
    ) -> Result<Self, PeerMemoryError> {
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let known = known.ok_or(PeerMemoryError::Gone { pid })?;
        let pidfd = pidfd_open(known, PidfdFlags::empty());
        let pidfd = pidfd.map_err(|errno| PeerMemoryError::of_system(pid, errno))?;
        let peer = Self { pid: known, pidfd };
        let mut found = [0; TOKEN_BYTES];
        match peer.read(probe_address, &mut [IoSliceMut::new(&mut found)]) {
            Ok(_) if found == *expected => Ok(peer),
            Ok(_) | Err(PeerMemoryError::BadAddress { .. }) => Err(PeerMemoryError::WrongProcess {
                pid,
                address: probe_address,
            }),
            Err(error) => Err(error),
        }
    }

    /// Fills the targets in order from consecutive addresses, returning how many bytes that were
    ///
    /// All or an error: then what the targets hold is not specified. The slices are advanced past
    /// what was filled. The process was alive until the last byte was read, so none came from
    /// another that was given its id.
    ///
    /// # Errors
    ///
    /// [`PeerMemoryError`]; [`BadAddress`](PeerMemoryError::BadAddress) is the peer's fault.
    pub fn read(
        &self,
        address: u64,
        targets: &mut [IoSliceMut<'_>],
    ) -> Result<usize, PeerMemoryError> {
        let total = targets.iter().map(|target| target.len()).sum::<usize>();
        let bad = |filled: usize| PeerMemoryError::BadAddress {
            pid: self.pid(),
            address: address.wrapping_add(filled as u64),
            bytes: (total - filled) as u64,
        };
        let fits = |end: &u64| usize::try_from(*end).is_ok();
        if address.checked_add(total as u64).filter(fits).is_none() {
            return Err(bad(0));
        }
        let mut rest = targets;
        // The first of the rest is never empty, so that each call has something to fill.
        IoSliceMut::advance_slices(&mut rest, 0);
        let mut filled = 0;
        while filled < total {
            let batch = rest.len().min(IOV_MAX);
            match read_once(self.pid, address as usize + filled, &mut rest[..batch]) {
                Ok(bytes) => {
                    filled += bytes;
                    IoSliceMut::advance_slices(&mut rest, bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::FAULT) => return Err(bad(filled)),
                Err(errno) => return Err(PeerMemoryError::of_system(self.pid(), errno)),
            }
        }
        if total > 0 && !self.is_alive() {
            return Err(PeerMemoryError::Gone { pid: self.pid() });
        }
        Ok(total)
    }

    /// Returns whether the process has not ended; a zombie has
    pub fn is_alive(&self) -> bool {
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        loop {
            match poll(&mut watched, Some(&Timespec::default())) {
                Ok(ended) => return ended == 0,
                Err(Errno::INTR) => {}
                // Short of memory the kernel does not say: then nothing is to be relied on.
                Err(_) => return false,
            }
        }
    }

    /// Id of the process
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }
}

/// A random token at a fixed address of this process, by which a peer knows that it reads the right
/// memory
///
/// One for each process, a forked child has another. It names the process and is no secret.
pub struct Probe {
    token: [u8; TOKEN_BYTES],
    origin: Origin,
}

impl Probe {
    /// The probe of this process
    ///
    /// # Errors
    ///
    /// The system's, if it has no random numbers.
    pub fn of_this_process() -> io::Result<&'static Self> {
        /// The probe made last, in this process or in an ancestor
        static CURRENT: AtomicPtr<Probe> = AtomicPtr::new(ptr::null_mut());
        // Acquire pairs with the exchange below: the probe is seen whole.
        let mut found = CURRENT.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a leaked probe that was stored below and never changes.
            if let Some(probe) = unsafe { found.as_ref() }
                && probe.origin.is_here()
            {
                return Ok(probe);
            }
            // No lock: in a forked child it could be one that a thread of the parent holds.
            let fresh = Box::into_raw(Box::new(Self {
                token: random()?,
                origin: Origin::here(),
            }));
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match CURRENT.compare_exchange(found, fresh, order.0, order.1) {
                // SAFETY: from `Box::into_raw`, and leaked: peers read there as long as we live.
                Ok(_) => return Ok(unsafe { &*fresh }),
                Err(other) => {
                    // SAFETY: from `Box::into_raw`, and nothing else has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = other;
                }
            }
        }
    }

    /// Address of the token in this process, the same as long as it lives
    pub fn address(&self) -> u64 {
        self.token.as_ptr().expose_provenance() as u64
    }

    /// The bytes that lie there
    pub fn token(&self) -> [u8; TOKEN_BYTES] {
        self.token
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("address", &self.token.as_ptr())
            .finish_non_exhaustive()
    }
}

/// Why the memory of a process is not read
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerMemoryError {
    /// The system's policy; no retry helps
    #[error(
        "not permitted to read the memory of process {pid}: kernel.yama.ptrace_scope is above 0, the \
         process is of another user or user namespace or not dumpable, or a container's seccomp \
         profile forbids it"
    )]
    NotPermitted {
        /// Id of the process
        pid: u32,
    },
    /// No such process, or it has ended
    #[error("process {pid} is gone")]
    Gone {
        /// Id of the process
        pid: u32,
    },
    /// The token is not there, so the process is another one than the peer, as where the two are in
    /// different process namespaces; or the peer's fault
    #[error("process {pid} is not the peer: its probe is not at address {address:#x}")]
    WrongProcess {
        /// Id of the process
        pid: u32,
        /// Address of the probe, as the peer says
        address: u64,
    },
    /// The peer named memory that it has not, or that cannot be read; the peer's fault
    #[error("process {pid} has no {bytes} readable bytes at address {address:#x}")]
    BadAddress {
        /// Id of the process
        pid: u32,
        /// First address that could not be read
        address: u64,
        /// How many bytes were still to be read from there
        bytes: u64,
    },
    /// The system has no such call (before Linux 5.3, or in a sandbox); no retry helps
    #[error("the system cannot read the memory of other processes")]
    Unsupported,
    /// The system has no descriptor or memory; a retry can help once some are released
    #[error("cannot read the memory of process {pid}")]
    System {
        /// Id of the process
        pid: u32,
        /// The system's error
        source: io::Error,
    },
}

impl PeerMemoryError {
    fn of_system(pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { pid },
            Errno::SRCH => Self::Gone { pid },
            Errno::NOSYS => Self::Unsupported,
            errno => Self::System {
                pid,
                source: errno.into(),
            },
        }
    }
}

/// Fills what the kernel fills at once of the targets, which are at most `IOV_MAX` and hold some
/// bytes, returning how many bytes, above 0
fn read_once(pid: Pid, address: usize, targets: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(address),
        iov_len: targets.iter().map(|target| target.len()).sum(),
    };
    // SAFETY: `IoSliceMut` is laid out as an `iovec`, each of these is memory that the caller may
    // write to, and no more than that is written. Of the other process nothing is changed.
    let bytes = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            targets.as_ptr().cast(),
            targets.len() as libc::c_ulong,
            &raw const remote,
            1,
            0,
        )
    };
    match usize::try_from(bytes) {
        // It fills at least a byte or fails; a kernel that does neither must not be asked for ever.
        Ok(0) => Err(Errno::FAULT),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(last_error()),
    }
}

/// Random bytes from the kernel, without a descriptor
fn random() -> io::Result<[u8; TOKEN_BYTES]> {
    let mut bytes = [0; TOKEN_BYTES];
    loop {
        // SAFETY: writes at most as many bytes as there are.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match usize::try_from(filled) {
            // Up to 256 bytes come whole.
            Ok(TOKEN_BYTES) => return Ok(bytes),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) if last_error() == Errno::INTR => {}
            Err(_) => return Err(last_error().into()),
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Most targets of one call, as `linux/uio.h` has it
const IOV_MAX: usize = libc::UIO_MAXIOV as usize;
