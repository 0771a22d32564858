//! A simulated lane: bytes on their way in one direction, and their effect at the receiver.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use backhaul::Limits;
use backhaul_proto::{FrameDecoder, FrameKind, MessageKind};

use crate::random::Random;

/// One direction of a lane
#[derive(Debug)]
pub(super) struct Wire {
    /// Bytes on their way, with the time at which they arrive, in order
    chunks: VecDeque<(u64, Vec<u8>)>,
    in_flight: usize,
    capacity: usize,
    delay_max: u64,
    arrives_at: u64,
    /// The writer has released it
    pub(super) is_written_off: bool,
    /// The reader has released it
    pub(super) is_read_off: bool,
    /// Reads and writes fail
    pub(super) is_broken: bool,
    /// Nothing arrives any more
    pub(super) is_silent: bool,
    /// Something on it was changed on the way
    pub(super) is_corrupt: bool,
    tap: Tap,
}

/// Result of a read or write
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Moved {
    Bytes(usize),
    Blocked,
    End,
    Broken,
}

/// The start of a message, as its receiver sees it
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) message: u64,
    pub(super) kind: MessageKind,
    pub(super) bytes: u64,
    pub(super) is_eager: bool,
}

/// Follows the frames in the bytes that a receiver gets
#[derive(Debug)]
struct Tap {
    decoder: FrameDecoder,
    limits: Limits,
    /// Bytes of payload before the next frame
    skip: usize,
    starts: VecDeque<Start>,
    has_closed: bool,
    is_lost: bool,
}

impl Wire {
    /// A wire that holds so many bytes, to a receiver with those limits
    pub(super) fn new(capacity: usize, delay_max: u64, limits: &Limits) -> Self {
        Self {
            chunks: VecDeque::new(),
            in_flight: 0,
            capacity,
            delay_max,
            arrives_at: 0,
            is_written_off: false,
            is_read_off: false,
            is_broken: false,
            is_silent: false,
            is_corrupt: false,
            tap: Tap {
                decoder: FrameDecoder::new(),
                limits: limits.clone(),
                skip: 0,
                starts: VecDeque::new(),
                has_closed: false,
                is_lost: false,
            },
        }
    }

    /// Bytes that a write would take now
    pub(super) fn room(&self) -> usize {
        self.capacity - self.in_flight.min(self.capacity)
    }

    /// When the next bytes arrive
    pub(super) fn next_arrival(&self) -> Option<u64> {
        if self.is_silent || self.is_read_off {
            return None;
        }
        self.chunks.front().map(|(at, _)| *at)
    }

    /// Sends what fits, at most `bytes_max` bytes
    pub(super) fn write(
        &mut self,
        now: u64,
        random: &mut Random,
        slices: &[IoSlice<'_>],
        bytes_max: usize,
    ) -> Moved {
        if self.is_broken || self.is_read_off {
            return Moved::Broken;
        }
        let mut room = self.room().min(bytes_max);
        let mut taken = Vec::new();
        for slice in slices {
            let part = &slice[..room.min(slice.len())];
            taken.extend_from_slice(part);
            room -= part.len();
        }
        if taken.is_empty() {
            return Moved::Blocked;
        }
        let bytes = taken.len();
        self.in_flight += bytes;
        let arrives_at = now + random.below(self.delay_max as usize + 1) as u64;
        self.arrives_at = self.arrives_at.max(arrives_at);
        self.chunks.push_back((self.arrives_at, taken));
        Moved::Bytes(bytes)
    }

    /// Fills the buffers with what has arrived, at most `bytes_max` bytes
    pub(super) fn read(
        &mut self,
        now: u64,
        targets: &mut [IoSliceMut<'_>],
        bytes_max: usize,
    ) -> Moved {
        if self.is_broken {
            return Moved::Broken;
        }
        let mut filled = 0;
        for target in targets {
            let mut at = 0;
            while at < target.len() && filled < bytes_max {
                let Some((arrives_at, chunk)) = self.chunks.front_mut() else {
                    break;
                };
                if *arrives_at > now || self.is_silent {
                    break;
                }
                let bytes = chunk.len().min(target.len() - at).min(bytes_max - filled);
                target[at..at + bytes].copy_from_slice(&chunk[..bytes]);
                self.tap.follow(&chunk[..bytes]);
                chunk.drain(..bytes);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                at += bytes;
                filled += bytes;
            }
        }
        self.in_flight -= filled;
        match filled {
            0 if self.chunks.is_empty() && self.is_written_off => Moved::End,
            0 => Moved::Blocked,
            filled => Moved::Bytes(filled),
        }
    }

    /// The next start of a message among the bytes that were read
    pub(super) fn poll_start(&mut self) -> Option<Start> {
        self.tap.starts.pop_front()
    }

    /// Returns whether the sender has said that nothing more comes, among the bytes that were read
    pub(super) fn has_closed(&self) -> bool {
        self.tap.has_closed
    }

    /// Changes some bytes on their way, returning whether there were any
    pub(super) fn corrupt(&mut self, random: &mut Random) -> bool {
        if self.chunks.is_empty() {
            return false;
        }
        self.is_corrupt = true;
        for _ in 0..=random.below(3) {
            let chunk = random.below(self.chunks.len());
            let chunk = &mut self.chunks[chunk].1;
            // The first bytes of what was written at once are often those of a header.
            let near = [chunk.len(), chunk.len().min(32)][random.below(2)];
            let at = random.below(near);
            chunk[at] = match random.below(3) {
                0 => random.below(14) as u8,
                1 => chunk[at] ^ 1 << random.below(8),
                _ => random.bits() as u8,
            };
        }
        true
    }

    /// Loses what is on its way
    pub(super) fn lose(&mut self) {
        self.chunks.clear();
        self.in_flight = 0;
    }
}

impl Tap {
    fn follow(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_lost {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let Ok((used, frame)) = self.decoder.handle(&self.limits, bytes) else {
                self.is_lost = true;
                return;
            };
            bytes = &bytes[used..];
            let Some(frame) = frame else {
                continue;
            };
            let header = frame.header;
            if header.kind.carries_payload() {
                self.skip = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
            }
            self.has_closed |= header.kind == FrameKind::Close;
            if header.kind.starts_message() {
                self.starts.push_back(Start {
                    message: header.message,
                    kind: header.message_kind(),
                    bytes: header.payload_bytes,
                    is_eager: header.kind == FrameKind::Eager,
                });
            }
        }
    }
}
