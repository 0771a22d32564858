//! Which blocks are kept, and the counts

use std::collections::VecDeque;

use super::{Block, PoolStatistics, SizeClass};

/// Unused blocks, and what is known of those in use
///
/// Invariant: `statistics.cached_bytes` is the sum over `classes` and at most `cached_bytes_max`.
#[derive(Debug)]
pub(super) struct Cache {
    /// Bound on the bytes of unused blocks
    cached_bytes_max: usize,
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

    /// Keeps a block that is no longer used, returning those to free for it
    ///
    /// A block without memory, or one above the bound, is returned itself, rather than have it displace all the others.
    #[must_use = "dropping blocks takes long: release the lock first"]
    pub(super) fn put(&mut self, block: Block) -> Vec<Block> {
        let bytes = block.class().bytes();
        self.statistics.live_bytes -= bytes;
        if bytes == 0 || bytes > self.cached_bytes_max {
            return vec![block];
        }
        self.statistics.cached_bytes += bytes;
        let class = block.class().index();
        self.classes[class].push_back(Unused {
            returned: self.returns,
            block,
        });
        self.returns += 1;
        let mut surplus = Vec::new();
        while self.statistics.cached_bytes > self.cached_bytes_max {
            surplus.extend(self.evict());
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
        self.statistics.cached_bytes -= block.class().bytes();
        Some(block)
    }
}

/// A kept block
#[derive(Debug)]
struct Unused {
    /// `Cache::returns` when it came back
    returned: u64,
    block: Block,
}
