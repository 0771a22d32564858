//! The msgpack format, as tokens.
//!
//! [`Writer`] appends tokens to a buffer in their shortest form; [`Reader`] takes them from a slice
//! with every length checked. The meaning and nesting of tokens is the caller's.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md>, including the ext types and
//! the timestamp of its extension −1.

mod item;
mod reader;
mod writer;

pub use reader::{ReadError, Reader, Timestamp, Token};
pub use writer::{TooLong, Writer};

/// The ext type of timestamps
pub const TIMESTAMP: i8 = -1;

/// First byte of each form; `FIX…` are the lowest of a range
mod marker {
    pub(super) const FIX_MAP: u8 = 0x80;
    pub(super) const FIX_ARRAY: u8 = 0x90;
    pub(super) const FIX_STR: u8 = 0xa0;
    pub(super) const NIL: u8 = 0xc0;
    pub(super) const FALSE: u8 = 0xc2;
    pub(super) const TRUE: u8 = 0xc3;
    pub(super) const BIN_8: u8 = 0xc4;
    pub(super) const BIN_16: u8 = 0xc5;
    pub(super) const BIN_32: u8 = 0xc6;
    pub(super) const EXT_8: u8 = 0xc7;
    pub(super) const EXT_16: u8 = 0xc8;
    pub(super) const EXT_32: u8 = 0xc9;
    pub(super) const FLOAT_32: u8 = 0xca;
    pub(super) const FLOAT_64: u8 = 0xcb;
    pub(super) const UINT_8: u8 = 0xcc;
    pub(super) const UINT_16: u8 = 0xcd;
    pub(super) const UINT_32: u8 = 0xce;
    pub(super) const UINT_64: u8 = 0xcf;
    pub(super) const INT_8: u8 = 0xd0;
    pub(super) const INT_16: u8 = 0xd1;
    pub(super) const INT_32: u8 = 0xd2;
    pub(super) const INT_64: u8 = 0xd3;
    pub(super) const FIX_EXT_1: u8 = 0xd4;
    pub(super) const FIX_EXT_2: u8 = 0xd5;
    pub(super) const FIX_EXT_4: u8 = 0xd6;
    pub(super) const FIX_EXT_8: u8 = 0xd7;
    pub(super) const FIX_EXT_16: u8 = 0xd8;
    pub(super) const STR_8: u8 = 0xd9;
    pub(super) const STR_16: u8 = 0xda;
    pub(super) const STR_32: u8 = 0xdb;
    pub(super) const ARRAY_16: u8 = 0xdc;
    pub(super) const ARRAY_32: u8 = 0xdd;
    pub(super) const MAP_16: u8 = 0xde;
    pub(super) const MAP_32: u8 = 0xdf;
    pub(super) const NEGATIVE_FIX_INT: u8 = 0xe0;
}
