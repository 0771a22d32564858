//! Keys of the rows of a frame: hashes, and the values that decide whether keys are equal

use std::cmp::Ordering;
use std::ops::Range;

use crate::hash::{self, mix};
use crate::{Block, ExchangeError, Kind};

use super::gather::TextColumn;
use super::{RowRef, kind_of};

/// Columns of the keys of one frame, and their types
#[derive(Debug)]
pub(super) struct KeyColumns {
    columns: Vec<usize>,
    kinds: Vec<Kind>,
    /// Number of columns that are text
    texts: usize,
    /// True if the bits of a key are all of it
    is_exact: bool,
}

impl KeyColumns {
    /// Finds the types of the keys of two frames, which are the same
    pub(super) fn pair(
        blocks: [&[Block<'_>]; 2],
        columns: [&[usize]; 2],
    ) -> Result<[Self; 2], ExchangeError> {
        if columns[0].is_empty() || columns[0].len() != columns[1].len() {
            return Err(ExchangeError::Mismatch);
        }
        let mut kinds = Vec::with_capacity(columns[0].len());
        for (&left, &right) in columns[0].iter().zip(columns[1]) {
            let found = [kind_of(blocks[0], left)?, kind_of(blocks[1], right)?];
            if found[0]
                .zip(found[1])
                .is_some_and(|(left, right)| left != right)
            {
                return Err(ExchangeError::Mismatch);
            }
            // The type is of no importance if neither frame has a block.
            kinds.push(found[0].or(found[1]).unwrap_or(Kind::Bool));
        }
        let texts = kinds.iter().filter(|&&kind| kind == Kind::Text).count();
        Ok(columns.map(|columns| Self {
            columns: columns.to_vec(),
            kinds: kinds.clone(),
            texts,
            is_exact: columns.len() == 1 && texts == 0,
        }))
    }

    /// Returns whether the bits of a key are all of it
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Returns whether [`Keys::prefix`] is all of a key
    pub(super) fn is_in_prefix(&self) -> bool {
        self.texts == 0 && self.columns.len() <= 2
    }
}

/// Keys of rows of a frame, in order
#[derive(Default)]
pub(super) struct Keys<'a> {
    /// Bits of the key; equal keys have equal bits. A hash unless [`KeyColumns::is_exact`]
    pub(super) bits: Vec<u64>,
    /// Bits of each column of each key, row by row; empty if there is one column
    words: Vec<u64>,
    /// Text of each column that is text, row by row
    texts: Vec<Option<&'a [u8]>>,
    pub(super) refs: Vec<RowRef>,
}

impl<'a> Keys<'a> {
    /// Makes an empty list that uses the memory of another
    pub(super) fn reusing(mut bits: Vec<u64>, mut refs: Vec<RowRef>) -> Self {
        bits.clear();
        refs.clear();
        Self {
            bits,
            refs,
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.refs.len()
    }

    pub(super) fn clear(&mut self) {
        self.bits.clear();
        self.words.clear();
        self.texts.clear();
        self.refs.clear();
    }

    /// Appends the keys of some rows of a block
    pub(super) fn read(
        &mut self,
        blocks: &[Block<'a>],
        index: usize,
        keys: &KeyColumns,
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        let number = index as u32;
        self.refs.extend(rows.clone().map(|row| RowRef {
            block: number,
            row: row as u32,
        }));
        let block = &blocks[index];
        if let [column] = keys.columns[..] {
            if keys.is_exact() {
                return push_fixed(block, column, rows, &mut self.bits);
            }
            return self.read_text(&TextColumn::new(block, column)?, rows);
        }
        self.read_tuples(block, keys, rows)
    }

    fn read_text(
        &mut self,
        text: &TextColumn<'a>,
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        for row in rows {
            let value = text.value(row)?;
            self.bits.push(value.map_or(0, hash::sip));
            self.texts.push(value);
        }
        Ok(())
    }

    fn read_tuples(
        &mut self,
        block: &Block<'a>,
        keys: &KeyColumns,
        rows: Range<usize>,
    ) -> Result<(), ExchangeError> {
        if rows.is_empty() {
            return Ok(());
        }
        let (width, texts) = (keys.columns.len(), keys.texts);
        let (first_word, first_text) = (self.words.len(), self.texts.len());
        self.words.resize(first_word + rows.len() * width, 0);
        self.texts.resize(first_text + rows.len() * texts, None);
        let mut bits = Vec::with_capacity(rows.len());
        let mut text_place = first_text;
        for (place, (&column, &kind)) in keys.columns.iter().zip(&keys.kinds).enumerate() {
            bits.clear();
            if kind == Kind::Text {
                let text = TextColumn::new(block, column)?;
                for (row, found) in rows
                    .clone()
                    .zip(self.texts[text_place..].iter_mut().step_by(texts))
                {
                    *found = text.value(row)?;
                    bits.push(found.map_or(0, hash::sip));
                }
                text_place += 1;
            } else {
                push_fixed(block, column, rows.clone(), &mut bits)?;
            }
            let words = self.words[first_word + place..].iter_mut().step_by(width);
            for (word, &bits) in words.zip(&bits) {
                *word = bits;
            }
        }
        let tuples = self.words[first_word..].chunks_exact(width);
        self.bits.extend(tuples.map(|tuple| {
            tuple
                .iter()
                .fold(0, |hash, &word| mix(hash).wrapping_add(word))
        }));
        Ok(())
    }

    /// Returns whether two keys with equal bits are equal
    pub(super) fn is_same(
        &self,
        row: usize,
        other: &Self,
        other_row: usize,
        keys: &KeyColumns,
    ) -> bool {
        self.words_of(row, keys) == other.words_of(other_row, keys)
            && self.texts_of(row, keys) == other.texts_of(other_row, keys)
    }

    /// Compares two keys as pandas sorts them: by one column after the other, null last
    pub(super) fn compare(
        &self,
        row: usize,
        other: &Self,
        other_row: usize,
        keys: &KeyColumns,
    ) -> Ordering {
        let (words, other_words) = (self.words_of(row, keys), other.words_of(other_row, keys));
        let mut texts = self
            .texts_of(row, keys)
            .iter()
            .zip(other.texts_of(other_row, keys));
        for (place, &kind) in keys.kinds.iter().enumerate() {
            let order = match (kind, words.get(place).zip(other_words.get(place))) {
                (Kind::Text, _) => texts.next().map_or(Ordering::Equal, |(text, other)| {
                    (text.is_none(), text).cmp(&(other.is_none(), other))
                }),
                (_, Some((&word, &other))) => rank(kind, word).cmp(&rank(kind, other)),
                (_, None) => self.rank(row, keys).cmp(&other.rank(other_row, keys)),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }

    /// Returns a number in the order of [`Self::compare`], which several keys may have
    ///
    /// Made of 16 bytes of the first column if it is text, or else of the first two columns.
    pub(super) fn prefix(&self, row: usize, keys: &KeyColumns) -> u128 {
        if keys.is_exact {
            return u128::from(self.rank(row, keys)) << 64;
        }
        let mut texts = self.texts_of(row, keys).iter();
        let mut text = || texts.next().copied().flatten();
        // A second column counts only where all of the first one is equal.
        if let [Kind::Text, ..] = keys.kinds[..] {
            return text().map_or(u128::MAX, |text| first_bytes(text, u128::from_be_bytes));
        }
        let pairs = keys.kinds.iter().zip(self.words_of(row, keys)).take(2);
        pairs.fold(0, |prefix, (&kind, &word)| {
            let next = match kind {
                Kind::Text => text().map_or(u64::MAX, |text| first_bytes(text, u64::from_be_bytes)),
                _ => rank(kind, word),
            };
            prefix << 64 | u128::from(next)
        })
    }

    fn rank(&self, row: usize, keys: &KeyColumns) -> u64 {
        rank(keys.kinds[0], self.bits[row])
    }

    fn words_of(&self, row: usize, keys: &KeyColumns) -> &[u64] {
        if self.words.is_empty() {
            return &[];
        }
        let width = keys.columns.len();
        &self.words[row * width..][..width]
    }

    fn texts_of(&self, row: usize, keys: &KeyColumns) -> &[Option<&'a [u8]>] {
        let texts = keys.texts;
        &self.texts[row * texts..][..texts]
    }
}

/// Reads the first bytes of a text, padded with zeroes
fn first_bytes<const N: usize, T>(text: &[u8], read: impl Fn([u8; N]) -> T) -> T {
    let mut bytes = [0; N];
    let length = text.len().min(N);
    bytes[..length].copy_from_slice(&text[..length]);
    read(bytes)
}

/// Appends the bits of numbers of a block, so that equal numbers have equal bits
fn push_fixed(
    block: &Block<'_>,
    column: usize,
    rows: Range<usize>,
    bits: &mut Vec<u64>,
) -> Result<(), ExchangeError> {
    let region = block.regions.get(column).ok_or(ExchangeError::Mismatch)?;
    let width = region.kind.width().ok_or(ExchangeError::Mismatch)?;
    let values = &region.of(block.bytes)[rows.start * width..rows.end * width];
    macro_rules! each {
        ($width:literal, $bits:expr) => {{
            let (values, _) = values.as_chunks::<$width>();
            bits.extend(values.iter().map(|&value| $bits(value)));
        }};
    }
    match region.kind {
        Kind::Float(4) => each!(4, |v| float_bits(f32::from_le_bytes(v).into())),
        Kind::Float(_) => each!(8, |v| float_bits(f64::from_le_bytes(v))),
        _ => match width {
            1 => each!(1, |v| u64::from(u8::from_le_bytes(v))),
            2 => each!(2, |v| u64::from(u16::from_le_bytes(v))),
            4 => each!(4, |v| u64::from(u32::from_le_bytes(v))),
            _ => each!(8, u64::from_le_bytes),
        },
    }
    Ok(())
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

/// Maps bits of [`push_fixed`] to numbers in the order of the values; NaN last, NaT first
fn rank(kind: Kind, bits: u64) -> u64 {
    const SIGN: u64 = 1 << 63;
    match kind {
        Kind::Int(width) => {
            let unused = 64 - 8 * u32::from(width);
            ((bits << unused).cast_signed() >> unused).cast_unsigned() ^ SIGN
        }
        Kind::Time => bits ^ SIGN,
        Kind::Float(_) if bits & SIGN == 0 => bits ^ SIGN,
        Kind::Float(_) => !bits,
        Kind::Bool | Kind::Uint(_) | Kind::Text => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_the_order_of_the_values() {
        let floats = [
            f64::NEG_INFINITY,
            -1.5,
            -0.0,
            1e-300,
            2.0,
            f64::INFINITY,
            f64::NAN,
        ];
        let ranks = floats.map(|value| rank(Kind::Float(8), float_bits(value)));
        assert!(ranks.is_sorted());
        assert_eq!(float_bits(-0.0), float_bits(0.0));
        let small = [-128i8, -1, 0, 127].map(|value| rank(Kind::Int(1), u64::from(value as u8)));
        assert!(small.is_sorted());
        let times = [i64::MIN, -1, 0, 1].map(|value| rank(Kind::Time, value as u64));
        assert!(times.is_sorted());
    }
}
