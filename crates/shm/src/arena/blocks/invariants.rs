//! Checks that the counts and lists are those of the blocks themselves

use super::{ArenaStatistics, BlockId, Blocks, Usage};

impl Blocks {
    /// Compares the counts and lists with the blocks themselves
    pub(in crate::arena) fn check_invariants(&self) {
        let mut expected = ArenaStatistics {
            peak_bytes: self.statistics.peak_bytes,
            hits: self.statistics.hits,
            misses: self.statistics.misses,
            refused: self.statistics.refused,
            ..ArenaStatistics::default()
        };
        for (base, segment) in &self.segments {
            let bytes = segment.class.bytes();
            let class = &self.classes[segment.class.index()];
            expected.mapped_bytes += segment.memory.mapping().bytes();
            let mut idle = segment.count - segment.blocks.len();
            for (index, block) in segment.blocks.iter().enumerate() {
                if block.leases > 0 {
                    expected.leased_bytes += bytes;
                }
                if block.is_copy_on_write {
                    expected.copy_on_write_bytes += bytes;
                }
                let listed = class
                    .cached
                    .iter()
                    .filter(|cached| cached.block == BlockId { base: *base, index })
                    .count();
                assert_eq!(listed, usize::from(block.usage == Usage::Cached));
                assert_eq!(
                    segment.cold.contains(&index),
                    block.usage == Usage::Cold,
                    "{block:?}"
                );
                match block.usage {
                    Usage::Cold => idle += 1,
                    Usage::Cached => {
                        expected.cached_bytes += bytes;
                        assert!(!block.abandoned && !segment.draining);
                        assert!(!block.is_copy_on_write && !block.is_constant);
                    }
                    Usage::Trimming => {}
                    Usage::Live => expected.live_bytes += bytes,
                    Usage::Freed => {
                        assert!(block.leases > 0);
                        expected.orphaned_bytes += bytes;
                    }
                    Usage::Retired => {
                        assert!(block.abandoned && segment.draining);
                        expected.abandoned_bytes += bytes;
                        idle += 1;
                    }
                }
            }
            assert_eq!(segment.idle, idle);
            assert!(idle < segment.count, "an idle segment stays");
            assert_eq!(
                class.cold.contains(base),
                segment.has_cold() && !segment.draining
            );
        }
        assert_eq!(self.statistics, expected);
        assert!(expected.cached_bytes <= self.config.cached_bytes_max);
        assert!(self.committed_bytes() <= self.bytes_max || expected.cached_bytes == 0);
        assert!(expected.cached_bytes <= self.cached_bytes_max());
        for class in &self.classes {
            let freed = class.cached.iter().map(|cached| cached.freed);
            assert!(freed.is_sorted_by(|a, b| a < b));
        }
    }
}
