//! The bounds: which cached blocks give way, and to what

use super::{Blocks, Class, DeferredWork};
use crate::arena::{Demand, Kept};
use crate::size_class::SizeClass;

impl Blocks {
    /// Gives up the blocks cached for longest, until at most `cached_bytes` are left
    pub(in crate::arena) fn shrink(&mut self, cached_bytes: usize, deferred: &mut DeferredWork) {
        while self.statistics.cached_bytes > cached_bytes {
            self.evict(deferred);
        }
    }

    /// Changes the bound, and gives up cached blocks that exceed the new one
    pub(in crate::arena) fn set_bytes_max(
        &mut self,
        bytes_max: usize,
        deferred: &mut DeferredWork,
    ) {
        self.bytes_max = bytes_max;
        self.shrink(self.cached_bytes_max(), deferred);
    }

    /// Changes how much is kept for the sake of cached blocks, and gives up those beyond
    pub(in crate::arena) fn set_kept(&mut self, kept: Kept, deferred: &mut DeferredWork) {
        self.kept = kept;
        self.shrink(self.cached_bytes_max(), deferred);
    }

    /// Returns the use since the last call, and begins to count anew
    pub(in crate::arena) fn take_demand(&mut self) -> Demand {
        let used_bytes = self.used_bytes();
        let begun = Demand {
            used_bytes,
            used_peak_bytes: used_bytes,
            taken_bytes: 0,
        };
        let ended = std::mem::replace(&mut self.demand, begun);
        Demand {
            used_bytes,
            ..ended
        }
    }

    /// Counts a block that was handed out
    pub(super) fn count_taken(&mut self, bytes: usize) {
        let used_bytes = self.used_bytes();
        let demand = &mut self.demand;
        demand.taken_bytes = demand.taken_bytes.saturating_add(bytes);
        demand.used_peak_bytes = demand.used_peak_bytes.max(used_bytes);
    }

    /// Bytes that could be cached beside another live block of a class, and nothing evicted
    pub(super) fn spare_bytes(&self, class: SizeClass) -> usize {
        let used_bytes = self.used_bytes() + class.bytes();
        self.cached_bytes_max_beside(used_bytes)
            .saturating_sub(self.statistics.cached_bytes)
    }

    /// Most bytes of cached blocks beside those that are in use now
    pub(super) fn cached_bytes_max(&self) -> usize {
        self.cached_bytes_max_beside(self.used_bytes())
    }

    /// Most bytes of cached blocks beside so many bytes in use
    fn cached_bytes_max_beside(&self, used_bytes: usize) -> usize {
        let left_bytes = self.bytes_max.saturating_sub(used_bytes);
        // Below the most that was in use lately, cached blocks take no memory that was not needed.
        let peak_bytes = self.kept.committed_bytes.max(match self.kept.floor_bytes {
            0 => 0,
            _ => self.demand.used_peak_bytes,
        });
        let kept_bytes = peak_bytes.saturating_sub(used_bytes);
        left_bytes
            .min(self.config.cached_bytes_max)
            .min(kept_bytes.max(self.kept.floor_bytes))
    }

    /// Bytes of the blocks that the arena cannot give back
    fn used_bytes(&self) -> usize {
        self.committed_bytes() - self.statistics.cached_bytes
    }

    /// Evicts cached blocks until one of `bytes` bytes keeps within the bound, returning whether it
    /// does
    pub(super) fn make_room(&mut self, bytes: usize, deferred: &mut DeferredWork) -> bool {
        let used_bytes = self.used_bytes();
        if bytes > self.bytes_max.saturating_sub(used_bytes) {
            return false;
        }
        self.shrink(self.cached_bytes_max_beside(used_bytes + bytes), deferred);
        true
    }

    /// Gives up the block that has been cached for longest
    fn evict(&mut self, deferred: &mut DeferredWork) {
        let oldest = self
            .oldest()
            .and_then(|class| class.cached.pop_front())
            .expect("cached bytes are those of the cached blocks");
        self.statistics.cached_bytes -= self.bytes(oldest.block);
        self.trim(oldest.block, deferred);
    }

    /// The class of the block that has been cached for longest, its first
    fn oldest(&mut self) -> Option<&mut Class> {
        // The fronts are the oldest of each class. Linear in the classes, and followed by a system
        // call, which takes longer.
        self.classes
            .iter_mut()
            .filter(|class| !class.cached.is_empty())
            .min_by_key(|class| class.cached.front().map(|cached| cached.freed))
    }
}
