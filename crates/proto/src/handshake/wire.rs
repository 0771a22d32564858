//! The messages of a handshake as bytes: how long they are, and selections and answers.
//!
//! A message is checked as its bytes come, so a peer that says something else is found out at
//! once, and no more is collected than a good message has.

use super::error::HandshakeError;
use crate::hello::{HELLO_BODY_BYTES_MAX, HelloError, MAGIC, PREFIX_BYTES, VERSION};
use crate::lane::LaneKind;

/// How long a Hello is, going by its beginning
pub(super) fn hello_bytes(received: &[u8]) -> Result<usize, HandshakeError> {
    let magic_bytes = received.len().min(MAGIC.len());
    if received[..magic_bytes] != MAGIC[..magic_bytes] {
        return Err(HandshakeError::NotBackhaul {
            found: received[..magic_bytes].escape_ascii().to_string(),
        });
    }
    let Some(prefix) = received.first_chunk::<PREFIX_BYTES>() else {
        return Ok(PREFIX_BYTES);
    };
    let peer = u16::from_le_bytes([prefix[8], prefix[9]]);
    if peer != VERSION {
        return Err(HandshakeError::Version {
            peer,
            supported: VERSION,
        });
    }
    let bytes = u32::from_le_bytes([prefix[12], prefix[13], prefix[14], prefix[15]]);
    match usize::try_from(bytes) {
        Ok(body_bytes) if body_bytes <= HELLO_BODY_BYTES_MAX => Ok(PREFIX_BYTES + body_bytes),
        _ => Err(HandshakeError::Hello(HelloError::TooLong {
            bytes,
            max: HELLO_BODY_BYTES_MAX,
        })),
    }
}

/// How long a selection or answer is, going by its beginning
pub(super) fn choice_bytes(received: &[u8], expected: u8) -> Result<usize, HandshakeError> {
    match *received {
        [found, ..] if found != expected => {
            Err(HandshakeError::UnexpectedMessage { expected, found })
        }
        [_, _, low, high, ..] => {
            let bytes = usize::from(u16::from_le_bytes([low, high]));
            if bytes > REASON_BYTES_MAX {
                return Err(HandshakeError::ReasonTooLong {
                    bytes,
                    max: REASON_BYTES_MAX,
                });
            }
            Ok(CHOICE_BYTES + bytes)
        }
        _ => Ok(CHOICE_BYTES),
    }
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

/// Type of a selection
pub(super) const SELECT: u8 = 0x51;
/// Type of an answer
pub(super) const ANSWER: u8 = 0x52;
/// Bytes of a selection or answer in front of the reason
pub(super) const CHOICE_BYTES: usize = 4;
/// Longest reason, in bytes: a line of text, not a log
pub(super) const REASON_BYTES_MAX: usize = 512;
