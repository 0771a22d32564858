//! Join of one output partition of two frames: a hash table of the right rows, probed by the left
//!
//! Keys are read from the blocks, and rows are gathered from the blocks into the result, so that
//! each byte is copied once. The order is that of pandas: left rows in their order, and the partners
//! of a left row in theirs; an outer join sorts by the keys. Null equals null, NaN equals NaN, and
//! zero equals negative zero.

mod gather;
mod keys;
mod table;

use std::borrow::Cow;

use crate::assemble::{Target, expect, piece_rows};
use crate::{Block, ExchangeError, Kind};

use gather::{Gather, gather_text, value_at};
use keys::KeyColumns;
use table::Table;

pub use table::Scratch;

/// Rows that the result has
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JoinKind {
    /// Pairs of rows with equal keys
    Inner,
    /// These pairs, and left rows without a partner
    Left,
    /// These pairs, and rows of both frames without a partner, in the order of the keys
    Outer,
    /// Left rows with a partner, each with the first one
    Semi,
}

/// One of the two frames of a join
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The frame whose rows order the result
    Left,
    /// The other frame
    Right,
}

/// Origin of one column of the result
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Source {
    /// The frame
    pub side: Side,
    /// Column of the frame
    pub column: usize,
    /// Column of the other frame that has the value where the frame has no row
    pub other: Option<usize>,
}

/// Pairs of rows with equal keys, in the order of the result
#[derive(Debug, Default)]
pub struct Join {
    left: Vec<RowRef>,
    right: Vec<RowRef>,
    left_missing: bool,
    right_missing: bool,
}

impl Join {
    /// Joins one slot of two frames on the same number of columns of each
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if a block is inconsistent or lacks the slot or a column, if the columns
    /// of blocks differ, if there are no keys, or if a frame has too many rows.
    pub fn new(
        left: &[Block<'_>],
        right: &[Block<'_>],
        slot: usize,
        keys: [&[usize]; 2],
        kind: JoinKind,
        scratch: &mut Scratch,
    ) -> Result<Self, ExchangeError> {
        let keys = KeyColumns::pair([left, right], keys)?;
        let rows = rows_of(left, slot)?;
        let table = Table::new(right, slot, &keys[1], rows_of(right, slot)?, scratch)?;
        let join = if kind == JoinKind::Outer {
            table.outer_join(left, slot, &keys[0])
        } else {
            table.join(left, slot, &keys[0], kind, rows)
        };
        table.return_to(scratch);
        join
    }

    /// Returns the number of rows in the result
    pub fn rows(&self) -> usize {
        self.left.len()
    }

    /// Returns whether a row of the result has no row of a frame
    pub fn has_missing(&self, side: Side) -> bool {
        match side {
            Side::Left => self.left_missing,
            Side::Right => self.right_missing,
        }
    }

    /// Returns the bytes of text of a column in the result; 0 if it is no text
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the blocks are inconsistent, or not those of the join.
    pub fn text_bytes(
        &self,
        source: Source,
        left: &[Block<'_>],
        right: &[Block<'_>],
    ) -> Result<usize, ExchangeError> {
        let gather = self.gather_of(source, left, right)?;
        if gather.kind != Kind::Text {
            return Ok(0);
        }
        let texts = gather.texts()?;
        let mut bytes = 0usize;
        for &at in gather.refs.iter() {
            bytes = bytes
                .checked_add(value_at(&texts, at)?.map_or(0, <[u8]>::len))
                .ok_or(ExchangeError::InvalidBlock("text"))?;
        }
        Ok(bytes)
    }

    /// Gathers one column of the result; returns its nulls if it is text
    ///
    /// Where the frame has missing rows and no column takes their place, integers are converted to
    /// numbers of [`Kind::Float`] of eight bytes, as pandas does. Missing rows are NaN, NaT, null,
    /// or a boolean with the value 2.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the blocks are inconsistent or not those of the join, or if the target
    /// has another size than the column.
    pub fn gather(
        &self,
        source: Source,
        left: &[Block<'_>],
        right: &[Block<'_>],
        target: &mut Target<'_>,
    ) -> Result<usize, ExchangeError> {
        let gather = self.gather_of(source, left, right)?;
        match target {
            Target::Fixed(target) => {
                let is_nullable = self.has_missing(source.side) && source.other.is_none();
                gather.fixed(is_nullable, target)?;
                Ok(0)
            }
            Target::Text {
                offsets,
                validity,
                bytes,
            } => {
                if gather.kind != Kind::Text {
                    return Err(ExchangeError::Mismatch);
                }
                expect(offsets.len(), (self.rows() + 1) * 8)?;
                expect(validity.len(), self.rows().div_ceil(8))?;
                gather_text(&gather.refs, &gather.texts()?, [offsets, validity, bytes])
            }
        }
    }

    /// Lists the rows of one column of the result
    fn gather_of<'g, 'a>(
        &'g self,
        source: Source,
        left: &'g [Block<'a>],
        right: &'g [Block<'a>],
    ) -> Result<Gather<'g, 'a>, ExchangeError> {
        let (refs, blocks, others, other_blocks) = match source.side {
            Side::Left => (&self.left, left, &self.right, right),
            Side::Right => (&self.right, right, &self.left, left),
        };
        let kind = kind_of(blocks, source.column)?;
        let mut columns: Vec<_> = blocks.iter().map(|each| (each, source.column)).collect();
        let Some(other) = source.other.filter(|_| self.has_missing(source.side)) else {
            return Ok(Gather {
                kind: kind.ok_or(ExchangeError::Mismatch)?,
                refs: Cow::Borrowed(refs),
                columns,
            });
        };
        let other_kind = kind_of(other_blocks, other)?;
        let kind = kind.or(other_kind).ok_or(ExchangeError::Mismatch)?;
        if other_kind.is_some_and(|other_kind| other_kind != kind) {
            return Err(ExchangeError::Mismatch);
        }
        let first = columns.len() as u32;
        columns.extend(other_blocks.iter().map(|each| (each, other)));
        let chosen = refs.iter().zip(others).map(|(&at, &other)| {
            if at == RowRef::MISSING {
                RowRef {
                    block: other.block.saturating_add(first),
                    ..other
                }
            } else {
                at
            }
        });
        Ok(Gather {
            kind,
            refs: Cow::Owned(chosen.collect()),
            columns,
        })
    }

    fn push(&mut self, left: RowRef, right: RowRef) {
        self.left.push(left);
        self.right.push(right);
    }

    fn push_left_only(&mut self, left: RowRef) {
        self.push(left, RowRef::MISSING);
        self.right_missing = true;
    }

    fn push_right_only(&mut self, right: RowRef) {
        self.push(RowRef::MISSING, right);
        self.left_missing = true;
    }
}

/// A row of a frame: index of the block, row of the block
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct RowRef {
    block: u32,
    row: u32,
}

impl RowRef {
    /// Exceeds all blocks and rows
    const MISSING: Self = Self {
        block: u32::MAX,
        row: u32::MAX,
    };
}

/// Most rows of one side: rows have four bytes, and the last numbers are those of missing rows
const ROWS_MAX: usize = u32::MAX as usize - 1;

/// Returns the rows of one slot of a frame, if they can be numbered
fn rows_of(blocks: &[Block<'_>], slot: usize) -> Result<usize, ExchangeError> {
    let rows = piece_rows(blocks, slot)?;
    let largest = blocks.iter().map(|block| block.rows).max().unwrap_or(0);
    let found = rows.max(largest).max(blocks.len());
    if found > ROWS_MAX {
        return Err(ExchangeError::TooMany {
            found,
            limit: ROWS_MAX,
        });
    }
    Ok(rows)
}

/// Returns the kind of a column; `None` if there is no block
fn kind_of(blocks: &[Block<'_>], column: usize) -> Result<Option<Kind>, ExchangeError> {
    let mut found = None;
    for block in blocks {
        let region = block.regions.get(column).ok_or(ExchangeError::Mismatch)?;
        if *found.get_or_insert(region.kind) != region.kind {
            return Err(ExchangeError::Mismatch);
        }
    }
    Ok(found)
}
