//! Descriptors of the parent in a forked child.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{PipeReader, PipeWriter, Read, pipe};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backhaul_sys::forks::{PerProcess, Uninherited};

/// A forked child that does one thing and lives until this is dropped
struct Child {
    pid: libc::pid_t,
    /// Result of its read from a descriptor: 0 for the end, 1 for a byte, 255 for an error
    found: u8,
    _life: PipeWriter,
}

impl Child {
    /// Forks one that tries to read a byte from a descriptor
    fn that_reads(fd: RawFd) -> Self {
        let (ended, life): (PipeReader, PipeWriter) = pipe().unwrap();
        let (mut answer, question) = pipe().unwrap();
        let (life_fd, ended_fd, answer_fd) =
            (life.as_raw_fd(), ended.as_raw_fd(), question.as_raw_fd());
        // SAFETY: the child makes system calls only, on memory of its own, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut byte = 0_u8;
            // SAFETY: as above.
            unsafe {
                libc::close(life_fd);
                let got = libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT);
                let found = if got < 0 { 255_u8 } else { got as u8 };
                libc::write(answer_fd, (&raw const found).cast(), 1);
                // Ends with the parent's end of it.
                libc::read(ended_fd, (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        assert!(pid > 0);
        drop(question);
        let mut found = [0];
        answer.read_exact(&mut found).unwrap();
        Self {
            pid,
            found: found[0],
            _life: life,
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child; no other thread waits for it.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Returns whether a stream ends within a moment
fn ends(stream: &UnixStream) -> bool {
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    matches!((&*stream).read(&mut [0]), Ok(0))
}

#[test]
fn a_connection_ends_with_its_owner_though_a_forked_child_lives() {
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ours = Uninherited::new(ours);
    let child = Child::that_reads(ours.as_raw_fd());
    assert_eq!(child.found, 255, "it has no socket there");
    assert!(!ends(&theirs), "its parent has it still");
    drop(ours);
    assert!(ends(&theirs));
}

#[test]
fn what_is_given_back_is_inherited_again() {
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ours = Uninherited::new(ours).into_inner();
    let child = Child::that_reads(ours.as_raw_fd());
    drop(ours);
    assert!(!ends(&theirs), "the child has it");
    drop(child);
    assert!(ends(&theirs));
}

#[test]
fn a_number_that_is_used_again_is_not_kept_from_children() {
    let _alone = alone();
    let (marked, _) = UnixStream::pair().unwrap();
    drop(Uninherited::new(marked));
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    let child = Child::that_reads(ours.as_raw_fd());
    assert_eq!(child.found, 0, "it reads the end, from its own copy");
}

#[test]
fn a_lock_that_another_thread_has_is_free_in_a_child() {
    static LOCKED: PerProcess<Mutex<u32>> = PerProcess::new();
    let _alone = alone();
    *LOCKED.value().lock().unwrap() = 7;
    let held = Barrier::new(2);
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = LOCKED.value().lock().unwrap();
            held.wait();
            held.wait();
        });
        held.wait();
        // SAFETY: the child takes a lock that no other thread has there, and ends by `_exit`; the
        // alarm ends it if it should wait.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: a system call.
            unsafe { libc::alarm(20) };
            let value = LOCKED.value().lock().map_or(1, |value| *value);
            // SAFETY: it ends here.
            unsafe { libc::_exit(i32::try_from(value).unwrap_or(2)) };
        }
        let status = status_of(pid);
        held.wait();
        status
    });
    assert_eq!(status, 0, "the child has one of its own, as it is at first");
    assert_eq!(*LOCKED.value().lock().unwrap(), 7, "the parent's stays");
}

#[test]
fn children_get_nothing_though_no_descriptor_is_left() {
    let _alone = alone();
    // SAFETY: the child makes system calls only, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let status = fork_without_descriptors();
        // SAFETY: it ends here.
        unsafe { libc::_exit(status) };
    }
    assert_eq!(status_of(pid), 0);
}

/// Returns what a child finds in the place of two marked sockets, forked by a process whose table
/// is full: 0 if it is no socket
fn fork_without_descriptors() -> i32 {
    let mut fds = [-1; 2];
    // SAFETY: there is room for both.
    unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) };
    // SAFETY: no other code has them.
    let sockets = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let sockets = sockets.map(Uninherited::new);
    let limit = libc::rlimit {
        rlim_cur: 64,
        rlim_max: 64,
    };
    // SAFETY: system calls only, on memory that is there.
    unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        while libc::dup(fds[0]) >= 0 {}
        let pid = libc::fork();
        if pid == 0 {
            let are_useless = fds.iter().all(|&fd| {
                let (mut kind, mut bytes) = (0_i32, 4);
                let option = (&raw mut kind).cast();
                libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, option, &raw mut bytes) != 0
                    && *libc::__errno_location() == libc::ENOTSOCK
            });
            libc::_exit(i32::from(!are_useless));
        }
        std::mem::forget(sockets);
        status_of(pid)
    }
}

fn status_of(pid: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: our own child, which no other thread waits for.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// One test at a time: a child has copies of what the others use
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
