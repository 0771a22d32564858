//! Forked children that still look at memory of this process, its own or imported from a peer
//!
//! A child inherits the mappings of imported leases. The kernel keeps the pages for the child, but
//! the exporter recycles them once the parent returns the lease, and the child would see other
//! bytes. So the parent returns a lease that a child has inherited only when that child has ended
//! or has started another program.
//!
//! No descriptor tells that reliably, because programs close all descriptors that they inherited.
//! A mapping does: before each fork the parent maps a small memfd for writing, shared, and unmaps
//! it after the fork. While a child still maps the memfd, the kernel refuses to seal it against
//! writing (`F_SEAL_WRITE` fails with `EBUSY`, `fcntl(2)`). A grandchild inherits the mapping too.
//!
//! Locks: that of [`CHILDREN`] is held from before a fork until after it. No lease is returned and
//! no other lock is taken under it. A child has a value with a lock of its own.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use backhaul_sys::forks::PerProcess;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use rustix::param::page_size;

use crate::leased::borrowed_bytes;
use crate::mapping::Mapping;
use crate::memfd;

/// How many forks of this process, so far, had imported memory mapped
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Forks(u64);

impl Forks {
    /// The count of this moment
    pub(crate) fn so_far() -> Self {
        // Pairs with the addition in `prepare`: a thread that has unmapped a lease and reads the old
        // count did so before the child got its copy of the address space.
        Self(FORKS.load(Ordering::SeqCst))
    }

    /// Runs `act` when no child is left that was forked since: before it returns, or on a thread
    /// that waits for the end of such children
    pub(crate) fn when_ended(self, act: impl FnOnce() + Send + 'static) {
        if Self::so_far() == self {
            return act();
        }
        let mut children = children();
        children.forget_ended();
        if !children.has_since(self) {
            drop(children);
            return act();
        }
        children.delayed.push(Delayed {
            since: self,
            act: Box::new(act),
        });
        if !children.is_polled {
            // Without a thread the next call tries again.
            let polling = thread::Builder::new().name("backhaul-forks".to_owned());
            children.is_polled = polling.spawn(poll).is_ok();
        }
    }
}

/// Has forks noticed from now on
pub(crate) fn watch_forks() {
    // Not a `Once`, which could be under way when another thread forks.
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the three functions stay where they are, and may be called by any thread that
        // forks. An error means that there is no memory: then no fork is noticed.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    }
}

/// The children of this process that may have imported memory, and what waits for them
#[derive(Default)]
struct Children {
    living: Vec<Child>,
    delayed: Vec<Delayed>,
    /// True while a thread runs `poll`
    is_polled: bool,
}

/// A child, with those forked from it in turn
struct Child {
    /// Its number among the forks
    number: u64,
    /// Mapped for writing while the child lives
    file: OwnedFd,
}

struct Delayed {
    since: Forks,
    act: Act,
}

impl Children {
    fn forget_ended(&mut self) {
        self.living.retain(|child| !has_ended(&child.file));
    }

    fn has_since(&self, since: Forks) -> bool {
        self.living.iter().any(|child| child.number > since.0)
    }

    fn take_due(&mut self) -> Vec<Delayed> {
        self.forget_ended();
        let delayed = std::mem::take(&mut self.delayed);
        let (waiting, due) = delayed
            .into_iter()
            .partition(|delayed| self.has_since(delayed.since));
        self.delayed = waiting;
        due
    }
}

/// Runs what waits, until nothing does
fn poll() {
    loop {
        thread::sleep(POLL_INTERVAL);
        let mut children = children();
        let due = children.take_due();
        let is_over = children.delayed.is_empty();
        children.is_polled = !is_over;
        drop(children);
        due.into_iter().for_each(|delayed| (delayed.act)());
        if is_over {
            return;
        }
    }
}

static FORKS: AtomicU64 = AtomicU64::new(0);

static CHILDREN: PerProcess<Mutex<Children>> = PerProcess::new();

fn children() -> MutexGuard<'static, Children> {
    CHILDREN
        .value()
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The lock and the mapping that a thread holds while it forks
struct Held {
    /// Kept in the child, for as long as the child lives
    _mapping: Option<Mapping>,
    _children: MutexGuard<'static, Children>,
}

thread_local! {
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

unsafe extern "C" fn prepare() {
    if borrowed_bytes() == 0 {
        return;
    }
    let mut children = children();
    children.forget_ended();
    // Without a descriptor or memory the fork itself is likely to fail.
    let made = Child::prepare();
    let mapping = made.map(|(child, mapping)| {
        children.living.push(child);
        mapping
    });
    let _ = HELD.try_with(|slot| {
        slot.set(Some(Held {
            _mapping: mapping.ok(),
            _children: children,
        }))
    });
}

unsafe extern "C" fn in_parent() {
    let _ = HELD.try_with(|slot| drop(slot.take()));
}

unsafe extern "C" fn in_child() {
    let held = HELD.try_with(Cell::take).ok().flatten();
    // The mapping stays. The lock is that of the parent's value, which this process never uses.
    std::mem::forget(held);
}

impl Child {
    /// Makes the file of a child that is about to be forked, and the mapping that it inherits
    fn prepare() -> Result<(Self, Mapping), Errno> {
        let (file, mapping) = watched_mapping()?;
        let number = FORKS.fetch_add(1, Ordering::SeqCst) + 1;
        Ok((Self { number, file }, mapping))
    }
}

/// A child that is about to be forked, of which the parent notices the end
///
/// It holds no lock across the fork, so that several handlers for forks may each have one.
#[derive(Debug)]
pub(crate) struct ExpectedChild {
    file: OwnedFd,
    mapping: Mapping,
}

impl ExpectedChild {
    /// Makes the mapping that the child inherits; to be called by the thread that forks
    ///
    /// # Errors
    ///
    /// The system has no descriptor or no memory for it.
    pub(crate) fn prepare() -> Result<Self, Errno> {
        let (file, mapping) = watched_mapping()?;
        Ok(Self { file, mapping })
    }

    /// Keeps the mapping, in the child
    pub(crate) fn in_child(self) {
        std::mem::forget(self.mapping);
    }

    /// Runs `act` on another thread when the child has ended; in the parent, after the fork
    pub(crate) fn when_ended(self, act: impl FnOnce() + Send + 'static) {
        let Self { file, mapping } = self;
        drop(mapping);
        let mut expected = expected();
        expected.waiting.push((file, Box::new(act)));
        if !expected.is_polled {
            // Without a thread the next call tries again.
            let polling = thread::Builder::new().name("backhaul-forks".to_owned());
            expected.is_polled = polling.spawn(poll_expected).is_ok();
        }
    }
}

/// Actions that wait for the end of single children
#[derive(Default)]
struct Expected {
    waiting: Vec<(OwnedFd, Act)>,
    /// True while a thread runs `poll_expected`
    is_polled: bool,
}

type Act = Box<dyn FnOnce() + Send>;

static EXPECTED: PerProcess<Mutex<Expected>> = PerProcess::new();

fn expected() -> MutexGuard<'static, Expected> {
    let expected = EXPECTED.value().lock();
    expected.unwrap_or_else(PoisonError::into_inner)
}

/// Runs what waits for children that have ended, until nothing waits
fn poll_expected() {
    loop {
        thread::sleep(POLL_INTERVAL);
        let mut expected = expected();
        let waiting = std::mem::take(&mut expected.waiting);
        let (ended, living) = waiting.into_iter().partition(|(file, _)| has_ended(file));
        expected.waiting = living;
        let is_over = expected.waiting.is_empty();
        expected.is_polled = !is_over;
        drop(expected);
        let ended: Vec<(OwnedFd, Act)> = ended;
        ended.into_iter().for_each(|(_, act)| act());
        if is_over {
            return;
        }
    }
}

/// Returns whether no process maps the file for writing any more
fn has_ended(file: &OwnedFd) -> bool {
    // The seal is set once no mapping is left. Any other error says nothing about a child.
    fcntl_add_seals(file, SealFlags::WRITE) != Err(Errno::BUSY)
}

/// Makes a file and a mapping of it for writing, which a child inherits
fn watched_mapping() -> Result<(OwnedFd, Mapping), Errno> {
    let bytes = page_size();
    let file = memfd::create_unsealed("backhaul-fork", bytes as u64)?;
    let mapping = Mapping::shared(file.as_fd(), bytes)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
    Ok((file, mapping))
}

impl fmt::Debug for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children")
            .field("living", &self.living.len())
            .field("delayed", &self.delayed.len())
            .finish_non_exhaustive()
    }
}

/// How often to look which children have ended, while a lease waits for one
const POLL_INTERVAL: Duration = Duration::from_millis(100);
