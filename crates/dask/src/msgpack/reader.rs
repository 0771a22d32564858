//! Reading msgpack: one token at a time, every length checked against what is there.

use thiserror::Error;

use super::marker as m;

/// Msgpack that is being read
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    /// Bytes that are not read yet
    rest: &'a [u8],
    /// Bytes at the start, which bound the lengths of arrays and maps
    bytes: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            bytes: bytes.len(),
        }
    }

    /// Returns the bytes that are not read yet
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes one token; after the head of an array or map come its items
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. Where the reader stands is then unspecified.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>, ReadError> {
        let marker = self.byte()?;
        Ok(match marker {
            0..m::FIX_MAP => Token::Int(i64::from(marker)),
            m::NEGATIVE_FIX_INT.. => Token::Int(i64::from(marker.cast_signed())),
            m::FIX_MAP..m::FIX_ARRAY => self.map(u32::from(marker & 0x0f))?,
            m::FIX_ARRAY..m::FIX_STR => self.array(u32::from(marker & 0x0f))?,
            m::FIX_STR..m::NIL => Token::Str(self.take(usize::from(marker & 0x1f))?),
            m::NIL => Token::Nil,
            m::FALSE => Token::Bool(false),
            m::TRUE => Token::Bool(true),
            m::BIN_8 => self.length_8().and_then(|len| self.bin(len))?,
            m::BIN_16 => self.length_16().and_then(|len| self.bin(len))?,
            m::BIN_32 => self.length_32().and_then(|len| self.bin(len))?,
            m::EXT_8 => self.length_8().and_then(|len| self.ext(len))?,
            m::EXT_16 => self.length_16().and_then(|len| self.ext(len))?,
            m::EXT_32 => self.length_32().and_then(|len| self.ext(len))?,
            m::FLOAT_32 => Token::Float(f64::from(f32::from_be_bytes(self.array_of()?))),
            m::FLOAT_64 => Token::Float(f64::from_be_bytes(self.array_of()?)),
            m::UINT_8 => Token::Int(i64::from(self.byte()?)),
            m::UINT_16 => Token::Int(i64::from(u16::from_be_bytes(self.array_of()?))),
            m::UINT_32 => Token::Int(i64::from(u32::from_be_bytes(self.array_of()?))),
            m::UINT_64 => {
                let value = u64::from_be_bytes(self.array_of()?);
                i64::try_from(value).map_or(Token::Uint(value), Token::Int)
            }
            m::INT_8 => Token::Int(i64::from(i8::from_be_bytes(self.array_of()?))),
            m::INT_16 => Token::Int(i64::from(i16::from_be_bytes(self.array_of()?))),
            m::INT_32 => Token::Int(i64::from(i32::from_be_bytes(self.array_of()?))),
            m::INT_64 => Token::Int(i64::from_be_bytes(self.array_of()?)),
            m::FIX_EXT_1 => self.ext(1)?,
            m::FIX_EXT_2 => self.ext(2)?,
            m::FIX_EXT_4 => self.ext(4)?,
            m::FIX_EXT_8 => self.ext(8)?,
            m::FIX_EXT_16 => self.ext(16)?,
            m::STR_8 => self.length_8().and_then(|len| self.str(len))?,
            m::STR_16 => self.length_16().and_then(|len| self.str(len))?,
            m::STR_32 => self.length_32().and_then(|len| self.str(len))?,
            m::ARRAY_16 => self.length_16().and_then(|len| self.array(len))?,
            m::ARRAY_32 => self.length_32().and_then(|len| self.array(len))?,
            m::MAP_16 => self.length_16().and_then(|len| self.map(len))?,
            m::MAP_32 => self.length_32().and_then(|len| self.map(len))?,
            // The one byte that the format leaves unused.
            _ => return Err(ReadError::Format { marker }),
        })
    }

    fn str(&mut self, len: u32) -> Result<Token<'a>, ReadError> {
        Ok(Token::Str(self.take(len as usize)?))
    }

    fn bin(&mut self, len: u32) -> Result<Token<'a>, ReadError> {
        Ok(Token::Bin(self.take(len as usize)?))
    }

    fn ext(&mut self, len: u32) -> Result<Token<'a>, ReadError> {
        let code = self.byte()?.cast_signed();
        Ok(Token::Ext(code, self.take(len as usize)?))
    }

    /// Each item takes a byte or more, so what claims more than there are is refused at once
    fn array(&mut self, items: u32) -> Result<Token<'a>, ReadError> {
        if items as usize > self.bytes {
            let max = self.bytes;
            return Err(ReadError::ArrayTooLong { items, max });
        }
        Ok(Token::Array(items))
    }

    fn map(&mut self, pairs: u32) -> Result<Token<'a>, ReadError> {
        let max = self.bytes / 2;
        if pairs as usize > max {
            return Err(ReadError::MapTooLong { pairs, max });
        }
        Ok(Token::Map(pairs))
    }

    fn length_8(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from(self.byte()?))
    }

    fn length_16(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from(u16::from_be_bytes(self.array_of()?)))
    }

    fn length_32(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from_be_bytes(self.array_of()?))
    }

    fn byte(&mut self) -> Result<u8, ReadError> {
        let (byte, rest) = self.rest.split_first().ok_or(ReadError::Incomplete)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ReadError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(ReadError::Incomplete)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array_of<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], ReadError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(ReadError::Incomplete)?;
        self.rest = rest;
        Ok(*taken)
    }
}

/// One piece of msgpack
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// Nothing
    Nil,
    /// A truth value
    Bool(bool),
    /// An integer
    Int(i64),
    /// An integer above `i64::MAX`
    Uint(u64),
    /// A number
    Float(f64),
    /// Text, which should be UTF-8 but is not checked
    Str(&'a [u8]),
    /// Binary data
    Bin(&'a [u8]),
    /// An array of so many items follows
    Array(u32),
    /// A map of so many keys and values follows
    Map(u32),
    /// Data of an application's type
    Ext(i8, &'a [u8]),
}

/// A point in time
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timestamp {
    /// Since 1970
    pub seconds: i64,
    /// After that
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Reads the data of an ext of type [`TIMESTAMP`](super::TIMESTAMP); `None` if it has the wrong
    /// length
    pub fn parse(data: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).ok();
        let long = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
        Some(match data.len() {
            4 => Self {
                seconds: i64::from(word(data)?),
                nanoseconds: 0,
            },
            8 => {
                let joined = long(data)?;
                Self {
                    seconds: (joined & ((1 << 34) - 1)).cast_signed(),
                    nanoseconds: u32::try_from(joined >> 34).ok()?,
                }
            }
            12 => Self {
                seconds: long(&data[4..])?.cast_signed(),
                nanoseconds: word(&data[..4])?,
            },
            _ => return None,
        })
    }
}

/// Bytes that are not msgpack, or not all of it; the sender's fault
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes end too early
    #[error("incomplete input")]
    Incomplete,
    /// A byte that means nothing
    #[error("byte {marker:#04x} is no msgpack")]
    Format {
        /// The byte
        marker: u8,
    },
    /// An array claims more items than there are bytes
    #[error("{items} exceeds max_array_len({max})")]
    ArrayTooLong {
        /// Claimed
        items: u32,
        /// Possible
        max: usize,
    },
    /// A map claims more pairs than there are bytes for
    #[error("{pairs} exceeds max_map_len({max})")]
    MapTooLong {
        /// Claimed
        pairs: u32,
        /// Possible
        max: usize,
    },
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use proptest::prelude::*;

    use super::super::Writer;
    use super::*;

    fn read(bytes: &[u8]) -> Result<Token<'_>, ReadError> {
        Reader::new(bytes).token()
    }

    #[test]
    fn every_first_byte_but_one_starts_a_token() {
        for marker in 0..=u8::MAX {
            let mut bytes = [0; 64];
            bytes[0] = marker;
            assert_eq!(read(&bytes).is_err(), marker == 0xc1, "{marker:#x}");
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_before_anything_is_reserved() {
        assert_eq!(read(b"\xc6\xff\xff\xff\xffa"), Err(ReadError::Incomplete));
        assert_eq!(read(b"\xd9\x02a"), Err(ReadError::Incomplete));
        assert_eq!(
            read(b"\xc9\xff\xff\xff\xff\x05"),
            Err(ReadError::Incomplete)
        );
        let max = 5;
        let items = u32::MAX;
        assert_eq!(
            read(b"\xdd\xff\xff\xff\xff"),
            Err(ReadError::ArrayTooLong { items, max })
        );
        assert_eq!(
            read(b"\xdf\xff\xff\xff\xff"),
            Err(ReadError::MapTooLong {
                pairs: items,
                max: 2
            })
        );
    }

    #[test]
    fn timestamps_of_all_lengths_are_read_back() {
        for (seconds, nanoseconds, bytes) in [
            (1, 0, 6),
            (1, 2, 10),
            ((1 << 34) - 1, 999_999_999, 10),
            (1 << 34, 0, 15),
            (-1, 5, 15),
            // More than a second of them, as a peer may send, would not fit into 30 bits.
            (1, u32::MAX, 15),
        ] {
            let mut writer = Writer::default();
            writer.timestamp(seconds, nanoseconds);
            assert_eq!(writer.len(), bytes);
            let Ok(Token::Ext(super::super::TIMESTAMP, data)) = read(writer.as_bytes()) else {
                panic!("no timestamp");
            };
            let expected = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(Timestamp::parse(data), Some(expected));
        }
        assert_eq!(Timestamp::parse(b""), None);
    }

    /// A token with its data owned
    #[derive(Clone, Debug)]
    enum Written {
        Nil,
        Bool(bool),
        Int(i64),
        Uint(u64),
        Float(f64),
        Str(String),
        Bin(Vec<u8>),
        Array(u16),
        Map(u16),
        Ext(i8, Vec<u8>),
    }

    impl Written {
        fn write(&self, writer: &mut Writer) {
            match self {
                Self::Nil => writer.nil(),
                Self::Bool(value) => writer.bool(*value),
                Self::Int(value) => writer.int(*value),
                Self::Uint(value) => writer.uint(*value),
                Self::Float(value) => writer.float(*value),
                Self::Str(text) => writer.str(text).unwrap(),
                Self::Bin(data) => writer.bin(data).unwrap(),
                Self::Array(items) => writer.array(usize::from(*items)).unwrap(),
                Self::Map(pairs) => writer.map(usize::from(*pairs)).unwrap(),
                Self::Ext(code, data) => writer.ext(*code, data).unwrap(),
            }
        }

        fn token(&self) -> Token<'_> {
            match self {
                Self::Nil => Token::Nil,
                Self::Bool(value) => Token::Bool(*value),
                Self::Int(value) => Token::Int(*value),
                Self::Uint(value) => i64::try_from(*value).map_or(Token::Uint(*value), Token::Int),
                Self::Float(value) => Token::Float(*value),
                Self::Str(text) => Token::Str(text.as_bytes()),
                Self::Bin(data) => Token::Bin(data),
                Self::Array(items) => Token::Array(u32::from(*items)),
                Self::Map(pairs) => Token::Map(u32::from(*pairs)),
                Self::Ext(code, data) => Token::Ext(*code, data),
            }
        }
    }

    fn tokens() -> impl Strategy<Value = Written> {
        let data = || proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            Just(Written::Nil),
            any::<bool>().prop_map(Written::Bool),
            any::<i64>().prop_map(Written::Int),
            (-70_000_i64..70_000).prop_map(Written::Int),
            any::<u64>().prop_map(Written::Uint),
            any::<f64>().prop_map(Written::Float),
            ".{0,100}".prop_map(Written::Str),
            data().prop_map(Written::Bin),
            any::<u16>().prop_map(Written::Array),
            any::<u16>().prop_map(Written::Map),
            (any::<i8>(), data()).prop_map(|(code, data)| Written::Ext(code, data)),
        ]
    }

    proptest! {
        #[test]
        fn written_tokens_are_read_back(all in proptest::collection::vec(tokens(), 0..40)) {
            let mut writer = Writer::default();
            for token in &all {
                token.write(&mut writer);
            }
            // Lengths of arrays and maps are bounded by the bytes at hand.
            let mut bytes = writer.into_bytes();
            bytes.resize(bytes.len() + 140_000, 0);
            let mut reader = Reader::new(&bytes);
            for token in &all {
                prop_assert_eq!(reader.token(), Ok(token.token()));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            while !reader.rest().is_empty() {
                let left = reader.rest().len();
                if reader.token().is_err() {
                    break;
                }
                prop_assert!(reader.rest().len() < left);
            }
        }

        #[test]
        fn a_cut_token_is_incomplete(token in tokens(), cut in 1_usize..300) {
            let mut writer = Writer::default();
            token.write(&mut writer);
            let cut = cut.min(writer.len());
            let bytes = &writer.as_bytes()[..writer.len() - cut];
            prop_assert_eq!(read(bytes), Err(ReadError::Incomplete));
        }
    }
}
