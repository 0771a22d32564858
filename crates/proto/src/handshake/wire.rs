//! The messages of a handshake as bytes: how long they are, and selections and answers.
//!
//! A message is checked as its bytes come, so a peer that says something else is found out at
//! once, and no more is collected than a good message has.

use super::error::HandshakeError;
use crate::hello::{HELLO_BODY_BYTES_MAX, HelloError, MAGIC, MAGIC_OFFSET, PREFIX_BYTES, VERSION};
use crate::lane::LaneKind;

/// How long a Hello is, going by its beginning
pub(super) fn hello_bytes(received: &[u8]) -> Result<usize, HandshakeError> {
    if !may_be_hello(received) {
        return match may_be_dask(received) {
            true if received.len() < DASK_BYTES => Ok(DASK_BYTES),
            true => Err(HandshakeError::SpeaksDask),
            false if may_be_tls(received) && received.len() < TLS_BYTES => Ok(TLS_BYTES),
            false if may_be_tls(received) => Err(HandshakeError::SpeaksTls),
            false => Err(HandshakeError::NotBackhaul {
                found: received.escape_ascii().to_string(),
            }),
        };
    }
    let Some(prefix) = received.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES);
    };
    let peer = u16::from_le_bytes([prefix[16], prefix[17]]);
    if peer != VERSION {
        return Err(HandshakeError::Version {
            peer,
            supported: VERSION,
        });
    }
    let bytes = length(received).saturating_sub((PREFIX_BYTES - MAGIC_OFFSET) as u64);
    match usize::try_from(bytes) {
        Ok(body_bytes) if body_bytes <= HELLO_BODY_BYTES_MAX => Ok(PREFIX_BYTES + body_bytes),
        _ => Err(HandshakeError::Hello(HelloError::TooLong {
            bytes,
            max: HELLO_BODY_BYTES_MAX,
        })),
    }
}

/// How long a selection or answer is, with the proof that it may have, going by its beginning
pub(super) fn choice_bytes(
    received: &[u8],
    expected: u8,
    proof_bytes: usize,
) -> Result<usize, HandshakeError> {
    match *received {
        [found, ..] if found != expected => {
            // To name a second Hello in the error, a few bytes more are waited for.
            let magic_end = MAGIC_OFFSET + MAGIC.len();
            if found == SELECT || found == ANSWER || !may_be_hello(received) {
                Err(HandshakeError::UnexpectedMessage { expected, found })
            } else if received.len() < magic_end {
                Ok(magic_end)
            } else {
                Err(HandshakeError::RepeatedHello { expected })
            }
        }
        [_, _, low, high, ..] => {
            let bytes = usize::from(u16::from_le_bytes([low, high]));
            if bytes > REASON_BYTES_MAX {
                return Err(HandshakeError::ReasonTooLong {
                    bytes,
                    max: REASON_BYTES_MAX,
                });
            }
            Ok(CHOICE_BYTES + bytes + proof_bytes)
        }
        _ => Ok(CHOICE_BYTES + proof_bytes),
    }
}

/// Returns whether bytes are how a Hello of some version begins, as far as they have come
fn may_be_hello(received: &[u8]) -> bool {
    // Its length is below 65,536, so the third byte is 0, which it is not in text.
    let magic = received.get(MAGIC_OFFSET..).unwrap_or_default();
    let magic_bytes = magic.len().min(MAGIC.len());
    let shortest = (PREFIX_BYTES - MAGIC_OFFSET) as u64;
    received
        .iter()
        .take(MAGIC_OFFSET)
        .skip(2)
        .all(|byte| *byte == 0)
        && (received.len() < 2 || length(received) >= shortest)
        && magic[..magic_bytes] == MAGIC[..magic_bytes]
}

/// Returns whether bytes are how Dask's own protocol begins, as far as they have come
///
/// A u64 with the number of bytes that follow, and a u64 with the number of frames in them, which
/// is one for what a connection begins with (`pack_frames` in `distributed.protocol.utils`).
fn may_be_dask(received: &[u8]) -> bool {
    let frames = received.get(MAGIC_OFFSET..).unwrap_or_default().iter();
    received
        .iter()
        .take(MAGIC_OFFSET)
        .skip(2)
        .all(|byte| *byte == 0)
        && (received.len() < 2 || length(received) > DASK_BYTES as u64)
        && frames
            .zip(&1_u64.to_le_bytes())
            .all(|(found, expected)| found == expected)
}

/// Returns whether bytes are how TLS begins, as far as they have come: a record (RFC 8446, section
/// 5.1) of a handshake or of an alert
fn may_be_tls(received: &[u8]) -> bool {
    let (content, rest) = match received {
        [content, rest @ ..] => (*content, rest),
        [] => return true,
    };
    matches!(content, 0x15 | 0x16) && rest.first().is_none_or(|major| *major == 3)
}

/// The length that a Hello begins with, of which at least the two lower bytes have come
fn length(received: &[u8]) -> u64 {
    let mut bytes = [0; MAGIC_OFFSET];
    let known = received.len().min(MAGIC_OFFSET);
    bytes[..known].copy_from_slice(&received[..known]);
    u64::from_le_bytes(bytes)
}

pub(super) fn decode_choice(message: &[u8]) -> Result<(LaneKind, String), HandshakeError> {
    let code = message[1];
    let lane = LaneKind::from_code(code).ok_or(HandshakeError::UnknownLane { code })?;
    let reason = str::from_utf8(&message[CHOICE_BYTES..]);
    let reason = reason.map_err(|_| HandshakeError::ReasonNotText)?;
    Ok((lane, reason.to_owned()))
}

pub(super) fn encode_choice(message_type: u8, lane: LaneKind, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason_bytes = u16::try_from(end).expect("cut above");
    let mut message = vec![message_type, lane.code()];
    message.extend_from_slice(&reason_bytes.to_le_bytes());
    message.extend_from_slice(&reason.as_bytes()[..end]);
    message
}

/// How much of Dask's protocol it takes to know it
const DASK_BYTES: usize = 16;
/// How much of TLS it takes to know it, when it is no Hello
const TLS_BYTES: usize = 3;
/// Type of a selection
pub(super) const SELECT: u8 = 0x51;
/// Type of an answer
pub(super) const ANSWER: u8 = 0x52;
/// Bytes of a selection or answer in front of the reason
pub(super) const CHOICE_BYTES: usize = 4;
/// Longest reason, in bytes: a line of text, not a log
pub(super) const REASON_BYTES_MAX: usize = 512;
