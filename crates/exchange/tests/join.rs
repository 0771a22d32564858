//! Joins against a naive model: a loop over all pairs of rows

use std::cmp::Ordering;

use backhaul_exchange::{
    Block, Column, ExchangeError, Join, JoinKind, Kind, Partitioning, Scratch, Side, Source,
    Target, Text,
};
use proptest::prelude::*;

/// Rows of one input partition: number, text
type Rows = Vec<(i16, Option<String>)>;
/// Number and text of a row
type Row = (i16, Option<String>);
/// Row of a result: number and text of both frames; no row is `None`
type Pair = (Option<Row>, Option<Row>);
type Pairs = Vec<Pair>;
/// Number of a row, unless the row is missing, and text
type Gathered = (Option<i16>, Option<String>);

/// Columns of the keys
const KEYS: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[1, 0]];
const KINDS: [JoinKind; 4] = [
    JoinKind::Inner,
    JoinKind::Left,
    JoinKind::Outer,
    JoinKind::Semi,
];

/// Writes a block with all rows in slot 1 of 2
fn block_of(rows: &Rows) -> Vec<u8> {
    let numbers: Vec<u8> = rows.iter().flat_map(|row| row.0.to_le_bytes()).collect();
    let mut validity = vec![0; rows.len().div_ceil(8)];
    let (mut text, mut offsets) = (Vec::new(), 0u64.to_le_bytes().to_vec());
    for (row, (_, value)) in rows.iter().enumerate() {
        if let Some(value) = value {
            text.extend(value.as_bytes());
            validity[row / 8] |= 1 << (row % 8);
        }
        offsets.extend((text.len() as u64).to_le_bytes());
    }
    let columns = [
        Column::Fixed {
            kind: Kind::Int(2),
            values: &numbers,
        },
        Column::Text(Text {
            offsets: &offsets,
            bytes: &text,
            validity: Some(&validity),
            validity_offset: 0,
        }),
    ];
    let slots = vec![1; rows.len()];
    let partitioning = Partitioning::by_numbers(&slots, 1, rows.len(), 2, None).expect("valid");
    let layout = partitioning.layout(&columns).expect("valid columns");
    let mut block = vec![0; layout.bytes()];
    partitioning
        .write(&layout, &columns, &mut block)
        .expect("valid columns");
    block
}

fn read(blocks: &[Vec<u8>]) -> Result<Vec<Block<'_>>, ExchangeError> {
    blocks.iter().map(|block| Block::read(block)).collect()
}

/// Gathers the rows of one frame; the number of a missing row is `None`
fn gather(
    join: &Join,
    side: Side,
    left: &[Block<'_>],
    right: &[Block<'_>],
    other: bool,
) -> Result<Vec<Gathered>, ExchangeError> {
    let rows = join.rows();
    let source = |column| Source {
        side,
        column,
        other: other.then_some(column),
    };
    let is_converted = join.has_missing(side) && !other;
    let mut numbers = vec![0; rows * if is_converted { 8 } else { 2 }];
    join.gather(source(0), left, right, &mut Target::Fixed(&mut numbers))?;
    let mut offsets = vec![0; (rows + 1) * 8];
    let mut validity = vec![0xFF; rows.div_ceil(8)];
    let mut bytes = vec![0; join.text_bytes(source(1), left, right)?];
    let mut target = Target::Text {
        offsets: &mut offsets,
        validity: &mut validity,
        bytes: &mut bytes,
    };
    let nulls = join.gather(source(1), left, right, &mut target)?;
    let (offsets, _) = offsets.as_chunks::<8>();
    let offset = |row: usize| u64::from_le_bytes(offsets[row]) as usize;
    let number = |row: usize| {
        if is_converted {
            let number = f64::from_le_bytes(numbers.as_chunks::<8>().0[row]);
            (!number.is_nan()).then_some(number as i16)
        } else {
            Some(i16::from_le_bytes(numbers.as_chunks::<2>().0[row]))
        }
    };
    let found: Vec<_> = (0..rows)
        .map(|row| {
            let value = &bytes[offset(row)..offset(row + 1)];
            let text = (validity[row / 8] >> (row % 8) & 1 == 1)
                .then(|| String::from_utf8_lossy(value).into_owned());
            (number(row), text)
        })
        .collect();
    assert_eq!(nulls, found.iter().filter(|row| row.1.is_none()).count());
    Ok(found)
}

fn join_of(
    left: &[Block<'_>],
    right: &[Block<'_>],
    key: &[usize],
    kind: JoinKind,
) -> Result<Join, ExchangeError> {
    Join::new(left, right, 1, [key; 2], kind, &mut Scratch::default())
}

fn joined(
    left: &[Vec<u8>],
    right: &[Vec<u8>],
    key: &[usize],
    kind: JoinKind,
) -> Result<Pairs, ExchangeError> {
    let (left, right) = (read(left)?, read(right)?);
    let join = join_of(&left, &right, key, kind)?;
    let lefts = gather(&join, Side::Left, &left, &right, false)?;
    let rights = gather(&join, Side::Right, &left, &right, false)?;
    let row = |(number, text): Gathered| number.map(|number| (number, text));
    let pairs: Pairs = lefts
        .into_iter()
        .map(row)
        .zip(rights.into_iter().map(row))
        .collect();
    let filled = gather(&join, Side::Left, &left, &right, true)?;
    for (pair, (number, text)) in pairs.iter().zip(filled) {
        let either = pair.0.as_ref().or(pair.1.as_ref());
        assert_eq!(either, number.map(|number| (number, text)).as_ref());
    }
    Ok(pairs)
}

/// Compares keys, null last
fn compare(row: &Row, other: &Row, key: &[usize]) -> Ordering {
    let text = |row: &Row| (row.1.is_none(), row.1.clone());
    key.iter().fold(Ordering::Equal, |order, column| {
        order.then_with(|| match column {
            0 => row.0.cmp(&other.0),
            _ => text(row).cmp(&text(other)),
        })
    })
}

fn model(left: &[Rows], right: &[Rows], key: &[usize], kind: JoinKind) -> Pairs {
    let right: Vec<_> = right.iter().flatten().collect();
    let left: Vec<_> = left.iter().flatten().collect();
    let is_pair = |row: &Row, other: &Row| compare(row, other, key).is_eq();
    let mut pairs = Pairs::new();
    for &row in &left {
        let partners = right.iter().filter(|other| is_pair(row, other));
        let found: Vec<_> = match kind {
            JoinKind::Semi => partners.take(1).collect(),
            _ => partners.collect(),
        };
        if found.is_empty() && matches!(kind, JoinKind::Left | JoinKind::Outer) {
            pairs.push((Some(row.clone()), None));
        }
        pairs.extend(
            found
                .into_iter()
                .map(|&other| (Some(row.clone()), Some(other.clone()))),
        );
    }
    if kind == JoinKind::Outer {
        let alone = right
            .iter()
            .filter(|other| !left.iter().any(|row| is_pair(row, other)));
        pairs.extend(alone.map(|&other| (None, Some(other.clone()))));
        let row = |pair: &Pair| pair.0.clone().or_else(|| pair.1.clone());
        pairs.sort_by(|pair, other| match (row(pair), row(other)) {
            (Some(row), Some(other)) => compare(&row, &other, key),
            _ => Ordering::Equal,
        });
    }
    pairs
}

prop_compose! {
    fn inputs()(inputs in prop::collection::vec(prop::collection::vec(
        (-3i16..4, prop::option::of("[ab\u{e4}]{0,2}|long {8}[ab]?")), 0..90,
    ), 1..4)) -> Vec<Rows> { inputs }
}

proptest! {
    #[test]
    fn pairs_are_those_of_the_model(left in inputs(), right in inputs()) {
        let blocks = |inputs: &[Rows]| inputs.iter().map(block_of).collect::<Vec<_>>();
        let (left_blocks, right_blocks) = (blocks(&left), blocks(&right));
        for (key, kind) in KEYS.iter().flat_map(|&key| KINDS.map(|kind| (key, kind))) {
            let found = joined(&left_blocks, &right_blocks, key, kind);
            prop_assert_eq!(found.expect("valid blocks"), model(&left, &right, key, kind));
        }
    }

    #[test]
    fn corrupt_blocks_are_refused_or_read_within_bounds(
        left in inputs(),
        place in any::<prop::sample::Index>(),
        value in any::<[u8; 8]>(),
    ) {
        let mut block = block_of(&left[0]);
        let word = place.index(block.len() / 8) * 8;
        block[word..word + 8].copy_from_slice(&value);
        let sound = block_of(&left[0][..left[0].len().min(9)].to_vec());
        for (key, kind) in KEYS.iter().flat_map(|&key| KINDS.map(|kind| (key, kind))) {
            let _ = joined(std::slice::from_ref(&block), std::slice::from_ref(&sound), key, kind);
            let _ = joined(std::slice::from_ref(&sound), std::slice::from_ref(&block), key, kind);
        }
    }
}

#[test]
fn keys_of_different_types_are_refused() {
    let block = block_of(&vec![(1, None)]);
    let blocks = [Block::read(&block).expect("a valid block")];
    let keys: [[&[usize]; 2]; 5] = [
        [&[0], &[1]],
        [&[0], &[2]],
        [&[0, 1], &[1, 0]],
        [&[0, 1], &[0]],
        [&[], &[]],
    ];
    for keys in keys {
        let found = Join::new(
            &blocks,
            &blocks,
            1,
            keys,
            JoinKind::Inner,
            &mut Scratch::default(),
        );
        assert_eq!(found.map(|_| ()), Err(ExchangeError::Mismatch));
    }
}
