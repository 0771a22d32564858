//! From the bytes of a lane to frames.
//!
//! Reads headers and segment tables, never payload. Every limit is checked before memory is taken,
//! and a segment table takes no more memory than twice the bytes of it that really came.

use smallvec::{SmallVec, smallvec};

use crate::error::ProtocolError;
use crate::frame::{FrameHeader, HEADER_BYTES};
use crate::limits::Limits;
use crate::memory::{SOURCE_ENTRY_BYTES, SegmentSource, SourceTable, Sources};

/// Sizes of the segments of a message, in bytes; inline for as many as most messages have
pub type SegmentBytes = SmallVec<[u64; 4]>;

/// A header with its segment table
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// The header
    pub header: FrameHeader,
    /// Sizes of the segments if a message starts here, else empty; they add up to the message
    pub segment_bytes: SegmentBytes,
    /// Where each of them lies, if the frame says
    pub sources: Option<SourceTable>,
}

/// Collects the bytes of a lane into frames
///
/// After a frame that carries payload, the caller takes `payload_bytes` bytes off the lane before
/// it feeds more here. After an error the lane has lost its frame boundaries: feed no more.
#[derive(Debug)]
pub struct FrameDecoder {
    /// Header, or entry of the table, that is incomplete; `filled` bytes of it have come
    partial: [u8; HEADER_BYTES],
    /// Below [`HEADER_BYTES`], and below the size of an entry while there is a table
    filled: usize,
    /// The table being read
    table: Option<Table>,
}

/// A segment table of which at least one entry is missing
#[derive(Debug)]
struct Table {
    header: FrameHeader,
    segment_bytes: SegmentBytes,
    sources: Option<Sources>,
    /// Sum of `segment_bytes`; at most the bytes of the message
    sum_bytes: u64,
}

impl FrameDecoder {
    /// Starts before the first frame
    #[must_use]
    pub const fn new() -> Self {
        Self {
            partial: [0; HEADER_BYTES],
            filled: 0,
            table: None,
        }
    }

    /// Feeds bytes, returning how many were used and the frame if one is complete
    ///
    /// Without a frame, all bytes have been used.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] for what is no header, and for a message beyond `limits`, which are the
    /// limits of this side.
    pub fn handle(
        &mut self,
        limits: &Limits,
        bytes: &[u8],
    ) -> Result<(usize, Option<Frame>), ProtocolError> {
        let mut used = 0;
        if self.table.is_none() {
            let Some(header) = self.take::<HEADER_BYTES>(bytes, &mut used) else {
                return Ok((used, None));
            };
            let header = FrameHeader::decode(&header)?;
            check_limits(&header, limits)?;
            if let Some(segment_bytes) = segments_without_table(&header)? {
                let frame = Frame {
                    header,
                    segment_bytes,
                    sources: None,
                };
                return Ok((used, Some(frame)));
            }
            self.table = Some(Table {
                header,
                segment_bytes: SegmentBytes::new(),
                sources: header.has_sources.then(Sources::new),
                sum_bytes: 0,
            });
        }
        while let Some((bytes, source)) = self.take_entry(bytes, &mut used)? {
            let table = self.table.as_mut().expect("made above if it was missing");
            if table.push(bytes, source)? {
                let frame = self.table.take().map(|table| Frame {
                    header: table.header,
                    segment_bytes: table.segment_bytes,
                    sources: table.sources.map(Sources::into_boxed_slice),
                });
                return Ok((used, frame));
            }
        }
        Ok((used, None))
    }

    /// The next entry of the table, unless it has not come whole
    fn take_entry(
        &mut self,
        bytes: &[u8],
        used: &mut usize,
    ) -> Result<Option<(u64, SegmentSource)>, ProtocolError> {
        let header = self.table.as_ref().map(|table| table.header);
        let header = header.expect("an entry belongs to a table");
        if !header.has_sources {
            let entry = self.take::<ENTRY_BYTES>(bytes, used);
            return Ok(entry.map(|entry| (u64::from_le_bytes(entry), SegmentSource::default())));
        }
        let entry = self.take::<SOURCE_ENTRY_BYTES>(bytes, used);
        entry
            .map(|entry| SegmentSource::decode(&entry, header.message))
            .transpose()
    }

    /// Returns whether a frame has begun and is not complete
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.filled > 0 || self.table.is_some()
    }

    /// The next `N` bytes, unless they have not all come; `used` moves on
    fn take<const N: usize>(&mut self, bytes: &[u8], used: &mut usize) -> Option<[u8; N]> {
        let rest = &bytes[*used..];
        if self.filled == 0
            && let Some(whole) = rest.first_chunk::<N>()
        {
            *used += N;
            return Some(*whole);
        }
        let count = rest.len().min(N - self.filled);
        self.partial[self.filled..self.filled + count].copy_from_slice(&rest[..count]);
        self.filled += count;
        *used += count;
        if self.filled < N {
            return None;
        }
        self.filled = 0;
        self.partial.first_chunk::<N>().copied()
    }
}

impl Default for FrameDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// Adds an entry, returning whether it was the last
    fn push(&mut self, bytes: u64, source: SegmentSource) -> Result<bool, ProtocolError> {
        let message_bytes = self.header.payload_bytes;
        self.sum_bytes = self
            .sum_bytes
            .checked_add(bytes)
            .filter(|sum_bytes| *sum_bytes <= message_bytes)
            .ok_or(ProtocolError::SegmentsDisagree {
                message_bytes,
                segment_bytes: u64::MAX,
            })?;
        let segments = self.header.segment_count;
        let no_memory = |_| ProtocolError::NoMemory { segments };
        self.segment_bytes.try_reserve(1).map_err(no_memory)?;
        self.segment_bytes.push(bytes);
        if let Some(sources) = &mut self.sources {
            sources.try_reserve(1).map_err(no_memory)?;
            sources.push(source);
        }
        if self.segment_bytes.len() < self.header.segment_count as usize {
            return Ok(false);
        }
        if self.sum_bytes < message_bytes {
            return Err(ProtocolError::SegmentsDisagree {
                message_bytes,
                segment_bytes: self.sum_bytes,
            });
        }
        Ok(true)
    }
}

fn check_limits(header: &FrameHeader, limits: &Limits) -> Result<(), ProtocolError> {
    if header.segment_count > limits.segments_max {
        return Err(ProtocolError::TooManySegments {
            segments: header.segment_count,
            max: limits.segments_max,
        });
    }
    if header.payload_bytes > limits.message_bytes_max {
        return Err(ProtocolError::MessageTooLarge {
            bytes: header.payload_bytes,
            max: limits.message_bytes_max,
        });
    }
    Ok(())
}

/// The segments of a frame that has no table
fn segments_without_table(header: &FrameHeader) -> Result<Option<SegmentBytes>, ProtocolError> {
    match header.segment_count {
        0 if header.kind.starts_message() && header.payload_bytes > 0 => {
            Err(ProtocolError::SegmentsDisagree {
                message_bytes: header.payload_bytes,
                segment_bytes: 0,
            })
        }
        0 => Ok(Some(SegmentBytes::new())),
        _ if header.has_sources => Ok(None),
        1 => Ok(Some(smallvec![header.payload_bytes])),
        _ => Ok(None),
    }
}

/// Bytes of one entry of the segment table
const ENTRY_BYTES: usize = 8;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::connection::{encode_sources, encode_start};
    use crate::frame::FrameKind;
    use crate::memory::{Device, MemoryKind, Offer, Vendor};

    fn limits() -> Limits {
        Limits {
            message_bytes_max: 1000,
            segments_max: 8,
            ..Limits::default()
        }
    }

    fn start(kind: FrameKind, segment_bytes: &[u64]) -> FrameHeader {
        FrameHeader {
            segment_count: u32::try_from(segment_bytes.len()).unwrap(),
            payload_bytes: segment_bytes.iter().sum(),
            tag: 7,
            ..FrameHeader::bare(kind, 3)
        }
    }

    /// A request that says where each segment lies, as it goes on the wire
    fn request(segment_bytes: &[u64], sources: &[SegmentSource]) -> Vec<u8> {
        let header = FrameHeader {
            has_sources: true,
            ..start(FrameKind::Request, segment_bytes)
        };
        encode_sources(&header, segment_bytes, sources).to_vec()
    }

    fn any_source() -> impl Strategy<Value = SegmentSource> {
        let device = (any::<bool>(), any::<u16>()).prop_map(|(real, ordinal)| {
            let vendor = if real {
                Vendor::Nvidia
            } else {
                Vendor::Experimental
            };
            MemoryKind::Device(Device { vendor, ordinal })
        });
        let memory = prop_oneof![Just(MemoryKind::Host), device];
        let offer = (1_u8.., any::<u64>()).prop_map(|(carrier, token)| Offer { carrier, token });
        (memory, proptest::option::of(offer))
            .prop_map(|(memory, offer)| SegmentSource { memory, offer })
    }

    /// Feeds all of `bytes`, which carry no payload
    fn decode_all(bytes: &[u8], piece_bytes: usize) -> Result<Vec<Frame>, ProtocolError> {
        let mut decoder = FrameDecoder::new();
        let mut frames = Vec::new();
        for mut piece in bytes.chunks(piece_bytes) {
            while !piece.is_empty() {
                let (used, frame) = decoder.handle(&limits(), piece)?;
                assert!(used > 0, "bytes were given and none was used");
                assert!(frame.is_some() || used == piece.len());
                frames.extend(frame);
                piece = &piece[used..];
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_fed_byte_by_byte_are_the_same() {
        let mut bytes = Vec::new();
        for segments in [&[][..], &[5], &[0, 9, 1], &[1; 8]] {
            bytes.extend(encode_start(&start(FrameKind::Eager, segments), segments));
        }
        bytes.extend(FrameHeader::bare(FrameKind::Accept, 9).encode());
        let whole = decode_all(&bytes, bytes.len()).unwrap();
        assert_eq!(whole.len(), 5);
        assert_eq!(whole[2].segment_bytes.as_slice(), [0, 9, 1]);
        for piece_bytes in [1, 2, 7, 31, 33] {
            assert_eq!(decode_all(&bytes, piece_bytes).unwrap(), whole);
        }
    }

    #[test]
    fn the_sources_of_segments_are_read_byte_by_byte() {
        let mut bytes = start(FrameKind::Request, &[5, 0x0201]).encode().to_vec();
        bytes[1] = 2;
        bytes.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 1, 3, 2, 9, 0, 0, 0]);
        bytes.extend([8, 7, 6, 5, 4, 3, 2, 1]);
        bytes.extend([1, 2, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0; 16]);
        bytes.extend(FrameHeader::bare(FrameKind::Accept, 9).encode());
        let device = MemoryKind::Device(Device {
            vendor: Vendor::Nvidia,
            ordinal: 0x0203,
        });
        let offer = Some(Offer {
            carrier: 9,
            token: 0x0102_0304_0506_0708,
        });
        let offered = SegmentSource {
            memory: device,
            offer,
        };
        for piece_bytes in [1, 5, 8, 23, 24, 25, 1000] {
            let frames = decode_all(&bytes, piece_bytes).unwrap();
            assert_eq!(frames.len(), 2);
            assert_eq!(frames[0].segment_bytes.as_slice(), [5, 0x0201]);
            let sources = frames[0].sources.as_deref();
            assert_eq!(sources, Some(&[offered, SegmentSource::default()][..]));
            assert_eq!(frames[1].sources, None);
        }
    }

    #[test]
    fn a_single_segment_has_an_entry_where_its_source_is_told() {
        let mut decoder = FrameDecoder::new();
        let bytes = request(&[700], &[SegmentSource::default()]);
        assert_eq!(bytes.len(), HEADER_BYTES + SOURCE_ENTRY_BYTES);
        let (used, frame) = decoder.handle(&limits(), &bytes[..55]).unwrap();
        assert_eq!((used, frame), (55, None));
        assert!(decoder.is_partial());
        let (used, frame) = decoder.handle(&limits(), &bytes[55..]).unwrap();
        assert_eq!(used, 1);
        assert_eq!(frame.unwrap().sources.unwrap().len(), 1);
        assert!(!decoder.is_partial());
    }

    #[test]
    fn sources_of_unknown_memory_are_refused() {
        let mut bytes = request(&[1, 2], &[SegmentSource::default(); 2]);
        bytes[HEADER_BYTES + SOURCE_ENTRY_BYTES + 8] = 7;
        let error = decode_all(&bytes, 100).unwrap_err();
        let (memory, message) = (7, 3);
        assert_eq!(error, ProtocolError::UnknownMemory { memory, message });
    }

    #[test]
    fn a_table_of_sources_that_does_not_add_up_is_refused() {
        let mut bytes = request(&[1, 2], &[SegmentSource::default(); 2]);
        bytes[HEADER_BYTES] = 2;
        let error = decode_all(&bytes, 100).unwrap_err();
        let expected = ProtocolError::SegmentsDisagree {
            message_bytes: 3,
            segment_bytes: u64::MAX,
        };
        assert_eq!(error, expected);
    }

    #[test]
    fn a_table_that_does_not_add_up_is_refused() {
        for (table, found) in [
            ([1, 1], 2),
            ([3, 1], u64::MAX),
            ([u64::MAX, u64::MAX], u64::MAX),
        ] {
            let header = start(FrameKind::Request, &[1, 2]);
            let error = decode_all(&encode_start(&header, &table), 100).unwrap_err();
            let expected = ProtocolError::SegmentsDisagree {
                message_bytes: 3,
                segment_bytes: found,
            };
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn limits_are_checked_at_the_header() {
        let many = FrameHeader {
            segment_count: 9,
            ..start(FrameKind::Eager, &[])
        };
        let long = start(FrameKind::Request, &[1001]);
        let missing = FrameHeader {
            segment_count: 0,
            ..start(FrameKind::Eager, &[4])
        };
        for header in [many, long, missing] {
            decode_all(&header.encode(), 32).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn any_message_start_comes_back(
            segments in proptest::collection::vec(0_u64..120, 0..=8),
            piece_bytes in 1_usize..80,
        ) {
            let header = start(FrameKind::Eager, &segments);
            let frames = decode_all(&encode_start(&header, &segments), piece_bytes).unwrap();
            prop_assert_eq!(frames.len(), 1);
            prop_assert_eq!(frames[0].header, header);
            prop_assert_eq!(frames[0].segment_bytes.as_slice(), &segments[..]);
        }

        #[test]
        fn any_request_with_sources_comes_back(
            segments in proptest::collection::vec((1_u64..120, any_source()), 1..=8),
            piece_bytes in 1_usize..80,
        ) {
            let (segment_bytes, sources): (Vec<_>, Vec<_>) = segments.into_iter().unzip();
            let bytes = request(&segment_bytes, &sources);
            let frames = decode_all(&bytes, piece_bytes).unwrap();
            prop_assert_eq!(frames.len(), 1);
            prop_assert_eq!(frames[0].segment_bytes.as_slice(), &segment_bytes[..]);
            prop_assert_eq!(frames[0].sources.as_deref(), Some(&sources[..]));
        }

        #[test]
        fn garbage_is_refused_or_within_limits(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0_u8..13,
            plain in any::<bool>(),
            piece_bytes in 1_usize..80,
        ) {
            // A plausible beginning is decoded further than random bytes.
            if plain && bytes.len() >= HEADER_BYTES {
                let (flags, segments) = (bytes[1] & 3, bytes[4] & 15);
                bytes[..8].copy_from_slice(&[kind, flags, 0, 0, segments, 0, 0, 0]);
                bytes[25..32].fill(0);
            }
            if let Ok(frames) = decode_all(&bytes, piece_bytes) {
                for frame in frames {
                    prop_assert!(frame.header.payload_bytes <= limits().message_bytes_max);
                    prop_assert!(frame.segment_bytes.len() <= limits().segments_max as usize);
                    if frame.header.kind.starts_message() {
                        let sum: u64 = frame.segment_bytes.iter().sum();
                        prop_assert_eq!(sum, frame.header.payload_bytes);
                    }
                    if let Some(sources) = frame.sources {
                        prop_assert!(frame.header.has_sources);
                        prop_assert_eq!(sources.len(), frame.segment_bytes.len());
                    }
                }
            }
        }
    }
}
