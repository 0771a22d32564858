//! Descriptors and locks that children of this process do not get.
//!
//! A child that is forked, and starts no program, has a copy of every descriptor. As long as it
//! lives, a connection whose socket it has does not end with the process that made it, and a port
//! that it listens on stays taken. So a handler for forks (`pthread_atfork`) puts something
//! harmless in the place of each socket that is marked here, in the child, before it goes on.
//!
//! And it has a copy of every lock, as it was: one that another thread had at that moment stays
//! taken in the child for ever. Static values are therefore made anew there ([`PerProcess`]).
//!
//! `vfork` and `posix_spawn` call no handlers; they start a program, which closes what is marked
//! `FD_CLOEXEC`.

use std::ffi::c_int;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Owns a descriptor that no child has from now on
///
/// A child that is being forked by another thread at this moment may still get it.
#[derive(Debug)]
pub struct Uninherited<T: AsFd> {
    // In this order: the mark goes before the number can be that of another file.
    mark: Mark,
    inner: T,
}

impl<T: AsFd> Uninherited<T> {
    /// Takes a descriptor over
    ///
    /// Beyond the first 2^20 descriptors of a process, children get it all the same.
    pub fn new(inner: T) -> Self {
        let mark = Mark::new(inner.as_fd().as_raw_fd());
        Self { mark, inner }
    }

    /// Gives it back; children get it from now on
    pub fn into_inner(self) -> T {
        drop(self.mark);
        self.inner
    }
}

impl<T: AsFd> AsFd for Uninherited<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsFd> Deref for Uninherited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// A bit among [`MARKED`], until it is dropped
#[derive(Debug)]
struct Mark(Option<usize>);

impl Mark {
    fn new(fd: RawFd) -> Self {
        watch_forks();
        let place = usize::try_from(fd)
            .ok()
            .filter(|place| place / BITS < MARKED.len());
        if let Some(place) = place {
            // A thread that forks reads it in the child, where all that this thread did before is
            // done. Each bit is one owner's alone.
            MARKED[place / BITS].fetch_or(1 << (place % BITS), Ordering::Relaxed);
            WORDS.fetch_max(place / BITS + 1, Ordering::Relaxed);
        }
        Self(place)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            MARKED[place / BITS].fetch_and(!(1 << (place % BITS)), Ordering::Relaxed);
        }
    }
}

/// A static value of which a forked child has one of its own, as it is at first
///
/// For locks that any thread may take at any time, and what they guard. The value of the parent is
/// left as it is, and never dropped.
pub struct PerProcess<T> {
    /// Null, or from a box that no code takes back
    current: AtomicPtr<Generation<T>>,
}

struct Generation<T> {
    forks: u64,
    value: T,
}

impl<T: Default> PerProcess<T> {
    /// A value that is made when it is first asked for
    #[must_use]
    pub const fn new() -> Self {
        Self {
            current: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The value of this process
    pub fn value(&self) -> &T {
        watch_forks();
        // Written in a child before it goes on.
        let forks = FORKS.load(Ordering::Relaxed);
        let mut found = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was leaked whole before it was stored, with the release
            // that the loads here pair with.
            if let Some(current) = unsafe { found.as_ref() }
                && current.forks == forks
            {
                return &current.value;
            }
            let value = T::default();
            let fresh = Box::into_raw(Box::new(Generation { forks, value }));
            let stored =
                self.current
                    .compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire);
            match stored {
                // SAFETY: leaked from here on.
                Ok(_) => return unsafe { &(*fresh).value },
                Err(now) => {
                    // SAFETY: made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    found = now;
                }
            }
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

// SAFETY: it owns values that threads share by reference and, as one may drop what another made,
// move.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

/// How many forks led here
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Has us called in each child from now on
fn watch_forks() {
    // No `Once`, which could be under way as another thread forks, and would stay so in the child.
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.load(Ordering::Relaxed) && !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function stays where it is, and does only what a child of a process with
        // threads may do. An error means that there is no memory: then children get all.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// A bit for each descriptor that children do not get; pages that are not written take no memory
static MARKED: [AtomicU64; 1 << 14] = [const { AtomicU64::new(0) }; 1 << 14];

/// How many words of it were ever used
static WORDS: AtomicUsize = AtomicUsize::new(0);

/// Bits of a word
const BITS: usize = u64::BITS as usize;

unsafe extern "C" fn in_child() {
    // There is one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
    replace_marked();
}

/// Puts a file that is of no use in the place of what is marked
///
/// The numbers stay taken: what owns them here closes them when it is dropped, and must not close
/// something else. Only system calls, no lock and no memory, as a child of a process with threads
/// may do no more (`fork(2)`).
fn replace_marked() {
    let mut useless = new_useless();
    let mut is_kept = false;
    let words = WORDS.load(Ordering::Relaxed).min(MARKED.len());
    for (index, word) in MARKED[..words].iter().enumerate() {
        let mut left = word.load(Ordering::Relaxed);
        while left != 0 {
            let place = index * BITS + left.trailing_zeros() as usize;
            left &= left - 1;
            let Ok(fd) = c_int::try_from(place) else {
                continue;
            };
            if useless < 0 {
                // No descriptor is left but this one, whose number is the one that comes next.
                // SAFETY: closing a descriptor of which we know that it is an inherited socket.
                unsafe { libc::close(fd) };
                useless = new_useless();
                is_kept = useless == fd;
            }
            if useless >= 0 && useless != fd {
                // SAFETY: both are numbers of descriptors; what was open there is closed.
                unsafe { libc::dup3(useless, fd, libc::O_CLOEXEC) };
            }
        }
    }
    if useless >= 0 && !is_kept {
        // SAFETY: it was opened here, and no other code knows it.
        unsafe { libc::close(useless) };
    }
}

/// A file that is never ready to be read, takes no data and needs nothing in the file system
fn new_useless() -> c_int {
    // SAFETY: no pointers are passed.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}
