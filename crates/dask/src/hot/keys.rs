//! Keys as they travel, and as the core has them.
//!
//! A key that is text is its bytes. Any other begins with a zero byte, and behind it has its msgpack,
//! each byte of that as the character of this number, so that all of it is text. The texts are made
//! by `backhaul.dask.scheduler.core.key_text`; one that begins with [`ODD`] stands for a key that msgpack
//! has no form for.

use std::borrow::Cow;

use super::outgoing::Unsayable;
use crate::msgpack::{Reader, Token, Writer};

/// A key, given the msgpack of it if it is no text
pub fn key_of(msgpack: &[u8]) -> Vec<u8> {
    let text: String = std::iter::once('\0')
        .chain(msgpack.iter().map(|&byte| char::from(byte)))
        .collect();
    text.into_bytes()
}

/// A key, given the msgpack of it
pub(super) fn of_msgpack(msgpack: &[u8]) -> Vec<u8> {
    match Reader::new(msgpack).token() {
        Ok(Token::Str(text)) => text.to_vec(),
        _ => key_of(msgpack),
    }
}

/// Returns whether a key has a form in which it travels
pub fn is_sayable(key: &[u8]) -> bool {
    std::str::from_utf8(key).is_ok_and(|text| !text.starts_with(ODD))
}

/// Group, and prefix, of a key, as `key_split_group` and `key_split` have them; None where that is
/// for Python to say
pub(super) fn group_of(key: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(key)
        .ok()
        .filter(|text| text.is_ascii())?;
    if text.starts_with("shuffle-") || !text.starts_with(|first: char| first.is_ascii_alphabetic())
    {
        return None;
    }
    let mut words = text.split('-');
    let mut group = words.next()?.to_owned();
    for word in words {
        let is_name = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        let looks_hex = word.len() == 8 && word.starts_with(|first| ('a'..='f').contains(&first));
        if !is_name || looks_hex {
            break;
        }
        group.push('-');
        group.push_str(word);
    }
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    // A hash, which is data.
    (group.len() != 32 || !group.bytes().all(is_hex)).then_some(group)
}

/// Group and prefix of a key, given the msgpack of it, likewise; a tuple is of the group that its
/// first item names. Keys that equal a number of another kind are for Python, too
pub(super) fn names_of(msgpack: &[u8]) -> Option<(String, String)> {
    let mut reader = Reader::new(msgpack);
    match reader.token().ok()? {
        Token::Str(text) => {
            let group = group_of(text)?;
            Some((group.clone(), group))
        }
        Token::Array(count) => {
            let Ok(Token::Str(first)) = reader.token() else {
                return None;
            };
            let prefix = group_of(first)?;
            for _ in 1..count {
                pass_plain(&mut reader, NESTING_MAX)?;
            }
            Some((std::str::from_utf8(first).ok()?.to_owned(), prefix))
        }
        _ => None,
    }
}

/// Passes a part of a key that is text, a whole number, or a tuple of these
fn pass_plain(reader: &mut Reader<'_>, nesting_left: u32) -> Option<()> {
    match reader.token().ok()? {
        Token::Str(_) | Token::Int(_) | Token::Uint(_) => Some(()),
        Token::Array(count) => {
            let nesting_left = nesting_left.checked_sub(1)?;
            (0..count).try_for_each(|_| pass_plain(reader, nesting_left))
        }
        _ => None,
    }
}

/// A key that came as text; None if such a text stands for another key
pub(super) fn of_text(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    (text.first() != Some(&0) && std::str::from_utf8(text).is_ok()).then_some(Cow::Borrowed(text))
}

/// Writes a key as it travels
pub(super) fn write(writer: &mut Writer, key: &[u8]) -> Result<(), Unsayable> {
    let text = std::str::from_utf8(key).map_err(|_| Unsayable)?;
    let Some(shifted) = text.strip_prefix('\0') else {
        return Ok(writer.str(text)?);
    };
    let bytes: Option<Vec<u8>> = shifted
        .chars()
        .map(|one| u8::try_from(u32::from(one)).ok())
        .collect();
    writer.extend(&bytes.ok_or(Unsayable)?);
    Ok(())
}

/// Keys nest less than this
const NESTING_MAX: u32 = 32;

/// Begins the text of a key that msgpack has no form for
pub(super) const ODD: &str = "\0\u{100}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_dask() {
        // As `distributed.utils.key_split_group` of 2026.7.1 says; `test_streams.py` asks it for more.
        for (key, group) in [
            ("x", Some("x")),
            ("x-1", Some("x")),
            ("hello-world-1", Some("hello-world")),
            ("inc-0b0e7b1e-9c2f-4f6e-8f07-2f6a1f6ad3f1", Some("inc")),
            ("x-abcdefab", Some("x")),
            ("x-abcdefgh-y", Some("x")),
            ("x-ghabcdef-y", Some("x-ghabcdef-y")),
            ("x-", Some("x")),
            ("a,b-1", Some("a,b")),
            ("ae05086432ca935f6eba409a8ecd4896", None),
            ("('x-2', 1)", None),
            ("<module.myclass object at 0xdaf372", None),
            ("_(x)", None),
            ("shuffle-x-1", None),
            ("ä-1", None),
            ("", None),
        ] {
            assert_eq!(group_of(key.as_bytes()).as_deref(), group, "{key}");
        }
    }
}
