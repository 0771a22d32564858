//! Recycled private buffers for what is received
//!
//! Fresh memory costs a page fault and a page of zeroes for every 4 KiB, which for large messages
//! is more than moving the bytes. A pool keeps dropped blocks, pages and all, and hands them out
//! again. Sizes are rounded up to classes, four per doubling (at most a quarter is wasted, from
//! 256 bytes on), and a block serves its own class only. When the unused blocks exceed the bound,
//! those unused for longest go back to the system.

mod block;
mod cache;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thiserror::Error;

use self::block::{Block, Line};
use self::cache::Cache;
use crate::arena::{Arena, ArenaBuf};
use crate::leased::Leased;
use crate::size_class::{self, SizeClass};

/// Alignment of every buffer, in bytes: a cache line, and the widest vector register
pub const ALIGNMENT_BYTES: usize = size_class::ALIGNMENT_BYTES;

/// Recycled private buffers; clones share one cache
///
/// When the last clone goes, unused blocks are freed; buffers still out stay valid and are freed
/// when they are dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Creates a pool that keeps at most `cached_bytes_max` bytes of unused blocks
    pub fn new(cached_bytes_max: usize) -> Self {
        Self::with_arena(cached_bytes_max, None)
    }

    /// As [`new`](Self::new), with blocks of the arena where it has some, so that they can be exported
    ///
    /// A buffer that the arena refuses because it has reached its bound is private, and is not kept
    /// for reuse: memory is short.
    pub fn with_arena(cached_bytes_max: usize, arena: Option<Arena>) -> Self {
        let cache = Mutex::new(Cache::new(cached_bytes_max));
        Self {
            shared: Arc::new(Shared { cache, arena }),
        }
    }

    /// Takes a buffer of exactly `bytes` bytes
    ///
    /// Its content is not specified: zeroes, or what a buffer of this pool held before.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; nothing has changed.
    pub fn take(&self, bytes: usize) -> Result<PoolBuf, OutOfMemory> {
        if let Some(block) = self
            .shared
            .arena
            .as_ref()
            .and_then(|arena| arena.take(bytes))
        {
            return Ok(block.into());
        }
        self.take_private(bytes)
    }

    /// Takes a buffer for each of some sizes, in order, for the segments of one message
    ///
    /// As [`take`](Self::take) for each of them, but those of at most [`PART_BYTES_MAX`] bytes share
    /// blocks: each takes its own size, rounded up to [`ALIGNMENT_BYTES`], and the value itself. A
    /// block is kept until the last buffer in it is dropped, so one that is held long keeps the
    /// small buffers taken with it, of up to 256 KiB, from being recycled.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; nothing has changed.
    pub fn take_many(&self, sizes: &[u64]) -> Result<Vec<PoolBuf>, OutOfMemory> {
        let mut buffers = Vec::new();
        let reserved = buffers.try_reserve_exact(sizes.len());
        reserved.map_err(|_| OutOfMemory {
            bytes: sizes.len().saturating_mul(size_of::<PoolBuf>()),
        })?;
        let mut parts = Parts::default();
        for (at, size) in sizes.iter().enumerate() {
            // No address space has what does not fit.
            let bytes = usize::try_from(*size).unwrap_or(usize::MAX);
            buffers.push(match bytes {
                0 => PoolBuf::empty(),
                1..=PART_BYTES_MAX => parts.take(self, &sizes[at..], bytes)?,
                bytes => self.take(bytes)?,
            });
        }
        Ok(buffers)
    }

    /// As [`take`](Self::take), never from the arena
    fn take_private(&self, bytes: usize) -> Result<PoolBuf, OutOfMemory> {
        let out_of_memory = OutOfMemory { bytes };
        let class = SizeClass::for_bytes(bytes).ok_or(out_of_memory)?;
        let recycled = self.shared.lock().take(class);
        let block = match recycled {
            Some(block) => block,
            None => match Block::allocate(class) {
                Some(block) => block,
                None => {
                    self.shared.lock().forget(class);
                    return Err(out_of_memory);
                }
            },
        };
        let (address, class) = block.into_parts();
        Ok(PoolBuf {
            address,
            bytes,
            home: Home::Pool(class, Arc::downgrade(&self.shared)),
        })
    }

    /// Counts of the pool, now and so far
    pub fn statistics(&self) -> PoolStatistics {
        self.shared.lock().statistics()
    }
}

/// A buffer of initialised bytes that returns to where it came from when dropped
///
/// That is a pool, an [`Arena`], or a peer ([`Leased`]). Messages may have very many, so it is
/// small: four words.
pub struct PoolBuf {
    /// Start of what `home` holds
    address: NonNull<u8>,
    /// Length asked for; at most that of what `home` holds
    bytes: usize,
    home: Home,
}

/// Owner of the memory of a buffer
enum Home {
    /// Nothing: there are no bytes
    Empty,
    /// A block of this class at `address`, whole and the buffer's own
    Pool(SizeClass, Weak<Shared>),
    /// A block that the buffer shares with others, a part for each
    Part(#[expect(dead_code, reason = "kept, and dropped with the buffer")] Arc<PoolBuf>),
    /// An [`ArenaBuf`] of `bytes` at `address`, taken apart
    Arena(Arena),
    Peer(#[expect(dead_code, reason = "kept, and dropped with the buffer")] Box<Leased>),
}

// SAFETY: `address` leads into what `home` holds, which this value owns alone and which is `Send`.
unsafe impl Send for PoolBuf {}
// SAFETY: `&PoolBuf` gives shared access to plain bytes only.
unsafe impl Sync for PoolBuf {}

impl PoolBuf {
    fn empty() -> Self {
        Self {
            address: NonNull::<Line>::dangling().cast(),
            bytes: 0,
            home: Home::Empty,
        }
    }

    /// Address of the first byte, a multiple of [`ALIGNMENT_BYTES`]; it does not move with the
    /// buffer
    pub fn as_ptr(&self) -> *const u8 {
        self.address.as_ptr()
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: what `home` holds is initialised and at least `bytes` long (`take`, `from`), and is
        // ours alone until `drop`.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for PoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<ArenaBuf> for PoolBuf {
    fn from(memory: ArenaBuf) -> Self {
        let (address, bytes, arena) = memory.into_parts();
        Self {
            address,
            bytes,
            home: Home::Arena(arena),
        }
    }
}

impl From<Leased> for PoolBuf {
    fn from(mut memory: Leased) -> Self {
        Self {
            address: NonNull::from(&mut *memory).cast(),
            bytes: memory.len(),
            home: Home::Peer(Box::new(memory)),
        }
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("address", &self.address)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.home, Home::Empty) {
            Home::Pool(class, pool) => {
                // SAFETY: the parts of the block of `take_private`, used only here, once: `home` is
                // another now. The buffer is not used any more.
                let block = unsafe { Block::from_parts(self.address, class) };
                if let Some(shared) = pool.upgrade() {
                    let keep = shared.keeps(class);
                    let surplus = shared.lock().put(block, keep);
                    // Unmapping takes long: not under the lock.
                    drop(surplus);
                }
            }
            Home::Arena(arena) => {
                // SAFETY: the parts of the buffer in `from`; the rest as above.
                drop(unsafe { ArenaBuf::from_parts(self.address, self.bytes, arena) });
            }
            Home::Empty | Home::Part(_) | Home::Peer(_) => (),
        }
    }
}

const _: () = assert!(size_of::<PoolBuf>() == 4 * size_of::<usize>());

/// The block of which small buffers take parts
#[derive(Default)]
struct Parts {
    block: Option<Arc<PoolBuf>>,
    /// Where in the block the next part starts
    offset: usize,
    /// How many parts are still to be taken from the block
    left: usize,
}

impl Parts {
    /// Takes a part for the first of the sizes, of `bytes` bytes, from a block for as many of the
    /// small ones as fit into one
    fn take(&mut self, pool: &Pool, sizes: &[u64], bytes: usize) -> Result<PoolBuf, OutOfMemory> {
        if self.left == 0 {
            let (block_bytes, count) = plan(sizes);
            if count == 1 {
                return pool.take_private(bytes);
            }
            self.block = Some(Arc::new(pool.take_private(block_bytes)?));
            (self.offset, self.left) = (0, count);
        }
        let Some(block) = &self.block else {
            return pool.take_private(bytes);
        };
        assert!(self.offset + bytes <= block.bytes, "parts are as planned");
        // SAFETY: within the block: asserted.
        let address = unsafe { block.address.add(self.offset) };
        self.offset += bytes.next_multiple_of(ALIGNMENT_BYTES);
        self.left -= 1;
        Ok(PoolBuf {
            address,
            bytes,
            home: Home::Part(Arc::clone(block)),
        })
    }
}

/// How many bytes the next block has, and how many of the sizes have a part in it
fn plan(sizes: &[u64]) -> (usize, usize) {
    let is_part = |size: &&u64| (1..=PART_BYTES_MAX as u64).contains(*size);
    let (mut bytes, mut count) = (0, 0);
    for size in sizes.iter().filter(is_part) {
        let end = bytes + (*size as usize).next_multiple_of(ALIGNMENT_BYTES);
        if end > PARTED_BYTES_MAX {
            break;
        }
        (bytes, count) = (end, count + 1);
    }
    (bytes, count)
}

/// Snapshot of a pool
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolStatistics {
    /// Bytes of the blocks that are handed out now; sizes are those of the classes
    pub live_bytes: usize,
    /// Bytes of the blocks kept for reuse
    pub cached_bytes: usize,
    /// Largest `live_bytes` there has been
    pub peak_bytes: usize,
    /// Buffers served from kept blocks
    pub hits: u64,
    /// Buffers that needed memory from the system
    pub misses: u64,
}

/// The system has no memory for a buffer
///
/// A retry can help once other buffers are dropped, unless the size is absurd.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("no memory for a buffer of {bytes} bytes")]
pub struct OutOfMemory {
    /// Size of the refused buffer, in bytes
    pub bytes: usize,
}

/// State that the clones of a pool share, and its buffers find as long as there is a clone
#[derive(Debug)]
struct Shared {
    cache: Mutex<Cache>,
    /// Where large buffers come from, as long as it has some
    arena: Option<Arena>,
}

impl Shared {
    /// Returns whether a private block of a class is kept for reuse: not if only the bound of the
    /// arena made it private
    fn keeps(&self, class: SizeClass) -> bool {
        self.arena.as_ref().is_none_or(|arena| {
            class.bytes() < arena.config().block_bytes_min || arena.unavailable().is_some()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        // A panic under the lock is a failed assertion of the pool, before anything changed.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Largest buffer that [`Pool::take_many`] takes from a block that others share
///
/// A larger buffer is worth a block of its own, which can be recycled as soon as it is dropped.
pub const PART_BYTES_MAX: usize = 4096;

/// Largest block of which small buffers take parts
///
/// The last of them keeps all of it.
const PARTED_BYTES_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests;
