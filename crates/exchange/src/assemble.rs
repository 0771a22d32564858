//! Assembly of an output partition: its pieces of all blocks, one after the other

use crate::{Block, ExchangeError, word};

/// Memory that receives one column of an output partition
#[derive(Debug)]
pub enum Target<'a> {
    /// Values of equal width
    Fixed(&'a mut [u8]),
    /// Text in Arrow's layout
    Text {
        /// Offsets, one more than there are rows, of eight bytes each
        offsets: &'a mut [u8],
        /// One bit for each row, least significant bit first
        validity: &'a mut [u8],
        /// UTF-8 bytes of all values
        bytes: &'a mut [u8],
    },
}

/// Returns the rows of one slot in all blocks
///
/// # Errors
///
/// [`ExchangeError`] if a block is inconsistent or lacks the slot.
pub fn piece_rows(blocks: &[Block<'_>], slot: usize) -> Result<usize, ExchangeError> {
    let mut rows = 0usize;
    for block in blocks {
        rows = rows
            .checked_add(block.piece(slot)?.len())
            .ok_or(ExchangeError::InvalidBlock("rows"))?;
    }
    Ok(rows)
}

/// Returns the bytes of text of one slot in all blocks, for each column; 0 for other columns
///
/// # Errors
///
/// [`ExchangeError`] if a block is inconsistent, or if the blocks differ in their columns.
pub fn piece_bytes(blocks: &[Block<'_>], slot: usize) -> Result<Vec<usize>, ExchangeError> {
    let Some(first) = blocks.first() else {
        return Ok(Vec::new());
    };
    let mut bytes = vec![0usize; first.regions.len()];
    for block in blocks {
        if !block.kinds().eq(first.kinds()) || block.slots() != first.slots() {
            return Err(ExchangeError::Mismatch);
        }
        for (column, bytes) in bytes.iter_mut().enumerate() {
            *bytes = bytes
                .checked_add(text_piece(block, column, slot)?.map_or(0, |piece| piece.bytes.len()))
                .ok_or(ExchangeError::InvalidBlock("text"))?;
        }
    }
    Ok(bytes)
}

/// Concatenates the pieces of one slot, in the order of the blocks; returns the nulls of each column
///
/// # Errors
///
/// [`ExchangeError`] if a block is inconsistent, if the blocks differ in their columns, or if a
/// target has another size than its column.
pub fn assemble(
    blocks: &[Block<'_>],
    slot: usize,
    targets: &mut [Target<'_>],
) -> Result<Vec<usize>, ExchangeError> {
    let rows = piece_rows(blocks, slot)?;
    let sizes = piece_bytes(blocks, slot)?;
    if sizes.len() != targets.len() {
        return Err(ExchangeError::Mismatch);
    }
    let mut nulls = vec![0; targets.len()];
    for (column, target) in targets.iter_mut().enumerate() {
        match target {
            Target::Fixed(target) => fixed(blocks, slot, column, rows, target)?,
            Target::Text {
                offsets,
                validity,
                bytes,
            } => {
                expect(offsets.len(), (rows + 1) * 8)?;
                expect(validity.len(), rows.div_ceil(8))?;
                expect(bytes.len(), sizes[column])?;
                nulls[column] = text(blocks, slot, column, [offsets, validity, bytes])?;
            }
        }
    }
    Ok(nulls)
}

fn fixed(
    blocks: &[Block<'_>],
    slot: usize,
    column: usize,
    rows: usize,
    target: &mut [u8],
) -> Result<(), ExchangeError> {
    let mut rest = target;
    let found = rest.len();
    for block in blocks {
        let region = &block.regions[column];
        let width = region.kind.width().ok_or(ExchangeError::Mismatch)?;
        expect(found, rows * width)?;
        let piece = block.piece(slot)?;
        let values = &region.of(block.bytes)[piece.start * width..piece.end * width];
        let (place, left) = rest.split_at_mut(values.len());
        place.copy_from_slice(values);
        rest = left;
    }
    Ok(())
}

fn text(
    blocks: &[Block<'_>],
    slot: usize,
    column: usize,
    [offsets, validity, bytes]: [&mut [u8]; 3],
) -> Result<usize, ExchangeError> {
    let (offsets, _) = offsets.as_chunks_mut::<8>();
    let mut end = 0u64;
    offsets[0] = end.to_le_bytes();
    validity.fill(0);
    let (mut row, mut nulls) = (0, 0);
    for block in blocks {
        let piece = text_piece(block, column, slot)?.ok_or(ExchangeError::Mismatch)?;
        let base = end;
        let place = bytes.get_mut(end as usize..end as usize + piece.bytes.len());
        place
            .ok_or(ExchangeError::Mismatch)?
            .copy_from_slice(piece.bytes);
        for (index, &is_valid) in piece.validity.iter().enumerate() {
            let next = base + piece.offset(index + 1)?;
            if next < end {
                return Err(ExchangeError::InvalidBlock("text offsets"));
            }
            end = next;
            offsets[row + 1] = end.to_le_bytes();
            if is_valid != 0 {
                validity[row / 8] |= 1 << (row % 8);
            } else {
                nulls += 1;
            }
            row += 1;
        }
        end = base + piece.bytes.len() as u64;
    }
    Ok(nulls)
}

/// Text of one slot of one block
struct TextPiece<'a> {
    /// Offsets of the rows of the slot, and the end
    offsets: &'a [[u8; 8]],
    validity: &'a [u8],
    bytes: &'a [u8],
}

impl TextPiece<'_> {
    /// Returns the offset of a row of the slot from the first byte of the slot
    fn offset(&self, row: usize) -> Result<u64, ExchangeError> {
        let first = word(self.offsets, 0).unwrap_or(0);
        word(self.offsets, row)
            .and_then(|offset| offset.checked_sub(first))
            .filter(|&offset| offset <= self.bytes.len() as u64)
            .ok_or(ExchangeError::InvalidBlock("text offsets"))
    }
}

/// Returns the text of a slot; `None` if the column is no text
fn text_piece<'a>(
    block: &Block<'a>,
    column: usize,
    slot: usize,
) -> Result<Option<TextPiece<'a>>, ExchangeError> {
    let region = &block.regions[column];
    if region.kind.width().is_some() {
        return Ok(None);
    }
    let rows = block.piece(slot)?;
    let [offsets, validity, bytes] = region.split_text(block.rows, region.of(block.bytes));
    let (offsets, _) = offsets.as_chunks::<8>();
    let offsets = &offsets[rows.start..=rows.end];
    let range = word(offsets, 0)
        .zip(word(offsets, rows.len()))
        .and_then(|(start, end)| Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?)))
        .and_then(|(start, end)| bytes.get(start..end));
    Ok(Some(TextPiece {
        offsets,
        validity: &validity[rows],
        bytes: range.ok_or(ExchangeError::InvalidBlock("text offsets"))?,
    }))
}

/// Checks the size of a target
pub(crate) fn expect(found: usize, expected: usize) -> Result<(), ExchangeError> {
    if found == expected {
        Ok(())
    } else {
        Err(ExchangeError::TargetBytes { found, expected })
    }
}
