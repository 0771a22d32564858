//! Counts of an arena, and how much it keeps by demand

use super::Arena;

/// Snapshot of an arena
///
/// Sizes of blocks are those of their classes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ArenaStatistics {
    /// Bytes of the blocks that are handed out
    pub live_bytes: usize,
    /// Bytes of the blocks that peers have leases on or that forked children inherited, live or freed
    pub leased_bytes: usize,
    /// Bytes of the blocks that are freed, but leased or inherited
    pub orphaned_bytes: usize,
    /// Bytes of the blocks that are freed and used no more, since a peer may have them for ever
    pub abandoned_bytes: usize,
    /// Bytes of the free blocks that keep their pages
    pub cached_bytes: usize,
    /// Bytes of the blocks that are copy-on-write, whatever their use: each of their pages may be
    /// mapped twice in this process, and so count twice in its resident size
    pub copy_on_write_bytes: usize,
    /// Bytes of all segments, with the blocks that have no pages
    pub mapped_bytes: usize,
    /// Largest `live_bytes` there has been
    pub peak_bytes: usize,
    /// Blocks served with their pages
    pub hits: u64,
    /// Blocks that needed pages from the system
    pub misses: u64,
    /// Requests that were large enough, and refused by the bound or by the system
    pub refused: u64,
}

/// Use of an arena since it was asked for last ([`Arena::adjust_kept`])
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Demand {
    /// Bytes of the blocks that the arena cannot give back now: handed out, lent or abandoned
    pub used_bytes: usize,
    /// Most of them at one moment
    pub used_peak_bytes: usize,
    /// Bytes of the blocks that were handed out
    pub taken_bytes: usize,
}

/// Memory that an arena keeps for the sake of free blocks
///
/// The bounds of [`ArenaConfig`](super::ArenaConfig) hold besides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Free blocks keep their pages while these and the blocks in use have at most so many bytes,
    /// or as many as the blocks in use have had since [`Arena::adjust_kept`]
    pub committed_bytes: usize,
    /// Free blocks keep so many bytes in any case; if it is 0, none beyond `committed_bytes`
    pub floor_bytes: usize,
}

impl Default for Kept {
    /// No bound
    fn default() -> Self {
        Self {
            committed_bytes: usize::MAX,
            floor_bytes: usize::MAX,
        }
    }
}

impl Arena {
    /// Chooses by the use since the last call how much memory is kept for the sake of free blocks
    ///
    /// Cached blocks beyond give their pages back before this method returns. From then on an
    /// allocation gives up cached blocks of other sizes rather than exceed the choice. `choose` runs
    /// under the lock of the arena: it must be short, and must not allocate from the arena.
    pub fn adjust_kept(&self, choose: impl FnOnce(Demand) -> Kept) {
        // Leases that were returned free their blocks.
        self.shared.sweep();
        self.shared.defer(|blocks, deferred| {
            let kept = choose(blocks.take_demand());
            blocks.set_kept(kept, deferred);
        });
    }
}
