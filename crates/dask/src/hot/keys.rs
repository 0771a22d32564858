//! Keys as they travel, and as the core has them.
//!
//! A key that is text is its bytes. Any other begins with a zero byte, and behind it has its msgpack,
//! each byte of that as the character of this number, so that all of it is text. The texts are made
//! by `backhaul.dask.scheduler_core.keys`; one that begins with [`ODD`] stands for a key that msgpack
//! has no form for.

use std::borrow::Cow;

use super::outgoing::Unsayable;
use crate::msgpack::Writer;

/// A key, given the msgpack of it if it is no text
pub fn key_of(msgpack: &[u8]) -> Vec<u8> {
    let text: String = std::iter::once('\0')
        .chain(msgpack.iter().map(|&byte| char::from(byte)))
        .collect();
    text.into_bytes()
}

/// Whether a key has a form in which it travels
pub fn is_sayable(key: &[u8]) -> bool {
    std::str::from_utf8(key).is_ok_and(|text| !text.starts_with(ODD))
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

/// Begins the text of a key that msgpack has no form for
pub(super) const ODD: &str = "\0\u{100}";
