//! The frame header: 32 bytes, little-endian, in front of everything on a lane.
//!
//! ```text
//! 0 u8 kind | 1 u8 flags | 2 u8 carrier | 3 u8 reserved | 4 u32 segment_count | 8 u64 message | 16 u64 tag | 24 u64 payload_bytes
//! ```
//!
//! A field that a kind does not use is zero; anything else is refused, so that a later version
//! can give it a meaning.

use crate::error::ProtocolError;
use crate::ids::{MessageKind, Tag};

/// Bytes of a header on the wire
pub const HEADER_BYTES: usize = 32;

/// Flag: the message belongs to the untagged stream
const FLAG_UNTAGGED: u8 = 1;

/// Flag of a request: its segment table says where each segment lies
const FLAG_SOURCES: u8 = 2;

/// Purpose of a frame
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum FrameKind {
    /// A short message; its bytes follow
    Eager = 1,
    /// A long message is ready; its bytes wait for an [`Accept`](Self::Accept)
    Request = 2,
    /// The bytes of a requested message may come
    Accept = 3,
    /// The bytes of a requested message are not wanted
    Skip = 4,
    /// The next bytes of an accepted message
    Data = 5,
    /// Messages and eager bytes granted since the start
    Credit = 6,
    /// A question whether the peer lives
    Ping = 7,
    /// The answer to a ping
    Pong = 8,
    /// No message follows
    Close = 9,
    /// The next bytes of an accepted message come by a carrier, beside the lane
    Carried = 10,
    /// The receiver has fetched the bytes of a requested message by itself
    Fetched = 11,
}

impl FrameKind {
    /// The number on the wire
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Eager,
            2 => Self::Request,
            3 => Self::Accept,
            4 => Self::Skip,
            5 => Self::Data,
            6 => Self::Credit,
            7 => Self::Ping,
            8 => Self::Pong,
            9 => Self::Close,
            10 => Self::Carried,
            11 => Self::Fetched,
            _ => return None,
        })
    }

    /// Returns whether the frame starts a message, and so may have a segment table
    #[must_use]
    pub const fn starts_message(self) -> bool {
        matches!(self, Self::Eager | Self::Request)
    }

    /// Returns whether `payload_bytes` bytes of payload follow the header
    #[must_use]
    pub const fn carries_payload(self) -> bool {
        matches!(self, Self::Eager | Self::Data)
    }
}

/// A decoded header
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrameHeader {
    /// Purpose of the frame
    pub kind: FrameKind,
    /// True if the message belongs to the untagged stream
    pub untagged: bool,
    /// True if the segment table of a request says where each segment lies
    pub has_sources: bool,
    /// Number of the carrier that brings the bytes; in an Accept, of the one asked for, or 0
    pub carrier: u8,
    /// Segments of the message that starts here, else 0
    pub segment_count: u32,
    /// Number of the message, counted by its sender; total messages in a credit, token in a ping
    pub message: u64,
    /// Tag of the message that starts here; total bytes in a credit, the ticket of what a carrier
    /// brings; in an accept and a fetched, from how many bytes on a message is to be announced, or
    /// 0; else 0
    pub tag: u64,
    /// Bytes that follow; in a request, bytes of the whole message; with a carrier, bytes it brings
    pub payload_bytes: u64,
}

impl FrameHeader {
    /// A header with nothing but a kind and a message number
    #[must_use]
    pub const fn bare(kind: FrameKind, message: u64) -> Self {
        Self {
            kind,
            untagged: false,
            has_sources: false,
            carrier: 0,
            segment_count: 0,
            message,
            tag: 0,
            payload_bytes: 0,
        }
    }

    /// Writes the header as it goes on the wire
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind.code();
        let untagged = u8::from(self.untagged) * FLAG_UNTAGGED;
        bytes[1] = untagged | (u8::from(self.has_sources) * FLAG_SOURCES);
        bytes[2] = self.carrier;
        bytes[4..8].copy_from_slice(&self.segment_count.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.message.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header, checking what can be checked without knowing the connection
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for an unknown kind or flag, a field that should be zero and is not, and
    /// a request or data frame without bytes.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let code = bytes[0];
        let kind = FrameKind::from_code(code).ok_or(ProtocolError::UnknownKind { kind: code })?;
        let flags = bytes[1];
        let flags_allowed = match kind {
            FrameKind::Eager => FLAG_UNTAGGED,
            FrameKind::Request => FLAG_UNTAGGED | FLAG_SOURCES,
            _ => 0,
        };
        if flags & !flags_allowed != 0 {
            return Err(ProtocolError::UnknownFlags { flags, kind: code });
        }
        let header = Self {
            kind,
            untagged: flags & FLAG_UNTAGGED != 0,
            has_sources: flags & FLAG_SOURCES != 0,
            carrier: bytes[2],
            segment_count: u32::from_le_bytes(part(bytes, 4)),
            message: u64::from_le_bytes(part(bytes, 8)),
            tag: u64::from_le_bytes(part(bytes, 16)),
            payload_bytes: u64::from_le_bytes(part(bytes, 24)),
        };
        header.check(bytes[3])?;
        Ok(header)
    }

    /// The matching space and tag of a frame that starts a message
    #[must_use]
    pub const fn message_kind(&self) -> MessageKind {
        if self.untagged {
            MessageKind::Untagged
        } else {
            MessageKind::Tagged(Tag(self.tag))
        }
    }

    fn check(&self, reserved: u8) -> Result<(), ProtocolError> {
        let kind = self.kind;
        // Fast path for most frames, whose other fields may have any value.
        if kind == FrameKind::Eager
            && (reserved, self.carrier) == (0, 0)
            && (self.tag == 0 || !self.untagged)
        {
            return Ok(());
        }
        let has_tag = matches!(
            kind,
            FrameKind::Credit | FrameKind::Carried | FrameKind::Accept | FrameKind::Fetched
        ) || (kind.starts_message() && !self.untagged);
        let has_bytes =
            matches!(kind, FrameKind::Request | FrameKind::Carried) || kind.carries_payload();
        let zeros = [
            ("reserved", u64::from(reserved), true),
            (
                "carrier",
                u64::from(self.carrier),
                !matches!(kind, FrameKind::Carried | FrameKind::Accept),
            ),
            (
                "segment_count",
                u64::from(self.segment_count),
                !kind.starts_message(),
            ),
            ("message", self.message, kind == FrameKind::Close),
            ("tag", self.tag, !has_tag),
            ("payload_bytes", self.payload_bytes, !has_bytes),
        ];
        for (field, value, must_be_zero) in zeros {
            if must_be_zero && value != 0 {
                return Err(ProtocolError::NotZero {
                    field,
                    value,
                    kind: kind.code(),
                });
            }
        }
        if kind == FrameKind::Carried && self.carrier == 0 {
            return Err(ProtocolError::UnknownCarrier {
                carrier: 0,
                message: self.message,
            });
        }
        if has_bytes && kind != FrameKind::Eager && self.payload_bytes == 0 {
            return Err(ProtocolError::NoBytes {
                kind: kind.code(),
                message: self.message,
            });
        }
        Ok(())
    }
}

/// The `N` bytes at `at`
fn part<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let header = FrameHeader {
            segment_count: 0x0403_0201,
            tag: 6,
            payload_bytes: 7,
            ..FrameHeader::bare(FrameKind::Eager, 5)
        };
        let bytes = header.encode();
        assert_eq!(bytes[..8], [1, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!((bytes[8], bytes[16], bytes[24]), (5, 6, 7));
        assert_eq!(FrameHeader::decode(&bytes), Ok(header));
    }

    #[test]
    fn carriers_and_flags_have_their_bytes() {
        let carried = FrameHeader {
            carrier: 9,
            tag: 0x0201,
            payload_bytes: 7,
            ..FrameHeader::bare(FrameKind::Carried, 5)
        };
        let bytes = carried.encode();
        assert_eq!(bytes[..4], [10, 0, 9, 0]);
        assert_eq!(bytes[16..18], [1, 2]);
        let accept = FrameHeader {
            carrier: 9,
            ..FrameHeader::bare(FrameKind::Accept, 5)
        };
        assert_eq!(accept.encode()[..4], [3, 0, 9, 0]);
        let request = FrameHeader {
            untagged: true,
            has_sources: true,
            segment_count: 1,
            payload_bytes: 7,
            ..FrameHeader::bare(FrameKind::Request, 5)
        };
        assert_eq!(request.encode()[..4], [2, 3, 0, 0]);
        let fetched = FrameHeader::bare(FrameKind::Fetched, 5);
        assert_eq!(fetched.encode()[0], 11);
        for header in [carried, accept, request, fetched] {
            assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn only_a_request_tells_where_segments_lie() {
        for kind in (1..=11).filter_map(FrameKind::from_code) {
            let mut bytes = FrameHeader::bare(kind, 0).encode();
            (bytes[1], bytes[24]) = (FLAG_SOURCES, 1);
            let decoded = FrameHeader::decode(&bytes);
            let unknown = ProtocolError::UnknownFlags {
                flags: FLAG_SOURCES,
                kind: kind.code(),
            };
            assert_eq!(decoded.err() == Some(unknown), kind != FrameKind::Request);
        }
    }

    #[test]
    fn only_carried_and_accept_frames_name_a_carrier() {
        for kind in (1..=11).filter_map(FrameKind::from_code) {
            let mut bytes = FrameHeader::bare(kind, 0).encode();
            bytes[2] = 1;
            let named = matches!(kind, FrameKind::Carried | FrameKind::Accept);
            bytes[24] = u8::from(kind == FrameKind::Carried);
            let error = FrameHeader::decode(&bytes).err();
            let field = "carrier";
            let (value, kind) = (1, kind.code());
            let not_zero = ProtocolError::NotZero { field, value, kind };
            assert_eq!(error, (!named).then_some(not_zero));
        }
        let nobody = FrameHeader {
            payload_bytes: 1,
            ..FrameHeader::bare(FrameKind::Carried, 4)
        };
        let (carrier, message) = (0, 4);
        let unknown = ProtocolError::UnknownCarrier { carrier, message };
        assert_eq!(FrameHeader::decode(&nobody.encode()), Err(unknown));
    }

    #[test]
    fn unknown_kinds_flags_and_reserved_bits_are_refused() {
        let good = FrameHeader::bare(FrameKind::Ping, 1).encode();
        for (at, value) in [(0, 0), (0, 12), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            FrameHeader::decode(&bytes).unwrap_err();
        }
    }

    #[test]
    fn fields_a_kind_does_not_use_must_be_zero() {
        let untagged_with_tag = FrameHeader {
            untagged: true,
            tag: 1,
            ..FrameHeader::bare(FrameKind::Eager, 0)
        };
        let accept_with_bytes = FrameHeader {
            payload_bytes: 1,
            ..FrameHeader::bare(FrameKind::Accept, 0)
        };
        let numbered_close = FrameHeader::bare(FrameKind::Close, 1);
        for header in [untagged_with_tag, accept_with_bytes, numbered_close] {
            let error = FrameHeader::decode(&header.encode()).unwrap_err();
            assert!(
                matches!(error, ProtocolError::NotZero { value: 1, .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_request_or_a_piece_of_nothing_is_refused() {
        for kind in [FrameKind::Request, FrameKind::Data, FrameKind::Carried] {
            let header = FrameHeader {
                carrier: u8::from(kind == FrameKind::Carried),
                ..FrameHeader::bare(kind, 4)
            };
            let error = FrameHeader::decode(&header.encode()).unwrap_err();
            let expected = ProtocolError::NoBytes {
                kind: kind.code(),
                message: 4,
            };
            assert_eq!(error, expected);
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            kind in 0_u8..13,
            flags in 0_u8..5,
            carrier in 0_u8..3,
            segment_count in prop_oneof![Just(0_u32), any::<u32>()],
            fields in any::<[u64; 3]>(),
            zeros in any::<[bool; 3]>(),
        ) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[0] = kind;
            bytes[1] = flags;
            bytes[2] = carrier;
            bytes[4..8].copy_from_slice(&segment_count.to_le_bytes());
            for (index, (field, zero)) in fields.into_iter().zip(zeros).enumerate() {
                let field = if zero { 0 } else { field };
                bytes[8 + 8 * index..16 + 8 * index].copy_from_slice(&field.to_le_bytes());
            }
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
