//! Recycled memory that peers may map, block by block, while they have a lease on it
//!
//! An arena is made of segments, sealed memfds without a name, each divided into blocks of one size
//! class. A freed block keeps its pages and is handed out again, the one freed last first. When the
//! free ones exceed a mark, the pages of those freed longest ago go back to the system; a segment
//! goes when none of its blocks has pages left.
//!
//! A *lease* pins a block: whatever its owner does, it is not handed out again until the lease is
//! back. The block is copy-on-write from the first lease on (`arena/copy_on_write.rs`), so a later
//! write of the owner stays private to the owner's process.
//!
//! # Forks
//!
//! A child gets no block and no lease from an inherited arena, and frees nothing there: otherwise
//! both processes would hand out the same block. Yet it has objects in it, and shares their pages
//! with the parent. [`Arena::before_fork`], or [`Arena::watch_forks`] once, makes the live blocks
//! copy-on-write and keeps the parent from recycling them while the child lives: either process
//! then sees the bytes of the moment of the fork and its own later writes. Where neither is called (a fork without libc's
//! handlers), the parent sees what the child writes, and the child what the parent writes or
//! recycles. (To take the mapping from the child instead, by `MADV_DONTFORK`, would turn every
//! access to an inherited object into a crash.) Dask starts its workers by spawning, and a program
//! that is started anew has no mapping of the arena.

mod blocks;
mod copy_on_write;
mod fork;
mod lease;
mod memory;
#[cfg(test)]
mod model_tests;
mod segment;
mod statistics;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;
use rustix::param::page_size;

use self::blocks::{Blocks, Cold, DeferredWork, Fresh, Trim};
pub use self::fork::ForkGuard;
pub use self::lease::Lease;
use self::memory::Memory;
pub use self::statistics::{ArenaStatistics, Demand, Kept};
use crate::fork::Origin;
use crate::mapping::{HUGE_PAGE_BYTES, is_as_in_file, populate};
use crate::size_class::SizeClass;

/// Bounds of an arena
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ArenaConfig {
    /// Most bytes of blocks that have pages: handed out, leased, abandoned or cached
    ///
    /// [`Arena::set_bytes_max`] changes the bound later.
    pub bytes_max: usize,
    /// Most bytes of free blocks that keep their pages
    pub cached_bytes_max: usize,
    /// Requests below this are refused; at least four pages
    ///
    /// `malloc` recycles small blocks as well (`benches/arena.rs`), and peers copy them faster than
    /// they map them.
    pub block_bytes_min: usize,
}

impl Default for ArenaConfig {
    /// No bound but the cache's, of 1 GiB
    fn default() -> Self {
        Self {
            bytes_max: usize::MAX,
            cached_bytes_max: 1 << 30,
            block_bytes_min: 64 << 10,
        }
    }
}

/// Recycled memory that peers may map; clones share it
///
/// Blocks handed out stay valid until they are freed, and leased ones until the lease is back, even
/// when the last clone has gone.
#[derive(Clone, Debug)]
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// Creates an arena without memory
    pub fn new(config: ArenaConfig) -> Self {
        let config = ArenaConfig {
            // From there on every class is a multiple of a page.
            block_bytes_min: config.block_bytes_min.max(4 * page_size()),
            ..config
        };
        Self {
            shared: Arc::new(Shared {
                config,
                blocks: Mutex::new(Blocks::new(config)),
                populate_bytes_max: populate_bytes_max(),
                exporters: Mutex::default(),
                refusal: Mutex::default(),
                origin: Origin::here(),
            }),
        }
    }

    /// Takes a block of at least `bytes` bytes, aligned to a page
    ///
    /// Its content is not specified: zeroes, or what a block of this arena held before. None if
    /// `bytes` is too small or past the bound, or if the system has no memory: use memory of your
    /// own.
    pub fn allocate(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.shared.allocate(bytes).map(|(start, _)| start)
    }

    /// Takes a block whose first `bytes` bytes are zero; otherwise as [`allocate`](Self::allocate)
    pub fn allocate_zeroed(&self, bytes: usize) -> Option<NonNull<u8>> {
        let (start, zero) = self.shared.allocate(bytes)?;
        if !zero {
            // SAFETY: the block is at least that long, mapped, and was handed out to us alone.
            unsafe { start.write_bytes(0, bytes) };
        }
        Some(start)
    }

    /// Frees a block, returning false if no live block of this arena starts there
    ///
    /// The owner must not touch it any more. It is handed out again when no peer has a lease on it.
    pub fn free(&self, start: NonNull<u8>) -> bool {
        self.shared.free(start)
    }

    /// Bytes that the live block from `start` really has
    pub fn usable_bytes(&self, start: NonNull<u8>) -> Option<usize> {
        self.shared.lock()?.usable_bytes(start.as_ptr().addr())
    }

    /// Returns whether this process is a fork of the one that made the arena
    pub fn is_inherited(&self) -> bool {
        !self.shared.origin.is_here()
    }

    /// Takes a buffer of exactly `bytes` bytes; None as for [`allocate`](Self::allocate)
    pub fn take(&self, bytes: usize) -> Option<ArenaBuf> {
        let start = self.allocate(bytes)?;
        Some(ArenaBuf {
            start,
            bytes,
            arena: self.clone(),
        })
    }

    /// Copies bytes into a block, to be exported and then freed; the caller must not write to it
    ///
    /// None as for [`allocate`](Self::allocate), and while peers have more freed blocks of this arena
    /// than it would cache itself ([`ArenaConfig::cached_bytes_max`]): only peers need such copies,
    /// and they decide how long the memory stays in use.
    pub fn copy_to_lend(&self, bytes: &[u8]) -> Option<ArenaBuf> {
        let statistics = self.statistics();
        let out_bytes = statistics.orphaned_bytes + statistics.abandoned_bytes;
        if out_bytes + bytes.len() > self.shared.config.cached_bytes_max {
            return None;
        }
        self.take_copy(bytes)
    }

    /// Copies bytes into a block that the caller must not write to; None as for
    /// [`allocate`](Self::allocate)
    pub fn take_copy(&self, bytes: &[u8]) -> Option<ArenaBuf> {
        let mut copy = self.take(bytes.len())?;
        copy.copy_from_slice(bytes);
        // Spares the change to copy-on-write, and back.
        self.shared.lock()?.set_constant(copy.as_ptr().addr());
        Some(copy)
    }

    /// Returns whether bytes lie in a live block
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let blocks = self.shared.lock().filter(|_| self.shared.origin.is_here());
        blocks.is_some_and(|blocks| blocks.holds(bytes.as_ptr().addr(), bytes.len()))
    }

    /// Pins the live block that holds `bytes` bytes from `start`, for a peer to map them
    ///
    /// The peer sees the bytes of this moment: the block becomes copy-on-write. `None` if they do
    /// not lie in one, if there are none, if the owner has written to them since an earlier lease
    /// or fork, or if the system has no room for the mapping. To find out whether the owner has
    /// written takes about 10 ns per page.
    pub fn lease(&self, start: *const u8, bytes: usize) -> Option<Lease> {
        if !self.shared.origin.is_here() {
            return None;
        }
        let pin = self.shared.lock()?.lease(start.addr(), bytes)?;
        let may_differ = pin.may_differ;
        // Pinned from here on, and unpinned if the lease is dropped.
        let lease = Lease::new(Arc::clone(&self.shared), pin, bytes);
        let is_same = !may_differ || is_as_in_file(start, bytes).unwrap_or(false);
        is_same.then_some(lease)
    }

    /// Gives pages of free blocks back to the system, those freed longest ago first, until at most
    /// `cached_bytes` are left
    pub fn trim(&self, cached_bytes: usize) {
        self.shared
            .defer(|blocks, deferred| blocks.shrink(cached_bytes, deferred));
    }

    /// The bounds that the arena was made with
    pub fn config(&self) -> ArenaConfig {
        self.shared.config
    }

    /// The bound in force: [`ArenaConfig::bytes_max`], or the one set last
    pub fn bytes_max(&self) -> usize {
        let blocks = self.shared.lock();
        blocks.map_or(0, |blocks| blocks.bytes_max)
    }

    /// Changes the bound [`ArenaConfig::bytes_max`]
    ///
    /// Cached blocks that exceed the new bound give their pages back before this method returns.
    /// Blocks in use stay, even above the bound; no block is cached or newly handed out until they
    /// are below the bound again.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.shared
            .defer(|blocks, deferred| blocks.set_bytes_max(bytes_max, deferred));
    }

    /// Registers an exporter of leases, to be asked for returned ones
    ///
    /// Called, by any thread that allocates, when a class has no free block, and for
    /// [`statistics`](Self::statistics): it must not wait for a lock that a thread may hold while it
    /// allocates.
    pub fn on_shortage(&self, sweep: Weak<dyn Sweep>) {
        let mut exporters = self.shared.exporters();
        exporters.retain(|exporter| exporter.strong_count() > 0);
        exporters.push(sweep);
    }

    /// Bytes of all the pages that the arena has, in all processes; a system call per segment
    ///
    /// Blocks that were never filled have less than their size, and none has more.
    pub fn resident_bytes(&self) -> usize {
        let memories: Option<Vec<_>> = self
            .shared
            .lock()
            .map(|blocks| blocks.memories().cloned().collect());
        let memories = memories.unwrap_or_default();
        memories.iter().map(|memory| memory.resident_bytes()).sum()
    }

    /// Counts of the arena, now and so far, once returned leases are noticed
    pub fn statistics(&self) -> ArenaStatistics {
        self.shared.sweep();
        self.shared
            .lock()
            .map(|blocks| blocks.statistics())
            .unwrap_or_default()
    }

    /// Why the system refused memory when it was last asked for some, if it did; in a forked child,
    /// that it is one
    pub fn unavailable(&self) -> Option<io::Error> {
        if !self.shared.origin.is_here() {
            return Some(io::ErrorKind::Unsupported.into());
        }
        self.shared.refusal().map(io::Error::from)
    }
}

/// An exporter of leases, which can drop those that were returned
pub trait Sweep: Send + Sync {
    /// Drops the leases that were returned
    fn sweep(&self);
}

/// A buffer of initialised bytes in an arena, freed when it is dropped
pub struct ArenaBuf {
    start: NonNull<u8>,
    /// Length asked for; at most that of the block
    bytes: usize,
    arena: Arena,
}

// SAFETY: the block at `start` is this value's alone (`Arena::take`), and any thread may free it.
unsafe impl Send for ArenaBuf {}
// SAFETY: `&ArenaBuf` gives shared access to plain bytes only.
unsafe impl Sync for ArenaBuf {}

impl ArenaBuf {
    /// Address of the first byte; it does not move with the buffer
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Takes the buffer apart: its block is kept until [`from_parts`](Self::from_parts) makes one
    /// again
    pub(crate) fn into_parts(self) -> (NonNull<u8>, usize, Arena) {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once, and `this` is neither dropped nor used any more.
        let arena = unsafe { ptr::read(&raw const this.arena) };
        (this.start, this.bytes, arena)
    }

    /// Makes a buffer of its parts
    ///
    /// # Safety
    ///
    /// - They are of one call of [`into_parts`](Self::into_parts), and are used once.
    /// - The memory is used only through the buffer.
    pub(crate) unsafe fn from_parts(start: NonNull<u8>, bytes: usize, arena: Arena) -> Self {
        Self {
            start,
            bytes,
            arena,
        }
    }

    /// Pins the block of the buffer for a peer to map all of it
    pub fn lease(&self) -> Option<Lease> {
        self.arena.lease(self.as_ptr(), self.bytes)
    }
}

impl Deref for ArenaBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: memory of the kernel is initialised, the block is at least `bytes` long, and it
        // is ours alone to write until `drop`: peers are given it for reading.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for ArenaBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for ArenaBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ArenaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaBuf")
            .field("start", &self.start)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for ArenaBuf {
    fn drop(&mut self) {
        let freed = self.arena.free(self.start);
        debug_assert!(freed, "a buffer frees its block once");
    }
}

/// State that the clones of an arena, its buffers and its leases share
#[derive(Debug)]
struct Shared {
    /// As given; the bounds in force are in `blocks`
    config: ArenaConfig,
    blocks: Mutex<Blocks>,
    /// Up to here, pages are made before they are asked for
    populate_bytes_max: usize,
    /// Exporters that may hold returned leases; never locked while `blocks` is
    exporters: Mutex<Vec<Weak<dyn Sweep>>>,
    /// Error of the system when it was last asked for memory
    refusal: Mutex<Option<Errno>>,
    origin: Origin,
}

impl Shared {
    /// Takes a block, and says whether it is all zero
    fn allocate(&self, bytes: usize) -> Option<(NonNull<u8>, bool)> {
        if bytes < self.config.block_bytes_min || !self.origin.is_here() {
            return None;
        }
        let class = SizeClass::for_bytes(bytes)?;
        let mut recycled = self.lock()?.take_cached(class);
        if recycled.is_none() && self.sweep() {
            recycled = self.lock()?.take_cached(class);
        }
        if let Some(start) = recycled {
            return Some((start, false));
        }
        let mut deferred = DeferredWork::default();
        let cold = self.allocate_cold(class, &mut deferred);
        self.finish(deferred);
        let Fresh {
            start,
            ahead_bytes,
            huge,
        } = cold?;
        let populated = match ahead_bytes {
            0 if bytes > self.populate_bytes_max => Ok(()),
            0 => {
                // SAFETY: the block is at least that long, and ours.
                unsafe { populate(start, bytes, huge) }
            }
            _ => {
                // SAFETY: as above, and so are the blocks ahead; a thread that has one does not
                // notice.
                unsafe { populate(start, class.bytes() + ahead_bytes, huge) }
            }
        };
        *self.refusal() = populated.err();
        if populated.is_err() {
            let mut deferred = DeferredWork::default();
            self.lock()?.discard(start.as_ptr().addr(), &mut deferred);
            self.finish(deferred);
            return None;
        }
        Some((start, true))
    }

    fn allocate_cold(&self, class: SizeClass, deferred: &mut DeferredWork) -> Option<Fresh> {
        let cold = self.lock()?.take_cold(class, deferred);
        let segment_bytes = match cold {
            Cold::Taken(fresh) => return Some(fresh),
            Cold::NeedsSegment { bytes } => bytes,
            Cold::Refused => return None,
        };
        let made = match *self.refusal() {
            // No retry helps.
            Some(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) => Err(errno),
            _ => {
                let huge = class.bytes() >= HUGE_PAGE_BYTES;
                let smallest = class.bytes().next_multiple_of(HUGE_PAGE_BYTES);
                // There may be a limit on the size of files or of the address space.
                Memory::create(segment_bytes, huge).or_else(|errno| match segment_bytes {
                    bytes if bytes > smallest => Memory::create(smallest, huge),
                    _ => Err(errno),
                })
            }
        };
        *self.refusal() = made.as_ref().err().copied();
        let Ok(memory) = made else {
            self.lock()?.refuse();
            return None;
        };
        // A surplus block, if another thread has reached the bound, is dropped after the lock.
        let adopted = self.lock()?.adopt(class, memory, deferred);
        adopted.ok()
    }

    fn free(&self, start: NonNull<u8>) -> bool {
        let Some(mut blocks) = self.lock() else {
            // In a child, a thread of the parent had the lock. To keep memory is safe, to let
            // another thread free a block is not.
            return true;
        };
        if !self.origin.is_here() {
            return blocks.usable_bytes(start.as_ptr().addr()).is_some();
        }
        let mut deferred = DeferredWork::default();
        let freed = blocks.free(start.as_ptr().addr(), &mut deferred);
        drop(blocks);
        self.finish(deferred);
        freed
    }

    /// Ends a lease
    fn unpin(&self, block: blocks::BlockId, abandon: bool) {
        self.defer(|blocks, deferred| blocks.unpin(block, abandon, deferred));
    }

    /// Ends the pins of a child
    fn unpin_all(&self, inherited: &[blocks::BlockId]) {
        self.defer(|blocks, deferred| {
            for &block in inherited {
                blocks.unpin(block, false, deferred);
            }
        });
    }

    /// Changes the blocks under the lock, then does the work that was deferred; nothing in a child
    fn defer(&self, change: impl FnOnce(&mut Blocks, &mut DeferredWork)) {
        if !self.origin.is_here() {
            return;
        }
        let mut deferred = DeferredWork::default();
        if let Some(mut blocks) = self.lock() {
            change(&mut blocks, &mut deferred);
        }
        self.finish(deferred);
    }

    /// Does what is better done without the lock
    fn finish(&self, deferred: DeferredWork) {
        let DeferredWork { mut trims, emptied } = deferred;
        drop(emptied);
        if !self.origin.is_here() {
            // The pages are the parent's to give back.
            return;
        }
        // Neighbours at once, which spares a huge page that is theirs from being taken apart.
        trims.sort_unstable_by_key(|trim| (trim.memory.base(), trim.offset));
        for run in trims.chunk_by(Trim::is_followed_by) {
            let Trim { memory, offset, .. } = &run[0];
            let bytes = run.iter().map(|trim| trim.bytes).sum();
            // SAFETY: the blocks are free and are not handed out before `trimmed`; no peer has a
            // lease.
            let removed = unsafe { memory.mapping().remove(*offset, bytes) };
            let mut more = DeferredWork::default();
            if let Some(mut blocks) = self.lock() {
                for trim in run {
                    blocks.trimmed(trim.block, removed.is_ok(), &mut more);
                }
            }
            self.finish(more);
        }
    }

    /// Lets the exporters drop returned leases, and says whether there is any exporter
    fn sweep(&self) -> bool {
        if !self.origin.is_here() {
            return false;
        }
        let exporters: Vec<_> = self.exporters().iter().filter_map(Weak::upgrade).collect();
        for exporter in &exporters {
            exporter.sweep();
        }
        !exporters.is_empty()
    }

    /// Locks the blocks; None only in a child that was forked while another thread had the lock
    fn lock(&self) -> Option<MutexGuard<'_, Blocks>> {
        // A panic under the lock is a failed assertion of the arena, before anything changed.
        if self.origin.is_here() {
            return Some(self.blocks.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.blocks.try_lock() {
            Ok(blocks) => Some(blocks),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    fn exporters(&self) -> MutexGuard<'_, Vec<Weak<dyn Sweep>>> {
        self.exporters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Errno>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Up to which size of a block pages are made before they are asked for
fn populate_bytes_max() -> usize {
    // Where the system promises no more memory than it has, a page that it has not is a SIGBUS, and
    // must be found out before.
    match std::fs::read("/proc/sys/vm/overcommit_memory").as_deref() {
        Ok([b'2', ..]) => usize::MAX,
        _ => POPULATE_BYTES_MAX,
    }
}

/// Most blocks are filled by their owner; this bounds the pages wasted where one is not
const POPULATE_BYTES_MAX: usize = 256 << 20;
