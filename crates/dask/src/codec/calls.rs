//! Many calls of one function: what their tasks share, and what each has of its own.
//!
//! The payload of a task ([`super::task`]) has an item for each of its slots. Calls of one function
//! differ in three of them, so these are left out of what all share: its pieces, and holes
//! between them. A client sends the pieces once, then key, dependencies and arguments of each call
//! ([`Calls`]). The owner of the tasks keeps the pieces once, too ([`Shared`]), and joins a task
//! when it is sent.

use std::collections::HashSet;

use super::task::{pickle_around, tag};
use crate::msgpack::{Reader, Token, TooLong, Writer};

/// Numbers of the holes, where pieces are listed
pub mod hole {
    /// The key, which is text
    pub const KEY: u64 = 0;
    /// A frozen set of the keys that it depends on
    pub const DEPENDENCIES: u64 = 1;
    /// A tuple
    pub const ARGUMENTS: u64 = 2;
}

/// A part of the payload of a task
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Piece<'a> {
    Shared(&'a [u8]),
    Key,
    Dependencies,
    Arguments,
}

/// Calls as a client sends them
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    /// Opcodes of a pickle, up to the payload
    prefix: &'a [u8],
    /// The pieces, an array
    pieces: &'a [u8],
    count: u32,
    calls: &'a [u8],
}

/// One of them
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Call<'a> {
    /// Its key
    pub key: &'a str,
    /// Parts that its task does not share: dependencies and arguments
    pub own: &'a [u8],
    /// The first of these
    dependencies: &'a [u8],
}

/// Parts that the tasks of some calls share, as they are kept
#[derive(Clone, Debug)]
pub struct Shared<'a> {
    /// The span of their group
    pub span: Option<&'a str>,
    prefix: &'a [u8],
    pieces: Vec<Piece<'a>>,
}

/// Writes what comes before the calls: the prefix of their pickles, the pieces, which the caller has
/// written as an array, and how many calls follow
///
/// # Errors
///
/// [`TooLong`] for a prefix that msgpack cannot hold.
pub fn write_head(
    writer: &mut Writer,
    prefix: &[u8],
    pieces: &[u8],
    count: usize,
) -> Result<(), TooLong> {
    writer.bin(prefix)?;
    writer.extend(pieces);
    writer.uint(count as u64);
    Ok(())
}

impl<'a> Calls<'a> {
    /// Reads all of them; `None` if they are malformed, or two have one key
    #[must_use]
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let calls = Self::read_head(data)?;
        let mut reader = Reader::new(calls.calls);
        let mut keys = HashSet::with_capacity(calls.calls.len().min(calls.len()));
        for _ in 0..calls.count {
            let call = Call::read(&mut reader)?;
            call.dependency_items()?;
            if !keys.insert(call.key) {
                return None;
            }
        }
        reader.rest().is_empty().then_some(calls)
    }

    /// Reads them as far as they are well formed, of bytes that [`Self::read`] has found to be
    #[must_use]
    pub fn read_head(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let Ok(Token::Bin(prefix)) = reader.token() else {
            return None;
        };
        let pieces = reader.item(NESTING_MAX)?;
        read_pieces(&mut Reader::new(pieces))?;
        let Ok(Token::Int(count)) = reader.token() else {
            return None;
        };
        Some(Self {
            prefix,
            pieces,
            count: u32::try_from(count).ok()?,
            calls: reader.rest(),
        })
    }

    /// How many there are
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether there are none
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each of them
    pub fn iter(&self) -> impl Iterator<Item = Call<'a>> + use<'a> {
        let mut reader = Reader::new(self.calls);
        (0..self.count).map_while(move |_| Call::read(&mut reader))
    }

    /// Returns the parts that their tasks share, of one span, as they are kept
    ///
    /// # Errors
    ///
    /// [`TooLong`] for a span that msgpack cannot hold.
    pub fn shared(&self, span: Option<&str>) -> Result<Vec<u8>, TooLong> {
        let mut writer = Writer::with_capacity(self.prefix.len() + self.pieces.len() + SPAN_BYTES);
        match span {
            Some(span) => writer.str(span)?,
            None => writer.nil(),
        }
        writer.bin(self.prefix)?;
        writer.extend(self.pieces);
        Ok(writer.into_bytes())
    }

    /// The pickle of the task of one of them; `None` if there is none so long
    #[must_use]
    pub fn pickle(&self, call: &Call<'_>) -> Option<Vec<u8>> {
        let pieces = read_pieces(&mut Reader::new(self.pieces))?;
        pickle(self.prefix, &pieces, call.key, call.own)
    }
}

impl<'a> Call<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let Ok(Token::Str(key)) = reader.token() else {
            return None;
        };
        let key = std::str::from_utf8(key).ok()?;
        let own = reader.rest();
        let dependencies = reader.item(NESTING_MAX)?;
        let arguments = reader.item(NESTING_MAX)?;
        Some(Self {
            key,
            own: &own[..dependencies.len() + arguments.len()],
            dependencies,
        })
    }

    /// Returns whether it depends on anything
    #[must_use]
    pub fn has_dependencies(&self) -> bool {
        self.dependency_items().is_some_and(|(count, _)| count > 0)
    }

    /// Msgpack of the keys that it depends on, each by itself
    #[must_use]
    pub fn dependencies(&self) -> Vec<Vec<u8>> {
        let Some((count, mut reader)) = self.dependency_items() else {
            return Vec::new();
        };
        (0..count).map_while(|_| plain_key(&mut reader)).collect()
    }

    /// How many keys it depends on, and where they begin; `None` if that is no frozen set of keys
    fn dependency_items(&self) -> Option<(u32, Reader<'a>)> {
        let mut reader = Reader::new(self.dependencies);
        let (Ok(Token::Array(items)), Ok(Token::Int(kind))) = (reader.token(), reader.token())
        else {
            return None;
        };
        let is_set = u64::try_from(kind) == Ok(tag::FROZEN_SET);
        let keys = reader.clone();
        for _ in 1..items {
            write_plain(&mut reader, &mut Writer::default(), NESTING_MAX)?;
        }
        is_set.then_some((items.checked_sub(1)?, keys))
    }
}

impl<'a> Shared<'a> {
    /// Reads what [`Calls::shared`] wrote
    #[must_use]
    pub fn read(shared: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(shared);
        let span = match reader.token().ok()? {
            Token::Nil => None,
            Token::Str(span) => Some(std::str::from_utf8(span).ok()?),
            _ => return None,
        };
        let Ok(Token::Bin(prefix)) = reader.token() else {
            return None;
        };
        let pieces = read_pieces(&mut reader)?;
        Some(Self {
            span,
            prefix,
            pieces,
        })
    }

    /// The pickle of a task, of its key and of what it has of its own
    #[must_use]
    pub fn pickle(&self, key: &str, own: &[u8]) -> Option<Vec<u8>> {
        pickle(self.prefix, &self.pieces, key, own)
    }
}

/// Msgpack of the keys that a task depends on, of what it has of its own
#[must_use]
pub fn dependencies_of(own: &[u8]) -> Vec<Vec<u8>> {
    let dependencies = Reader::new(own).item(NESTING_MAX).unwrap_or_default();
    let call = Call {
        key: "",
        own,
        dependencies,
    };
    call.dependencies()
}

fn read_pieces<'a>(reader: &mut Reader<'a>) -> Option<Vec<Piece<'a>>> {
    let Ok(Token::Array(count)) = reader.token() else {
        return None;
    };
    (0..count)
        .map(|_| match reader.token().ok()? {
            Token::Bin(shared) => Some(Piece::Shared(shared)),
            Token::Int(number) => match u64::try_from(number).ok()? {
                hole::KEY => Some(Piece::Key),
                hole::DEPENDENCIES => Some(Piece::Dependencies),
                hole::ARGUMENTS => Some(Piece::Arguments),
                _ => None,
            },
            _ => None,
        })
        .collect()
}

fn pickle(prefix: &[u8], pieces: &[Piece<'_>], key: &str, own: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Reader::new(own);
    let dependencies = reader.item(NESTING_MAX)?;
    let arguments = reader.item(NESTING_MAX)?;
    let mut key_item = Writer::with_capacity(key.len() + KEY_BYTES);
    key_item.str(key).ok()?;
    let parts = pieces.iter().map(|piece| match piece {
        Piece::Shared(shared) => shared,
        Piece::Key => key_item.as_bytes(),
        Piece::Dependencies => dependencies,
        Piece::Arguments => arguments,
    });
    let payload_bytes = parts.clone().map(<[u8]>::len).sum();
    let (head, tail) = pickle_around(payload_bytes)?;
    let bytes = prefix.len() + head.len() + payload_bytes + tail.len();
    let mut pickle = Vec::with_capacity(bytes);
    pickle.extend_from_slice(prefix);
    pickle.extend_from_slice(&head);
    parts.for_each(|part| pickle.extend_from_slice(part));
    pickle.extend_from_slice(tail);
    Some(pickle)
}

/// Msgpack of a key as it travels, of how it is written in a payload; `None` if it is no key
pub(super) fn plain_key(reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let mut writer = Writer::default();
    write_plain(reader, &mut writer, NESTING_MAX)?;
    Some(writer.into_bytes())
}

/// Writes a key as it travels, of how it is written in a payload: a tuple has a tag there
fn write_plain(reader: &mut Reader<'_>, writer: &mut Writer, nesting_left: u32) -> Option<()> {
    let before = reader.rest();
    match reader.token().ok()? {
        Token::Array(items) => {
            let nesting_left = nesting_left.checked_sub(1)?;
            let Ok(Token::Int(kind)) = reader.token() else {
                return None;
            };
            if u64::try_from(kind) != Ok(tag::TUPLE) {
                return None;
            }
            let items = items.checked_sub(1)?;
            writer.array(items as usize).ok()?;
            (0..items).try_for_each(|_| write_plain(reader, writer, nesting_left))
        }
        Token::Map(_) | Token::Ext(..) => None,
        _ => {
            writer.extend(&before[..before.len() - reader.rest().len()]);
            Some(())
        }
    }
}

/// As deep as arguments nest
const NESTING_MAX: u32 = 110;

/// More than a span takes, and all else around the pieces
const SPAN_BYTES: usize = 64;

/// More than is in front of a text
const KEY_BYTES: usize = 8;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;
    use crate::codec::task::payload_of;

    fn add_call(writer: &mut Writer, key: &str, needs: &[&str], argument: u64) {
        writer.str(key).unwrap();
        writer.array(1 + needs.len()).unwrap();
        writer.uint(tag::FROZEN_SET);
        for need in needs {
            writer.str(need).unwrap();
        }
        writer.array(2).unwrap();
        writer.uint(tag::TUPLE);
        writer.uint(argument);
    }

    fn calls() -> Vec<u8> {
        let mut pieces = Writer::default();
        pieces.array(5).unwrap();
        pieces.bin(b"<").unwrap();
        pieces.uint(hole::KEY);
        pieces.uint(hole::ARGUMENTS);
        pieces.bin(b"|").unwrap();
        pieces.uint(hole::DEPENDENCIES);
        let mut writer = Writer::default();
        write_head(&mut writer, PREFIX, pieces.as_bytes(), 2).unwrap();
        add_call(&mut writer, "x", &[], 300);
        add_call(&mut writer, "y", &["x", "z"], 1);
        writer.into_bytes()
    }

    #[test]
    fn a_task_is_joined_from_shared_and_own_parts() {
        let data = calls();
        let read = Calls::read(&data).unwrap();
        assert_eq!(read.len(), 2);
        let shared = read.shared(Some("span")).unwrap();
        let shared = Shared::read(&shared).unwrap();
        assert_eq!(shared.span, Some("span"));
        let payloads = [
            &b"<\xa1x\x92\x00\xcd\x01\x2c|\x91\x03"[..],
            b"<\xa1y\x92\x00\x01|\x93\x03\xa1x\xa1z",
        ];
        for (call, payload) in read.iter().zip(payloads) {
            let pickle = read.pickle(&call).unwrap();
            assert_eq!(payload_of(&pickle, PREFIX), Some(payload));
            assert_eq!(shared.pickle(call.key, call.own), Some(pickle));
        }
        let needs: Vec<_> = read.iter().map(|call| call.dependencies()).collect();
        assert_eq!(needs, [vec![], vec![b"\xa1x".to_vec(), b"\xa1z".to_vec()]]);
    }

    #[test]
    fn a_key_that_is_a_tuple_travels_without_its_tag() {
        let mut own = Writer::default();
        own.array(2).unwrap();
        own.uint(tag::FROZEN_SET);
        own.array(3).unwrap();
        own.uint(tag::TUPLE);
        own.str("x").unwrap();
        own.uint(3);
        assert_eq!(dependencies_of(own.as_bytes()), [b"\x92\xa1x\x03".to_vec()]);
    }

    #[test]
    fn calls_that_are_cut_or_go_on_are_none() {
        let mut data = calls();
        for end in 0..data.len() {
            assert!(Calls::read(&data[..end]).is_none(), "{end}");
        }
        data.push(0xc0);
        assert!(Calls::read(&data).is_none());
    }

    const PREFIX: &[u8] = b"\x80\x05prefix";
}
