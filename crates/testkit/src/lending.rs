//! Two endpoints, of which one has an arena and lends from it.

use backhaul::{Arena, ArenaConfig, Bytes, Config, Endpoint, Message, Segments, Tag, TagMask};

use crate::{Finish, Harness, Pair, assert_becomes, pattern};

/// Two connected endpoints, `near` with an arena whose blocks it lends on lanes within the host
#[derive(Debug)]
pub struct Lending {
    /// The endpoints; `far` has no arena
    pub pair: Pair,
    /// The arena of `near`
    pub arena: Arena,
    /// True if the lane lends
    pub lends: bool,
}

impl Harness {
    /// Connected endpoints, of which `near` has an arena
    pub fn lending(&self) -> Lending {
        self.lending_with(|_| {})
    }

    /// Connected endpoints, the configuration of both changed, and `near` given an arena
    pub fn lending_with(&self, change: impl Fn(&mut Config)) -> Lending {
        let arena = Arena::new(ArenaConfig::default());
        let near = self.context_with(|config| {
            change(config);
            config.arena = Some(arena.clone());
        });
        let far = self.context_with(change);
        Lending {
            pair: self.pair_of(near, far),
            arena,
            lends: self.lends(),
        }
    }
}

impl Lending {
    /// A block of [`BLOCK_BYTES`] that shows where each byte belongs
    pub fn block(&self, seed: u64) -> Bytes {
        block(&self.arena, seed, BLOCK_BYTES)
    }

    /// Sends a message from `near` to `far`, returning what arrived
    pub fn deliver(&self, segments: impl IntoIterator<Item = Bytes>) -> Message {
        deliver(&self.pair.near, &self.pair.far, segments)
    }

    /// Asserts how many blocks of [`BLOCK_BYTES`] are in use, lent, and lent but freed
    ///
    /// On a lane that lends none, only the first counts.
    #[track_caller]
    pub fn assert_blocks(&self, live: usize, leased: usize, orphaned: usize) {
        let lent = usize::from(self.lends);
        assert_becomes(
            || blocks(&self.arena),
            &(live, leased * lent, orphaned * lent),
        );
    }

    /// Asserts that no block is in use or lent
    #[track_caller]
    pub fn assert_all_back(&self) {
        let counts = || {
            let found = self.arena.statistics();
            (found.live_bytes, found.leased_bytes)
        };
        assert_becomes(counts, &(0, 0));
    }

    /// Returns whether the block that was freed last is this one, which so has no holder
    pub fn would_reuse(&self, block: *const u8) -> bool {
        self.arena.take(BLOCK_BYTES).unwrap().as_ptr() == block
    }
}

/// A block of an arena, filled with a pattern, freed with its last clone
pub fn block(arena: &Arena, seed: u64, bytes: usize) -> Bytes {
    let mut memory = arena.take(bytes).unwrap();
    memory.copy_from_slice(&pattern::make(seed, bytes));
    Bytes::from_owner(memory)
}

/// Blocks of [`BLOCK_BYTES`] that are in use, lent, and lent but freed
pub fn blocks(arena: &Arena) -> (usize, usize, usize) {
    let found = arena.statistics();
    (
        found.live_bytes / BLOCK_BYTES,
        found.leased_bytes / BLOCK_BYTES,
        found.orphaned_bytes / BLOCK_BYTES,
    )
}

/// Sends a message as shared, returning what arrived
pub fn deliver(
    from: &Endpoint,
    to: &Endpoint,
    segments: impl IntoIterator<Item = Bytes>,
) -> Message {
    let posted = to.recv_message(Tag(1), TagMask::FULL);
    let segments = Segments::from_iter(segments);
    from.send_segments_shared(Tag(1), segments).done().unwrap();
    posted.done().unwrap()
}

/// Size of the blocks that are lent; just that of a size class
pub const BLOCK_BYTES: usize = 256 << 10;
