//! Recycled private buffers

use std::ops::{Deref, DerefMut};

use thiserror::Error;

/// Recycled private buffers; clones share one cache
#[derive(Clone, Debug)]
pub struct Pool {}

impl Pool {
    /// Creates a pool that keeps at most `cached_bytes_max` bytes of unused blocks
    pub fn new(_cached_bytes_max: usize) -> Self {
        todo!()
    }

    /// Takes a buffer of exactly `bytes` bytes, of unspecified content
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]
    pub fn take(&self, _bytes: usize) -> Result<PoolBuf, OutOfMemory> {
        todo!()
    }

    /// What the pool holds now and has done so far
    pub fn statistics(&self) -> PoolStatistics {
        todo!()
    }
}

/// A buffer that returns to its pool when dropped
#[derive(Debug)]
pub struct PoolBuf {}

impl PoolBuf {
    /// Address of the first byte, a multiple of 64
    pub fn as_ptr(&self) -> *const u8 {
        todo!()
    }
}

impl Deref for PoolBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

impl DerefMut for PoolBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        todo!()
    }
}

/// Snapshot of a pool
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PoolStatistics {
    /// Bytes of blocks now handed out
    pub live_bytes: usize,
    /// Bytes of blocks kept for reuse
    pub cached_bytes: usize,
    /// Largest `live_bytes` there was
    pub peak_bytes: usize,
    /// Takes served from kept blocks
    pub hits: u64,
    /// Takes that needed new memory
    pub misses: u64,
}

/// The system has no memory for a buffer; a retry can help when others are dropped
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("no memory for a buffer of {bytes} bytes")]
pub struct OutOfMemory {
    /// Size of the refused buffer, in bytes
    pub bytes: usize,
}
