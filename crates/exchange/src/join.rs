//! Join of one output partition of two frames: a hash table of the right rows, probed by the left
//!
//! Keys are read from the blocks, and rows are gathered from the blocks into the result, so that
//! each byte is copied once. The order is that of pandas: left rows in their order, and the partners
//! of a left row in theirs. Null equals null, NaN equals NaN, and zero equals negative zero.

use std::ops::Range;

use crate::assemble::{Target, expect, piece_rows};
use crate::hash::{self, mix};
use crate::{Block, ExchangeError, Kind, word};

/// Left rows whose first entries are loaded together, so that the loads overlap
const PROBES: usize = 256;
/// Most bytes that a [`Scratch`] keeps for the next join
const KEPT_BYTES: usize = 16 << 20;
/// Entry of the hash table without a row
const EMPTY: u64 = u64::MAX;
/// Most rows of one side: rows have four bytes, and the last number is that of [`EMPTY`]
const ROWS_MAX: usize = u32::MAX as usize - 1;

/// Left rows that the result has
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JoinKind {
    /// Rows with a partner
    Inner,
    /// All; rows without a partner have a missing right row
    Left,
}

/// One of the two frames of a join
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The frame whose rows order the result
    Left,
    /// The other frame
    Right,
}

/// Pairs of rows with equal keys, in the order of the result
#[derive(Debug)]
pub struct Join {
    left: Vec<RowRef>,
    right: Vec<RowRef>,
    has_missing: bool,
}

impl Join {
    /// Joins one slot of two frames on one column of each
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if a block is inconsistent or lacks the slot or the column, if the columns
    /// of blocks differ, or if a frame has too many rows.
    pub fn new(
        left: &[Block<'_>],
        right: &[Block<'_>],
        slot: usize,
        keys: [usize; 2],
        kind: JoinKind,
        scratch: &mut Scratch,
    ) -> Result<Self, ExchangeError> {
        let kinds = kind_of(left, keys[0])?.zip(kind_of(right, keys[1])?);
        if kinds.is_some_and(|(left, right)| left != right) {
            return Err(ExchangeError::Mismatch);
        }
        let rows = rows_of(left, slot)?;
        let table = Table::new(right, slot, keys[1], scratch)?;
        let join = table.probe(left, slot, keys[0], kind, rows);
        table.return_to(scratch);
        join
    }

    /// Returns the number of rows in the result
    pub fn rows(&self) -> usize {
        self.left.len()
    }

    /// Returns whether a row of the result has no right row
    pub fn has_missing(&self) -> bool {
        self.has_missing
    }

    /// Returns the bytes of text of each column of a frame in the result; 0 for other columns
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the blocks are inconsistent, or not those of the join.
    pub fn text_bytes(
        &self,
        side: Side,
        blocks: &[Block<'_>],
    ) -> Result<Vec<usize>, ExchangeError> {
        let columns = blocks.first().map_or(0, |block| block.regions.len());
        let mut found = vec![0usize; columns];
        for (column, bytes) in found.iter_mut().enumerate() {
            if kind_of(blocks, column)? == Some(Kind::Text) {
                let texts = TextColumn::of_blocks(blocks, column)?;
                for &at in self.refs(side) {
                    *bytes = bytes
                        .checked_add(value_at(&texts, at)?.map_or(0, <[u8]>::len))
                        .ok_or(ExchangeError::InvalidBlock("text"))?;
                }
            }
        }
        Ok(found)
    }

    /// Gathers one column of a frame into the result; returns its nulls if it is text
    ///
    /// Where the join has missing rows, integers of the right frame are converted to numbers of
    /// [`Kind::Float`] of eight bytes, as pandas does. Missing rows are NaN, NaT or null.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the blocks are inconsistent or not those of the join, if the target has
    /// another size than the column, or if the column cannot have missing values.
    pub fn gather(
        &self,
        side: Side,
        blocks: &[Block<'_>],
        column: usize,
        target: &mut Target<'_>,
    ) -> Result<usize, ExchangeError> {
        let kind = kind_of(blocks, column)?.ok_or(ExchangeError::Mismatch)?;
        let refs = self.refs(side);
        let nullable = side == Side::Right && self.has_missing;
        match target {
            Target::Fixed(target) => {
                Gather {
                    refs,
                    blocks,
                    column,
                }
                .fixed(kind, nullable, target)?;
                Ok(0)
            }
            Target::Text {
                offsets,
                validity,
                bytes,
            } => {
                if kind != Kind::Text {
                    return Err(ExchangeError::Mismatch);
                }
                expect(offsets.len(), (refs.len() + 1) * 8)?;
                expect(validity.len(), refs.len().div_ceil(8))?;
                let texts = TextColumn::of_blocks(blocks, column)?;
                gather_text(refs, &texts, [offsets, validity, bytes])
            }
        }
    }

    fn refs(&self, side: Side) -> &[RowRef] {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
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

/// Memory of a join that the next one uses again, so that the kernel need not map new pages
#[derive(Debug, Default)]
pub struct Scratch {
    bits: Vec<u64>,
    refs: Vec<RowRef>,
    entries: Vec<u64>,
}

/// Keys of rows of a frame, in order
#[derive(Default)]
struct Keys<'a> {
    /// Bits of the key; equal keys have equal bits. Hash of a text key
    bits: Vec<u64>,
    /// Text of the key, empty if keys are no text
    text: Vec<Option<&'a [u8]>>,
    refs: Vec<RowRef>,
}

impl<'a> Keys<'a> {
    fn clear(&mut self) {
        self.bits.clear();
        self.text.clear();
        self.refs.clear();
    }

    /// Appends the keys of some rows of a block
    fn read(
        &mut self,
        blocks: &[Block<'a>],
        index: usize,
        column: usize,
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        let block = &blocks[index];
        let number = index as u32;
        self.refs.extend(rows.clone().map(|row| RowRef {
            block: number,
            row: row as u32,
        }));
        let region = block.regions.get(column).ok_or(ExchangeError::Mismatch)?;
        if let Some(width) = region.kind.width() {
            let values = &region.of(block.bytes)[rows.start * width..rows.end * width];
            push_bits(region.kind, values, &mut self.bits);
            return Ok(());
        }
        let text = TextColumn::new(block, column)?;
        for row in rows {
            let value = text.value(row)?;
            self.bits.push(value.map_or(0, hash::sip));
            self.text.push(value);
        }
        Ok(())
    }

    fn text(&self, row: usize) -> Option<&'a [u8]> {
        self.text.get(row).copied().flatten()
    }
}

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

/// Appends the bits of numbers, so that equal numbers have equal bits
fn push_bits(kind: Kind, values: &[u8], bits: &mut Vec<u64>) {
    macro_rules! each {
        ($width:literal, $bits:expr) => {{
            let (values, _) = values.as_chunks::<$width>();
            bits.extend(values.iter().map(|&value| $bits(value)));
        }};
    }
    match kind {
        Kind::Float(4) => each!(4, |v| float_bits(f32::from_le_bytes(v).into())),
        Kind::Float(_) => each!(8, |v| float_bits(f64::from_le_bytes(v))),
        _ => match kind.width() {
            Some(1) => each!(1, |v| u64::from(u8::from_le_bytes(v))),
            Some(2) => each!(2, |v| u64::from(u16::from_le_bytes(v))),
            Some(4) => each!(4, |v| u64::from(u32::from_le_bytes(v))),
            _ => each!(8, u64::from_le_bytes),
        },
    }
}

/// Bits of a number: one NaN, one zero
fn float_bits(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        // The sum of zero and negative zero is zero.
        (value + 0.0).to_bits()
    }
}

/// Hash table of the right rows: open addressing, one entry for each distinct key
struct Table<'a> {
    keys: Keys<'a>,
    /// High half of the hash, then the first row with the key; or [`EMPTY`]
    entries: Vec<u64>,
    /// Next row with the same key, for each row; empty if keys are unique
    next: Vec<u32>,
}

impl<'a> Table<'a> {
    fn new(
        blocks: &[Block<'a>],
        slot: usize,
        column: usize,
        scratch: &mut Scratch,
    ) -> Result<Self, ExchangeError> {
        let rows = rows_of(blocks, slot)?;
        let mut table = Self {
            keys: Keys {
                bits: std::mem::take(&mut scratch.bits),
                text: Vec::new(),
                refs: std::mem::take(&mut scratch.refs),
            },
            entries: std::mem::take(&mut scratch.entries),
            next: Vec::new(),
        };
        table.keys.clear();
        table.keys.bits.reserve(rows);
        table.keys.refs.reserve(rows);
        for (index, block) in blocks.iter().enumerate() {
            table.keys.read(blocks, index, column, block.piece(slot)?)?;
        }
        table.entries.clear();
        let places = (rows * 2).next_power_of_two().max(2);
        table.entries.resize(places, EMPTY);
        // Backwards, so that the chain of a key is ascending
        for row in (0..rows).rev() {
            table.insert(row);
        }
        Ok(table)
    }

    fn insert(&mut self, row: usize) {
        let hash = mix(self.keys.bits[row]);
        let mut place = self.place(hash);
        loop {
            let found = self.entries[place];
            if found == EMPTY {
                break;
            }
            if self.is_same(found, hash, &self.keys, row) {
                if self.next.is_empty() {
                    self.next.resize(self.keys.bits.len(), u32::MAX);
                }
                self.next[row] = found as u32;
                break;
            }
            place = (place + 1) & (self.entries.len() - 1);
        }
        self.entries[place] = (hash >> 32 << 32) | row as u64;
    }

    /// Returns the first place of a hash. The high half is the tag, so that the low half is used
    fn place(&self, hash: u64) -> usize {
        hash as usize & (self.entries.len() - 1)
    }

    /// Returns whether the key of an entry is that of a row of `keys`
    #[inline(always)]
    fn is_same(&self, entry: u64, hash: u64, keys: &Keys<'_>, row: usize) -> bool {
        let first = entry as u32 as usize;
        entry >> 32 == hash >> 32
            && self.keys.bits[first] == keys.bits[row]
            && self.keys.text(first) == keys.text(row)
    }

    fn probe(
        &self,
        blocks: &[Block<'_>],
        slot: usize,
        column: usize,
        kind: JoinKind,
        rows: usize,
    ) -> Result<Join, ExchangeError> {
        let mut join = Join {
            left: Vec::with_capacity(rows),
            right: Vec::with_capacity(rows),
            has_missing: false,
        };
        let mut keys = Keys::default();
        let mut hashes = [0u64; PROBES];
        let mut entries = [EMPTY; PROBES];
        for (index, block) in blocks.iter().enumerate() {
            let piece = block.piece(slot)?;
            for start in piece.clone().step_by(PROBES) {
                keys.clear();
                keys.read(blocks, index, column, start..piece.end.min(start + PROBES))?;
                for ((hash, entry), &bits) in hashes.iter_mut().zip(&mut entries).zip(&keys.bits) {
                    *hash = mix(bits);
                    *entry = self.entries[self.place(*hash)];
                }
                for (row, &left) in keys.refs.iter().enumerate() {
                    let found = self.find(entries[row], hashes[row], &keys, row);
                    self.push(&mut join, left, found, kind);
                }
            }
        }
        Ok(join)
    }

    /// Returns the first right row with the key of a left row, given the first entry of its hash
    #[inline(always)]
    fn find(&self, mut entry: u64, hash: u64, left: &Keys<'_>, row: usize) -> Option<u32> {
        let mut place = self.place(hash);
        while entry != EMPTY {
            if self.is_same(entry, hash, left, row) {
                return Some(entry as u32);
            }
            place = (place + 1) & (self.entries.len() - 1);
            entry = self.entries[place];
        }
        None
    }

    /// Appends the pairs of a left row
    #[inline(always)]
    fn push(&self, join: &mut Join, left: RowRef, first: Option<u32>, kind: JoinKind) {
        let Some(first) = first else {
            if kind == JoinKind::Left {
                join.left.push(left);
                join.right.push(RowRef::MISSING);
                join.has_missing = true;
            }
            return;
        };
        let mut row = first as usize;
        // The last row of a chain has no next one.
        while let Some(&right) = self.keys.refs.get(row) {
            join.left.push(left);
            join.right.push(right);
            row = self.next.get(row).map_or(usize::MAX, |&next| next as usize);
        }
    }

    /// Keeps the memory for the next join, unless there is much of it
    fn return_to(self, scratch: &mut Scratch) {
        let bytes = 8 * (self.keys.bits.capacity() + self.keys.refs.capacity());
        if bytes + 8 * self.entries.capacity() <= KEPT_BYTES {
            scratch.bits = self.keys.bits;
            scratch.refs = self.keys.refs;
            scratch.entries = self.entries;
        }
    }
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

/// One column of the rows of a result
struct Gather<'g, 'a> {
    refs: &'g [RowRef],
    blocks: &'g [Block<'a>],
    column: usize,
}

impl Gather<'_, '_> {
    fn fixed(&self, kind: Kind, nullable: bool, target: &mut [u8]) -> Result<(), ExchangeError> {
        let nan = f64::NAN.to_le_bytes();
        if !nullable {
            return match kind.width() {
                Some(1) => self.copy([0; 1], target),
                Some(2) => self.copy([0; 2], target),
                Some(4) => self.copy([0; 4], target),
                Some(_) => self.copy([0; 8], target),
                None => Err(ExchangeError::Mismatch),
            };
        }
        macro_rules! floats {
            ($number:ty) => {
                self.convert(target, nan, |value| {
                    (<$number>::from_le_bytes(value) as f64).to_le_bytes()
                })
            };
        }
        match kind {
            Kind::Int(1) => floats!(i8),
            Kind::Int(2) => floats!(i16),
            Kind::Int(4) => floats!(i32),
            Kind::Int(_) => floats!(i64),
            Kind::Uint(1) => floats!(u8),
            Kind::Uint(2) => floats!(u16),
            Kind::Uint(4) => floats!(u32),
            Kind::Uint(_) => floats!(u64),
            Kind::Float(4) => self.copy(f32::NAN.to_le_bytes(), target),
            Kind::Float(_) => self.copy(nan, target),
            // NaT
            Kind::Time => self.copy(i64::MIN.to_le_bytes(), target),
            Kind::Bool | Kind::Text => Err(ExchangeError::Mismatch),
        }
    }

    fn copy<const W: usize>(
        &self,
        missing: [u8; W],
        target: &mut [u8],
    ) -> Result<(), ExchangeError> {
        self.convert(target, missing, |value| value)
    }

    fn convert<const W: usize, const T: usize>(
        &self,
        target: &mut [u8],
        missing: [u8; T],
        convert: impl Fn([u8; W]) -> [u8; T],
    ) -> Result<(), ExchangeError> {
        expect(target.len(), self.refs.len() * T)?;
        let mut columns = Vec::with_capacity(self.blocks.len());
        for block in self.blocks {
            let region = &block.regions[self.column];
            columns.push(region.of(block.bytes).as_chunks::<W>().0);
        }
        let (target, _) = target.as_chunks_mut::<T>();
        for (place, at) in target.iter_mut().zip(self.refs) {
            let value = columns
                .get(at.block as usize)
                .and_then(|values| values.get(at.row as usize));
            *place = value.map_or(missing, |&value| convert(value));
        }
        Ok(())
    }
}

/// A text column of one block
struct TextColumn<'a> {
    offsets: &'a [[u8; 8]],
    validity: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> TextColumn<'a> {
    fn new(block: &Block<'a>, column: usize) -> Result<Self, ExchangeError> {
        let region = block.regions.get(column).ok_or(ExchangeError::Mismatch)?;
        if region.kind != Kind::Text {
            return Err(ExchangeError::Mismatch);
        }
        let [offsets, validity, bytes] = region.split_text(block.rows, region.of(block.bytes));
        Ok(Self {
            offsets: offsets.as_chunks::<8>().0,
            validity,
            bytes,
        })
    }

    fn of_blocks(blocks: &[Block<'a>], column: usize) -> Result<Vec<Self>, ExchangeError> {
        blocks
            .iter()
            .map(|block| Self::new(block, column))
            .collect()
    }

    /// Returns the text of a row; `None` if it is null
    fn value(&self, row: usize) -> Result<Option<&'a [u8]>, ExchangeError> {
        if self.validity.get(row).is_none_or(|&is_valid| is_valid == 0) {
            return Ok(None);
        }
        word(self.offsets, row)
            .zip(word(self.offsets, row + 1))
            .and_then(|(start, end)| {
                let start = usize::try_from(start).ok()?;
                self.bytes.get(start..usize::try_from(end).ok()?)
            })
            .map(Some)
            .ok_or(ExchangeError::InvalidBlock("text offsets"))
    }
}

/// Returns the text of a row of several blocks; `None` if it is null or missing
fn value_at<'a>(texts: &[TextColumn<'a>], at: RowRef) -> Result<Option<&'a [u8]>, ExchangeError> {
    match texts.get(at.block as usize) {
        Some(text) => text.value(at.row as usize),
        None => Ok(None),
    }
}

fn gather_text(
    refs: &[RowRef],
    texts: &[TextColumn<'_>],
    [offsets, validity, bytes]: [&mut [u8]; 3],
) -> Result<usize, ExchangeError> {
    let (offsets, _) = offsets.as_chunks_mut::<8>();
    validity.fill(0);
    offsets[0] = 0u64.to_le_bytes();
    let (mut end, mut nulls) = (0usize, 0);
    for (row, &at) in refs.iter().enumerate() {
        if let Some(value) = value_at(texts, at)? {
            let place = bytes.get_mut(end..end + value.len());
            place.ok_or(ExchangeError::Mismatch)?.copy_from_slice(value);
            end += value.len();
            validity[row / 8] |= 1 << (row % 8);
        } else {
            nulls += 1;
        }
        offsets[row + 1] = (end as u64).to_le_bytes();
    }
    expect(bytes.len(), end)?;
    Ok(nulls)
}
