//! Joins against a naive model: a loop over all pairs of rows

use backhaul_exchange::{
    Block, Column, ExchangeError, Join, JoinKind, Kind, Partitioning, Scratch, Side, Target, Text,
};
use proptest::prelude::*;

/// Rows of one input partition: number, text
type Rows = Vec<(i16, Option<String>)>;
/// Rows of a result: number and text of both frames; no right row is `None`
type Pairs = Vec<(i16, Option<String>, Option<(i16, Option<String>)>)>;

/// Column of the key
#[derive(Clone, Copy, Debug)]
enum Key {
    Number,
    Text,
}

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

/// Values of one column of a result
struct Gathered {
    numbers: Vec<u8>,
    text: Vec<Option<String>>,
}

fn gather(join: &Join, side: Side, blocks: &[Block<'_>]) -> Result<Gathered, ExchangeError> {
    let rows = join.rows();
    let is_converted = side == Side::Right && join.has_missing();
    let mut numbers = vec![0; rows * if is_converted { 8 } else { 2 }];
    join.gather(side, blocks, 0, &mut Target::Fixed(&mut numbers))?;
    let mut offsets = vec![0; (rows + 1) * 8];
    let mut validity = vec![0xFF; rows.div_ceil(8)];
    let mut bytes = vec![0; join.text_bytes(side, blocks)?[1]];
    let mut target = Target::Text {
        offsets: &mut offsets,
        validity: &mut validity,
        bytes: &mut bytes,
    };
    let nulls = join.gather(side, blocks, 1, &mut target)?;
    let (offsets, _) = offsets.as_chunks::<8>();
    let offset = |row: usize| u64::from_le_bytes(offsets[row]) as usize;
    let text: Vec<_> = (0..rows)
        .map(|row| {
            let value = &bytes[offset(row)..offset(row + 1)];
            (validity[row / 8] >> (row % 8) & 1 == 1)
                .then(|| String::from_utf8_lossy(value).into_owned())
        })
        .collect();
    assert_eq!(nulls, text.iter().filter(|value| value.is_none()).count());
    Ok(Gathered { numbers, text })
}

fn joined(
    left: &[Vec<u8>],
    right: &[Vec<u8>],
    key: Key,
    kind: JoinKind,
) -> Result<Pairs, ExchangeError> {
    let (left, right) = (read(left)?, read(right)?);
    let key = key as usize;
    let join = Join::new(&left, &right, 1, [key; 2], kind, &mut Scratch::default())?;
    let found = gather(&join, Side::Left, &left)?;
    let partners = gather(&join, Side::Right, &right)?;
    let (numbers, _) = found.numbers.as_chunks::<2>();
    let partner_number = |row: usize| -> Option<i16> {
        if join.has_missing() {
            let (numbers, _) = partners.numbers.as_chunks::<8>();
            let number = f64::from_le_bytes(numbers[row]);
            (!number.is_nan()).then_some(number as i16)
        } else {
            let (numbers, _) = partners.numbers.as_chunks::<2>();
            Some(i16::from_le_bytes(numbers[row]))
        }
    };
    Ok((0..join.rows())
        .map(|row| {
            let partner = partner_number(row).map(|number| (number, partners.text[row].clone()));
            let number = i16::from_le_bytes(numbers[row]);
            (number, found.text[row].clone(), partner)
        })
        .collect())
}

fn model(left: &[Rows], right: &[Rows], key: Key, kind: JoinKind) -> Pairs {
    let right: Vec<_> = right.iter().flatten().collect();
    let mut pairs = Pairs::new();
    for (number, text) in left.iter().flatten() {
        let before = pairs.len();
        for (partner, partner_text) in &right {
            let is_pair = match key {
                Key::Number => number == partner,
                Key::Text => text == partner_text,
            };
            if is_pair {
                let partner = Some((*partner, partner_text.clone()));
                pairs.push((*number, text.clone(), partner));
            }
        }
        if pairs.len() == before && kind == JoinKind::Left {
            pairs.push((*number, text.clone(), None));
        }
    }
    pairs
}

prop_compose! {
    fn inputs()(inputs in prop::collection::vec(prop::collection::vec(
        (-3i16..4, prop::option::of("[ab\u{e4}]{0,2}")), 0..90,
    ), 1..4)) -> Vec<Rows> { inputs }
}

proptest! {
    #[test]
    fn pairs_are_those_of_the_model(left in inputs(), right in inputs()) {
        let blocks = |inputs: &[Rows]| inputs.iter().map(block_of).collect::<Vec<_>>();
        let (left_blocks, right_blocks) = (blocks(&left), blocks(&right));
        for key in [Key::Number, Key::Text] {
            for kind in [JoinKind::Inner, JoinKind::Left] {
                let found = joined(&left_blocks, &right_blocks, key, kind);
                prop_assert_eq!(found.expect("valid blocks"), model(&left, &right, key, kind));
            }
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
        for key in [Key::Number, Key::Text] {
            let _ = joined(std::slice::from_ref(&block), std::slice::from_ref(&sound), key, JoinKind::Left);
            let _ = joined(std::slice::from_ref(&sound), std::slice::from_ref(&block), key, JoinKind::Inner);
        }
    }
}

#[test]
fn keys_of_different_types_are_refused() {
    let block = block_of(&vec![(1, None)]);
    let blocks = [Block::read(&block).expect("a valid block")];
    let found = Join::new(
        &blocks,
        &blocks,
        1,
        [0, 1],
        JoinKind::Inner,
        &mut Scratch::default(),
    );
    assert_eq!(found.map(|_| ()), Err(ExchangeError::Mismatch));
    let found = Join::new(
        &blocks,
        &blocks,
        1,
        [0, 2],
        JoinKind::Inner,
        &mut Scratch::default(),
    );
    assert_eq!(found.map(|_| ()), Err(ExchangeError::Mismatch));
}
