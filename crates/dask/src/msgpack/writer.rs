//! Writing msgpack: each token in the shortest form that holds it.

use thiserror::Error;

use super::TIMESTAMP;
use super::marker as m;

/// Msgpack under construction
///
/// Nothing is checked but lengths: it is the caller who writes as many items as it announced.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A writer with room for `capacity_bytes`
    pub fn with_capacity(capacity_bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity_bytes),
        }
    }

    /// Bytes written so far
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether nothing is written
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the written bytes
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the written bytes
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets everything after the first `len` bytes
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Nothing
    pub fn nil(&mut self) {
        self.bytes.push(m::NIL);
    }

    /// A truth value
    pub fn bool(&mut self, value: bool) {
        self.bytes.push(if value { m::TRUE } else { m::FALSE });
    }

    /// An integer from 0
    pub fn uint(&mut self, value: u64) {
        if let Ok(small) = u8::try_from(value) {
            if small < m::FIX_MAP {
                self.bytes.push(small);
            } else {
                self.bytes.extend([m::UINT_8, small]);
            }
        } else if let Ok(short) = u16::try_from(value) {
            self.marked(m::UINT_16, short.to_be_bytes());
        } else if let Ok(word) = u32::try_from(value) {
            self.marked(m::UINT_32, word.to_be_bytes());
        } else {
            self.marked(m::UINT_64, value.to_be_bytes());
        }
    }

    /// An integer of either sign
    pub fn int(&mut self, value: i64) {
        if let Ok(positive) = u64::try_from(value) {
            self.uint(positive);
        } else if let Ok(small) = i8::try_from(value) {
            let byte = small.cast_unsigned();
            if byte >= m::NEGATIVE_FIX_INT {
                self.bytes.push(byte);
            } else {
                self.bytes.extend([m::INT_8, byte]);
            }
        } else if let Ok(short) = i16::try_from(value) {
            self.marked(m::INT_16, short.to_be_bytes());
        } else if let Ok(word) = i32::try_from(value) {
            self.marked(m::INT_32, word.to_be_bytes());
        } else {
            self.marked(m::INT_64, value.to_be_bytes());
        }
    }

    /// A number of double precision
    pub fn float(&mut self, value: f64) {
        self.marked(m::FLOAT_64, value.to_be_bytes());
    }

    /// Text
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    #[inline]
    pub fn str(&mut self, text: &str) -> Result<(), TooLong> {
        let len = checked(text.len())?;
        match len {
            0..32 => self.bytes.push(m::FIX_STR | low_byte(len)),
            _ => self.length(len, [Some(m::STR_8), Some(m::STR_16), Some(m::STR_32)]),
        }
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Binary data
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    pub fn bin(&mut self, data: &[u8]) -> Result<(), TooLong> {
        self.bin_parts(&[data])
    }

    /// Binary data that lies in pieces
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    pub fn bin_parts(&mut self, parts: &[&[u8]]) -> Result<(), TooLong> {
        let len = checked(parts.iter().map(|part| part.len()).sum())?;
        self.length(len, [Some(m::BIN_8), Some(m::BIN_16), Some(m::BIN_32)]);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        Ok(())
    }

    /// The head of an array; its items follow
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    pub fn array(&mut self, items: usize) -> Result<(), TooLong> {
        let items = checked(items)?;
        match items {
            0..16 => self.bytes.push(m::FIX_ARRAY | low_byte(items)),
            _ => self.length(items, [None, Some(m::ARRAY_16), Some(m::ARRAY_32)]),
        }
        Ok(())
    }

    /// The head of a map; its keys and values follow in turn
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    pub fn map(&mut self, pairs: usize) -> Result<(), TooLong> {
        let pairs = checked(pairs)?;
        match pairs {
            0..16 => self.bytes.push(m::FIX_MAP | low_byte(pairs)),
            _ => self.length(pairs, [None, Some(m::MAP_16), Some(m::MAP_32)]),
        }
        Ok(())
    }

    /// Data of an application's type
    ///
    /// # Errors
    ///
    /// [`TooLong`], if the format cannot hold it; nothing is written.
    pub fn ext(&mut self, code: i8, data: &[u8]) -> Result<(), TooLong> {
        let len = checked(data.len())?;
        match len {
            1 => self.bytes.push(m::FIX_EXT_1),
            2 => self.bytes.push(m::FIX_EXT_2),
            4 => self.bytes.push(m::FIX_EXT_4),
            8 => self.bytes.push(m::FIX_EXT_8),
            16 => self.bytes.push(m::FIX_EXT_16),
            _ => self.length(len, [Some(m::EXT_8), Some(m::EXT_16), Some(m::EXT_32)]),
        }
        self.bytes.push(code.cast_unsigned());
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// A point in time, in seconds since 1970 and nanoseconds after that
    ///
    /// Whether the nanoseconds are those of less than a second is not checked.
    pub fn timestamp(&mut self, seconds: i64, nanoseconds: u32) {
        let code = TIMESTAMP.cast_unsigned();
        match u64::try_from(seconds) {
            Ok(seconds) if seconds >> 34 == 0 && nanoseconds >> 30 == 0 => {
                let joined = u64::from(nanoseconds) << 34 | seconds;
                if let Ok(short) = u32::try_from(joined) {
                    self.bytes.extend([m::FIX_EXT_4, code]);
                    self.bytes.extend(short.to_be_bytes());
                } else {
                    self.bytes.extend([m::FIX_EXT_8, code]);
                    self.bytes.extend(joined.to_be_bytes());
                }
            }
            _ => {
                self.bytes.extend([m::EXT_8, 12, code]);
                self.bytes.extend(nanoseconds.to_be_bytes());
                self.bytes.extend(seconds.to_be_bytes());
            }
        }
    }

    /// Tokens that were written elsewhere
    pub fn extend(&mut self, tokens: &[u8]) {
        self.bytes.extend_from_slice(tokens);
    }

    fn marked<const BYTES: usize>(&mut self, marker: u8, value: [u8; BYTES]) {
        self.bytes.push(marker);
        self.bytes.extend_from_slice(&value);
    }

    /// A length behind the marker of the shortest form that holds it
    fn length(&mut self, len: u32, [byte, short, word]: [Option<u8>; 3]) {
        if let (Some(marker), Ok(len)) = (byte, u8::try_from(len)) {
            self.bytes.extend([marker, len]);
        } else if let (Some(marker), Ok(len)) = (short, u16::try_from(len)) {
            self.marked(marker, len.to_be_bytes());
        } else if let Some(marker) = word {
            self.marked(marker, len.to_be_bytes());
        }
    }
}

/// More bytes or items than a 32-bit length can say
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{len} exceeds the limit of {max} bytes or items", max = u32::MAX)]
pub struct TooLong {
    /// Bytes or items
    pub len: usize,
}

fn checked(len: usize) -> Result<u32, TooLong> {
    u32::try_from(len).map_err(|_| TooLong { len })
}

/// The lowest byte; what is above is known to be zero
fn low_byte(value: u32) -> u8 {
    value.to_be_bytes()[3]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn integers_take_their_shortest_form() {
        for (value, bytes) in [
            (0, &b"\x00"[..]),
            (127, b"\x7f"),
            (128, b"\xcc\x80"),
            (256, b"\xcd\x01\x00"),
            (65_536, b"\xce\x00\x01\x00\x00"),
            (1 << 32, b"\xcf\x00\x00\x00\x01\x00\x00\x00\x00"),
            (-1, b"\xff"),
            (-32, b"\xe0"),
            (-33, b"\xd0\xdf"),
            (-129, b"\xd1\xff\x7f"),
            (-32_769, b"\xd2\xff\xff\x7f\xff"),
            (i64::MIN, b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00"),
        ] {
            assert_eq!(written(|w| w.int(value)), bytes, "{value}");
        }
    }

    #[test]
    fn lengths_take_their_shortest_form() {
        assert_eq!(written(|w| w.str("a").unwrap()), b"\xa1a");
        assert_eq!(
            written(|w| w.str(&"a".repeat(32)).unwrap())[..2],
            *b"\xd9\x20"
        );
        assert_eq!(
            written(|w| w.str(&"a".repeat(256)).unwrap())[..3],
            *b"\xda\x01\x00"
        );
        assert_eq!(written(|w| w.bin(&[]).unwrap()), b"\xc4\x00");
        assert_eq!(written(|w| w.array(15).unwrap()), b"\x9f");
        assert_eq!(written(|w| w.array(16).unwrap()), b"\xdc\x00\x10");
        assert_eq!(written(|w| w.map(65_536).unwrap()), b"\xdf\x00\x01\x00\x00");
        assert_eq!(written(|w| w.ext(5, b"abcd").unwrap()), b"\xd6\x05abcd");
        assert_eq!(written(|w| w.ext(5, b"abc").unwrap()), b"\xc7\x03\x05abc");
    }

    #[test]
    fn values_beyond_the_format_are_refused() {
        let mut writer = Writer::default();
        assert!(writer.array(1 << 32).is_err());
        assert!(writer.map(1 << 32).is_err());
        assert!(writer.is_empty());
    }
}
