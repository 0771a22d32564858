//! Which blocks there are, and who uses each
//!
//! Only bookkeeping: it unmaps and gives back nothing, but says in [`DeferredWork`] what is to be
//! done once the lock is released. The exception is in `copy_on_write.rs`.

mod bounds;
mod copy_on_write;
#[cfg(test)]
mod invariants;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;

use super::memory::Memory;
use super::segment::{Block, Segment, Usage};
use super::{ArenaConfig, ArenaStatistics, Demand, Kept};
use crate::mapping::HUGE_PAGE_BYTES;
use crate::size_class::SizeClass;

/// Every segment of an arena, its blocks, and the counts
///
/// ```text
///         take            free, leased          last lease back
/// cold ─────────► live ───────────────► freed ──────────────────► cached ───► cold
///   cached ─────►      ─────────────────────────────────────────►      trimming
/// ```
///
/// An abandoned block is retired instead of cached, and stays so until its segment goes.
///
/// Invariant: `live + orphaned + abandoned + cached` bytes are at most `bytes_max`, or `cached` bytes
/// are 0, after the bound was lowered; `cached` bytes are at most `cached_bytes_max`. A segment whose
/// blocks are all cold or retired is not here.
#[derive(Debug)]
pub(super) struct Blocks {
    config: ArenaConfig,
    /// Bound in force; `config` has the first one, from which the sizes of segments follow
    pub(super) bytes_max: usize,
    kept: Kept,
    /// Since [`Blocks::take_demand`] was called last
    demand: Demand,
    /// By address
    segments: BTreeMap<usize, Segment>,
    classes: Box<[Class]>,
    /// Blocks ever cached
    frees: u64,
    statistics: ArenaStatistics,
}

impl Blocks {
    pub(super) fn new(config: ArenaConfig) -> Self {
        Self {
            config,
            bytes_max: config.bytes_max,
            kept: Kept::default(),
            demand: Demand::default(),
            segments: BTreeMap::new(),
            classes: (0..SizeClass::COUNT).map(|_| Class::default()).collect(),
            frees: 0,
            statistics: ArenaStatistics::default(),
        }
    }

    /// Takes the cached block of a class that was used last
    pub(super) fn take_cached(&mut self, class: SizeClass) -> Option<NonNull<u8>> {
        let Cached { block, .. } = self.classes[class.index()].cached.pop_back()?;
        self.statistics.cached_bytes -= class.bytes();
        self.statistics.hits += 1;
        Some(self.make_live(block))
    }

    /// Takes a cold block of a class, for which other classes give up their cached blocks if the
    /// bound demands it
    pub(super) fn take_cold(&mut self, class: SizeClass, deferred: &mut DeferredWork) -> Cold {
        if !self.make_room(class.bytes(), deferred) {
            self.statistics.refused += 1;
            return Cold::Refused;
        }
        let Some(base) = self.classes[class.index()].cold.first().copied() else {
            return Cold::NeedsSegment {
                bytes: self.segment_bytes(class),
            };
        };
        self.statistics.misses += 1;
        Cold::Taken(self.open(base))
    }

    /// Adds a segment and takes its first block, or returns it if the bound has been reached
    /// meanwhile
    pub(super) fn adopt(
        &mut self,
        class: SizeClass,
        memory: Memory,
        deferred: &mut DeferredWork,
    ) -> Result<Fresh, Memory> {
        if !self.make_room(class.bytes(), deferred) {
            self.statistics.refused += 1;
            return Err(memory);
        }
        let bytes = memory.mapping().bytes();
        let base = memory.base();
        self.statistics.mapped_bytes += bytes;
        let of_class = &mut self.classes[class.index()];
        of_class.mapped_bytes += bytes;
        of_class.cold.insert(base);
        let replaced = self.segments.insert(base, Segment::new(memory, class));
        assert!(replaced.is_none(), "two segments mapped at {base:#x}");
        self.statistics.misses += 1;
        Ok(self.open(base))
    }

    /// Counts an allocation that the system refused
    pub(super) fn refuse(&mut self) {
        self.statistics.refused += 1;
    }

    /// Ends the use of a live block by its owner, if there is one that starts at `address`
    pub(super) fn free(&mut self, address: usize, deferred: &mut DeferredWork) -> bool {
        let Some(block) = self.live_block_at(address) else {
            return false;
        };
        let bytes = self.bytes(block);
        self.statistics.live_bytes -= bytes;
        let entry = self.entry(block);
        entry.usage = Usage::Freed;
        if entry.leases > 0 {
            self.statistics.orphaned_bytes += bytes;
        } else {
            self.settle(block, deferred);
        }
        true
    }

    /// Returns true if a range lies in a live block
    pub(super) fn holds(&self, address: usize, bytes: usize) -> bool {
        self.find_live(address, bytes).is_some()
    }

    /// Promises that the owner of the live block at `address` writes to it no more
    pub(super) fn set_constant(&mut self, address: usize) {
        if let Some(block) = self.live_block_at(address) {
            self.entry(block).is_constant = true;
        }
    }

    /// Pins the live block that holds a range, and makes it copy-on-write unless it is constant
    pub(super) fn lease(&mut self, address: usize, bytes: usize) -> Option<Pin> {
        let (block, offset) = self.find_live(address, bytes)?;
        let entry = self.entry(block);
        let may_differ = entry.is_copy_on_write;
        if !entry.is_constant {
            self.make_copy_on_write(block).ok()?;
        }
        self.pin(block);
        Some(Pin {
            block,
            memory: Arc::clone(&self.segments[&block.base].memory),
            offset: (block.index * self.bytes(block) + offset) as u64,
            may_differ,
        })
    }

    /// Keeps a live block from being used again until [`Blocks::unpin`]
    fn pin(&mut self, block: BlockId) {
        let entry = self.entry(block);
        entry.leases += 1;
        if entry.leases == 1 {
            self.statistics.leased_bytes += self.bytes(block);
        }
    }

    /// Returns whether the owner of a pinned block has freed the block
    pub(super) fn is_freed(&self, block: BlockId) -> bool {
        let segment = self.segments.get(&block.base);
        segment.is_some_and(|segment| segment.blocks[block.index].usage == Usage::Freed)
    }

    /// Ends a lease; for good if `abandon`, so that the block is never used again
    pub(super) fn unpin(&mut self, block: BlockId, abandon: bool, deferred: &mut DeferredWork) {
        let bytes = self.bytes(block);
        let entry = self.entry(block);
        entry.abandoned |= abandon;
        entry.leases -= 1;
        let (leases, usage) = (entry.leases, entry.usage);
        if leases == 0 {
            self.statistics.leased_bytes -= bytes;
        }
        if abandon {
            self.drain(block.base, deferred);
        }
        if leases == 0 && usage == Usage::Freed {
            self.statistics.orphaned_bytes -= bytes;
            self.settle(block, deferred);
        }
    }

    /// Memory of every segment
    pub(super) fn memories(&self) -> impl Iterator<Item = &Arc<Memory>> {
        self.segments.values().map(|segment| &segment.memory)
    }

    /// Notes that a block's pages have been given back, or could not be
    pub(super) fn trimmed(&mut self, block: BlockId, done: bool, deferred: &mut DeferredWork) {
        let segment = self.segment(block.base);
        if done {
            segment.entry(block.index).usage = Usage::Cold;
            segment.cold.push(block.index);
            segment.idle += 1;
            let (class, draining) = (segment.class, segment.draining);
            let of_class = &mut self.classes[class.index()];
            of_class.resident_bytes -= class.bytes();
            if !draining {
                of_class.cold.insert(block.base);
            }
            self.remove_if_idle(block.base, deferred);
        } else {
            // Its pages stay, so they count; they go with the segment.
            segment.entry(block.index).abandoned = true;
            self.drain(block.base, deferred);
            self.settle(block, deferred);
        }
    }

    /// Undoes the allocation of a block whose pages the system has not
    pub(super) fn discard(&mut self, address: usize, deferred: &mut DeferredWork) {
        let block = self.live_block_at(address).expect("just allocated");
        self.statistics.live_bytes -= self.bytes(block);
        self.statistics.refused += 1;
        self.trim(block, deferred);
    }

    /// Size of the live block that starts at `address`
    pub(super) fn usable_bytes(&mut self, address: usize) -> Option<usize> {
        let block = self.live_block_at(address)?;
        Some(self.bytes(block))
    }

    pub(super) fn statistics(&self) -> ArenaStatistics {
        self.statistics
    }

    /// Hands out a cold block of a segment, and caches some behind it
    ///
    /// To ask for huge pages has a price for each time, so a class that is used much asks for more
    /// at once: as much as it has, within bounds.
    fn open(&mut self, base: usize) -> Fresh {
        let segment = self.segment(base);
        let class = segment.class;
        let (index, ahead, huge) = if let Some(index) = segment.cold.pop() {
            // Among blocks that have their pages, small ones leave no place for huge ones.
            (index, 0, class.bytes() >= HUGE_BYTES_MIN)
        } else {
            let index = segment.open_next();
            let next = segment.count - segment.blocks.len();
            let target_bytes = self.classes[class.index()]
                .resident_bytes
                .clamp(HUGE_PAGE_BYTES, AHEAD_BYTES_MAX);
            let wanted = target_bytes.div_ceil(class.bytes()) - 1;
            let ahead = wanted
                .min(next)
                .min(self.spare_bytes(class) / class.bytes());
            (
                index,
                ahead,
                (1 + ahead) * class.bytes() >= target_bytes.min(HUGE_BYTES_MIN),
            )
        };
        let ahead_bytes = ahead * class.bytes();
        self.classes[class.index()].resident_bytes += class.bytes() + ahead_bytes;
        self.statistics.cached_bytes += ahead_bytes;
        let segment = self.segment(base);
        segment.idle -= 1 + ahead;
        for _ in 0..ahead {
            segment.open_next();
        }
        if !segment.has_cold() {
            self.classes[class.index()].cold.remove(&base);
        }
        // The next one is to be taken first.
        for index in (index + 1..=index + ahead).rev() {
            self.cache(BlockId { base, index });
        }
        Fresh {
            start: self.make_live(BlockId { base, index }),
            ahead_bytes,
            huge,
        }
    }

    /// Hands a block out
    fn make_live(&mut self, block: BlockId) -> NonNull<u8> {
        let bytes = self.bytes(block);
        self.entry(block).usage = Usage::Live;
        let statistics = &mut self.statistics;
        statistics.live_bytes += bytes;
        statistics.peak_bytes = statistics.peak_bytes.max(statistics.live_bytes);
        self.count_taken(bytes);
        let memory = &self.segments[&block.base].memory;
        memory.mapping().at(block.index * bytes)
    }

    /// Decides the fate of a block that is not used any more
    fn settle(&mut self, block: BlockId, deferred: &mut DeferredWork) {
        if !self.entry(block).abandoned && !self.make_shared(block) {
            self.entry(block).abandoned = true;
            self.drain(block.base, deferred);
        }
        let segment = self.segment(block.base);
        let (class, draining) = (segment.class, segment.draining);
        if segment.entry(block.index).abandoned {
            segment.entry(block.index).usage = Usage::Retired;
            segment.idle += 1;
            self.statistics.abandoned_bytes += class.bytes();
            self.remove_if_idle(block.base, deferred);
        } else if draining || class.bytes() > self.cached_bytes_max() {
            // One above the bound gives way itself, rather than displace all the others.
            self.trim(block, deferred);
        } else {
            let cached_bytes_max = self.cached_bytes_max();
            self.statistics.cached_bytes += class.bytes();
            self.cache(block);
            self.shrink(cached_bytes_max, deferred);
        }
    }

    /// Lists a block as one to hand out again
    fn cache(&mut self, block: BlockId) {
        let freed = self.frees;
        self.frees += 1;
        let segment = self.segment(block.base);
        segment.entry(block.index).usage = Usage::Cached;
        let class = segment.class.index();
        let cached = &mut self.classes[class].cached;
        cached.push_back(Cached { freed, block });
    }

    /// Bytes of the blocks that may have pages
    fn committed_bytes(&self) -> usize {
        let ArenaStatistics {
            live_bytes,
            orphaned_bytes,
            abandoned_bytes,
            cached_bytes,
            ..
        } = self.statistics;
        live_bytes + orphaned_bytes + abandoned_bytes + cached_bytes
    }

    /// Starts to give a block's pages back to the system; it is not handed out meanwhile
    fn trim(&mut self, block: BlockId, deferred: &mut DeferredWork) {
        let segment = self.segment(block.base);
        segment.entry(block.index).usage = Usage::Trimming;
        let bytes = segment.class.bytes();
        deferred.trims.push(Trim {
            block,
            memory: Arc::clone(&segment.memory),
            offset: block.index * bytes,
            bytes,
        });
    }

    /// Hands out no block of a segment any more, so that it goes once all are free
    fn drain(&mut self, base: usize, deferred: &mut DeferredWork) {
        let segment = self.segment(base);
        if segment.draining {
            return;
        }
        segment.draining = true;
        let class = segment.class;
        let of_class = &mut self.classes[class.index()];
        of_class.cold.remove(&base);
        let (drained, kept) = of_class
            .cached
            .drain(..)
            .partition::<VecDeque<_>, _>(|cached| cached.block.base == base);
        of_class.cached = kept;
        for cached in drained {
            self.statistics.cached_bytes -= class.bytes();
            self.trim(cached.block, deferred);
        }
    }

    fn remove_if_idle(&mut self, base: usize, deferred: &mut DeferredWork) {
        let segment = &self.segments[&base];
        if segment.idle < segment.count {
            return;
        }
        let segment = self.segments.remove(&base).expect("indexed above");
        let bytes = segment.memory.mapping().bytes();
        let retired = segment.retired() * segment.class.bytes();
        let private = segment.copy_on_write() * segment.class.bytes();
        let class = &mut self.classes[segment.class.index()];
        class.cold.remove(&base);
        class.mapped_bytes -= bytes;
        class.resident_bytes -= retired;
        self.statistics.mapped_bytes -= bytes;
        self.statistics.abandoned_bytes -= retired;
        self.statistics.copy_on_write_bytes -= private;
        deferred.emptied.push(segment.memory);
    }

    /// How large the next segment of a class is to be
    ///
    /// As large as all there are, so that a process with many blocks has few descriptors.
    fn segment_bytes(&self, class: SizeClass) -> usize {
        let mapped_bytes = self.classes[class.index()].mapped_bytes;
        let target = mapped_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let count = target.min(self.config.bytes_max) / class.bytes();
        (count.max(1) * class.bytes()).next_multiple_of(HUGE_PAGE_BYTES)
    }

    fn live_block_at(&mut self, address: usize) -> Option<BlockId> {
        let (block, offset) = self.find(address)?;
        (offset == 0 && self.entry(block).usage == Usage::Live).then_some(block)
    }

    /// Block that holds an address, and where in it
    fn find(&self, address: usize) -> Option<(BlockId, usize)> {
        let (base, segment) = self.segments.range(..=address).next_back()?;
        let bytes = segment.class.bytes();
        let index = (address - base) / bytes;
        (index < segment.blocks.len())
            .then_some((BlockId { base: *base, index }, (address - base) % bytes))
    }

    /// Live block that holds a range of at least one byte, and where in it
    fn find_live(&self, address: usize, bytes: usize) -> Option<(BlockId, usize)> {
        let (block, offset) = self.find(address)?;
        let left = self.bytes(block).saturating_sub(offset);
        let usage = self.segments[&block.base].blocks[block.index].usage;
        (usage == Usage::Live && (1..=left).contains(&bytes)).then_some((block, offset))
    }

    fn bytes(&self, block: BlockId) -> usize {
        self.segments[&block.base].class.bytes()
    }

    fn segment(&mut self, base: usize) -> &mut Segment {
        self.segments
            .get_mut(&base)
            .expect("a segment is here while a block of it is in use or cached")
    }

    fn entry(&mut self, block: BlockId) -> &mut Block {
        self.segment(block.base).entry(block.index)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for segment in std::mem::take(&mut self.segments).into_values() {
            let in_use = |block: &Block| block.usage == Usage::Live;
            if segment.blocks.iter().any(in_use) {
                // Their owners have plain pointers.
                std::mem::forget(segment.memory);
            }
        }
    }
}

/// Outcome of [`Blocks::take_cold`]
pub(super) enum Cold {
    Taken(Fresh),
    /// None is left: make a segment, then [`Blocks::adopt`] it
    NeedsSegment {
        bytes: usize,
    },
    /// The bound is reached
    Refused,
}

/// A block of zeroes that has no pages yet
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) start: NonNull<u8>,
    /// Bytes of the free blocks behind it that are to get pages too
    pub(super) ahead_bytes: usize,
    /// True if the arena asks for huge pages
    pub(super) huge: bool,
}

/// Work to do once the lock is released
#[derive(Debug, Default)]
#[must_use = "blocks stay unusable until their pages have been given back"]
pub(super) struct DeferredWork {
    /// Pages to give back, then [`Blocks::trimmed`]
    pub(super) trims: Vec<Trim>,
    /// To be dropped
    pub(super) emptied: Vec<Arc<Memory>>,
}

/// A block whose pages are to be given back
#[derive(Debug)]
pub(super) struct Trim {
    pub(super) block: BlockId,
    pub(super) memory: Arc<Memory>,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Trim {
    /// Returns whether another block lies right behind this one
    pub(super) fn is_followed_by(&self, next: &Self) -> bool {
        self.block.base == next.block.base && self.block.index + 1 == next.block.index
    }
}

/// A lease as the arena knows it
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) block: BlockId,
    pub(super) memory: Arc<Memory>,
    /// Of the first leased byte, in the segment
    pub(super) offset: u64,
    /// True if the block was copy-on-write before: the owner may have written to it, so that the
    /// file has other bytes
    pub(super) may_differ: bool,
}

/// Names a block for as long as its segment is there
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct BlockId {
    base: usize,
    index: usize,
}

/// Free blocks of one size
#[derive(Debug, Default)]
struct Class {
    /// The one freed last at the back
    cached: VecDeque<Cached>,
    /// Addresses of the segments that have cold blocks to hand out
    cold: BTreeSet<usize>,
    /// Bytes of all its segments
    mapped_bytes: usize,
    /// Bytes of its blocks that are not cold
    resident_bytes: usize,
}

#[derive(Debug)]
struct Cached {
    /// `Blocks::frees` when it was cached
    freed: u64,
    block: BlockId,
}

/// Smallest segment, unless the bound is below; untouched blocks of it cost nothing
const SEGMENT_BYTES_MIN: usize = 64 << 20;
/// Largest segment of more than one block
const SEGMENT_BYTES_MAX: usize = 4 << 30;
/// Most bytes of blocks that get their pages at once
///
/// The kernel waits for every processor before it makes huge pages on demand, which takes
/// milliseconds where all are busy: about what huge pages save for this much.
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Where fewer bytes get their pages at once, these are huge from here on
///
/// A growing process has no blocks to spare, so it asks for one at a time. The wait leaves the
/// processor to others; small pages cost it for each fault, also of peers that map the block.
const HUGE_BYTES_MIN: usize = 4 << 20;
