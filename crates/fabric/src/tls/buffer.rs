//! Memory for records on their way, shared by all sessions of a process: most have nothing on the way.

use std::sync::Mutex;

use backhaul_sys::forks::PerProcess;

use crate::runtime::lock;

/// Bytes of a record or of many, some of which have been dealt with
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Buffers that wait to be used
static SPARE: PerProcess<Mutex<Vec<Box<[u8]>>>> = PerProcess::new();

impl Buffer {
    /// An empty one, without memory until there is something to hold
    pub(super) fn new() -> Self {
        Self {
            bytes: Box::default(),
            start: 0,
            end: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the bytes in the buffer
    pub(super) fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// As [`filled`](Self::filled), to be looked at
    pub(super) fn filled_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Makes room for so many bytes, which is more than there usually is
    pub(super) fn reserve(&mut self, bytes: usize) {
        let mut larger = vec![0; self.end - self.start + bytes].into_boxed_slice();
        larger[..self.end - self.start].copy_from_slice(self.filled_ref());
        (self.start, self.end) = (0, self.end - self.start);
        self.bytes = larger;
    }

    /// Room behind what is in it: as much as can be had
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            let spare = lock(SPARE.value()).pop();
            self.bytes = spare.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice());
        }
        // Little is left of a buffer that was full: a record that has not come completely.
        if self.start > 0 && self.bytes.len() - self.end < RECORD_BYTES_MAX {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// Counts bytes of the room as filled
    pub(super) fn fill(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// Drops bytes off the front; without any left, its memory is another's to use
    pub(super) fn drop_front(&mut self, bytes: usize) {
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            self.release();
        }
    }

    /// Gives back memory in which nothing is
    pub(super) fn release(&mut self) {
        if !self.is_empty() {
            return;
        }
        (self.start, self.end) = (0, 0);
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() != BUFFER_BYTES {
            return;
        }
        let mut spare = lock(SPARE.value());
        if spare.len() < SPARE_MAX {
            spare.push(bytes);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.start = self.end;
        self.release();
    }
}

/// Copies bytes, in pieces where one `memcpy` may be slow
pub(super) fn copy(from: &[u8], to: &mut [u8]) {
    if !copies_slowly(from.as_ptr().addr(), to.as_ptr().addr(), from.len()) {
        return to.copy_from_slice(from);
    }
    for (from, to) in from.chunks(PIECE_BYTES).zip(to.chunks_mut(PIECE_BYTES)) {
        to.copy_from_slice(from);
    }
}

/// Returns whether `memcpy` of so many bytes is slow from one address to another
///
/// Up to release 2.39 `memcpy` of glibc takes `rep movsb` for 4 KiB and more on Zen 3 and Zen 4,
/// where that is twenty times slower if the target is less than 64 bytes ahead in its page (bug 30994
/// of glibc; 16 KiB in the cache of a Zen 3: 8.8 against 0.4 us).
pub(super) fn copies_slowly(from: usize, to: usize, bytes: usize) -> bool {
    bytes >= 4096 && (1..64).contains(&(to.wrapping_sub(from) % 4096))
}

/// Shorter than what `memcpy` copies with `rep movsb`
const PIECE_BYTES: usize = 2 << 10;

/// Sixteen records: what one call of the system moves, and fits the cache of a core
const BUFFER_BYTES: usize = 272 << 10;

/// A record at its largest, with room to spare: 16 KiB, a header, and what a cipher adds, which TLS 1.2
/// limits to 2 KiB
const RECORD_BYTES_MAX: usize = (16 << 10) + 5 + 2048;

/// Buffers kept: more than the threads that move data at once
const SPARE_MAX: usize = 8;
