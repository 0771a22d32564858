//! Output partition of each row, and the stable scatter of rows into a block

use std::ops::Range;

use crate::block::{Layout, Region};
use crate::order::{Order, partition_rows};
use crate::{Column, ExchangeError, Text, hash_rows};

/// Position of a row that belongs to no wanted output partition
const DROPPED: u32 = u32::MAX;
/// Most rows of an input partition, as positions have four bytes
const ROWS_MAX: usize = DROPPED as usize;
/// Most output partitions
const PARTITIONS_MAX: usize = 1 << 24;

/// Assignment of the rows of one input partition to the slots of a block
///
/// A slot is a wanted output partition. Rows keep their order within a slot.
#[derive(Debug)]
pub struct Partitioning {
    rows_in: usize,
    /// Rows of the input that have a position, ascending; `None` if each has one or is dropped
    placed: Option<Vec<u32>>,
    /// Row of the block for each of these rows, or [`DROPPED`]
    positions: Vec<u32>,
    /// First row of the block for each slot, then the number of rows
    offsets: Vec<u64>,
}

impl Partitioning {
    /// Partitions rows by the hash of their keys, as Dask does
    ///
    /// `wanted` lists the output partitions of the slots, ascending; `None` wants all.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if a key has another number of rows, if text is inconsistent, or if there
    /// are too many rows or partitions.
    pub fn by_keys(
        keys: &[Column<'_>],
        rows: usize,
        partitions: usize,
        wanted: Option<&[usize]>,
    ) -> Result<Self, ExchangeError> {
        let slots = Slots::new(rows, partitions, wanted)?;
        let divisor = Divisor::new(partitions as u64);
        let mut positions = vec![DROPPED; rows];
        let wants_all = slots.of_partition.is_empty() && partitions > 0;
        hash_rows(keys, rows, |first, hashes| {
            for (slot, &hash) in positions[first..].iter_mut().zip(hashes) {
                *slot = divisor.remainder(hash) as u32;
            }
            if !wants_all {
                for slot in &mut positions[first..first + hashes.len()] {
                    *slot = slots.of((*slot).into());
                }
            }
        })?;
        Ok(slots.finish(positions))
    }

    /// Partitions rows by sorted divisions of their keys, as sorts by Dask do
    ///
    /// `divisions` has the least value of each output partition, ascending, then the largest one.
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the columns differ in type or have other numbers of values, if a division
    /// is missing, if text is inconsistent, or if there are too many rows or partitions.
    pub fn by_divisions(
        key: &Column<'_>,
        divisions: &Column<'_>,
        rows: usize,
        partitions: usize,
        order: Order,
        wanted: Option<&[usize]>,
    ) -> Result<Self, ExchangeError> {
        let slots = Slots::new(rows, partitions, wanted)?;
        let mut positions = Vec::with_capacity(rows);
        partition_rows(key, divisions, rows, partitions, order, |partition| {
            positions.push(slots.of(partition.into()));
        })?;
        Ok(slots.finish(positions))
    }

    /// Partitions rows by a column of partition numbers; rows without a valid number are dropped
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if the numbers have another width than 1, 2, 4 or 8 bytes, if they are not
    /// as many as there are rows, or if there are too many rows or partitions.
    pub fn by_numbers(
        numbers: &[u8],
        width: usize,
        rows: usize,
        partitions: usize,
        wanted: Option<&[usize]>,
    ) -> Result<Self, ExchangeError> {
        let slots = Slots::new(rows, partitions, wanted)?;
        if width.checked_mul(rows) != Some(numbers.len()) {
            return Err(ExchangeError::ColumnBytes {
                found: numbers.len(),
                expected: width.saturating_mul(rows),
            });
        }
        macro_rules! each {
            ($width:literal, $number:ty) => {{
                let (numbers, _) = numbers.as_chunks::<$width>();
                numbers
                    .iter()
                    .map(|&number| <$number>::from_le_bytes(number))
                    // A negative number wraps to one that exceeds every partition.
                    .map(|number| slots.of(number as u64))
                    .collect()
            }};
        }
        let positions = match width {
            1 => each!(1, i8),
            2 => each!(2, i16),
            4 => each!(4, i32),
            8 => each!(8, i64),
            _ => return Err(ExchangeError::NumberWidth { width }),
        };
        Ok(slots.finish(positions))
    }

    /// Assigns the rows of some slots alone, which are the slots from 0 on of the new block
    ///
    /// # Errors
    ///
    /// [`ExchangeError::TooMany`] if there are no such slots.
    pub fn part(&self, slots: Range<usize>) -> Result<Self, ExchangeError> {
        let too_many = ExchangeError::TooMany {
            found: slots.end,
            limit: self.offsets.len() - 1,
        };
        let offsets = self.offsets.get(slots.start..=slots.end);
        let offsets = offsets.unwrap_or_default();
        let (Some(first), Some(end)) = (offsets.first(), offsets.last()) else {
            return Err(too_many);
        };
        let count = (end - first) as usize;
        // One place more, for rows of other slots: a branch would be mispredicted for many of them.
        let (mut placed, mut positions) = (vec![0; count + 1], vec![0; count + 1]);
        let mut next = 0;
        for (index, &position) in self.positions.iter().enumerate() {
            let position = position.wrapping_sub(*first as u32);
            placed[next] = index as u32;
            positions[next] = position;
            next += usize::from((position as usize) < count);
        }
        placed.truncate(count);
        positions.truncate(count);
        if let Some(rows) = &self.placed {
            for row in &mut placed {
                *row = rows[*row as usize];
            }
        }
        Ok(Self {
            rows_in: self.rows_in,
            placed: Some(placed),
            positions,
            offsets: offsets.iter().map(|offset| offset - first).collect(),
        })
    }

    /// Returns the number of rows in the input partition
    pub fn rows_in(&self) -> usize {
        self.rows_in
    }

    /// Returns the number of rows in the block
    pub fn rows(&self) -> usize {
        self.offsets.last().map_or(0, |&rows| rows as usize)
    }

    /// Returns the row of the block for each row of the input partition; `None` if it is dropped
    pub fn positions(&self) -> Vec<Option<usize>> {
        let mut found = vec![None; self.rows_in];
        for (row, position) in self.kept() {
            found[row] = Some(position);
        }
        found
    }

    /// Lays out a block for these columns
    ///
    /// # Errors
    ///
    /// [`ExchangeError`] if a column has another number of rows, or text is inconsistent.
    pub fn layout(&self, columns: &[Column<'_>]) -> Result<Layout, ExchangeError> {
        let mut sizes = Vec::with_capacity(columns.len());
        for column in columns {
            column.check(self.rows_in())?;
            let text_bytes = match column {
                Column::Fixed { .. } => 0,
                Column::Text(text) => self.text_bytes(text)?,
            };
            sizes.push((column.kind(), text_bytes));
        }
        Ok(Layout::new(&sizes, self.rows(), &self.offsets))
    }

    /// Writes the columns into a block, grouped by slot
    ///
    /// # Errors
    ///
    /// [`ExchangeError::TargetBytes`] if the block has another size than the layout, and the errors
    /// of [`Partitioning::layout`].
    pub fn write(
        &self,
        layout: &Layout,
        columns: &[Column<'_>],
        block: &mut [u8],
    ) -> Result<(), ExchangeError> {
        layout.write_header(block)?;
        for (column, region) in columns.iter().zip(layout.regions()) {
            column.check(self.rows_in())?;
            let target = region.of_mut(block);
            match column {
                Column::Fixed { kind, values } => match kind.width() {
                    Some(1) => self.scatter::<1>(values, target),
                    Some(2) => self.scatter::<2>(values, target),
                    Some(4) => self.scatter::<4>(values, target),
                    _ => self.scatter::<8>(values, target),
                },
                Column::Text(text) => self.scatter_text(text, region, target)?,
            }
        }
        Ok(())
    }

    fn scatter<const W: usize>(&self, values: &[u8], target: &mut [u8]) {
        let (values, _) = values.as_chunks::<W>();
        let (target, _) = target.as_chunks_mut::<W>();
        let Some(placed) = &self.placed else {
            for (&position, value) in self.positions.iter().zip(values) {
                // The position of a dropped row exceeds every target.
                if let Some(target) = target.get_mut(position as usize) {
                    *target = *value;
                }
            }
            return;
        };
        for (&position, &row) in self.positions.iter().zip(placed) {
            if let (Some(target), Some(value)) =
                (target.get_mut(position as usize), values.get(row as usize))
            {
                *target = *value;
            }
        }
    }

    fn scatter_text(
        &self,
        text: &Text<'_>,
        region: &Region,
        target: &mut [u8],
    ) -> Result<(), ExchangeError> {
        let rows = self.rows();
        let (offsets, validity, bytes) = region.split_text_mut(rows, target);
        let (offsets, _) = offsets.as_chunks_mut::<8>();
        // Lengths first, one place later, so that their running sum gives the offsets
        for (row, position) in self.kept() {
            if let Some(is_valid) = validity.get_mut(position) {
                *is_valid = text.is_valid(row).into();
                let length = text.value(row)?.len() as u64;
                offsets[position + 1] = length.to_le_bytes();
            }
        }
        let mut end = 0u64;
        offsets[0] = end.to_le_bytes();
        for offset in &mut offsets[1..] {
            end += u64::from_le_bytes(*offset);
            *offset = end.to_le_bytes();
        }
        for (row, position) in self.kept() {
            let value = text.value(row)?;
            let start = u64::from_le_bytes(offsets[position]) as usize;
            let place = bytes.get_mut(start..start + value.len());
            place.ok_or(ExchangeError::Mismatch)?.copy_from_slice(value);
        }
        Ok(())
    }

    fn text_bytes(&self, text: &Text<'_>) -> Result<usize, ExchangeError> {
        let mut bytes = 0;
        for (row, _) in self.kept() {
            bytes += text.value(row)?.len();
        }
        Ok(bytes)
    }

    /// Returns each row of the input that is not dropped, and its row of the block
    fn kept(&self) -> impl Iterator<Item = (usize, usize)> {
        let row_of = |index| {
            self.placed
                .as_ref()
                .map_or(index, |rows| rows[index] as usize)
        };
        self.positions
            .iter()
            .enumerate()
            .filter(|&(_, &position)| position != DROPPED)
            .map(move |(index, &position)| (row_of(index), position as usize))
    }
}

/// Slots of the wanted output partitions
struct Slots {
    /// Slot of each output partition; one that exceeds all slots if it is not wanted. Empty if all
    /// partitions are wanted
    of_partition: Vec<u32>,
    partitions: usize,
    count: usize,
}

impl Slots {
    fn new(
        rows: usize,
        partitions: usize,
        wanted: Option<&[usize]>,
    ) -> Result<Self, ExchangeError> {
        for (found, limit) in [(rows, ROWS_MAX), (partitions, PARTITIONS_MAX)] {
            if found > limit {
                return Err(ExchangeError::TooMany { found, limit });
            }
        }
        let mut of_partition = Vec::new();
        if let Some(wanted) = wanted {
            of_partition.resize(partitions, DROPPED);
            for (slot, &partition) in wanted.iter().enumerate() {
                let place = of_partition.get_mut(partition);
                let too_many = || ExchangeError::TooMany {
                    found: partition,
                    limit: partitions.saturating_sub(1),
                };
                *place.ok_or_else(too_many)? = slot as u32;
            }
        }
        Ok(Self {
            of_partition,
            partitions,
            count: wanted.map_or(partitions, <[_]>::len),
        })
    }

    /// Returns the slot of a partition, or [`DROPPED`]
    #[inline(always)]
    fn of(&self, partition: u64) -> u32 {
        if partition >= self.partitions as u64 {
            DROPPED
        } else if self.of_partition.is_empty() {
            partition as u32
        } else {
            self.of_partition[partition as usize]
        }
    }

    /// Replaces the slot of each row by its position in the block
    fn finish(self, mut slots: Vec<u32>) -> Partitioning {
        let mut next = vec![0u32; self.count];
        for &slot in &slots {
            if let Some(count) = next.get_mut(slot as usize) {
                *count += 1;
            }
        }
        let mut offsets = Vec::with_capacity(self.count + 1);
        let mut end = 0u32;
        offsets.push(0);
        for place in &mut next {
            end += std::mem::replace(place, end);
            offsets.push(end.into());
        }
        for slot in &mut slots {
            if let Some(position) = next.get_mut(*slot as usize) {
                *slot = *position;
                *position += 1;
            }
        }
        Partitioning {
            rows_in: slots.len(),
            placed: None,
            positions: slots,
            offsets,
        }
    }
}

/// Divisor of many 64-bit numbers
///
/// The estimate `n * floor((2^64 - 1) / d) >> 64` of a quotient is too small by one at most.
#[derive(Clone, Copy)]
struct Divisor {
    divisor: u64,
    reciprocal: u64,
}

impl Divisor {
    fn new(divisor: u64) -> Self {
        let divisor = divisor.max(1);
        Self {
            divisor,
            reciprocal: u64::MAX / divisor,
        }
    }

    #[inline(always)]
    fn remainder(self, number: u64) -> u64 {
        let quotient = (u128::from(number) * u128::from(self.reciprocal)) >> 64;
        let left = number.wrapping_sub((quotient as u64).wrapping_mul(self.divisor));
        // A branch would be mispredicted for half of the numbers.
        let less = left.wrapping_sub(self.divisor);
        std::hint::select_unpredictable(left >= self.divisor, less, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_are_exact() {
        for divisor in [
            1,
            2,
            3,
            7,
            20,
            127,
            128,
            129,
            255,
            256,
            1000,
            65537,
            1 << 24,
        ] {
            let fast = Divisor::new(divisor);
            let mut number = 0x9E37_79B9_7F4A_7C15u64;
            for _ in 0..2000 {
                number = number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                assert_eq!(fast.remainder(number), number % divisor);
            }
            for number in [0, 1, divisor - 1, divisor, u64::MAX - 1, u64::MAX] {
                assert_eq!(fast.remainder(number), number % divisor);
            }
        }
    }

    #[test]
    fn rows_of_unwanted_or_invalid_partitions_are_dropped() {
        let numbers: Vec<u8> = [2i8, 0, -1, 1, 2, 3].map(|number| number as u8).to_vec();
        let found = Partitioning::by_numbers(&numbers, 1, 6, 3, Some(&[0, 2])).expect("valid");
        assert_eq!(
            found.positions(),
            [Some(1), Some(0), None, None, Some(2), None]
        );
        assert_eq!(found.offsets, [0, 1, 3]);
    }

    #[test]
    fn parts_have_the_rows_of_their_slots() {
        let numbers: Vec<u8> = [2i8, 0, -1, 1, 2, 3].map(|number| number as u8).to_vec();
        let all = Partitioning::by_numbers(&numbers, 1, 6, 4, None).expect("valid");
        let part = all.part(1..3).expect("slots");
        assert_eq!(
            part.positions(),
            [Some(1), None, None, Some(0), Some(2), None]
        );
        assert_eq!((part.rows(), &part.offsets[..]), (3, &[0, 1, 3][..]));
        let part = part.part(1..2).expect("a slot");
        assert_eq!(part.positions(), [Some(0), None, None, None, Some(1), None]);
        assert_eq!(all.part(4..4).expect("no slot").rows(), 0);
        for slots in [3..5, 5..5, Range { start: 2, end: 1 }] {
            assert!(all.part(slots).is_err());
        }
    }

    #[test]
    fn unknown_wanted_partition_is_refused() {
        assert!(Partitioning::by_numbers(&[], 1, 0, 3, Some(&[3])).is_err());
    }
}
