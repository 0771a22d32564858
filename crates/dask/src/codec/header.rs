//! Placeholders in a message, and the headers of the frames that they name.
//!
//! An object that msgpack cannot say is a map with a reserved key in the message: a set, or the
//! number of the frame that has the object's header, with its frames behind. The words are those of
//! `distributed.protocol.core` and `.serialize` (2026.7.1).

use crate::msgpack::{Reader, Token, TooLong, Writer};

/// Key of the placeholder of a pickled object
pub const PICKLED: &str = "__Pickled__";
/// Key of the placeholder of a serialized object
pub const SERIALIZED: &str = "__Serialized__";
/// Key of the map that stands for a set
pub const SET: &str = "__Set__";
/// Key of the items of that set
pub const SET_ITEMS: &str = "as-list";

/// Returns whether a key makes its map stand for something else
#[inline]
#[must_use]
pub fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(b"__") && RESERVED.contains(&key)
}

/// Writes the placeholder of an object whose header is in a frame
///
/// # Errors
///
/// [`TooLong`] for a key that msgpack cannot hold, which none of those above is.
pub fn write_placeholder(writer: &mut Writer, key: &str, frame: usize) -> Result<(), TooLong> {
    writer.map(1)?;
    writer.str(key)?;
    writer.uint(frame as u64);
    Ok(())
}

/// The header of a pickled object without buffers, whose pickle comes in parts
///
/// # Errors
///
/// [`TooLong`] for a pickle that msgpack cannot hold.
pub fn of_pickle(parts: &[&[u8]]) -> Result<Writer, TooLong> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut header = Writer::with_capacity(bytes + KEYS_BYTES);
    header.map(3)?;
    header.str(PICKLED_OBJECT)?;
    header.bin_parts(parts)?;
    header.str(COMPRESSION)?;
    header.array(0)?;
    header.str(SUB_FRAMES)?;
    header.uint(0);
    Ok(header)
}

/// The pickle in the header of a pickled object without buffers; `None`, if it is not that
#[must_use]
pub fn pickle_of(header: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(header);
    let Ok(Token::Map(pairs)) = reader.token() else {
        return None;
    };
    let mut pickle = None;
    let mut sub_frames = None;
    for _ in 0..pairs {
        let Ok(Token::Str(key)) = reader.token() else {
            return None;
        };
        match (key, reader.token().ok()?) {
            (key, Token::Bin(data)) if key == PICKLED_OBJECT.as_bytes() => pickle = Some(data),
            (key, Token::Array(0)) if key == COMPRESSION.as_bytes() => {}
            (key, Token::Int(count)) if key == SUB_FRAMES.as_bytes() => sub_frames = Some(count),
            _ => return None,
        }
    }
    pickle.filter(|_| sub_frames == Some(0) && reader.rest().is_empty())
}

/// Keys that make a map stand for something else
const RESERVED: [&[u8]; 4] = [
    SERIALIZED.as_bytes(),
    PICKLED.as_bytes(),
    SET.as_bytes(),
    b"__Enum__",
];

/// Keys of the header of a pickled object
const PICKLED_OBJECT: &str = "pickled-obj";
const COMPRESSION: &str = "compression";
const SUB_FRAMES: &str = "num-sub-frames";

/// More than these keys take, and all else around the pickle
const KEYS_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pickle_is_found_in_its_header() {
        for pickle in [&b""[..], b"\x80\x05N.", &[7; 300], &[7; 70_000]] {
            let (head, tail) = pickle.split_at(pickle.len() / 2);
            let header = of_pickle(&[head, tail]).expect("not too long");
            assert_eq!(pickle_of(header.as_bytes()), Some(pickle));
            assert!(header.len() <= pickle.len() + KEYS_BYTES);
        }
    }

    #[test]
    fn a_header_that_is_cut_or_goes_on_is_none() {
        let header = of_pickle(&[b"\x80\x05N."]).expect("not too long");
        let header = header.as_bytes();
        for end in 0..header.len() {
            assert_eq!(pickle_of(&header[..end]), None, "{end}");
        }
        assert_eq!(pickle_of(&[header, &[0]].concat()), None);
    }

    #[test]
    fn a_header_with_buffers_compression_or_other_keys_is_none() {
        type Add = fn(&mut Writer);
        let all: [(Add, Add); 3] = [
            (
                |header| header.array(0).expect("short"),
                |header| header.uint(1),
            ),
            (
                |header| header.array(1).expect("short"),
                |header| header.uint(0),
            ),
            (
                |header| header.array(0).expect("short"),
                |header| header.nil(),
            ),
        ];
        for (compression, sub_frames) in all {
            let mut header = Writer::default();
            header.map(3).expect("short");
            header.str(PICKLED_OBJECT).expect("short");
            header.bin(b"N.").expect("short");
            header.str(COMPRESSION).expect("short");
            compression(&mut header);
            header.str(SUB_FRAMES).expect("short");
            sub_frames(&mut header);
            assert_eq!(pickle_of(header.as_bytes()), None);
        }
        assert_eq!(pickle_of(b"\x81\xa1xN"), None);
        assert_eq!(pickle_of(b"\x80"), None);
    }

    #[test]
    fn reserved_keys_are_those_of_dask() {
        for key in ["__Serialized__", "__Pickled__", "__Set__", "__Enum__"] {
            assert!(is_reserved(key.as_bytes()));
        }
        for key in ["", "__", "op", "as-list", "__Sets__", "__set__"] {
            assert!(!is_reserved(key.as_bytes()));
        }
    }
}
