//! Extraction of one slot from a block that is not in memory

use std::ops::Range;

use crate::block::{self, Region};
use crate::{Block, ExchangeError, Kind, Layout, word};

/// Copies one slot into a new block of the same columns and slots, whose other slots are empty
///
/// `bytes` is the size of the block. `read` fills a buffer with the bytes from an offset on.
///
/// # Errors
///
/// The error of `read`, or [`ExchangeError`] if the block is inconsistent or lacks the slot.
pub fn extract<E: From<ExchangeError>>(
    bytes: usize,
    slot: usize,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let mut read_vec = |range: Range<usize>| {
        let mut found = vec![0; range.len()];
        read(range.start, &mut found).map(|()| found)
    };
    if bytes < block::COUNTS_BYTES {
        return Err(ExchangeError::InvalidBlock("truncated").into());
    }
    let counts = read_vec(0..block::COUNTS_BYTES)?;
    let header = read_vec(0..block::header_bytes(&counts, bytes)?)?;
    let source = Block::read_header(&header, bytes)?;
    let rows = source.piece(slot)?;

    let mut texts = Vec::with_capacity(source.regions.len());
    for region in &source.regions {
        texts.push(match region.kind.width() {
            Some(_) => None,
            None => {
                let offsets = region.text_offsets(&rows);
                let text_bytes = region.end() - region.text_start(source.rows);
                Some(TextRange::new(read_vec(offsets)?, text_bytes)?)
            }
        });
    }
    let columns: Vec<(Kind, usize)> = source
        .regions
        .iter()
        .zip(&texts)
        .map(|(region, text)| {
            (
                region.kind,
                text.as_ref().map_or(0, |text| text.range.len()),
            )
        })
        .collect();
    let offsets: Vec<u64> = (0..=source.slots())
        .map(|end| if end > slot { rows.len() as u64 } else { 0 })
        .collect();
    let layout = Layout::new(&columns, rows.len(), &offsets);
    let mut piece = vec![0; layout.bytes()];
    layout.write_header(&mut piece)?;
    for ((from, to), text) in source.regions.iter().zip(layout.regions()).zip(&texts) {
        let target = to.of_mut(&mut piece);
        match (from.kind.width(), text) {
            (Some(width), _) => read(from.start() + rows.start * width, target)?,
            (None, None) => return Err(ExchangeError::Mismatch.into()),
            (None, Some(text)) => text.copy(from, to, source.rows, &rows, target, &mut read)?,
        }
    }
    Ok(piece)
}

/// Text of one slot
struct TextRange {
    /// Offsets of the rows from the first byte of the slot
    offsets: Vec<u8>,
    /// Bytes of the slot within the text of the block
    range: Range<usize>,
}

impl TextRange {
    /// Takes the offsets of the rows within the text of the block, which has so many bytes
    fn new(mut offsets: Vec<u8>, text_bytes: usize) -> Result<Self, ExchangeError> {
        let invalid = ExchangeError::InvalidBlock("text offsets");
        let (words, _) = offsets.as_chunks_mut::<8>();
        let first = word(words, 0).ok_or_else(|| invalid.clone())?;
        let mut end = first;
        for place in words {
            let offset = u64::from_le_bytes(*place);
            if offset < end {
                return Err(invalid);
            }
            end = offset;
            *place = (offset - first).to_le_bytes();
        }
        match (usize::try_from(first), usize::try_from(end)) {
            (Ok(start), Ok(end)) if end <= text_bytes => Ok(Self {
                offsets,
                range: start..end,
            }),
            _ => Err(invalid),
        }
    }

    fn copy<E: From<ExchangeError>>(
        &self,
        from: &Region,
        to: &Region,
        block_rows: usize,
        rows: &Range<usize>,
        target: &mut [u8],
        read: &mut impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (offsets, validity, text) = to.split_text_mut(rows.len(), target);
        offsets.copy_from_slice(&self.offsets);
        let text_start = from.text_start(block_rows);
        read(text_start - block_rows + rows.start, validity)?;
        read(text_start + self.range.start, text)
    }
}
