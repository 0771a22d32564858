//! The reading end of a ring

use std::io::IoSliceMut;

use super::{PUBLISH_BYTES_MAX, RingError, RingMemory};
use crate::sync::Ordering;

/// Reading end of a ring
///
/// Invariant: `published <= tail <= head <= published + capacity`, counted modulo 2^64. The bytes
/// from `tail` to `head` are filled, and no honest producer writes to them before they are
/// published as read.
#[derive(Debug)]
pub struct Consumer {
    memory: RingMemory,
    /// Bytes ever copied out of the ring
    tail: u64,
    /// Bytes the producer may overwrite
    published: u64,
    /// Bytes ever written, when we last looked
    head: u64,
    /// Something was published since the producer's waiting flag was looked at
    unannounced: bool,
}

impl Consumer {
    /// Takes the reading end of a ring through which `index` bytes have gone
    ///
    /// # Safety
    ///
    /// - No other `Consumer` of this ring exists in this process, nor will.
    pub(crate) unsafe fn new(memory: RingMemory, index: u64) -> Self {
        Self {
            memory,
            tail: index,
            published: index,
            head: index,
            unannounced: false,
        }
    }

    /// Fills as much of `buffer` as there is, returning how many bytes; 0 means empty
    ///
    /// Frees space at least every [`PUBLISH_BYTES_MAX`] bytes, and takes what the producer adds in
    /// the meantime.
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`] if the producer is not honest: the content of `buffer` is not
    /// specified, and no further call can help.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, RingError> {
        let copied = self.copy_out(buffer)?;
        self.publish_if_much();
        Ok(copied)
    }

    /// Fills several buffers, in order, as [`read`](Self::read) does
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, RingError> {
        let mut copied = 0;
        for buffer in buffers {
            let bytes = self.copy_out(buffer)?;
            copied += bytes;
            if bytes < buffer.len() {
                break;
            }
        }
        self.publish_if_much();
        Ok(copied)
    }

    /// Looks how many bytes a read would give now
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn available(&mut self) -> Result<usize, RingError> {
        self.refresh()?;
        Ok(self.filled() as usize)
    }

    /// Returns whether a read would find something, as far as one load can tell
    ///
    /// Nothing is checked or ordered: it says when to read, not what to trust.
    #[inline]
    pub fn has_news(&self) -> bool {
        // The next bytes are then on their way here while the index still is.
        self.memory.prefetch(self.tail);
        self.memory.control().head.0.load(Ordering::Relaxed) != self.tail
    }

    /// Takes the producer's waiting flag: after a read, true means notify its doorbell
    ///
    /// The flag is cleared, so one sleep is answered once. While no space was made, it is not
    /// looked at either: the producer still waits for space.
    pub fn take_peer_waiting(&mut self) -> bool {
        std::mem::take(&mut self.unannounced) && self.memory.control().producer_waiting.take()
    }

    /// Announces that this side is about to sleep until there are bytes
    ///
    /// True: the ring is empty and the producer will notify the doorbell after its next write. False:
    /// there are bytes, and the announcement is withdrawn; the doorbell may be notified once without
    /// need.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn arm(&mut self) -> Result<bool, RingError> {
        self.memory.control().consumer_waiting.set();
        let empty = self.refresh().map(|()| self.filled() == 0);
        if empty != Ok(true) {
            self.disarm();
        }
        empty
    }

    /// Withdraws the announcement of [`arm`](Self::arm)
    pub fn disarm(&mut self) {
        self.memory.control().consumer_waiting.clear();
    }

    /// Capacity of the ring, in bytes
    pub fn capacity_bytes(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// Fills as much of `buffer` as there is, leaving less than [`PUBLISH_BYTES_MAX`] unpublished
    fn copy_out(&mut self, buffer: &mut [u8]) -> Result<usize, RingError> {
        let mut copied = 0;
        while copied < buffer.len() {
            if self.filled() == 0 {
                // The producer may be waiting for space whose index is not published yet.
                self.publish_if_much();
                self.refresh()?;
                if self.filled() == 0 {
                    break;
                }
            }
            let unpublished = self.tail.wrapping_sub(self.published) as usize;
            let step_bytes = (buffer.len() - copied)
                .min(self.filled() as usize)
                .min(PUBLISH_BYTES_MAX - unpublished);
            let step = &mut buffer[copied..copied + step_bytes];
            // SAFETY: the step is at most the filled bytes, which start at `tail`, and this is the
            // only consumer (`new`). The producer has finished writing them: `refresh` acquired its
            // store of `head`.
            unsafe { self.memory.copy_out(self.tail, step) };
            self.tail = self.tail.wrapping_add(step_bytes as u64);
            copied += step_bytes;
            if unpublished + step_bytes == PUBLISH_BYTES_MAX {
                self.publish();
            }
        }
        Ok(copied)
    }

    /// As [`publish`](Self::publish), unless it is so little that no producer waits for it
    ///
    /// A store to the index takes the line from the producer's cache, which small messages would
    /// pay one by one. A producer waits only while it finds the ring full; with less than this
    /// share of it unpublished there are bytes left to read, and reading them publishes.
    fn publish_if_much(&mut self) {
        let unpublished = self.tail.wrapping_sub(self.published);
        if unpublished * DEFERRED_SHARE > self.memory.capacity()
            || self.memory.capacity() < DEFERRING_BYTES_MIN
        {
            self.publish();
        }
    }

    /// Tells the producer that what was copied may be overwritten
    fn publish(&mut self) {
        if self.published != self.tail {
            // Release: pairs with the acquire load in `Producer::refresh`, so that our copies are
            // done before the producer overwrites them.
            self.memory
                .control()
                .tail
                .0
                .store(self.tail, Ordering::Release);
            self.published = self.tail;
            self.unannounced = true;
        }
    }

    /// Reads the producer's index and checks it before use
    fn refresh(&mut self) -> Result<(), RingError> {
        // Acquire: pairs with the release store in `Producer::publish`, so that we see the bytes
        // up to there.
        let head = self.memory.control().head.0.load(Ordering::Acquire);
        // It lies between what it was and a full ring: no further back, no further on.
        let filled = head.wrapping_sub(self.published);
        let filled_before = self.head.wrapping_sub(self.published);
        if filled > self.memory.capacity() || filled < filled_before {
            return Err(RingError::Corrupt {
                head,
                tail: self.published,
                capacity: self.memory.capacity(),
            });
        }
        self.head = head;
        Ok(())
    }

    /// Bytes there to read, as far as we know
    fn filled(&self) -> u64 {
        self.head.wrapping_sub(self.tail)
    }
}

/// Up to the ring's capacity over this, what was read may stay unpublished
const DEFERRED_SHARE: u64 = if cfg!(loom) { 2 } else { 8 };

/// In smaller rings everything is published at once
const DEFERRING_BYTES_MIN: u64 = if cfg!(loom) { 0 } else { 1 << 16 };
