//! The bounds: which cached blocks give way, and to what

use std::time::Instant;

use super::{Blocks, Class, DeferredWork};
use crate::size_class::SizeClass;

impl Blocks {
    /// Gives up the blocks cached for longest, until at most `cached_bytes` are left
    pub(in crate::arena) fn shrink(&mut self, cached_bytes: usize, deferred: &mut DeferredWork) {
        while self.statistics.cached_bytes > cached_bytes {
            self.evict(deferred);
        }
    }

    /// As [`shrink`](Self::shrink), but only blocks that have been cached since `since` or longer
    pub(in crate::arena) fn shrink_idle(
        &mut self,
        cached_bytes: usize,
        since: Instant,
        deferred: &mut DeferredWork,
    ) {
        while self.statistics.cached_bytes > cached_bytes
            && self
                .oldest()
                .is_some_and(|class| class.cached[0].since <= since)
        {
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

    /// Bytes that could be cached beside another live block of a class, and nothing evicted
    pub(super) fn spare_bytes(&self, class: SizeClass) -> usize {
        let bounded = self.bytes_max - self.committed_bytes() - class.bytes();
        bounded.min(self.config.cached_bytes_max - self.statistics.cached_bytes)
    }

    /// Most bytes of cached blocks beside those that are in use now
    pub(super) fn cached_bytes_max(&self) -> usize {
        let used_bytes = self.committed_bytes() - self.statistics.cached_bytes;
        let left_bytes = self.bytes_max.saturating_sub(used_bytes);
        left_bytes.min(self.config.cached_bytes_max)
    }

    /// Evicts cached blocks until one of `bytes` bytes keeps within the bound, returning whether it
    /// does
    pub(super) fn make_room(&mut self, bytes: usize, deferred: &mut DeferredWork) -> bool {
        let kept_bytes = self.committed_bytes() - self.statistics.cached_bytes;
        if bytes > self.bytes_max.saturating_sub(kept_bytes) {
            return false;
        }
        while self.committed_bytes() > self.bytes_max - bytes {
            self.evict(deferred);
        }
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
