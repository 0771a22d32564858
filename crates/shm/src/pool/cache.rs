//! Which blocks are kept, and the counts

use std::collections::VecDeque;

use super::block::SMALL_BYTES_MAX;
use super::{Block, PoolStatistics, SizeClass};

/// Unused blocks, and what is known of those in use
///
/// Invariant: `statistics.cached_bytes` is the sum over `classes` of their sizes, `kept_bytes` of what
/// they take, and at most `cached_bytes_max`.
#[derive(Debug)]
pub(super) struct Cache {
    /// Bound on what unused blocks take, in bytes
    cached_bytes_max: usize,
    /// Memory of the unused blocks, in bytes
    kept_bytes: usize,
    /// Unused blocks of each class, the one returned last at the back
    classes: Box<[VecDeque<Unused>]>,
    /// Blocks ever returned
    returns: u64,
    statistics: PoolStatistics,
}

impl Cache {
    pub(super) fn new(cached_bytes_max: usize) -> Self {
        Self {
            cached_bytes_max,
            kept_bytes: 0,
            classes: (0..SizeClass::COUNT).map(|_| VecDeque::new()).collect(),
            returns: 0,
            statistics: PoolStatistics::default(),
        }
    }

    /// Takes the block of a class that was used last, which is likeliest to be in a processor's
    /// cache; none counts as a miss, and the caller allocates one or calls [`forget`](Self::forget)
    pub(super) fn take(&mut self, class: SizeClass) -> Option<Block> {
        let statistics = &mut self.statistics;
        statistics.live_bytes += class.bytes();
        statistics.peak_bytes = statistics.peak_bytes.max(statistics.live_bytes);
        let unused = self.classes[class.index()].pop_back();
        if unused.is_some() {
            self.kept_bytes -= kept_bytes(class);
            statistics.cached_bytes -= class.bytes();
            statistics.hits += 1;
        } else {
            statistics.misses += 1;
        }
        unused.map(|unused| unused.block)
    }

    /// Undoes the count of a block that could not be allocated
    pub(super) fn forget(&mut self, class: SizeClass) {
        self.statistics.live_bytes -= class.bytes();
    }

    /// Keeps a block that is no longer used if `keep`, returning those to free for it
    ///
    /// A block without memory, or one above the bound, is returned itself, since to keep it would
    /// displace all the others; so is one that there is no memory to list.
    #[must_use = "dropping blocks takes long: release the lock first"]
    pub(super) fn put(&mut self, block: Block, keep: bool) -> Surplus {
        let bytes = block.class().bytes();
        self.statistics.live_bytes -= bytes;
        let mut surplus = Surplus::default();
        let class = &mut self.classes[block.class().index()];
        let kept_bytes = kept_bytes(block.class());
        let is_kept = keep && bytes > 0 && kept_bytes <= self.cached_bytes_max;
        if !is_kept || class.try_reserve(1).is_err() {
            surplus.first = Some(block);
            return surplus;
        }
        self.kept_bytes += kept_bytes;
        self.statistics.cached_bytes += bytes;
        class.push_back(Unused {
            returned: self.returns,
            block,
        });
        self.returns += 1;
        while self.kept_bytes > self.cached_bytes_max {
            surplus.add(self.evict());
        }
        surplus
    }

    pub(super) fn statistics(&self) -> PoolStatistics {
        self.statistics
    }

    /// Removes the block that was returned first
    fn evict(&mut self) -> Option<Block> {
        // The fronts are the oldest of each class. Linear in the classes, and followed by an
        // `munmap`, which takes longer.
        let oldest = self
            .classes
            .iter_mut()
            .filter(|class| !class.is_empty())
            .min_by_key(|class| class.front().map(|unused| unused.returned))?;
        let block = oldest.pop_front()?.block;
        self.kept_bytes -= kept_bytes(block.class());
        self.statistics.cached_bytes -= block.class().bytes();
        Some(block)
    }
}

/// Blocks to free: one, as a rule
#[derive(Debug, Default)]
pub(super) struct Surplus {
    first: Option<Block>,
    more: Vec<Block>,
}

impl Surplus {
    fn add(&mut self, block: Option<Block>) {
        if self.first.is_none() {
            self.first = block;
        } else if self.more.try_reserve(1).is_ok() {
            self.more.extend(block);
        } // Else it is dropped here: better under the lock than never.
    }
}

/// A kept block
#[derive(Debug)]
struct Unused {
    /// `Cache::returns` when it came back
    returned: u64,
    block: Block,
}

/// Returns the memory that an unused block takes, in bytes
fn kept_bytes(class: SizeClass) -> usize {
    match class.bytes() {
        bytes @ ..=SMALL_BYTES_MAX => bytes + SMALL_OVERHEAD_BYTES,
        bytes => bytes,
    }
}

/// Memory that the heap adds to a small block, for its alignment, and the list of unused blocks
///
/// Measured with glibc: a million blocks of 64 bytes took 218 bytes each with their buffers, and
/// about 35 more once they were unused.
const SMALL_OVERHEAD_BYTES: usize = 160;
