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

use self::block::Block;
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
    /// Where large buffers come from, as long as it has some
    arena: Option<Arena>,
}

impl Pool {
    /// Creates a pool that keeps at most `cached_bytes_max` bytes of unused blocks
    pub fn new(cached_bytes_max: usize) -> Self {
        Self::with_arena(cached_bytes_max, None)
    }

    /// As [`new`](Self::new), with blocks of the arena where it has some, so that they can be exported
    pub fn with_arena(cached_bytes_max: usize, arena: Option<Arena>) -> Self {
        let cache = Mutex::new(Cache::new(cached_bytes_max));
        Self {
            shared: Arc::new(Shared { cache }),
            arena,
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
        if let Some(block) = self.arena.as_ref().and_then(|arena| arena.take(bytes)) {
            return Ok(block.into());
        }
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
        Ok(PoolBuf {
            address: block.address(),
            bytes,
            home: Home::Pool(Some(block), Arc::downgrade(&self.shared)),
        })
    }

    /// What the pool holds now and has done so far
    pub fn statistics(&self) -> PoolStatistics {
        self.shared.lock().statistics()
    }
}

/// A buffer of initialised bytes that returns to where it came from when dropped
///
/// That is a pool, an [`Arena`], or a peer ([`Leased`]).
pub struct PoolBuf {
    /// Start of what `home` holds
    address: NonNull<u8>,
    /// Length asked for; at most that of what `home` holds
    bytes: usize,
    home: Home,
}

/// What keeps the memory of a buffer
enum Home {
    /// The block is always there until `drop`
    Pool(Option<Block>, Weak<Shared>),
    Arena(#[expect(dead_code, reason = "kept, and dropped with the buffer")] ArenaBuf),
    Peer(#[expect(dead_code, reason = "kept, and dropped with the buffer")] Leased),
}

// SAFETY: `address` leads into what `home` holds, which this value owns alone and which is `Send`.
unsafe impl Send for PoolBuf {}
// SAFETY: `&PoolBuf` gives shared access to plain bytes only.
unsafe impl Sync for PoolBuf {}

impl PoolBuf {
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
    fn from(mut memory: ArenaBuf) -> Self {
        Self {
            address: NonNull::from(&mut *memory).cast(),
            bytes: memory.len(),
            home: Home::Arena(memory),
        }
    }
}

impl From<Leased> for PoolBuf {
    fn from(mut memory: Leased) -> Self {
        Self {
            address: NonNull::from(&mut *memory).cast(),
            bytes: memory.len(),
            home: Home::Peer(memory),
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
        if let Home::Pool(block, pool) = &mut self.home
            && let (Some(block), Some(shared)) = (block.take(), pool.upgrade())
        {
            let surplus = shared.lock().put(block);
            // Unmapping takes long: not under the lock.
            drop(surplus);
        }
    }
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

/// What the clones of a pool share, and its buffers find as long as there is a clone
#[derive(Debug)]
struct Shared {
    cache: Mutex<Cache>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Cache> {
        // A panic under the lock is a failed assertion of ours, before anything changed.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
