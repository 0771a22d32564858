//! The writing end of a ring

use std::io::IoSlice;

use super::{PUBLISH_BYTES_FIRST, PUBLISH_BYTES_MAX, RingError, RingMemory};
use crate::sync::Ordering;

/// Writing end of a ring
///
/// Invariant: `tail <= published <= head <= tail + capacity`, counted modulo 2^64. The bytes from
/// `head` to `tail + capacity` are free, and only this value writes to them.
#[derive(Debug)]
pub struct Producer {
    memory: RingMemory,
    /// Bytes ever copied into the ring
    head: u64,
    /// Bytes whose index the consumer can see
    published: u64,
    /// Bytes ever read, when we last looked
    tail: u64,
    /// Bytes that are published together next, in the middle of a write
    step_bytes: usize,
}

impl Producer {
    /// Takes the writing end of a ring through which `index` bytes have gone
    ///
    /// # Safety
    ///
    /// - No other `Producer` of this ring exists in this process, nor will.
    pub(crate) unsafe fn new(memory: RingMemory, index: u64) -> Self {
        Self {
            memory,
            head: index,
            published: index,
            tail: index,
            step_bytes: PUBLISH_BYTES_FIRST,
        }
    }

    /// Copies as much of `bytes` as fits, returning how many bytes; 0 means full
    ///
    /// Publishes after [`PUBLISH_BYTES_FIRST`] bytes, then after twice as many each time, at most
    /// [`PUBLISH_BYTES_MAX`], and uses what space the consumer makes in the meantime.
    ///
    /// # Errors
    ///
    /// [`RingError::Corrupt`] if the consumer is not honest: how much of `bytes` it gets is not
    /// specified, and no further call can help.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, RingError> {
        self.step_bytes = PUBLISH_BYTES_FIRST;
        let copied = self.copy_in(bytes)?;
        self.publish();
        Ok(copied)
    }

    /// Copies as much of several slices as fits, in order, as [`write`](Self::write) does
    ///
    /// Up to [`PUBLISH_BYTES_FIRST`] bytes in total are published at once.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, RingError> {
        self.step_bytes = PUBLISH_BYTES_FIRST;
        let mut copied = 0;
        for slice in slices {
            let bytes = self.copy_in(slice)?;
            copied += bytes;
            if bytes < slice.len() {
                break;
            }
        }
        self.publish();
        Ok(copied)
    }

    /// Looks how many bytes a write would take now
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn free_bytes(&mut self) -> Result<usize, RingError> {
        self.refresh()?;
        Ok(self.free() as usize)
    }

    /// Looks whether a write of `bytes` bytes would take them all
    ///
    /// False too if the consumer is not honest, which the write then says.
    pub fn check_room(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        self.free() >= bytes || (self.refresh().is_ok() && self.free() >= bytes)
    }

    /// Takes the consumer's waiting flag: after a write, true means notify its doorbell
    ///
    /// The flag is cleared, so one sleep is answered once.
    pub fn take_peer_waiting(&mut self) -> bool {
        self.memory.control().consumer_waiting.take()
    }

    /// Announces that this side is about to sleep until there is space
    ///
    /// True: the ring is full and the consumer will notify the doorbell after its next read. False:
    /// there is space, and the announcement is withdrawn; the doorbell may be notified once without
    /// need.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn arm(&mut self) -> Result<bool, RingError> {
        self.memory.control().producer_waiting.set();
        let full = self.refresh().map(|()| self.free() == 0);
        if full != Ok(true) {
            self.disarm();
        }
        full
    }

    /// Withdraws the announcement of [`arm`](Self::arm)
    pub fn disarm(&mut self) {
        self.memory.control().producer_waiting.clear();
    }

    /// Capacity of the ring, in bytes
    pub fn capacity_bytes(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// Copies as much of `bytes` as fits, leaving less than a step unpublished
    pub(super) fn copy_in(&mut self, bytes: &[u8]) -> Result<usize, RingError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.free() == 0 {
                // The consumer may be waiting for bytes whose index is not published yet.
                self.publish();
                self.refresh()?;
                if self.free() == 0 {
                    break;
                }
            }
            let unpublished = self.head.wrapping_sub(self.published) as usize;
            let step_bytes = rest
                .len()
                .min(self.free() as usize)
                .min(self.step_bytes - unpublished);
            let (step, later) = rest.split_at(step_bytes);
            // SAFETY: the step is at most the free bytes, which start at `head`, and this is the
            // only producer (`new`). The consumer has read what was there: `refresh` acquired its
            // store of `tail`.
            unsafe { self.memory.copy_in(self.head, step) };
            self.head = self.head.wrapping_add(step.len() as u64);
            rest = later;
            if unpublished + step.len() == self.step_bytes {
                self.step_bytes = (2 * self.step_bytes).min(PUBLISH_BYTES_MAX);
                self.publish();
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Tells the consumer of what was copied
    fn publish(&mut self) {
        if self.published != self.head {
            // Release: pairs with the acquire load in `Consumer::refresh`, which then sees the
            // bytes.
            self.memory
                .control()
                .head
                .0
                .store(self.head, Ordering::Release);
            self.published = self.head;
        }
    }

    /// Reads the consumer's index and checks it before use
    fn refresh(&mut self) -> Result<(), RingError> {
        // Acquire: pairs with the release store in `Consumer::publish`, so that the consumer has
        // copied out what we overwrite next.
        let tail = self.memory.control().tail.0.load(Ordering::Acquire);
        // It lies between what it was and `published`: no further back, no further on. This
        // implies `head - tail <= capacity`, by the invariant.
        if self.published.wrapping_sub(tail) > self.published.wrapping_sub(self.tail) {
            return Err(RingError::Corrupt {
                head: self.published,
                tail,
                capacity: self.memory.capacity(),
            });
        }
        self.tail = tail;
        Ok(())
    }

    /// Free bytes, as far as we know
    fn free(&self) -> u64 {
        self.memory.capacity() - self.head.wrapping_sub(self.tail)
    }
}
