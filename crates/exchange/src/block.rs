//! Block: one input partition whose rows are grouped by output partition, in one buffer
//!
//! Words of eight little-endian bytes, then the columns:
//!
//! ```text
//! MAGIC | rows | slots | columns | (kind, start, text bytes) per column | slots + 1 row offsets
//! column at `start`, a multiple of 64:  fixed: values;  text: rows + 1 offsets | rows validity bytes | text
//! ```

use std::ops::Range;

use crate::{ExchangeError, Kind, word};

/// Begins each block; the last two bytes are the version
const MAGIC: u64 = u64::from_le_bytes(*b"BHEXCH01");
const HEADER_WORDS: usize = 4;
const COLUMN_WORDS: usize = 3;
/// Bytes at the start of a block that [`header_bytes`] needs
pub(crate) const COUNTS_BYTES: usize = HEADER_WORDS * 8;
/// Columns begin at multiples of a cache line
const ALIGNMENT: usize = 64;

/// Sizes and places of the columns of a block that is to be written
#[derive(Debug)]
pub struct Layout {
    header: Vec<u64>,
    regions: Vec<Region>,
    bytes: usize,
}

impl Layout {
    /// Lays out columns, given their kinds and bytes of text, and the row offsets of all slots
    pub(crate) fn new(columns: &[(Kind, usize)], rows: usize, offsets: &[u64]) -> Self {
        let slots = offsets.len() - 1;
        let words = HEADER_WORDS + COLUMN_WORDS * columns.len() + offsets.len();
        let mut header = Vec::with_capacity(words);
        header.extend([MAGIC, rows as u64, slots as u64, columns.len() as u64]);
        let mut end = words * 8;
        let mut regions = Vec::with_capacity(columns.len());
        for &(kind, text_bytes) in columns {
            let start = end.next_multiple_of(ALIGNMENT);
            header.extend([code(kind), start as u64, text_bytes as u64]);
            end = start + column_bytes(kind, rows, text_bytes).expect("columns are in memory");
            regions.push(Region {
                kind,
                range: start..end,
            });
        }
        header.extend_from_slice(offsets);
        Self {
            header,
            regions,
            bytes: end,
        }
    }

    /// Returns the size of the block
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub(crate) fn write_header(&self, block: &mut [u8]) -> Result<(), ExchangeError> {
        if block.len() != self.bytes {
            return Err(ExchangeError::TargetBytes {
                found: block.len(),
                expected: self.bytes,
            });
        }
        let (words, _) = block.as_chunks_mut::<8>();
        for (place, word) in words.iter_mut().zip(&self.header) {
            *place = word.to_le_bytes();
        }
        Ok(())
    }
}

/// Place of one column in a block
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) kind: Kind,
    range: Range<usize>,
}

impl Region {
    /// Returns the first byte of the column
    pub(crate) fn start(&self) -> usize {
        self.range.start
    }

    /// Returns the end of the column
    pub(crate) fn end(&self) -> usize {
        self.range.end
    }

    /// Returns the bytes of the offsets of some rows of a text column
    pub(crate) fn text_offsets(&self, rows: &Range<usize>) -> Range<usize> {
        self.range.start + rows.start * 8..self.range.start + (rows.end + 1) * 8
    }

    pub(crate) fn of_mut<'a>(&self, block: &'a mut [u8]) -> &'a mut [u8] {
        &mut block[self.range.clone()]
    }

    pub(crate) fn of<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        &block[self.range.clone()]
    }

    /// Returns the first byte of the text of a text column
    pub(crate) fn text_start(&self, rows: usize) -> usize {
        self.range.start + (rows + 1) * 8 + rows
    }

    /// Splits a text column into offsets, validity and text
    pub(crate) fn split_text_mut<'a>(
        &self,
        rows: usize,
        column: &'a mut [u8],
    ) -> (&'a mut [u8], &'a mut [u8], &'a mut [u8]) {
        let (offsets, rest) = column.split_at_mut((rows + 1) * 8);
        let (validity, bytes) = rest.split_at_mut(rows);
        (offsets, validity, bytes)
    }

    /// Splits a text column likewise
    pub(crate) fn split_text<'a>(&self, rows: usize, column: &'a [u8]) -> [&'a [u8]; 3] {
        let (offsets, rest) = column.split_at((rows + 1) * 8);
        let (validity, bytes) = rest.split_at(rows);
        [offsets, validity, bytes]
    }
}

/// A block that is read
#[derive(Debug)]
pub struct Block<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) rows: usize,
    pub(crate) regions: Vec<Region>,
    slots: usize,
}

impl<'a> Block<'a> {
    /// Reads the header of a block
    ///
    /// # Errors
    ///
    /// [`ExchangeError::InvalidBlock`] if the block is truncated, corrupt, or of another version.
    pub fn read(bytes: &'a [u8]) -> Result<Self, ExchangeError> {
        Self::read_header(bytes, bytes.len())
    }

    /// Reads the header of a block of which only the header is in memory
    pub(crate) fn read_header(header: &'a [u8], bytes: usize) -> Result<Self, ExchangeError> {
        header_bytes(header, bytes)?;
        let (words, _) = header.as_chunks::<8>();
        let at = |index| word(words, index).ok_or(ExchangeError::InvalidBlock("truncated"));
        let size = |index| {
            at(index).and_then(|word| {
                usize::try_from(word).map_err(|_| ExchangeError::InvalidBlock("size"))
            })
        };
        let (rows, slots, columns) = (size(1)?, size(2)?, size(3)?);
        let invalid = ExchangeError::InvalidBlock("column");
        let mut regions = Vec::with_capacity(columns);
        for column in 0..columns {
            let first = HEADER_WORDS + COLUMN_WORDS * column;
            let kind = kind_of(at(first)?).ok_or_else(|| invalid.clone())?;
            let start = size(first + 1)?;
            let range = column_bytes(kind, rows, size(first + 2)?)
                .and_then(|length| start.checked_add(length))
                .map(|end| start..end)
                .filter(|range| range.end <= bytes)
                .ok_or_else(|| invalid.clone())?;
            regions.push(Region { kind, range });
        }
        let block = Self {
            bytes: header,
            rows,
            regions,
            slots,
        };
        block.piece_end(slots)?;
        Ok(block)
    }

    /// Returns the number of slots
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the types of the columns
    pub fn kinds(&self) -> impl ExactSizeIterator<Item = Kind> {
        self.regions.iter().map(|region| region.kind)
    }

    /// Returns the rows of one slot
    ///
    /// # Errors
    ///
    /// [`ExchangeError::InvalidBlock`] if there is no such slot, or its offsets are inconsistent.
    pub fn piece(&self, slot: usize) -> Result<Range<usize>, ExchangeError> {
        if slot >= self.slots {
            return Err(ExchangeError::InvalidBlock("slot"));
        }
        let (start, end) = (self.piece_end(slot)?, self.piece_end(slot + 1)?);
        if start > end || end > self.rows {
            return Err(ExchangeError::InvalidBlock("row offsets"));
        }
        Ok(start..end)
    }

    fn piece_end(&self, slot: usize) -> Result<usize, ExchangeError> {
        let (words, _) = self.bytes.as_chunks::<8>();
        word(
            words,
            HEADER_WORDS + COLUMN_WORDS * self.regions.len() + slot,
        )
        .and_then(|offset| usize::try_from(offset).ok())
        .ok_or(ExchangeError::InvalidBlock("row offsets"))
    }
}

/// Returns the size of the header, given its first [`COUNTS_BYTES`] and the size of the block
///
/// # Errors
///
/// [`ExchangeError::InvalidBlock`] if the block is truncated, or of another version.
pub(crate) fn header_bytes(counts: &[u8], bytes: usize) -> Result<usize, ExchangeError> {
    let (words, _) = counts.as_chunks::<8>();
    let at = |index| word(words, index).ok_or(ExchangeError::InvalidBlock("truncated"));
    if at(0)? != MAGIC {
        return Err(ExchangeError::InvalidBlock("no block of this version"));
    }
    let count = |index| at(index).map(|word| usize::try_from(word).unwrap_or(usize::MAX));
    let (slots, columns) = (count(2)?, count(3)?);
    columns
        .checked_mul(COLUMN_WORDS)
        .and_then(|words| words.checked_add(HEADER_WORDS + 1))
        .and_then(|words| words.checked_add(slots))
        .and_then(|words| words.checked_mul(8))
        .filter(|&header| header <= bytes)
        .ok_or(ExchangeError::InvalidBlock("counts"))
}

/// Returns the bytes of a column; `None` if no memory can have as many
fn column_bytes(kind: Kind, rows: usize, text_bytes: usize) -> Option<usize> {
    match kind.width() {
        Some(width) => rows.checked_mul(width),
        None => rows
            .checked_add(1)?
            .checked_mul(8)?
            .checked_add(rows)?
            .checked_add(text_bytes),
    }
}

fn code(kind: Kind) -> u64 {
    match kind {
        Kind::Bool => 1,
        Kind::Int(width) => 0x100 + u64::from(width),
        Kind::Uint(width) => 0x200 + u64::from(width),
        Kind::Float(width) => 0x300 + u64::from(width),
        Kind::Time => 2,
        Kind::Text => 3,
    }
}

fn kind_of(code: u64) -> Option<Kind> {
    let width = (code & 0xff) as u8;
    match (code >> 8, width) {
        (0, 1) => Some(Kind::Bool),
        (0, 2) => Some(Kind::Time),
        (0, 3) => Some(Kind::Text),
        (1, 1 | 2 | 4 | 8) => Some(Kind::Int(width)),
        (2, 1 | 2 | 4 | 8) => Some(Kind::Uint(width)),
        (3, 4 | 8) => Some(Kind::Float(width)),
        _ => None,
    }
}
