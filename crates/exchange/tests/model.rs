//! Blocks and assembly against a naive model: vectors of rows, one for each output partition

use backhaul_exchange::{
    Block, Column, ExchangeError, Kind, Partitioning, Target, Text, assemble, extract, piece_bytes,
    piece_rows,
};
use proptest::prelude::*;

/// Rows of one input partition: number, small number, text
type Rows = Vec<(i64, u8, Option<String>)>;

/// Columns of an input partition, as bytes
struct Columns {
    numbers: Vec<u8>,
    small: Vec<u8>,
    offsets: Vec<u8>,
    text: Vec<u8>,
    validity: Vec<u8>,
    shift: usize,
}

impl Columns {
    fn new(rows: &Rows, shift: usize) -> Self {
        let mut found = Self {
            numbers: Vec::new(),
            small: Vec::new(),
            offsets: 0u64.to_le_bytes().to_vec(),
            text: Vec::new(),
            validity: vec![0; (rows.len() + shift).div_ceil(8)],
            shift,
        };
        for (index, (number, small, text)) in rows.iter().enumerate() {
            found.numbers.extend(number.to_le_bytes());
            found.small.push(*small);
            if let Some(text) = text {
                found.text.extend(text.as_bytes());
                found.validity[(index + shift) / 8] |= 1 << ((index + shift) % 8);
            }
            found
                .offsets
                .extend((found.text.len() as u64).to_le_bytes());
        }
        found
    }

    fn as_columns(&self) -> [Column<'_>; 3] {
        [
            Column::Fixed {
                kind: Kind::Int(8),
                values: &self.numbers,
            },
            Column::Fixed {
                kind: Kind::Uint(1),
                values: &self.small,
            },
            Column::Text(Text {
                offsets: &self.offsets,
                bytes: &self.text,
                validity: Some(&self.validity),
                validity_offset: self.shift,
            }),
        ]
    }
}

fn block_of(
    rows: &Rows,
    shift: usize,
    numbers: &[u8],
    partitions: usize,
    wanted: &[usize],
) -> Vec<u8> {
    let partitioning =
        Partitioning::by_numbers(numbers, 1, rows.len(), partitions, Some(wanted)).expect("valid");
    written(&partitioning, rows, shift)
}

/// Writes a block of these rows
fn written(partitioning: &Partitioning, rows: &Rows, shift: usize) -> Vec<u8> {
    let columns = Columns::new(rows, shift);
    let columns = columns.as_columns();
    let layout = partitioning.layout(&columns).expect("valid columns");
    let mut block = vec![0xA5; layout.bytes()];
    partitioning
        .write(&layout, &columns, &mut block)
        .expect("valid columns");
    block
}

/// Reads the rows of one slot
fn rows_of(blocks: &[Vec<u8>], slot: usize) -> Result<Rows, ExchangeError> {
    let blocks: Vec<_> = blocks
        .iter()
        .map(|block| Block::read(block))
        .collect::<Result<_, _>>()?;
    let rows = piece_rows(&blocks, slot)?;
    let sizes = piece_bytes(&blocks, slot)?;
    let mut numbers = vec![0; rows.checked_mul(8).ok_or(ExchangeError::Mismatch)?];
    let mut small = vec![0; rows];
    let mut offsets = vec![0; (rows + 1) * 8];
    let mut validity = vec![0xFF; rows.div_ceil(8)];
    let mut bytes = vec![0; sizes.get(2).copied().unwrap_or(0)];
    let nulls = assemble(
        &blocks,
        slot,
        &mut [
            Target::Fixed(&mut numbers),
            Target::Fixed(&mut small),
            Target::Text {
                offsets: &mut offsets,
                validity: &mut validity,
                bytes: &mut bytes,
            },
        ],
    )?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let (offsets, _) = offsets.as_chunks::<8>();
    let offset = |row: usize| u64::from_le_bytes(offsets[row]) as usize;
    let found: Rows = (0..rows)
        .map(|row| {
            let text = &bytes[offset(row)..offset(row + 1)];
            (
                i64::from_le_bytes(numbers[row]),
                small[row],
                (validity[row / 8] >> (row % 8) & 1 == 1)
                    .then(|| String::from_utf8_lossy(text).into_owned()),
            )
        })
        .collect();
    assert_eq!(nulls[2], found.iter().filter(|row| row.2.is_none()).count());
    Ok(found)
}

/// Extracts one slot of a block as from a file
fn extracted(block: &[u8], slot: usize) -> Result<Vec<u8>, ExchangeError> {
    extract(block.len(), slot, |start, target| {
        let found = start
            .checked_add(target.len())
            .and_then(|end| block.get(start..end))
            .ok_or(ExchangeError::InvalidBlock("end of file"))?;
        target.copy_from_slice(found);
        Ok(())
    })
}

prop_compose! {
    fn rows()(rows in prop::collection::vec(
        (any::<i64>(), any::<u8>(), prop::option::of("[a-z\u{e4}]{0,9}")), 0..40,
    )) -> Rows { rows }
}

proptest! {
    #[test]
    fn assembled_rows_are_those_of_the_model(
        inputs in prop::collection::vec(rows(), 1..5),
        partitions in 1usize..7,
        shift in 0usize..9,
        seed in any::<u64>(),
    ) {
        // Every second partition, and all of them
        let every_second: Vec<_> = (0..partitions).step_by(2).collect();
        for wanted in [every_second, (0..partitions).collect()] {
            let mut expected = vec![Rows::new(); wanted.len()];
            let mut blocks = Vec::new();
            for (index, input) in inputs.iter().enumerate() {
                let numbers: Vec<u8> = (0..input.len() as u64)
                    .map(|row| (row.wrapping_mul(seed | 1) >> 7) as u8 % (partitions as u8 + 1))
                    .collect();
                for (row, &number) in input.iter().zip(&numbers) {
                    if let Some(slot) = wanted.iter().position(|&each| each == number.into()) {
                        expected[slot].push(row.clone());
                    }
                }
                blocks.push(block_of(input, shift + index, &numbers, partitions, &wanted));
            }
            for (slot, expected) in expected.iter().enumerate() {
                prop_assert_eq!(&rows_of(&blocks, slot).expect("valid blocks"), expected);
                // Some blocks in files, some in memory
                let mut mixed = blocks.clone();
                for block in mixed.iter_mut().step_by(2) {
                    *block = extracted(block, slot).expect("a valid block");
                }
                prop_assert_eq!(&rows_of(&mixed, slot).expect("valid blocks"), expected);
            }
            prop_assert!(rows_of(&blocks, wanted.len()).is_err());
            prop_assert!(extracted(&blocks[0], wanted.len()).is_err());
        }
    }

    #[test]
    fn parts_are_blocks_of_the_partitions_that_they_have(
        input in rows(),
        partitions in 1usize..7,
        shift in 0usize..9,
        seed in any::<u64>(),
        start in any::<prop::sample::Index>(),
        stop in any::<prop::sample::Index>(),
    ) {
        let numbers: Vec<u8> = (0..input.len() as u64)
            .map(|row| (row.wrapping_mul(seed | 1) >> 7) as u8 % (partitions as u8 + 1))
            .collect();
        let all = Partitioning::by_numbers(&numbers, 1, input.len(), partitions, None).expect("valid");
        let (start, stop) = (start.index(partitions + 1), stop.index(partitions + 1));
        let slots = start.min(stop)..start.max(stop);
        let wanted: Vec<_> = slots.clone().collect();
        let expected = block_of(&input, shift, &numbers, partitions, &wanted);
        let part = all.part(slots).expect("slots");
        prop_assert_eq!(written(&part, &input, shift), expected);
    }

    #[test]
    fn partition_is_the_remainder_of_the_hash(
        numbers in prop::collection::vec(any::<i64>(), 0..3000),
        partitions in 1usize..300,
    ) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let key = [Column::Fixed { kind: Kind::Int(8), values: &bytes }];
        let mut hashes = Vec::new();
        backhaul_exchange::hash_rows(&key, numbers.len(), |_, found| hashes.extend_from_slice(found))
            .expect("a valid key");
        let mut rows: Vec<usize> = (0..numbers.len()).collect();
        rows.sort_by_key(|&row| hashes[row] % partitions as u64);
        let partitioning =
            Partitioning::by_keys(&key, numbers.len(), partitions, None).expect("a valid key");
        let positions = partitioning.positions();
        for (position, &row) in rows.iter().enumerate() {
            prop_assert_eq!(positions[row], Some(position));
        }
    }

    #[test]
    fn corrupt_blocks_are_refused_or_read_within_bounds(
        input in rows(),
        place in any::<prop::sample::Index>(),
        value in any::<[u8; 8]>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let numbers = vec![1; input.len()];
        let mut block = block_of(&input, 0, &numbers, 3, &[0, 1, 2]);
        let word = place.index(block.len() / 8) * 8;
        block[word..word + 8].copy_from_slice(&value);
        // Must not panic; a corrupt count of rows may ask for more memory than there is
        for block in [Ok(block.clone()), extracted(&block, 1)].into_iter().flatten() {
            let is_small = |block: Block<'_>| block.piece(1).is_ok_and(|rows| rows.len() < 1000);
            if Block::read(&block).is_ok_and(is_small) {
                let _ = rows_of(&[block], 1);
            }
        }
        let end = cut.index(block.len());
        let _ = rows_of(&[block[..end].to_vec()], 1);
        let _ = extracted(&block[..end], 1);
    }
}
