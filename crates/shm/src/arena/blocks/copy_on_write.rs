//! Blocks that become copy-on-write, and shared again
//!
//! The system calls, a few microseconds each, are made under the lock of the blocks: a fork and
//! another lease must find them done.

use std::io;

use rustix::io::Errno;

use super::{BlockId, Blocks};
use crate::arena::segment::{Block, Segment, Usage};

impl Blocks {
    /// Makes every live block copy-on-write and pins the block for a child, returning what is to be
    /// unpinned when the child has ended
    pub(in crate::arena) fn pin_live(&mut self) -> Vec<BlockId> {
        let live = self.live_blocks();
        for &block in &live {
            // Where the system has no room for the mapping, `ForkGuard::in_child` does what it can.
            let _refused = self.make_copy_on_write(block);
            self.pin(block);
        }
        live
    }

    /// Maps the live blocks that are still shared privately, in a forked child
    pub(in crate::arena) fn make_private_in_child(&self) -> io::Result<()> {
        for block in self.live_blocks() {
            let segment = &self.segments[&block.base];
            if !segment.blocks[block.index].is_copy_on_write {
                let bytes = segment.class.bytes();
                // SAFETY: no other process relies on what the child writes.
                unsafe { segment.memory.make_private(block.index * bytes, bytes) }?;
            }
        }
        Ok(())
    }

    fn live_blocks(&self) -> Vec<BlockId> {
        let of_segment = |(&base, segment): (&usize, &Segment)| {
            let is_live = |(_, block): &(usize, &Block)| block.usage == Usage::Live;
            let live = segment.blocks.iter().enumerate().filter(is_live);
            live.map(|(index, _)| BlockId { base, index })
                .collect::<Vec<_>>()
        };
        self.segments.iter().flat_map(of_segment).collect()
    }

    pub(super) fn make_copy_on_write(&mut self, block: BlockId) -> Result<(), Errno> {
        let bytes = self.bytes(block);
        let segment = self.segment(block.base);
        if !segment.entry(block.index).is_copy_on_write {
            segment
                .memory
                .make_copy_on_write(block.index * bytes, bytes)?;
            segment.entry(block.index).is_copy_on_write = true;
            self.statistics.copy_on_write_bytes += bytes;
        }
        Ok(())
    }

    /// Makes a free block shared again, returning false if the system has no room for the mapping
    pub(super) fn make_shared(&mut self, block: BlockId) -> bool {
        let bytes = self.bytes(block);
        let segment = self.segment(block.base);
        let entry = segment.entry(block.index);
        entry.is_constant = false;
        if entry.is_copy_on_write {
            // SAFETY: neither its owner nor a peer uses the block any more.
            if unsafe { segment.memory.make_shared(block.index * bytes, bytes) }.is_err() {
                return false;
            }
            segment.entry(block.index).is_copy_on_write = false;
            self.statistics.copy_on_write_bytes -= bytes;
        }
        true
    }
}
