//! A doorbell: an eventfd that wakes a sleeping process, any number of notifications at once
//!
//! Nothing here blocks: a doorbell is always in non-blocking mode, and one that a peer passed to us
//! is known to be an eventfd before anything is read from it or written to it.
//!
//! # Trust
//!
//! A peer may pass any descriptor. A pipe or socket without a reader would block a write, a
//! regular file cannot be watched by epoll, and a signal or timer descriptor is never cleared. So
//! [`Doorbell::from_peer`] refuses everything but an eventfd.
//!
//! Both processes share one counter and one set of file status flags. A peer may notify without
//! need at any time, which costs us a wake-up each, or clear our notifications, which makes its own
//! connection stall. It may also switch back to blocking mode and fill the counter, so that a
//! notification blocks: Linux has no write to an eventfd that is non-blocking by itself. A peer
//! that means to stop us has no need of that, since a process of the same user may send `SIGSTOP`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, OFlags, fcntl_getfl, fcntl_setfl, readlinkat};
use rustix::io::{Errno, read, write};
use thiserror::Error;

/// Notification that wakes its watchers, in this process or another
#[derive(Debug)]
pub struct Doorbell {
    /// An eventfd that counts, in non-blocking mode
    fd: OwnedFd,
}

impl Doorbell {
    /// Creates a doorbell, without a notification; its descriptor is close-on-exec
    ///
    /// # Errors
    ///
    /// The system's; a retry can help once descriptors or memory are released.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Checks a descriptor that a peer passed, and switches it to non-blocking mode
    ///
    /// Needs no descriptor of its own, so it works in a process that has none left. The kind of
    /// the descriptor is read from `/proc`: where that is not mounted, nothing is accepted. The
    /// doorbell may be notified once without need.
    ///
    /// # Errors
    ///
    /// [`DoorbellError`]; the descriptor is closed.
    pub fn from_peer(fd: OwnedFd) -> Result<Self, DoorbellError> {
        check_kind(fd.as_fd())?;
        let flags = fcntl_getfl(&fd).map_err(DoorbellError::system)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(DoorbellError::system)?;
        }
        let doorbell = Self { fd };
        if doorbell.is_semaphore() {
            return Err(DoorbellError::Semaphore);
        }
        Ok(doorbell)
    }

    /// Makes the doorbell readable until it is [cleared](Self::clear)
    pub fn notify(&self) {
        self.add(1);
    }

    /// Takes all notifications so far
    pub fn clear(&self) {
        self.take();
    }

    /// Another handle of the same doorbell
    ///
    /// # Errors
    ///
    /// The system's; a retry can help once descriptors are released.
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = self.fd.try_clone()?;
        Ok(Self { fd })
    }

    /// Adds to the counter
    fn add(&self, count: u64) {
        // An eventfd refuses only what would make the counter overflow (`EAGAIN`), and then it is
        // readable already.
        let _full = write(&self.fd, &count.to_ne_bytes());
    }

    /// Takes the counter; None if it is zero
    fn take(&self) -> Option<u64> {
        let mut count = [0; 8];
        // An eventfd refuses only when there is nothing to take (`EAGAIN`).
        read(&self.fd, &mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }

    /// Returns whether a read takes one notification instead of all, so that a large count would
    /// wake the reader for ever (`EFD_SEMAPHORE`)
    fn is_semaphore(&self) -> bool {
        self.add(2);
        // None: the peer watches it and has taken them, so it is the one to read it, not we.
        let is_semaphore = self.take() == Some(1);
        // The notification that was taken may have been meant for either side.
        self.notify();
        is_semaphore
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.fd
    }
}

/// Why a descriptor of a peer is not used as a doorbell
///
/// Except for [`Unknown`](Self::Unknown) and [`System`](Self::System) the peer's fault, and no
/// retry helps.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Something else than an eventfd
    #[error("doorbell is not an eventfd but {kind:?}")]
    NotAnEventfd {
        /// Name of what it is, as in `/proc/self/fd`: a path, or a kind such as `pipe:[1234]`
        kind: String,
    },
    /// An eventfd of which a read takes only one of many notifications
    #[error("doorbell is an eventfd in semaphore mode")]
    Semaphore,
    /// The kind of the descriptor is not to be found out; a retry helps only after `/proc` is
    /// mounted
    #[error("cannot find out the kind of a doorbell from {path}")]
    Unknown {
        /// Link that says the kind
        path: String,
        /// The system's error
        source: io::Error,
    },
    /// The system refused to change the descriptor
    #[error("cannot switch a doorbell to non-blocking mode")]
    System(#[source] io::Error),
}

impl DoorbellError {
    fn system(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

/// Checks that a descriptor is an eventfd, without reading from it or writing to it
fn check_kind(fd: BorrowedFd<'_>) -> Result<(), DoorbellError> {
    // Of the thread, since one that has unshared its descriptors has others than the process.
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let kind = match readlinkat(CWD, &path, Vec::new()) {
        Ok(kind) => kind,
        Err(errno) => {
            let source = errno.into();
            return Err(DoorbellError::Unknown { path, source });
        }
    };
    // No file has this name: those that have a path begin with a slash.
    if kind.as_c_str() == EVENTFD {
        Ok(())
    } else {
        let kind = kind.to_string_lossy().into_owned();
        Err(DoorbellError::NotAnEventfd { kind })
    }
}

/// Name of an eventfd in `/proc/self/fd`
const EVENTFD: &CStr = c"anon_inode:[eventfd]";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use std::fs::File;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

    use super::*;

    #[test]
    fn notifications_are_seen_until_they_are_cleared_once() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.clear();
        assert!(!is_readable(&doorbell));
        for _ in 0..3 {
            doorbell.notify();
        }
        assert!(is_readable(&doorbell));
        doorbell.clear();
        assert!(!is_readable(&doorbell));
    }

    #[test]
    fn clone_and_descriptor_are_the_same_doorbell() {
        let doorbell = Doorbell::new().unwrap();
        let clone = doorbell.try_clone().unwrap();
        let passed = OwnedFd::from(doorbell.try_clone().unwrap());
        let peer = Doorbell::from_peer(passed).unwrap();
        clone.clear();
        assert!(!is_readable(&peer));
        peer.notify();
        assert!(is_readable(&doorbell));
        clone.clear();
        assert!(!is_readable(&doorbell));
    }

    #[test]
    fn blocking_eventfd_of_a_peer_never_blocks_though_it_is_full() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let peers = fd.try_clone().unwrap();
        let fill = || write(&peers, &(u64::MAX - 1).to_ne_bytes());
        fill().unwrap();
        let doorbell = Doorbell::from_peer(fd).unwrap();
        doorbell.clear();
        doorbell.clear();
        fill().unwrap();
        doorbell.notify();
        assert!(is_readable(&doorbell));
        doorbell.clear();
        assert!(!is_readable(&doorbell));
    }

    #[test]
    fn notification_from_before_the_check_is_not_lost() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.notify();
        let checked = Doorbell::from_peer(doorbell.into()).unwrap();
        assert!(is_readable(&checked));
    }

    #[test]
    fn eventfd_in_semaphore_mode_is_refused() {
        for count in [0, 1, u32::MAX] {
            let fd = eventfd(count, EventfdFlags::SEMAPHORE).unwrap();
            let error = Doorbell::from_peer(fd).unwrap_err();
            assert!(matches!(error, DoorbellError::Semaphore), "{error}");
        }
    }

    #[test]
    fn descriptor_of_another_kind_is_refused_by_its_name() {
        let (pipe_reads, pipe_writes) = std::io::pipe().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let forged = memfd_create("anon_inode:[eventfd]", MemfdFlags::CLOEXEC).unwrap();
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        let open = |path| OwnedFd::from(File::open(path).unwrap());
        for (fd, expected) in [
            (open("/dev/null"), "/dev/null"),
            (open("/"), "/"),
            (open("/proc/self/exe"), "/"),
            (pipe_reads.into(), "pipe:["),
            (pipe_writes.into(), "pipe:["),
            (socket.into(), "socket:["),
            (tcp.into(), "socket:["),
            (forged, "/memfd:anon_inode:[eventfd]"),
            (timer, "anon_inode:[timerfd]"),
            (
                epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
                "anon_inode:[eventpoll]",
            ),
            (pidfd_open(getpid(), PidfdFlags::empty()).unwrap(), ""),
        ] {
            let error = Doorbell::from_peer(fd).unwrap_err();
            let DoorbellError::NotAnEventfd { kind } = &error else {
                panic!("{expected}: {error}");
            };
            assert!(kind.starts_with(expected), "{error}");
            assert!(error.to_string().contains(&format!("{kind:?}")));
        }
    }

    fn is_readable(doorbell: &Doorbell) -> bool {
        let mut watched = [PollFd::new(doorbell, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).unwrap() == 1
    }
}
