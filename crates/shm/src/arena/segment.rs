//! A segment: a memfd divided into blocks of one class

use std::sync::Arc;

use super::memory::Memory;
use crate::size_class::SizeClass;

/// A memfd divided into blocks of one class
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) memory: Arc<Memory>,
    pub(super) class: SizeClass,
    /// How many blocks there is room for
    pub(super) count: usize,
    /// Blocks that ever had pages; the rest are cold
    pub(super) blocks: Vec<Block>,
    /// Cold ones of `blocks`, the one given back last at the back
    pub(super) cold: Vec<usize>,
    /// Blocks that are cold or retired
    pub(super) idle: usize,
    /// True if blocks are handed out no more
    pub(super) draining: bool,
}

impl Segment {
    /// A segment of cold blocks
    pub(super) fn new(memory: Memory, class: SizeClass) -> Self {
        let count = memory.mapping().bytes() / class.bytes();
        Self {
            memory: Arc::new(memory),
            class,
            count,
            blocks: Vec::new(),
            cold: Vec::new(),
            idle: count,
            draining: false,
        }
    }

    pub(super) fn has_cold(&self) -> bool {
        !self.cold.is_empty() || self.blocks.len() < self.count
    }

    /// Index of the first block that never had pages, which there must be
    pub(super) fn open_next(&mut self) -> usize {
        assert!(self.blocks.len() < self.count);
        self.blocks.push(Block {
            usage: Usage::Cold,
            leases: 0,
            abandoned: false,
            is_copy_on_write: false,
            is_constant: false,
        });
        self.blocks.len() - 1
    }

    pub(super) fn retired(&self) -> usize {
        let retired = |block: &&Block| block.usage == Usage::Retired;
        self.blocks.iter().filter(retired).count()
    }

    pub(super) fn copy_on_write(&self) -> usize {
        let private = |block: &&Block| block.is_copy_on_write;
        self.blocks.iter().filter(private).count()
    }

    pub(super) fn entry(&mut self, index: usize) -> &mut Block {
        &mut self.blocks[index]
    }
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) usage: Usage,
    /// Leases of peers, and one for each forked child that has inherited the block
    pub(super) leases: u64,
    /// True if a peer may map it for ever
    pub(super) abandoned: bool,
    /// Set while the owner's writes stay private to this process
    pub(super) is_copy_on_write: bool,
    /// Set where the owner has promised not to write any more
    pub(super) is_constant: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Usage {
    /// Free, without pages: reads as zeroes
    Cold,
    /// Free, with its pages
    Cached,
    /// Free, on the way from cached to cold
    Trimming,
    /// Its owner has it, and peers may
    Live,
    /// Its owner has freed it, but peers have leases
    Freed,
    /// Used no more
    Retired,
}
