//! Run specs, as the core keeps them and as they travel.
//!
//! A whole one is an array of the id of its span, or nothing, of the keys that it depends on, or
//! nothing, and of the frames of its pickle. One of many calls of a function has only its own of it
//! (`codec::calls`), and is put together when it is sent.

use super::keys;
use super::outgoing::{Frames, Unsayable};
use crate::codec::calls::{Shared, dependencies_of};
use crate::codec::header;
use crate::msgpack::{Reader, Token, Writer};
use crate::scheduler::Spec;

/// Writes the whole spec of a submitted task; without dependencies, the event loop has to load the
/// spec to find out what the task is
pub(super) fn write<K: AsRef<[u8]>>(
    pickle: &[u8],
    span: Option<&str>,
    dependencies: Option<&[K]>,
) -> Result<Vec<u8>, Unsayable> {
    let frame = header::of_pickle(&[pickle])?;
    let mut writer = Writer::with_capacity(frame.len() + SPEC_BYTES);
    writer.array(3)?;
    match span {
        Some(span) => writer.str(span)?,
        None => writer.nil(),
    }
    match dependencies {
        Some(dependencies) => {
            writer.array(dependencies.len())?;
            dependencies
                .iter()
                .try_for_each(|key| keys::write(&mut writer, key.as_ref()))?;
        }
        None => writer.nil(),
    }
    writer.bin(frame.as_bytes())?;
    Ok(writer.into_bytes())
}

/// Reads the spec of a task into frames, giving the id of its span
pub(super) fn read<'a>(spec: &'a Spec, key: &[u8], frames: &mut Frames) -> Option<Option<&'a str>> {
    match &spec.shared {
        None => read_whole(&spec.own, frames),
        Some(shared) => {
            let shared = Shared::read(shared)?;
            let pickle = shared.pickle(std::str::from_utf8(key).ok()?, &spec.own)?;
            let frame = header::of_pickle(&[&pickle]).ok()?;
            frames.push(frame.into_bytes());
            Some(shared.span)
        }
    }
}

/// The spec of a task as if it shared nothing; `None` if it is malformed
#[must_use]
pub fn whole(spec: &Spec, key: &[u8]) -> Option<Vec<u8>> {
    let Some(shared) = &spec.shared else {
        return Some(spec.own.to_vec());
    };
    let shared = Shared::read(shared)?;
    let pickle = shared.pickle(std::str::from_utf8(key).ok()?, &spec.own)?;
    let dependencies: Vec<Vec<u8>> = dependencies_of(&spec.own)
        .iter()
        .map(|key| keys::of_msgpack(key))
        .collect();
    write(&pickle, shared.span, Some(&dependencies)).ok()
}

fn read_whole<'a>(spec: &'a [u8], frames: &mut Frames) -> Option<Option<&'a str>> {
    let mut reader = Reader::new(spec);
    let Ok(Token::Array(items)) = reader.token() else {
        return None;
    };
    let span = match reader.token().ok()? {
        Token::Nil => None,
        Token::Str(span) => Some(std::str::from_utf8(span).ok()?),
        _ => return None,
    };
    let dependencies = reader.token().ok()?;
    reader.skip(dependencies, NESTING_MAX)?;
    for _ in 2..items {
        let Ok(Token::Bin(frame)) = reader.token() else {
            return None;
        };
        frames.push(frame.to_vec());
    }
    (items > 2).then_some(span)
}

/// More than is around the pickle of a short task
const SPEC_BYTES: usize = 64;

/// Keys nest less than this
const NESTING_MAX: u32 = 32;
