//! Columns of an input partition, as byte slices in the machine's (little-endian) order

use crate::{ExchangeError, word};

/// Type of a column
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Boolean of one byte
    Bool,
    /// Signed integer of this many bytes
    Int(u8),
    /// Unsigned integer of this many bytes
    Uint(u8),
    /// IEEE 754 number of this many bytes
    Float(u8),
    /// Timestamp or duration: a signed integer of eight bytes
    Time,
    /// UTF-8 text with offsets and validity, as Arrow's `large_string`
    Text,
}

impl Kind {
    /// Returns the bytes of one value, or `None` for text
    pub fn width(self) -> Option<usize> {
        match self {
            Self::Bool => Some(1),
            Self::Int(width) | Self::Uint(width) | Self::Float(width) => Some(width.into()),
            Self::Time => Some(8),
            Self::Text => None,
        }
    }
}

/// Values of one column
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// Values of equal width, one after the other
    Fixed {
        /// Type of the values
        kind: Kind,
        /// Bytes of all values
        values: &'a [u8],
    },
    /// Text
    Text(Text<'a>),
}

impl Column<'_> {
    /// Returns the type of the column
    pub fn kind(&self) -> Kind {
        match self {
            Self::Fixed { kind, .. } => *kind,
            Self::Text(_) => Kind::Text,
        }
    }

    /// Checks that the column has this many rows
    ///
    /// # Errors
    ///
    /// [`ExchangeError::ColumnBytes`] if the column has another number of rows.
    pub(crate) fn check(&self, rows: usize) -> Result<(), ExchangeError> {
        let (found, expected) = match self {
            Self::Fixed { kind, values } => (values.len(), kind.width().unwrap_or(1) * rows),
            Self::Text(text) => {
                if let Some(validity) = text.validity {
                    let expected = text.validity_offset.saturating_add(rows).div_ceil(8);
                    if validity.len() < expected {
                        return Err(ExchangeError::ColumnBytes {
                            found: validity.len(),
                            expected,
                        });
                    }
                }
                (text.offsets.len(), (rows + 1) * 8)
            }
        };
        if found == expected {
            Ok(())
        } else {
            Err(ExchangeError::ColumnBytes { found, expected })
        }
    }
}

/// A text column in Arrow's layout
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Offsets into `bytes`, one more than there are rows, of eight bytes each
    pub offsets: &'a [u8],
    /// UTF-8 bytes of all values
    pub bytes: &'a [u8],
    /// One bit for each row, least significant bit first; 0 is null. `None`: no row is null
    pub validity: Option<&'a [u8]>,
    /// Bit of the first row
    pub validity_offset: usize,
}

impl<'a> Text<'a> {
    /// Returns the bytes of a row, whether it is null or not
    ///
    /// # Errors
    ///
    /// [`ExchangeError::TextOffsets`] if the offsets of the row decrease or exceed the text.
    pub(crate) fn value(&self, row: usize) -> Result<&'a [u8], ExchangeError> {
        let (offsets, _) = self.offsets.as_chunks::<8>();
        let start = word(offsets, row).unwrap_or(u64::MAX);
        let end = word(offsets, row + 1).unwrap_or(u64::MAX);
        usize::try_from(start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| self.bytes.get(start..end))
            .ok_or(ExchangeError::TextOffsets {
                start,
                end,
                bytes: self.bytes.len(),
            })
    }

    /// Returns whether a row has a value
    pub(crate) fn is_valid(&self, row: usize) -> bool {
        let Some(validity) = self.validity else {
            return true;
        };
        let bit = self.validity_offset.saturating_add(row);
        validity
            .get(bit / 8)
            .is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }
}
