//! Hash tables for keys and numbers of programs that are trusted to run code here anyway.
//!
//! A multiply and a rotation for each 8 bytes, as in the hasher of the Rust compiler (`rustc-hash`);
//! no protection from keys that were chosen to collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<QuickHasher>>;
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<QuickHasher>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct QuickHasher(u64);

impl QuickHasher {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(MULTIPLIER);
    }

    /// 32 bits, each of which depends on all that was written
    pub(crate) fn finish_mixed(&self) -> u32 {
        (self.finish().wrapping_mul(MULTIPLIER) >> 32) as u32
    }
}

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        // The table takes its place from the low bits and its tag from the high ones: both need
        // what multiplication moved upwards.
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

/// The constant of `rustc-hash` 2 for 64 bits
const MULTIPLIER: u64 = 0xf135_7aea_2e62_a9c5;
