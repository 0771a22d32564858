//! Hash of rows, bit-equal with `pandas.util.hash_pandas_object` of pandas 3
//!
//! Dask casts numeric keys to `float64` before it hashes them, and so does this module. Sources:
//! `pandas/core/util/hashing.py` (`_hash_ndarray`, `combine_hash_arrays`),
//! `pandas/_libs/hashing.pyx` (SipHash-2-4), `dask/dataframe/shuffle.py` (`partitioning_index`).

use crate::{Column, ExchangeError, Kind, Text};

/// Key of SipHash that pandas uses by default, `0123456789123456`
const SIP_KEY: (u64, u64) = (
    u64::from_le_bytes(*b"01234567"),
    u64::from_le_bytes(*b"89123456"),
);
/// Rows that are hashed together, so that their hashes stay in the cache
const CHUNK_ROWS: usize = 1024;
/// Hash of a null in a text column
const NULL_HASH: u64 = u64::MAX;

/// Calls `with` with the hashes of consecutive rows: first row, hashes
///
/// # Errors
///
/// [`ExchangeError::ColumnBytes`] if a key has another number of rows, and
/// [`ExchangeError::TextOffsets`] if a text key is inconsistent.
pub fn hash_rows(
    keys: &[Column<'_>],
    rows: usize,
    mut with: impl FnMut(usize, &[u64]),
) -> Result<(), ExchangeError> {
    for key in keys {
        key.check(rows)?;
    }
    let mut hashes = [0u64; CHUNK_ROWS];
    for first in (0..rows).step_by(CHUNK_ROWS) {
        let hashes = &mut hashes[..CHUNK_ROWS.min(rows - first)];
        hashes.fill(0x34_5678);
        let mut multiplier = 1_000_003u64;
        for (index, key) in keys.iter().enumerate() {
            combine(key, first, multiplier, hashes)?;
            let left = (keys.len() - index) as u64;
            multiplier = multiplier.wrapping_add(82_520 + 2 * left);
        }
        for hash in hashes.iter_mut() {
            *hash = hash.wrapping_add(97_531);
        }
        with(first, hashes);
    }
    Ok(())
}

/// Adds one key to the hashes of consecutive rows (the hash of tuples of Python 3.7)
fn combine(
    key: &Column<'_>,
    first: usize,
    multiplier: u64,
    hashes: &mut [u64],
) -> Result<(), ExchangeError> {
    let (kind, values) = match key {
        Column::Text(text) => return combine_text(text, first, multiplier, hashes),
        Column::Fixed { kind, values } => (*kind, *values),
    };
    macro_rules! each {
        ($width:literal, $hash:expr) => {{
            let (values, _) = values.as_chunks::<$width>();
            for (hash, &value) in hashes.iter_mut().zip(&values[first..]) {
                *hash = (*hash ^ $hash(value)).wrapping_mul(multiplier);
            }
        }};
    }
    match kind {
        Kind::Bool | Kind::Uint(1) => each!(1, |v| float(u8::from_le_bytes(v).into())),
        Kind::Int(1) => each!(1, |v| float(i8::from_le_bytes(v).into())),
        Kind::Int(2) => each!(2, |v| float(i16::from_le_bytes(v).into())),
        Kind::Uint(2) => each!(2, |v| float(u16::from_le_bytes(v).into())),
        Kind::Int(4) => each!(4, |v| float(i32::from_le_bytes(v).into())),
        Kind::Uint(4) => each!(4, |v| float(u32::from_le_bytes(v).into())),
        Kind::Int(_) => each!(8, |v| float(i64::from_le_bytes(v) as f64)),
        Kind::Uint(_) => each!(8, |v| float(u64::from_le_bytes(v) as f64)),
        Kind::Float(4) => each!(4, |v| float(f32::from_le_bytes(v).into())),
        Kind::Float(_) => each!(8, |v| float(f64::from_le_bytes(v))),
        Kind::Time | Kind::Text => each!(8, |v| mix(u64::from_le_bytes(v))),
    }
    Ok(())
}

fn combine_text(
    text: &Text<'_>,
    first: usize,
    multiplier: u64,
    hashes: &mut [u64],
) -> Result<(), ExchangeError> {
    for (index, hash) in hashes.iter_mut().enumerate() {
        let row = first + index;
        let value = if text.is_valid(row) {
            mix(sip(text.value(row)?))
        } else {
            NULL_HASH
        };
        *hash = (*hash ^ value).wrapping_mul(multiplier);
    }
    Ok(())
}

/// Hash of a number: one NaN, one zero
#[inline(always)]
fn float(value: f64) -> u64 {
    mix(if value.is_nan() {
        f64::NAN.to_bits()
    } else if value == 0.0 {
        0
    } else {
        value.to_bits()
    })
}

/// Finalizer of splitmix64, as `_hash_ndarray` applies it
#[inline(always)]
pub(crate) fn mix(mut value: u64) -> u64 {
    value ^= value >> 30;
    value = value.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value ^= value >> 27;
    value = value.wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// SipHash-2-4 with the key of pandas
pub(crate) fn sip(data: &[u8]) -> u64 {
    let (key0, key1) = SIP_KEY;
    let mut state = [
        key0 ^ 0x736f_6d65_7073_6575,
        key1 ^ 0x646f_7261_6e64_6f6d,
        key0 ^ 0x6c79_6765_6e65_7261,
        key1 ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = data.as_chunks::<8>();
    for &word in words {
        absorb(&mut state, u64::from_le_bytes(word));
    }
    let mut last = (data.len() as u64) << 56;
    for (index, &byte) in rest.iter().enumerate() {
        last |= u64::from(byte) << (8 * index);
    }
    absorb(&mut state, last);
    state[2] ^= 0xff;
    for _ in 0..4 {
        sip_round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline(always)]
fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    sip_round(state);
    sip_round(state);
    state[0] ^= word;
}

#[inline(always)]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(keys: &[Column<'_>], rows: usize) -> Vec<u64> {
        let mut found = Vec::new();
        hash_rows(keys, rows, |_, hashes| found.extend_from_slice(hashes)).expect("valid keys");
        found
    }

    /// Little-endian bytes of each value
    fn bytes<const W: usize>(values: impl IntoIterator<Item = [u8; W]>) -> Vec<u8> {
        values.into_iter().flatten().collect()
    }

    fn fixed(kind: Kind, values: &[u8]) -> Column<'_> {
        Column::Fixed { kind, values }
    }

    /// Recorded from pandas 3.1.1: `hash_pandas_object(DataFrame({"k": …}), index=False)`
    #[test]
    fn numbers_hash_as_in_pandas() {
        let floats = bytes([0.0, -0.0, f64::NAN, 1.5, f64::INFINITY].map(f64::to_le_bytes));
        assert_eq!(
            hashes(&[fixed(Kind::Float(8), &floats)], 5),
            [
                0x0000_031e_9d07_0e63,
                0x0000_031e_9d07_0e63,
                0xea5c_d1f7_55b6_4164,
                0x82bc_1763_e8e1_472b,
                0x0596_b65f_52c9_32f3
            ]
        );
        let integers = bytes([-1, 0, 7, (1i64 << 62) + 1].map(i64::to_le_bytes));
        assert_eq!(
            hashes(&[fixed(Kind::Int(8), &integers)], 4),
            [
                0x5663_4a42_1a50_73b8,
                0x0000_031e_9d07_0e63,
                0xa3cf_42da_8dc1_a916,
                0xc77f_1013_b148_6ebb
            ]
        );
    }

    /// Recorded likewise; the last value is null
    #[test]
    fn text_hashes_as_in_pandas() {
        let values = ["", "a", "m\u{fc}ller", "01234567", "012345678", ""];
        let text = values.concat();
        let mut end = 0;
        let offsets = std::iter::once(0)
            .chain(values.iter().map(|value| {
                end += value.len();
                end
            }))
            .map(|offset| (offset as u64).to_le_bytes());
        let offsets = bytes(offsets);
        let key = Column::Text(Text {
            offsets: &offsets,
            bytes: text.as_bytes(),
            validity: Some(&[0b01_1111]),
            validity_offset: 0,
        });
        assert_eq!(
            hashes(&[key], 6),
            [
                0x6791_2d27_9e5d_cd35,
                0x4f08_0094_4d3c_f3f3,
                0x0673_52ef_f57e_1cda,
                0x47cf_897a_dc74_0a5b,
                0xf491_fad9_f14a_8dec,
                0xffff_fce1_62ec_a950
            ]
        );
    }

    /// Recorded likewise, of a timestamp in microseconds and a text: 2020-01-01 and "x", two nulls
    #[test]
    fn two_keys_hash_as_in_pandas() {
        let times = bytes([1_577_836_800_000_000, i64::MIN].map(i64::to_le_bytes));
        let offsets = bytes([0u64, 1, 1].map(u64::to_le_bytes));
        let text = Column::Text(Text {
            offsets: &offsets,
            bytes: b"x",
            validity: Some(&[0b01]),
            validity_offset: 0,
        });
        assert_eq!(
            hashes(&[fixed(Kind::Time, &times), text], 2),
            [0xa464_9e21_65e1_8522, 0x1409_b126_55a3_caf2]
        );
    }

    #[test]
    fn key_of_another_length_is_refused() {
        let key = fixed(Kind::Time, &[0; 15]);
        let found = hash_rows(&[key], 2, |_, _| ());
        assert_eq!(
            found,
            Err(ExchangeError::ColumnBytes {
                found: 15,
                expected: 16
            })
        );
    }
}
