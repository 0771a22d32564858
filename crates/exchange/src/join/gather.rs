//! Gathering of the rows of a join from the blocks

use std::borrow::Cow;

use crate::assemble::expect;
use crate::{Block, ExchangeError, Kind, word};

use super::RowRef;

/// Value of a boolean without a row
const MISSING_BOOL: u8 = 2;

/// One column of the rows of a result
pub(super) struct Gather<'g, 'a> {
    pub(super) kind: Kind,
    /// For each row of the result, the index in `columns`, and the row of the block
    pub(super) refs: Cow<'g, [RowRef]>,
    pub(super) columns: Vec<(&'g Block<'a>, usize)>,
}

impl<'a> Gather<'_, 'a> {
    /// Reads the columns, which are text
    pub(super) fn texts(&self) -> Result<Vec<TextColumn<'a>>, ExchangeError> {
        let columns = self.columns.iter();
        columns
            .map(|&(block, column)| TextColumn::new(block, column))
            .collect()
    }

    /// Copies values of equal width; converts them where rows can be missing
    pub(super) fn fixed(&self, is_nullable: bool, target: &mut [u8]) -> Result<(), ExchangeError> {
        let nan = f64::NAN.to_le_bytes();
        if !is_nullable {
            return match self.kind.width() {
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
        match self.kind {
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
            Kind::Bool => self.copy([MISSING_BOOL], target),
            Kind::Text => Err(ExchangeError::Mismatch),
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
        let columns = self.columns.iter().map(|&(block, column)| {
            let values = block.regions[column].of(block.bytes);
            values.as_chunks::<W>().0
        });
        let columns: Vec<_> = columns.collect();
        let (target, _) = target.as_chunks_mut::<T>();
        for (place, at) in target.iter_mut().zip(self.refs.iter()) {
            let value = columns
                .get(at.block as usize)
                .and_then(|values| values.get(at.row as usize));
            *place = value.map_or(missing, |&value| convert(value));
        }
        Ok(())
    }
}

/// A text column of one block
pub(super) struct TextColumn<'a> {
    offsets: &'a [[u8; 8]],
    validity: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> TextColumn<'a> {
    pub(super) fn new(block: &Block<'a>, column: usize) -> Result<Self, ExchangeError> {
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

    /// Returns the text of a row; `None` if it is null
    pub(super) fn value(&self, row: usize) -> Result<Option<&'a [u8]>, ExchangeError> {
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
pub(super) fn value_at<'a>(
    texts: &[TextColumn<'a>],
    at: RowRef,
) -> Result<Option<&'a [u8]>, ExchangeError> {
    match texts.get(at.block as usize) {
        Some(text) => text.value(at.row as usize),
        None => Ok(None),
    }
}

pub(super) fn gather_text(
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
