//! One direction of a simulated lane: bytes stay in order, take time, and may be cut.

use std::collections::VecDeque;

use crate::rng::Rng;

#[derive(Debug)]
pub(crate) struct Lane {
    /// Bytes under way with the time they come, which never goes back
    pieces: VecDeque<(u64, VecDeque<u8>)>,
    in_flight_bytes: usize,
    /// Bytes that may be under way; a write that exceeds it is partial
    capacity_bytes: usize,
    latency_ns_max: u64,
    fate: Fate,
}

/// Fate of bytes written from now on
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// They come
    Arrive,
    /// The lane is gone, which both ends notice after what was under way
    Cut,
    /// They vanish without a notice
    Vanish,
}

impl Lane {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        // Not both narrow and long: that lane would be busy with pings.
        let (capacity_bytes, latency_ns_max) = rng.pick(&[
            (5, 0),
            (40, 1_000),
            (300, 5_000),
            (5_000, 50_000),
            (100_000, 0),
            (100_000, 50_000),
        ]);
        Self {
            pieces: VecDeque::new(),
            in_flight_bytes: 0,
            capacity_bytes,
            latency_ns_max,
            fate: Fate::Arrive,
        }
    }

    /// Ends the lane; `lose` also what is under way
    pub(crate) fn end(&mut self, fate: Fate, lose: bool) {
        self.fate = fate;
        if lose {
            self.pieces.clear();
            self.in_flight_bytes = 0;
        }
    }

    /// Takes some of `bytes`, returning how many
    pub(crate) fn write(&mut self, now_ns: u64, bytes: &[u8], rng: &mut Rng) -> usize {
        if self.fate != Fate::Arrive {
            return bytes.len();
        }
        let room = bytes.len().min(self.capacity_bytes - self.in_flight_bytes);
        let count = if room > 1 && rng.chance(30) {
            rng.between(1, room as u64) as usize
        } else {
            room
        };
        if count > 0 {
            let earliest = self.pieces.back().map_or(0, |piece| piece.0);
            let at = (now_ns + rng.between(0, self.latency_ns_max)).max(earliest);
            self.pieces
                .push_back((at, bytes[..count].iter().copied().collect()));
            self.in_flight_bytes += count;
        }
        count
    }

    /// Takes at most `bytes_max` bytes that have come
    pub(crate) fn read(&mut self, now_ns: u64, bytes_max: usize) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some((at, piece)) = self.pieces.front_mut()
            && *at <= now_ns
            && read.len() < bytes_max
        {
            let count = piece.len().min(bytes_max - read.len());
            read.extend(piece.drain(..count));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        self.in_flight_bytes -= read.len();
        read
    }

    /// When the next bytes come
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.pieces.front().map(|piece| piece.0)
    }

    /// Returns whether the reader knows that nothing will come
    pub(crate) fn is_at_end(&self) -> bool {
        self.fate == Fate::Cut && self.pieces.is_empty()
    }
}
