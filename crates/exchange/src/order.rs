//! Output partition of each row by sorted divisions, as sorts of dataframes need it

use crate::{Column, ExchangeError, Kind};

/// Direction of a sort, and the place of missing values
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// True if the first output partition has the least values
    pub ascending: bool,
    /// True if the last output partition has the missing values, false if the first one has them
    pub missing_last: bool,
}

impl Order {
    /// Returns the output partition of a value by the number of divisions that do not exceed it
    ///
    /// Values outside of all divisions are where Dask's `set_partitions_pre` puts them.
    fn partition(self, not_above: usize, partitions: usize) -> u32 {
        let (found, outside) = if self.ascending {
            (not_above.checked_sub(1), partitions - 1)
        } else {
            (partitions.checked_sub(not_above), 0)
        };
        found.filter(|&found| found < partitions).unwrap_or(outside) as u32
    }
}

/// Calls `found` with the output partition of each row
///
/// # Errors
///
/// [`ExchangeError`] if the columns differ in type, if there are not as many divisions as output
/// partitions and one, if a division is missing, or if text is inconsistent.
pub(crate) fn partition_rows(
    key: &Column<'_>,
    divisions: &Column<'_>,
    rows: usize,
    partitions: usize,
    order: Order,
    mut found: impl FnMut(u32),
) -> Result<(), ExchangeError> {
    key.check(rows)?;
    divisions.check(partitions.saturating_add(1))?;
    if partitions == 0 || key.kind() != divisions.kind() {
        return Err(ExchangeError::Mismatch);
    }
    let missing = if order.missing_last {
        partitions - 1
    } else {
        0
    } as u32;
    let of_count: Vec<u32> = (0..=partitions + 1)
        .map(|count| order.partition(count, partitions))
        .collect();
    match (key, divisions) {
        (Column::Fixed { kind, values }, Column::Fixed { values: bounds, .. }) => {
            let mut sorted = Vec::with_capacity(partitions + 1);
            each_rank(*kind, bounds, |bound| sorted.push(bound));
            let sorted: Option<Vec<u64>> = sorted.into_iter().collect();
            let sorted = sorted.ok_or(ExchangeError::Mismatch)?;
            each_rank(*kind, values, |value| {
                found(value.map_or(missing, |value| {
                    of_count[sorted.partition_point(|&bound| bound <= value)]
                }));
            });
        }
        (Column::Text(text), Column::Text(bounds)) => {
            let sorted = (0..=partitions)
                .map(|bound| bounds.value(bound))
                .collect::<Result<Vec<_>, _>>()?;
            for row in 0..rows {
                let value = text.value(row)?;
                found(if text.is_valid(row) {
                    of_count[sorted.partition_point(|&bound| bound <= value)]
                } else {
                    missing
                });
            }
        }
        _ => return Err(ExchangeError::Mismatch),
    }
    Ok(())
}

/// Bit that makes signed numbers compare as unsigned ones
const SIGN: u64 = 1 << 63;

/// Calls `found` with a number for each value that compares as the value does; `None` if missing
#[inline(always)]
fn each_rank(kind: Kind, values: &[u8], mut found: impl FnMut(Option<u64>)) {
    macro_rules! each {
        ($number:ty, $rank:expr) => {{
            let (values, _) = values.as_chunks::<{ size_of::<$number>() }>();
            for &value in values {
                found($rank(<$number>::from_le_bytes(value)));
            }
        }};
    }
    match kind {
        Kind::Bool | Kind::Uint(1) => each!(u8, |value| Some(u64::from(value))),
        Kind::Uint(2) => each!(u16, |value| Some(u64::from(value))),
        Kind::Uint(4) => each!(u32, |value| Some(u64::from(value))),
        Kind::Uint(_) => each!(u64, Some),
        Kind::Int(1) => each!(i8, |value| Some(of_signed(i64::from(value)))),
        Kind::Int(2) => each!(i16, |value| Some(of_signed(i64::from(value)))),
        Kind::Int(4) => each!(i32, |value| Some(of_signed(i64::from(value)))),
        Kind::Int(_) => each!(i64, |value| Some(of_signed(value))),
        Kind::Float(4) => each!(f32, |value| of_float(f64::from(value))),
        Kind::Float(_) => each!(f64, of_float),
        Kind::Time => each!(i64, |value| (value != i64::MIN).then_some(of_signed(value))),
        Kind::Text => {}
    }
}

fn of_signed(value: i64) -> u64 {
    value as u64 ^ SIGN
}

fn of_float(value: f64) -> Option<u64> {
    // Adding zero turns the negative zero into the positive one.
    let bits = (value + 0.0).to_bits();
    let rank = if bits & SIGN == 0 { bits ^ SIGN } else { !bits };
    (!value.is_nan()).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASCENDING: Order = Order {
        ascending: true,
        missing_last: true,
    };

    fn floats(values: &[f64]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    fn partitions(values: &[f64], divisions: &[f64], order: Order) -> Vec<u32> {
        let kind = Kind::Float(8);
        let (values, bounds) = (floats(values), floats(divisions));
        let [key, divided] = [&values, &bounds].map(|values| Column::Fixed { kind, values });
        let (rows, count) = (values.len() / 8, divisions.len() - 1);
        let mut found = Vec::new();
        let push = |partition| found.push(partition);
        partition_rows(&key, &divided, rows, count, order, push).expect("valid columns");
        found
    }

    #[test]
    fn values_are_between_their_divisions() {
        let values = [0.0, -0.0, 0.5, 1.0, 3.0, -1.0, 4.0, f64::INFINITY, f64::NAN];
        let divisions = [0.0, 1.0, 2.0, 3.0];
        let found = partitions(&values, &divisions, ASCENDING);
        // As Dask does, a value below all divisions is in the last partition.
        assert_eq!(found, [0, 0, 0, 1, 2, 2, 2, 2, 2]);
        let descending = Order {
            ascending: false,
            missing_last: false,
        };
        let found = partitions(&values, &divisions, descending);
        assert_eq!(found, [2, 2, 2, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn missing_divisions_and_other_numbers_of_them_are_refused() {
        let kind = Kind::Float(8);
        for (bounds, count) in [
            (vec![0.0, f64::NAN], 1),
            (vec![0.0, 1.0], 2),
            (vec![0.0], 0),
        ] {
            let (values, bounds) = (floats(&[0.5]), floats(&bounds));
            let [key, divided] = [&values, &bounds].map(|values| Column::Fixed { kind, values });
            assert!(partition_rows(&key, &divided, 1, count, ASCENDING, |_| ()).is_err());
        }
    }

    #[test]
    fn numbers_of_each_type_keep_their_order() {
        let mut found = Vec::new();
        let bytes: Vec<u8> = [i32::MIN, -1, 0, i32::MAX]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        each_rank(Kind::Int(4), &bytes, |rank| found.push(rank));
        assert!(found.is_sorted());
        let times: Vec<u8> = [i64::MIN, -1, 5]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        found.clear();
        each_rank(Kind::Time, &times, |rank| found.push(rank));
        assert!(found[0].is_none() && found[1] < found[2]);
    }
}
